"""Checkpoints: folders that are complete and verified, or do not count.

A checkpoint is written into a hidden folder, made durable, sealed with a manifest that holds the
BLAKE3 hash of every file, and renamed into place. `load` gives nothing that differs from its
manifest by a single bit.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3

from practicum.core import StoreError
from practicum.store import files

_MANIFEST = "manifest.json"


class FileRecord(msgspec.Struct, frozen=True):
    """One file of a checkpoint."""

    bytes: int
    blake3: str


class Manifest(msgspec.Struct, frozen=True):
    """What makes a folder a checkpoint."""

    sequence: int  # grows with every checkpoint of the parent folder; the latest has the largest
    meta: dict[str, Any]
    files: dict[str, FileRecord]  # by path relative to the checkpoint


def save(
    folder: Path, writer: Callable[[Path], None], meta: dict[str, Any], *, keep: int | None = None
) -> None:
    """Make the checkpoint `folder` of what `writer` puts into the empty folder it is given.

    With `keep`, only that many checkpoints stay beside each other, this one included. On any error
    nothing half-written is left and the older checkpoints are as they were; StoreError when the
    disk is full or refuses.
    """
    parent = folder.parent
    with files.explained(parent):
        parent.mkdir(parents=True, exist_ok=True)
        _clean(parent)
    temp = parent / f".{folder.name}.{os.getpid()}.tmp"
    try:
        with files.explained(folder):
            temp.mkdir()
            writer(temp)
            manifest = Manifest(_next_sequence(parent), meta, _records(temp))
            (temp / _MANIFEST).write_bytes(msgspec.json.encode(manifest))
            files.sync_tree(temp)
            _move(temp, folder)
    finally:
        shutil.rmtree(temp, ignore_errors=True)
    if keep is not None:
        prune(parent, keep)


def load(folder: Path) -> dict[str, Any]:
    """The meta of a checkpoint whose every file was verified. Raises StoreError otherwise."""
    manifest = _manifest(folder)
    if manifest is None:
        found = "has no readable manifest" if folder.is_dir() else "does not exist"
        raise StoreError(f"checkpoint {folder} {found}; {_way_out(folder)}")
    for name, record in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise StoreError(f"checkpoint file {path} is missing; {_way_out(folder)}")
        if path.stat().st_size != record.bytes or _digest(path) != record.blake3:
            raise StoreError(
                f"checkpoint file {path} is corrupt (it differs from its hash); {_way_out(folder)}"
            )
    return manifest.meta


def meta(folder: Path) -> dict[str, Any]:
    """What a checkpoint says of itself, its files unseen; empty for a folder that is none."""
    manifest = _manifest(folder)
    return manifest.meta if manifest else {}


def latest(parent: Path) -> Path | None:
    """The newest complete checkpoint in `parent`, or None. Its hashes are checked by `load`."""
    found = complete(parent)
    return found[-1] if found else None


def complete(parent: Path) -> list[Path]:
    """The complete checkpoints in `parent`, oldest first: all files of the right size."""
    if not parent.is_dir():
        return []
    found = []
    for folder in parent.iterdir():
        manifest = None if folder.name.startswith(".") else _manifest(folder)
        if manifest and _sizes_match(folder, manifest):
            found.append((manifest.sequence, folder))
    return [folder for _, folder in sorted(found)]


def prune(parent: Path, keep: int) -> None:
    """Delete all but the newest `keep` complete checkpoints (at least one stays)."""
    for folder in complete(parent)[: -max(keep, 1)]:
        doomed = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        with files.explained(folder):
            os.rename(folder, doomed)  # at no moment is it half a checkpoint
            shutil.rmtree(doomed)


def _move(temp: Path, folder: Path) -> None:
    """Put the finished checkpoint in its place; an older one of that name makes room."""
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old.tmp")
    if folder.exists():
        os.rename(folder, old)
    os.rename(temp, folder)
    files.sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _clean(parent: Path) -> None:
    """Remove what a killed run left half-written (the run folder's lock keeps others out)."""
    for rest in parent.glob(".*.tmp"):
        shutil.rmtree(rest, ignore_errors=True)


def _records(folder: Path) -> dict[str, FileRecord]:
    paths = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): FileRecord(p.stat().st_size, _digest(p)) for p in paths}


def _digest(path: Path) -> str:
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()


def _manifest(folder: Path) -> Manifest | None:
    try:
        return msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError):
        return None


def _sizes_match(folder: Path, manifest: Manifest) -> bool:
    paths = ((folder / name, record) for name, record in manifest.files.items())
    return all(p.is_file() and p.stat().st_size == record.bytes for p, record in paths)


def _next_sequence(parent: Path) -> int:
    manifests = (_manifest(folder) for folder in parent.iterdir())
    return 1 + max((m.sequence for m in manifests if m), default=0)


def _way_out(folder: Path) -> str:
    """What to do about a checkpoint that cannot be used."""
    others = [p.name for p in complete(folder.parent) if p != folder]
    if not others:
        return "there is no other complete checkpoint beside it: start the run again"
    return (
        f"delete that folder to go on from an older checkpoint ({', '.join(others[-3:])}), "
        "or start the run again"
    )
