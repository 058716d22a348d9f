"""Memory and process limits of a whole box by cgroups, v1 or v2, where this process may make them.

A box's cgroups hold at least the box's keeper process as long as the box lives, so a folder that
can be removed is a dead one: the sweep needs no other sign of life.
"""

import contextlib
import os
import time
from pathlib import Path

from practicum.core import Limits, SandboxError

PREFIX = "practicum-"
_ROOT = Path("/sys/fs/cgroup")
_SPARE = 12  # processes of ours that share the box's cgroup: keeper, launcher, bwrap, shells


class Cgroups:
    """The controllers that can be used on this host: name to the folder where boxes get theirs."""

    def __init__(self, root: Path = _ROOT) -> None:
        self.root = root
        self.parents: dict[str, Path] = {}
        self.version = 0
        if (root / "cgroup.controllers").exists():
            self._find_v2()
        else:
            self._find_v1()

    def _find_v1(self) -> None:
        own = {}
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own.update({name: path for name in controllers.split(",") if name})
        for name in ("memory", "pids"):
            for folder in (self.root / name / own.get(name, "/").strip("/"), self.root / name):
                if (folder / "cgroup.procs").exists() and _can_make(folder):
                    self.parents[name] = folder
                    self.version = 1
                    break

    def _find_v2(self) -> None:
        enabled = (self.root / "cgroup.subtree_control").read_text().split()
        if {"memory", "pids"} <= set(enabled) and _can_make(self.root):
            self.parents = {"memory": self.root, "pids": self.root}
            self.version = 2

    def make(self, name: str, limits: Limits) -> list[Path]:
        """Make the cgroups of a box and set their limits. Memory includes the box's files."""
        memory = str((limits.memory_mb + limits.workspace_mb) << 20)
        settings = {
            1: {"memory": {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory}},
            2: {"memory": {"memory.max": memory, "memory.swap.max": "0"}},
        }.get(self.version, {})
        settings["pids"] = {"pids.max": str(limits.processes + _SPARE)}
        folders: list[Path] = []
        try:
            for controller, parent in self.parents.items():
                folder = parent / f"{PREFIX}{name}"
                folder.mkdir(exist_ok=self.version == 2)
                if folder not in folders:
                    folders.append(folder)
                for file, value in settings[controller].items():
                    if (folder / file).exists():  # swap accounting may be off
                        (folder / file).write_text(value)
        except OSError as error:
            remove(folders)
            raise SandboxError(f"cannot make the cgroup of a box: {error}") from error
        return folders

    def sweep(self, older_than: float = 60.0) -> int:
        """Remove what killed processes left, made more than `older_than` seconds ago."""
        removed = 0
        for top in (
            {self.root / name for name in self.parents} if self.version == 1 else {self.root}
        ):
            for folder, inner, _ in os.walk(top):
                for name in [n for n in inner if n.startswith(PREFIX)]:
                    inner.remove(name)
                    path = Path(folder, name)
                    try:
                        if time.time() - path.stat().st_ctime >= older_than:
                            path.rmdir()
                            removed += 1
                    except OSError:
                        continue  # alive, or gone by now
        return removed


def entrance(folder: Path) -> Path:
    """The file through which a launcher puts itself in.

    v1 has one for single threads, which skips a lock that costs some 10 ms each time.
    """
    tasks = folder / "tasks"
    return tasks if tasks.exists() else folder / "cgroup.procs"


def out_of_memory(folders: list[Path]) -> int:
    """How many processes of these cgroups the kernel has killed because memory ran out."""
    for folder in folders:
        for name in ("memory.oom_control", "memory.events"):
            with contextlib.suppress(OSError):
                words = (folder / name).read_text().split()
                return int(words[words.index("oom_kill") + 1])
    return 0


def remove(folders: list[Path]) -> bool:
    """Remove cgroups; False when one still holds a process."""
    left = False
    for folder in folders:
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            left = True
    return not left


def _can_make(folder: Path) -> bool:
    probe = folder / f"{PREFIX}probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True
