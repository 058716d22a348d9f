"""Append-only JSON lines. What `append` returned from survives power loss; a torn line is cut.

Only the last line can be torn (a crash while it was written), and it was never acknowledged. A bad
line elsewhere is corruption, and is reported as such.
"""

import os
from pathlib import Path
from typing import Any

import msgspec

from practicum.core import StoreError
from practicum.store import files


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All complete lines; a torn last one is left out. No file, no lines."""
    if not path.exists():
        return []
    data = files.read_bytes(path)
    lines = []
    for number, line in enumerate(data[: _whole(data)].splitlines(), start=1):
        try:
            lines.append(msgspec.json.decode(line, type=dict[str, Any]))
        except msgspec.DecodeError as error:
            raise StoreError(
                f"{path}, line {number} is corrupt ({error}); "
                "restore the file from a copy, or start the run again in another folder"
            ) from error
    return lines


class Journal:
    """One file of JSON lines, open for appending by one process."""

    def __init__(self, path: Path) -> None:
        """Open or create `path`; a torn last line is cut off."""
        self.path = path
        with files.explained(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            data = path.read_bytes()
            whole = _whole(data)
            if whole != len(data):
                os.ftruncate(self._file, whole)
                os.fsync(self._file)
            files.sync_folder(path.parent)

    def append(self, record: dict[str, Any]) -> None:
        """Write one line and wait until it is on the disk; if it does not fit, none of it is."""
        data = msgspec.json.encode(record) + b"\n"
        start = os.fstat(self._file).st_size
        with files.explained(self.path):
            try:
                written = 0
                while written < len(data):
                    written += os.write(self._file, data[written:])
                os.fsync(self._file)
            except OSError:
                os.ftruncate(self._file, start)
                raise

    def lines(self) -> list[dict[str, Any]]:
        """All lines so far, oldest first."""
        return read_lines(self.path)

    def rewrite(self, records: list[dict[str, Any]]) -> None:
        """Replace the whole content, atomically."""
        files.write_atomic(self.path, b"".join(msgspec.json.encode(r) + b"\n" for r in records))
        os.close(self._file)
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND)

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _whole(data: bytes) -> int:
    """Length of the part that consists of complete lines.

    A last line with its newline but with unwritten bytes in it (delayed allocation) is torn too.
    """
    end = data.rfind(b"\n") + 1
    start = data.rfind(b"\n", 0, max(end - 1, 0)) + 1
    last = data[start:end]
    if last:
        try:
            msgspec.json.decode(last)
        except msgspec.DecodeError:
            return start
    return end
