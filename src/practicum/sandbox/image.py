"""What a box sees beside the host's /usr: a folder made once per user and bound read-only.

`image()` guarantees a folder that the guest may traverse, with `python/` (pytest and its pure
Python dependencies, compiled for /usr/bin/python3) and `etc/` (a few files that name the guest).
"""

import contextlib
import importlib.metadata
import os
import shutil
import stat
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement

from practicum.core import SandboxError, content_hash
from practicum.sandbox.host import box_uid

PYTHON = "/usr/bin/python3"
_ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/workspace:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "group": "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost box\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_LAYOUT = 1  # raise it when the content of the folder changes for other reasons than versions


@cache
def image() -> Path:
    """The folder, made on first use. Raises SandboxError when no cache folder can be used."""
    sources = _python_files()
    python = os.path.realpath(PYTHON)
    key = content_hash([_LAYOUT, sorted(map(str, sources)), _versions(), _ETC, python])
    problems = []
    for cache_folder in _cache_folders():
        try:
            _own(cache_folder)
            target = cache_folder / f"box-{key}"
            if not _complete(target):
                _make(target, sources)
        except OSError as error:
            problems.append(str(error))
            continue
        return target
    raise SandboxError(
        f"no folder for the files of a box: {'; '.join(problems)}; set XDG_CACHE_HOME to a "
        "folder that you can write and everybody may enter"
    )


def _cache_folders() -> list[Path]:
    """Places in order of preference; where guests have another uid, those that it can enter."""
    fallback = Path(tempfile.gettempdir(), f"practicum-{os.getuid()}")
    if box_uid(0) != os.getuid():
        return [Path("/var/cache/practicum"), fallback]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [Path(home, "practicum"), fallback]


def _own(folder: Path) -> None:
    """Make `folder`, and refuse one that somebody else could have prepared for us."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True, mode=0o755)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder that only we can write")
    folder.chmod(found.st_mode | 0o755)


def _distributions() -> list[importlib.metadata.Distribution]:
    """pytest and what it requires here, each once."""
    found: dict[str, importlib.metadata.Distribution] = {}
    queue = ["pytest"]
    while queue:
        name = queue.pop()
        if name in found:
            continue
        found[name] = importlib.metadata.distribution(name)
        for line in found[name].requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                queue.append(requirement.name)
    return list(found.values())


def _versions() -> list[str]:
    return sorted(f"{d.metadata['Name']} {d.version}" for d in _distributions())


def _python_files() -> dict[str, Path]:
    """Relative path to source of every file that goes into `python/`."""
    files = {}
    for distribution in _distributions():
        for file in distribution.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts and file.suffix != ".so":
                source = Path(str(file.locate()))
                if source.is_file():
                    files[str(file)] = source
    return files


def _complete(target: Path) -> bool:
    """Whether the folder still holds every file it was made with (cleaners take old ones)."""
    try:
        listed = (target / "files").read_text().splitlines()
    except FileNotFoundError:
        return False
    return bool(listed) and all((target / name).is_file() for name in listed)


def _make(target: Path, sources: dict[str, Path]) -> None:
    """Build beside the target, then put it in place in one step."""
    building = Path(tempfile.mkdtemp(dir=target.parent, prefix=".building-"))
    try:
        for name, source in sources.items():
            copy = building / "python" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
        (building / "etc").mkdir()
        for name, text in _ETC.items():
            (building / "etc" / name).write_text(text)
        _compile(building / "python")
        building.chmod(0o755)
        for folder, inner, files in os.walk(building):
            for name in inner:
                Path(folder, name).chmod(0o755)
            for name in files:
                Path(folder, name).chmod(0o644)
        listed = [str(p.relative_to(building)) for p in building.rglob("*") if p.is_file()]
        (building / "files").write_text("\n".join(sorted(listed)))
        if target.exists():
            target.rename(building / "old")
        with contextlib.suppress(OSError):  # another process was first: its folder is as good
            building.rename(target)
        shutil.rmtree(target / "old", ignore_errors=True)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _compile(folder: Path) -> None:
    """Byte-compile for the guest's Python, so that each `import pytest` does not do it again."""
    if not os.path.exists(PYTHON):
        return
    command = [PYTHON, "-I", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*command, "-s", folder, "-p", "/opt/python", folder], check=False)
