"""Limits of a whole box by cgroups, v1 or v2: memory, processes and processors, where we may.

The cgroups of a box that has ended serve the next one of the same limits: to make, set and remove
them costs as much as a namespace. They bear the pid of who made them, and go when that ends or, if
it was killed, with the next sweep of anybody.
"""

import contextlib
import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from practicum.core import Limits, SandboxError

PREFIX = "practicum-"
_ROOT = Path("/sys/fs/cgroup")
_KEPT = 64  # cgroups of the same limits that wait for a box
_QUOTAS = ("cpu.cfs_quota_us", "cpu.max")  # v1, v2
_PERIOD = 100_000  # microseconds, the kernel's default
# Joins the cgroups named before "--", then becomes the rest of its arguments.
_JOIN = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; exec "$@"'
_SPARE = 12  # processes of ours that share the box's cgroup: keeper, launcher, bwrap, shells


class Cgroups:
    """The controllers that can be used on this host: name to the folder where boxes get theirs."""

    def __init__(self, root: Path = _ROOT) -> None:
        self.root = root
        self._free: dict[tuple[tuple[str, str], ...], list[Group]] = {}
        self._closed = False
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
        for name in ("memory", "pids", "cpu"):
            for folder in (self.root / name / own.get(name, "/").strip("/"), self.root / name):
                if (folder / "cgroup.procs").exists() and _can_make(folder):
                    self.parents[name] = folder
                    self.version = 1
                    break

    def _find_v2(self) -> None:
        enabled = (self.root / "cgroup.subtree_control").read_text().split()
        if {"memory", "pids"} <= set(enabled) and _can_make(self.root):
            self.parents = {n: self.root for n in ("memory", "pids", "cpu") if n in enabled}
            self.version = 2

    def take(self, limits: Limits) -> "Group":
        """Cgroups with these limits for one box. Memory includes the box's files."""
        settings = self._settings(limits)
        key = tuple(settings.items())
        free = self._free.get(key, [])
        for index, group in enumerate(free):  # the one that ended first is the first to be empty
            if group.empty():
                group.out_of_memory()  # of the box before
                return free.pop(index)
        return Group(self._make(settings), key)

    def give_back(self, group: "Group", *, clean: bool) -> bool:
        """Take back what an ended box no longer needs; False while a process is dying in it.

        `clean` says that no file of the box lives on: such files stay charged to a cgroup.
        """
        free = self._free.setdefault(group.key, [])
        if clean and len(free) < _KEPT and not self._closed:
            free.append(group)
            return True
        return group.remove()

    def close(self) -> None:
        """Remove those that wait for a box, and keep none from now on."""
        self._closed = True
        for groups in self._free.values():
            for group in groups:
                group.remove()
        self._free.clear()

    def _settings(self, limits: Limits) -> dict[str, str]:
        """What is written where: "controller/file" to text."""
        memory = str((limits.memory_mb + limits.workspace_mb) << 20)
        names = {
            1: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
            2: ("memory.max", "memory.swap.max"),
        }
        found = {"pids/pids.max": str(limits.processes + _SPARE)}
        share = str(int(limits.cpus * _PERIOD))
        if self.version:
            first, swap = names[self.version]
            found[f"memory/{first}"] = memory
            found[f"memory/{swap}"] = memory if self.version == 1 else "0"
        if self.version == 1:
            found[f"cpu/{_QUOTAS[0]}"] = share
        elif self.version == 2:
            found[f"cpu/{_QUOTAS[1]}"] = f"{share} {_PERIOD}"
        return {name: value for name, value in found.items() if name.split("/")[0] in self.parents}

    def _make(self, settings: Mapping[str, str]) -> list[Path]:
        name = f"{PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
        folders = list(dict.fromkeys(parent / name for parent in self.parents.values()))
        made: list[Path] = []
        try:
            for folder in folders:
                folder.mkdir()
                made.append(folder)
            for key, value in settings.items():
                controller, file = key.split("/")
                path = self.parents[controller] / name / file
                if path.exists():  # swap accounting may be off
                    path.write_text(value)
        except OSError as error:
            for folder in made:
                folder.rmdir()
            raise SandboxError(f"cannot make the cgroup of a box: {error}") from error
        return made

    def sweep(self, older_than: float = 60.0) -> int:
        """Remove what ended processes left, made more than `older_than` seconds ago."""
        removed = 0
        for top in (
            {self.root / name for name in self.parents} if self.version == 1 else {self.root}
        ):
            for folder, inner, _ in os.walk(top):
                for name in [n for n in inner if n.startswith(PREFIX)]:
                    inner.remove(name)
                    path = Path(folder, name)
                    with contextlib.suppress(OSError):  # gone by now, or a box is dying in it
                        if not _lives(name) and time.time() - path.stat().st_ctime >= older_than:
                            path.rmdir()
                            removed += 1
        return removed


