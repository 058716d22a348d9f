import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from practicum.core import StoreError
from practicum.store import checkpoint


def writer(content: bytes):
    def write(folder: Path) -> None:
        (folder / "model.bin").write_bytes(content)
        (folder / "optimizer").mkdir()
        (folder / "optimizer" / "state.bin").write_bytes(content[::-1])

    return write


def test_a_checkpoint_comes_back_verified(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "rl-3"
    checkpoint.save(folder, writer(b"abc"), {"step": 3})
    assert checkpoint.load(folder) == {"step": 3}
    assert (folder / "model.bin").read_bytes() == b"abc"
    assert checkpoint.latest(folder.parent) == folder


def test_latest_follows_time_not_names(tmp_path: Path) -> None:
    for name in ("sft-10", "rl-2", "rl-10"):
        checkpoint.save(tmp_path / name, writer(b"x"), {})
    assert [p.name for p in checkpoint.complete(tmp_path)] == ["sft-10", "rl-2", "rl-10"]
    assert checkpoint.latest(tmp_path / "nothing") is None


@pytest.mark.parametrize("name", ["model.bin", "optimizer/state.bin"])
def test_one_flipped_bit_is_found_and_the_way_out_is_named(tmp_path: Path, name: str) -> None:
    checkpoint.save(tmp_path / "a", writer(b"abc"), {})
    checkpoint.save(tmp_path / "b", writer(b"abc"), {})
    path = tmp_path / "b" / name
    data = bytearray(path.read_bytes())
    data[1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match=rf"{name} is corrupt.*older checkpoint \(a\)"):
        checkpoint.load(tmp_path / "b")
    checkpoint.load(tmp_path / "a")


def test_missing_parts_are_named_and_latest_skips_them(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "a", writer(b"abc"), {})
    (tmp_path / "a" / "model.bin").unlink()
    with pytest.raises(StoreError, match=r"model\.bin is missing; .*start the run again"):
        checkpoint.load(tmp_path / "a")
    assert checkpoint.latest(tmp_path) is None
    (tmp_path / "a" / "manifest.json").write_bytes(b"{")
    with pytest.raises(StoreError, match="no readable manifest"):
        checkpoint.load(tmp_path / "a")
    with pytest.raises(StoreError, match="does not exist"):
        checkpoint.load(tmp_path / "b")


def test_a_failed_writer_leaves_the_old_ones_and_nothing_else(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "a", writer(b"abc"), {"n": 1})

    def broken(folder: Path) -> None:
        writer(b"half")(folder)
        raise RuntimeError("power")

    for name in ("a", "b"):
        with pytest.raises(RuntimeError, match="power"):
            checkpoint.save(tmp_path / name, broken, {"n": 2})
    assert checkpoint.load(tmp_path / "a") == {"n": 1}
    assert os.listdir(tmp_path) == ["a"]


def test_saving_again_replaces_and_leftovers_of_a_kill_go(tmp_path: Path) -> None:
    (tmp_path / ".old.123.tmp").mkdir()
    checkpoint.save(tmp_path / "a", writer(b"abc"), {"n": 1})
    checkpoint.save(tmp_path / "a", writer(b"xyz"), {"n": 2})
    assert checkpoint.load(tmp_path / "a") == {"n": 2}
    assert os.listdir(tmp_path) == ["a"]


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for n in range(5):
        checkpoint.save(tmp_path / f"c{n}", writer(b"x"), {}, keep=2)
    assert sorted(os.listdir(tmp_path)) == ["c3", "c4"]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root; test_run_folder.py covers a file size limit")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def big_safetensors(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(200_000)}, folder / "model.safetensors")


def big_torch(folder: Path) -> None:
    import torch

    torch.save({"w": torch.zeros(200_000)}, folder / "state.pt")


def big_plain(folder: Path) -> None:
    (folder / "x").write_bytes(bytes(800_000))


@pytest.mark.parametrize("write", [big_plain, big_safetensors, big_torch])
def test_a_full_disk_is_said_and_the_old_checkpoint_stays(tiny_disk: Path, write) -> None:
    checkpoint.save(tiny_disk / "a", writer(b"abc"), {"n": 1})
    free = shutil.disk_usage(tiny_disk).free
    with pytest.raises(StoreError, match=r"MB free.*free some space"):
        checkpoint.save(tiny_disk / "b", write, {"n": 2})
    assert os.listdir(tiny_disk) == ["a"]
    assert shutil.disk_usage(tiny_disk).free == free
    assert checkpoint.load(tiny_disk / "a") == {"n": 1}
