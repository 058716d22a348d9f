"""What a box sees beside what it writes: mounts of the host's own /usr, or of another root folder.

A row is (operation, source on the host, target in the box): "b" binds read-only, "?" does so if
there is such a path, "l" makes a symlink to the source. Nothing is seen that no row names.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from practicum.core import SandboxError

Row = tuple[str, str, str]

HOST = ""  # the name of the root that every `LocalBoxes` has
_FILES = ("passwd", "group", "hosts", "nsswitch.conf")  # of /etc, of our own making
_MADE = {"dev", "proc", "tmp", "workspace", "run", "sys", "var"}  # by the box, or left out
_MADE |= {"boot", "lost+found", "media", "mnt"}


class Root(msgspec.Struct, frozen=True):
    """A root file system for boxes.

    `folder` holds one, such as an unpacked container image; empty for the host's own /usr. `mounts`
    adds folders or files, target to source: a virtual environment at /opt/venv, say.
    """

    folder: str = ""
    mounts: Mapping[str, str] = {}


def layout(image: Path, root: Root) -> list[Row]:
    """The rows of a root. Raises SandboxError for a source that is not there."""
    rows = _folder_rows(Path(root.folder), image) if root.folder else _host_rows(image)
    rows.append(("b", str(image / "python"), "opt/python"))
    for target, source in root.mounts.items():
        clean = os.path.normpath(target).strip("/")
        if not os.path.isabs(target) or clean.split("/")[0] in _MADE or not clean:
            raise SandboxError(f"cannot mount at {target!r}: name a path such as /opt/venv")
        rows.append(("b", _existing(source), clean))
    return rows


def _host_rows(image: Path) -> list[Row]:
    rows: list[Row] = [("b", "/usr", "usr")]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        if os.path.islink(f"/{name}"):
            rows.append(("l", os.readlink(f"/{name}"), name))
        elif os.path.isdir(f"/{name}"):
            rows.append(("b", f"/{name}", name))
    rows += [("?", f"/etc/{n}", f"etc/{n}") for n in ("alternatives", "ld.so.cache", "ssl/certs")]
    return rows + [("b", str(image / "etc" / name), f"etc/{name}") for name in _FILES]


def _folder_rows(folder: Path, image: Path) -> list[Row]:
    """All that a folder holds, but for what a box makes itself."""
    rows: list[Row] = []
    inner = sorted(Path(_existing(str(folder))).iterdir())
    opt = sorted((folder / "opt").iterdir()) if (folder / "opt").is_dir() else []
    for path in [*(p for p in inner if p.name != "opt" and p.name not in _MADE), *opt]:
        target = str(path.relative_to(folder))
        if path.is_symlink():
            rows.append(("l", os.readlink(path), target))
        elif target != "opt/python":
            rows.append(("b", str(path), target))
    if (folder / "var/lib").is_dir():
        rows.append(("b", str(folder / "var/lib"), "var/lib"))
    # a file can only be laid over one that is there: the folder may not be written
    there = [name for name in _FILES if (folder / "etc" / name).is_file()]
    return rows + [("b", str(image / "etc" / name), f"etc/{name}") for name in there]


def _existing(source: str) -> str:
    if not os.path.exists(source):
        raise SandboxError(f"there is no {source!r} on this host, which a root of boxes names")
    return os.path.realpath(source)
