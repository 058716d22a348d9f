"""The one place that touches files: writes are whole or absent, and durable when they return.

Paths are local. Whoever adds other places (fsspec URLs) changes this file and no other.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from practicum.core import StoreError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FULL_TEXT = ("no space left", "file too large", "disk quota exceeded")
_NOTHING_LEFT = 64 * 1024  # bytes; below it a failed write is put down to the full disk


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: after a crash there is the old content or the new, never a mixture.

    Raises StoreError when it cannot be written; nothing half-written is left behind.
    """
    temp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with explained(path):
        try:
            with temp.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temp, path)
        except BaseException:
            with suppress(OSError):
                temp.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def read_bytes(path: Path) -> bytes:
    """The content of a file. Raises StoreError when it is missing or cannot be read."""
    with explained(path):
        return path.read_bytes()


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable (a rename is only after this)."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Make every file and name below `folder` durable."""
    for here, _, names in os.walk(folder, topdown=False):
        for name in names:
            handle = os.open(Path(here, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        sync_folder(Path(here))


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the system's refusals into a StoreError that says what happened and what to do next."""
    try:
        yield
    except FileNotFoundError as error:
        raise StoreError(f"{error.filename or path} does not exist; check the path") from error
    except PermissionError as error:
        raise StoreError(
            f"no permission for {error.filename or path}; "
            "choose a folder you own, or change its mode"
        ) from error
    except StoreError:
        raise
    except Exception as error:
        if _is_full(error, path):
            raise StoreError(
                f"cannot write {path}: the disk ({_free(path) / 1e6:.1f} MB free), a quota or a "
                "file size limit is used up; free some space (old checkpoints may be deleted as "
                "whole folders), or use another disk, then go on with --resume"
            ) from error
        if isinstance(error, OSError):
            raise StoreError(
                f"cannot use {path}: {error}; check the disk and the path, then go on with --resume"
            ) from error
        raise


def _is_full(error: Exception, path: Path) -> bool:
    """Whether a write failed for want of space. Rust and C++ writers tell it in words, or not."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    text = str(error).lower()
    return any(words in text for words in _FULL_TEXT) or _free(path) < _NOTHING_LEFT


def _free(path: Path) -> int:
    """Bytes that an ordinary user may still write on the disk of `path`."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free
