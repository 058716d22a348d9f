"""A layout as container engines want it: a small root file system, and what is bound over it."""

import io
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from practicum.sandbox.layout import Row

_FOLDERS = ("dev", "etc", "opt", "proc", "run", "sys", "tmp", "usr", "var", "workspace")
_Entry = tuple[tarfile.TarInfo, bytes]


def skeleton(rows: Iterable[Row]) -> tuple[bytes, list[tuple[str, str]]]:
    """The root file system of a layout: a tar file, and the (source, target) that are bound to it.

    The tar file has the links, a place for all that is bound, and /etc as a whole, since engines
    put files of their own there.
    """
    entries = {name: _entry(name, tarfile.DIRTYPE) for name in _FOLDERS}
    entries["var/tmp"] = _entry("var/tmp", tarfile.SYMTYPE, link="../tmp")
    bound: dict[str, str] = {}
    for operation, source, target in rows:
        if operation == "l":
            entries[target] = _entry(target, tarfile.SYMTYPE, link=source)
        elif operation == "?" and not os.path.exists(source):
            continue
        elif target.split("/")[0] == "etc":
            entries.update(_copies(os.path.realpath(source), target))
        else:
            bound.pop(target, None)  # a later row lies over an earlier one
            bound[target] = source
            kind = tarfile.DIRTYPE if os.path.isdir(source) else tarfile.REGTYPE
            entries[target] = _entry(target, kind)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for info, data in entries.values():
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue(), [(source, target) for target, source in bound.items()]


def _entry(
    name: str, kind: bytes, *, link: str = "", data: bytes = b"", mode: int = 0o755
) -> _Entry:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, link, len(data), mode
    return info, data


def _copies(source: str, target: str) -> Iterator[tuple[str, _Entry]]:
    """Entries for `source` and all below it, but for devices, pipes and sockets."""
    mode = os.lstat(source).st_mode
    if stat.S_ISLNK(mode):
        yield target, _entry(target, tarfile.SYMTYPE, link=os.readlink(source))
    elif stat.S_ISDIR(mode):
        yield target, _entry(target, tarfile.DIRTYPE, mode=stat.S_IMODE(mode))
        for name in sorted(os.listdir(source)):
            yield from _copies(f"{source}/{name}", f"{target}/{name}")
    elif stat.S_ISREG(mode):
        data = Path(source).read_bytes()
        yield target, _entry(target, tarfile.REGTYPE, data=data, mode=stat.S_IMODE(mode))
