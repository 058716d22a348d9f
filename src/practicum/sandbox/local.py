"""What the boxes of this machine share: how commands, copies and turns are asked for.

A kind of box says how it is made and how one command runs in it (`_execute`); this file makes the
contract of that.
"""

import asyncio
import errno
import os
import posixpath
import resource
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import NamedTuple, Self

from practicum.core import Artifact, File, Limits, SandboxError
from practicum.sandbox import archive
from practicum.sandbox.cgroups import Cgroups, Group
from practicum.sandbox.command import unbroken
from practicum.sandbox.contract import Archive, Result, Sandbox, Snapshot
from practicum.sandbox.host import box_uid, capabilities
from practicum.sandbox.image import image
from practicum.sandbox.layout import HOST, Root, Row, layout
from practicum.sandbox.network import ENVIRONMENT as PROXIED
from practicum.sandbox.network import Proxy, Request, allowed
from practicum.sandbox.pool import Pool

WORKSPACE = "/workspace"
SHARED_FROM = 32  # files of a task; fewer are laid for each box, which is as fast and plainer
SHARED = 32  # sets of files that are kept laid
INODES = 16384  # of the workspace, /tmp and /dev/shm together
OPEN_FILES = 1024  # of a process in a box
FILES = 1 << 16  # of ours
KEPT = ("workspace", "tmp", "dev/shm")  # what the guest can write
TRANSFER_SECONDS = 60.0  # for our own copies into and out of a box
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": WORKSPACE,
    "USER": "user",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "TERM": "dumb",
    "PYTHONPATH": "/opt/python",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}


class Kind(NamedTuple):
    """What can differ between boxes of one `LocalBoxes`, beside their limits."""

    root: str = HOST
    preload: tuple[str, ...] = ()