class Group:
    """The cgroups of one box: the same one for all controllers with v2, one for each with v1."""

    def __init__(self, folders: Sequence[Path], key: tuple[tuple[str, str], ...]) -> None:
        self.folders, self.key = folders, key
        self.doors: list[int] = []  # files through which a process puts itself in
        self._files: dict[str, int] = {}
        for folder in folders:
            self.doors.append(os.open(entrance(folder), os.O_WRONLY | os.O_CLOEXEC))
            for name in ("memory.oom_control", "memory.events", "pids.current"):
                with contextlib.suppress(OSError):
                    self._files[name] = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC)
        self._quota = -1
        for folder, name in itertools.product(folders, _QUOTAS):
            with contextlib.suppress(OSError):
                self._quota = os.open(folder / name, os.O_WRONLY | os.O_CLOEXEC)
        self._share = next((v for k, v in key if k.startswith("cpu/")), "")
        self._killed = self._count()

    def launcher(self) -> list[str]:
        """Words that put a process in, and then become the words after them."""
        doors = [str(entrance(folder)) for folder in self.folders]
        return ["/bin/sh", "-c", _JOIN, "sh", *doors, "--"] if doors else []

    @contextlib.contextmanager
    def hurried(self) -> Iterator[None]:
        """Without a limit on processors: what is killed dies no faster than it may run."""
        if self._quota < 0:
            yield
            return
        period = f" {_PERIOD}" if " " in self._share else ""
        os.pwrite(self._quota, f"max{period}".encode() if period else b"-1", 0)
        try:
            yield
        finally:
            if self._quota >= 0:
                os.pwrite(self._quota, self._share.encode(), 0)

    def _read(self, name: str) -> list[bytes]:
        return os.pread(self._files[name], 4096, 0).split() if name in self._files else []

    def _count(self) -> int:
        """How many processes the kernel has killed here because memory ran out."""
        words = self._read("memory.oom_control") or self._read("memory.events")
        return int(words[words.index(b"oom_kill") + 1]) if b"oom_kill" in words else 0

    def out_of_memory(self) -> bool:
        """Whether that has happened again since the last time this was asked."""
        before, self._killed = self._killed, self._count()
        return self._killed > before

    def empty(self) -> bool:
        """Whether surely no process is in it."""
        return not self.folders or self._read("pids.current") == [b"0"]

    def remove(self) -> bool:
        """Remove it; False while it holds a process. May be called again."""
        for fd in (*self.doors, *self._files.values(), self._quota):
            if fd >= 0:
                os.close(fd)
        self.doors, self._files, self._quota = [], {}, -1
        left = []
        for folder in self.folders:
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                left.append(folder)
        self.folders = left
        return not left


def entrance(folder: Path) -> Path:
    """The file through which a launcher puts itself in.

    v1 has one for single threads, which skips a lock that costs some 10 ms each time.
    """
    tasks = folder / "tasks"
    return tasks if tasks.exists() else folder / "cgroup.procs"


def _lives(name: str) -> bool:
    """Whether who made the cgroup of this name still runs."""
    return Path("/proc", name.removeprefix(PREFIX).split("-")[0]).exists()


def _can_make(folder: Path) -> bool:
    probe = folder / f"{PREFIX}probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True
