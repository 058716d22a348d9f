"""Files to and from a tar stream. What comes out of a box is parsed with caps and never trusted."""

import io
import posixpath
import tarfile
from collections.abc import Iterable, Sequence

from practicum.core import Artifact, File, SandboxError

_TIME = 1_700_000_000  # one fixed modification time: the same files look the same in every box


def clean_path(path: str) -> str:
    """`path` in its shortest form, relative to the workspace; SandboxError when it leaves it."""
    short = posixpath.normpath(path)
    if path.startswith("/") or "\0" in path or short == ".." or short.startswith("../"):
        raise SandboxError(f"{path!r} is not a path inside the workspace: use a relative one")
    return short


def pack(files: Iterable[File]) -> bytes:
    """A tar stream of `files`, without owners and with one fixed time."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for file in files:
            info = tarfile.TarInfo(clean_path(file.path))
            info.mode, info.mtime = file.mode, _TIME
            if file.kind == "file":
                info.size = len(file.data)
            elif file.kind == "dir":
                info.type = tarfile.DIRTYPE
            else:
                info.type = tarfile.SYMTYPE
                info.linkname = file.data.decode("utf-8", "surrogateescape")
            archive.addfile(info, io.BytesIO(file.data) if file.kind == "file" else None)
    return buffer.getvalue()


def members(paths: Sequence[str]) -> list[str]:
    """Arguments for GNU tar: each path with all below it, after each of its parents alone."""
    found: list[str] = []
    for path in paths:
        found += ["--no-recursion", *(f"./{parent}" for parent in _parents(path))]
        found += ["--recursion", f"./{path}"]
    return found


def unpack(stream: bytes, paths: Sequence[str], max_bytes: int) -> dict[str, Artifact]:
    """The artifacts in a tar stream made with `members(paths)`; a broken end is left out.

    What lies behind a symlink is left out; so is everything that is no file, folder or symlink.
    """
    found: dict[str, Artifact] = {}
    asked = {*paths, *(parent for path in paths for parent in _parents(path))}
    links: list[str] = []  # among those; tar itself follows none below them
    try:
        with tarfile.open(fileobj=io.BytesIO(stream), mode="r:", errors="surrogateescape") as tar:
            while (info := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # keep no index: read once
                name = posixpath.normpath(info.name)
                if info.issym() and name in asked:
                    links.append(f"{name}/")
                if _under(name, paths) and not name.startswith(tuple(links)):
                    artifact = _artifact(tar, info, found, max_bytes)
                    if artifact is not None:
                        found[name] = artifact
    except (tarfile.TarError, EOFError, ValueError, OverflowError):
        pass  # cut at our cap, or names that no archive can hold: what came before stands
    return found


def _parents(path: str) -> list[str]:
    """The folders on the way to `path`, outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


def _under(name: str, paths: Sequence[str]) -> bool:
    if name.startswith(("/", "../")) or name == "..":
        return False
    return any(path in (".", name) or name.startswith(f"{path}/") for path in paths)


def _artifact(
    archive: tarfile.TarFile, info: tarfile.TarInfo, found: dict[str, Artifact], max_bytes: int
) -> Artifact | None:
    mode = info.mode & 0o7777
    if info.isdir():
        return Artifact(b"", mode, "dir")
    if info.issym():
        target = info.linkname.encode("utf-8", "surrogateescape")
        return Artifact(target[:max_bytes], mode, "symlink", len(target) > max_bytes)
    if info.islnk():  # a second name of a file that came before
        return found.get(posixpath.normpath(info.linkname))
    if not info.isreg():
        return None
    content = archive.extractfile(info)
    data = content.read(max_bytes) if content else b""
    if len(data) < min(info.size, max_bytes):
        raise EOFError(info.name)
    return Artifact(data, mode, "file", info.size > max_bytes)