class LocalBoxes(ABC):
    """Makes boxes on this machine and bounds how many commands run at once; see `Boxes`."""

    def __init__(
        self,
        max_running: int = 4,
        *,
        ahead: int = 0,
        roots: Mapping[str, Root] | None = None,
        delay: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Up to `ahead` boxes are made before they are asked for (see `Pool`).

        `roots` are the root file systems that a box can be opened with, by name.
        `delay` is awaited before each command; tests show with it that slow boxes are harmless.
        Raises SandboxError when this kind of box cannot be made here.
        """
        _allow_many_files()
        self.cgroups = Cgroups()
        self.cgroups.sweep()
        self.capabilities = capabilities(set(self.cgroups.parents))
        self.image = image()
        self.roots = {HOST: Root(), **(roots or {})}
        self.made = 0
        self._delay = delay
        self._turns = asyncio.Semaphore(max_running)
        self._open: set[LocalBox] = set()
        self._shared: OrderedDict[tuple[object, ...], asyncio.Task[Snapshot]] = OrderedDict()
        self.pool = Pool(self._start_empty, ahead)
        self._set_up()

    def _set_up(self) -> None:  # noqa: B027
        """What a kind of boxes needs besides; SandboxError where it cannot be had."""

    async def _start_empty(self, limits: Limits) -> "LocalBox":
        return await self._start(self._new(self.made, limits, Kind()), b"")

    @abstractmethod
    def _new(self, slot: int, limits: Limits, kind: "Kind") -> "LocalBox":
        """A box of this kind that is not made yet."""

    async def open(
        self,
        files: Sequence[File] = (),
        limits: Limits = Limits(),  # noqa: B008
        *,
        preload: Sequence[str] = (),
        root: str = HOST,
    ) -> "LocalBox":
        """A fresh box whose workspace holds `files`; see `Boxes`.

        Where there are many, they are laid once, and boxes that begin alike are forks of that one.
        """
        kind = Kind(root, tuple(preload))
        if len(files) >= SHARED_FROM:
            return await self.restore(await self._laid_once(tuple(files), limits, kind))
        tar = archive.pack(files) if files else b""
        box = self.pool.take(limits) if kind == Kind() else None
        if box is None:
            return await self._start(self._new(self.made, limits, kind), tar)
        try:
            async with self.turn():
                await box.lay_first(tar)
        except BaseException:
            await unbroken(box.close())
            raise
        return box

    async def _laid_once(self, files: tuple[File, ...], limits: Limits, kind: "Kind") -> Snapshot:
        """A box with `files` that nothing has run in yet."""

        async def lay() -> Snapshot:
            box = await self._start(self._new(self.made, limits, kind), archive.pack(files))
            async with box:
                return await box.snapshot()

        key = (files, limits, kind)
        if key not in self._shared:
            self._shared[key] = asyncio.create_task(lay())
        self._shared.move_to_end(key)
        if len(self._shared) > SHARED:
            self._shared.popitem(last=False)
        task = self._shared[key]
        try:
            return await asyncio.shield(task)
        finally:
            if task.done() and (task.cancelled() or task.exception()):
                self._shared.pop(key, None)

    async def restore(self, snapshot: Snapshot) -> "LocalBox":
        """A fresh box that holds what another one held."""
        taken = await snapshot.export()
        box = await self._start(self._new(self.made, taken.limits, Kind(taken.root)), b"")
        try:
            async with self.turn():
                detail = await box.lay(taken.data, "-C", box.base)
            if detail:
                raise SandboxError(f"cannot restore a snapshot: {detail}")
        except BaseException:
            await unbroken(box.close())
            raise
        return box

    async def _start(self, box: "LocalBox", tar: bytes) -> "LocalBox":
        self.made += 1
        self.add(box)
        try:
            async with self.turn():
                await box.start(tar)
        except BaseException:
            await unbroken(box.close())
            raise
        return box

    def layout(self, root: str) -> list[Row]:
        """What a box with this root sees. SandboxError for one that nobody named."""
        if root not in self.roots:
            known = sorted(name for name in self.roots if name)
            raise SandboxError(
                f"a box with the root {root!r} was asked for; known: {', '.join(known) or 'none'} "
                "(name its folder under boxes.roots)"
            )
        return layout(self.image, self.roots[root])

    async def close(self) -> None:
        """Close every box that is still open."""
        await self.pool.close()
        laying = list(self._shared.values())
        self._shared.clear()
        for task in laying:
            task.cancel()
        await asyncio.gather(*laying, return_exceptions=True)
        await asyncio.gather(*(box.close() for box in list(self._open)))
        self.cgroups.close()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """A place among the commands that may run at once."""
        if self._delay:
            await self._delay()
        async with self._turns:
            yield

    def add(self, box: "LocalBox") -> None:
        """Remember a box until it is closed."""
        self._open.add(box)

    def discard(self, box: "LocalBox") -> None:
        """Forget a closed box."""
        self._open.discard(box)


class LocalBox(ABC):
    """One box; see `Sandbox`. Made by `LocalBoxes.open`."""

    def __init__(self, boxes: LocalBoxes, slot: int, limits: Limits, kind: Kind) -> None:
        self.boxes, self.limits, self.kind = boxes, limits, kind
        self.uid = box_uid(slot)
        self.group = Group([], ())
        self.shares_files = False  # with a snapshot
        self.base = "/"  # what holds the workspace and the other places in `KEPT`
        self.proxy = Proxy(allowed(limits))
        self.closed = False

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it can run commands, as far as is known."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """On this host, of the process with which the box ends."""

    @abstractmethod
    async def start(self, tar: bytes) -> None:
        """Make the workspace and lay the files of `tar` into it."""

    @abstractmethod
    async def _execute(
        self,
        words: Sequence[bytes],
        *,
        env: Mapping[str, str],
        seconds: float,
        output_bytes: int,
        stdin: bytes = b"",
        reads_all: bool = False,
        python: bool = False,
    ) -> Result:
        """Run `words` (a folder, then a command), in a place that `boxes.turn` gave.

        With `reads_all`, modes of the guest's own files do not matter. With `python`, the command
        is `python3` and may be a fork of one that has started before. Raises ValueError or OSError
        for words that no kernel could run, SandboxError for what is not the guest's doing.
        """

    @abstractmethod
    async def _end(self) -> None:
        """Kill what runs and unmake the box, but for its cgroups."""

    @property
    def workspace(self) -> str:
        """Its path, as commands see it."""
        return posixpath.join(self.base, WORKSPACE[1:])

    def requests(self) -> list[Request]:
        """What was asked of the network since this was asked last."""
        found, self.proxy.requests = self.proxy.requests, []
        return found

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str = "",
        stdin: bytes = b"",
        seconds: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Result:
        """Run a command as the guest; everything it started is dead when this returns."""
        return await self._run(argv, cwd, stdin, seconds, env, python=False)

    async def python(
        self,
        args: Sequence[str],
        *,
        cwd: str = "",
        stdin: bytes = b"",
        seconds: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Result:
        """Run `python3 ARGS`; see `Sandbox`."""
        return await self._run(
            ["python3", *args], cwd, stdin, seconds, env, python=_can_be_forked(list(args))
        )

    async def _run(
        self,
        argv: Sequence[str],
        cwd: str,
        stdin: bytes,
        seconds: float | None,
        env: Mapping[str, str] | None,
        *,
        python: bool,
    ) -> Result:
        limits = self.limits
        try:
            words = [os.fsencode(word) for word in argv]
            folder = os.fsencode(posixpath.join(self.workspace, cwd))
            if any(b"\0" in word for word in (*words, folder)):
                raise ValueError("an argument holds a NUL byte")
            async with self.boxes.turn():
                return await self._execute(
                    [folder, *words],
                    env={
                        **ENVIRONMENT,
                        "HOME": self.workspace,
                        **(PROXIED if self.proxy.hosts else {}),
                        **(env or {}),
                    },
                    stdin=stdin,
                    seconds=limits.command_seconds if seconds is None else seconds,
                    output_bytes=limits.output_bytes,
                    python=python,
                )
        except (ValueError, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.E2BIG:
                raise SandboxError(f"cannot run a command: {error}; is the host full?") from error
            # no kernel could run these words
            return Result(b"", f"cannot run: {error}\n".encode(errors="replace"), exit_code=126)

    async def read(self, paths: Sequence[str], *, max_bytes: int = 1 << 20) -> dict[str, Artifact]:
        """Copy out what exists at `paths`; see `Sandbox.read`. Modes that forbid reading do not."""
        wanted = [archive.clean_path(path) for path in paths]
        if not wanted:
            return {}
        flags = ["--sparse", "--format=gnu", "--ignore-failed-read", "--no-wildcards"]
        command = ["tar", "-cf", "-", *flags, *archive.members(wanted)]
        size = self.limits.workspace_mb << 20
        async with self.boxes.turn():
            result = await self._execute(
                [self.workspace.encode(), *map(os.fsencode, command)],
                env=ENVIRONMENT,
                seconds=TRANSFER_SECONDS,
                output_bytes=2 * size + INODES * 2048,
                reads_all=True,  # of the guest's own files
            )
        if result.timed_out:
            raise SandboxError(f"reading {wanted} took more than {TRANSFER_SECONDS:g} s")
        return await asyncio.to_thread(archive.unpack, result.stdout, wanted, max_bytes)

    async def write(self, files: Sequence[File]) -> None:
        """Lay files into the workspace as the guest; SandboxError when it made that impossible."""
        async with self.boxes.turn():
            detail = await self.lay(archive.pack(files), "--unlink-first", "--recursive-unlink")
        if detail:
            raise SandboxError(f"cannot write {[f.path for f in files]} into the box: {detail}")

    async def lay_first(self, tar: bytes) -> None:
        """Lay the files of a task; SandboxError says what went wrong."""
        if tar and (detail := await self.lay(tar)):
            raise SandboxError(
                f"cannot lay the files of a task into its box: {detail}; "
                "does Limits.workspace_mb leave room for them?"
            )

    async def lay(self, tar: bytes, *flags: str) -> str:
        """Unpack a tar stream in the workspace; what went wrong, if anything."""
        command = ["tar", "-xpf", "-", "--no-same-owner", *flags]
        result = await self._execute(
            [self.workspace.encode(), *map(os.fsencode, command)],
            env=ENVIRONMENT,
            stdin=tar,
            seconds=TRANSFER_SECONDS,
            output_bytes=4096,
        )
        said = result.stderr.decode("utf-8", "replace").strip()
        return "" if result.exit_code == 0 else said or "tar was killed"

    async def snapshot(self) -> Snapshot:
        """What the box holds now; see `Sandbox`."""
        return await self.archive()

    async def archive(self) -> Archive:
        """What the box holds now as a plain archive."""
        size = self.limits.workspace_mb << 20
        command = ["tar", "-cf", "-", "--sparse", "--format=gnu", *KEPT]
        async with self.boxes.turn():
            result = await self._execute(
                [self.base.encode(), *map(os.fsencode, command)],
                env=ENVIRONMENT,
                seconds=TRANSFER_SECONDS,
                output_bytes=2 * size + INODES * 2048,
                reads_all=True,
            )
        if result.exit_code != 0 or result.output_cut:
            said = result.stderr.decode("utf-8", "replace").strip()
            raise SandboxError(f"cannot take a snapshot: {said or 'it is too large or too slow'}")
        return Archive(result.stdout, self.limits, self.kind.root)

    async def fork(self, count: int) -> list[Sandbox]:
        """Boxes that hold what this one holds now; see `Sandbox`."""
        taken = await self.snapshot()
        found = await asyncio.gather(
            *(self.boxes.restore(taken) for _ in range(count)), return_exceptions=True
        )
        made: list[Sandbox] = [box for box in found if not isinstance(box, BaseException)]
        for failure in found:
            if isinstance(failure, BaseException):
                await asyncio.gather(*(box.close() for box in made))
                raise failure
        return made

    async def close(self) -> None:
        """Kill what runs, remove the workspace. May be called twice."""
        self.closed = True
        self.boxes.discard(self)
        await self._end()
        group, self.group = self.group, Group([], ())
        for _ in range(100):
            if self.boxes.cgroups.give_back(group, clean=not self.shares_files):
                return
            await asyncio.sleep(0.02)  # the kernel lets go of the last process a moment later

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await unbroken(self.close())


def _allow_many_files() -> None:
    """Raise this process's soft limit on open files: a box takes up to nine, a command three."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _can_be_forked(args: list[str]) -> bool:
    """Whether the arguments of `python3` are of the kinds that `zygote.py` knows."""
    words = args[1:] if args[:1] == ["-I"] else args
    if words[:1] in (["-c"], ["-m"]):
        return len(words) > 1
    return bool(words) and not words[0].startswith("-")
