"""A folder belongs to one process at a time; the kernel gives it back when that process dies.

POSIX record locks: a forked child does not inherit them, so that a box or worker which outlives the
run for a moment does not keep the folder. They do not tell two openers in one process apart, which
is what the table of held folders is for.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from practicum.core import StoreError
from practicum.store import files

_held: set[tuple[int, str]] = set()


class FolderLock:
    """Holds `folder/.lock` from the moment it is made until `release`."""

    def __init__(self, folder: Path) -> None:
        """Take the lock, or raise StoreError that names the process which has it."""
        path = folder / ".lock"
        self._name = (os.getpid(), str(path.resolve()))
        if self._name in _held:  # opening and closing it again would drop the lock that is held
            raise StoreError(f"{folder} is already open in this process; close it first")
        with files.explained(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._file, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._file)
            raise StoreError(
                f"{folder} is in use by another process (pid {holder}); "
                "wait until it ends, stop it, or choose another run folder"
            ) from error
        with suppress(OSError):  # the number only serves the message; a full disk must not matter
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, str(os.getpid()).encode(), 0)
        _held.add(self._name)

    def release(self) -> None:
        """Give the folder back. May be called twice."""
        if self._name in _held and self._name[0] == os.getpid():
            _held.discard(self._name)
            os.close(self._file)
