"""The native box: namespaces that live as long as the box, and in them an agent that runs commands.

`box.c` is the small program on the other side, as the spawner of all boxes of a `NativeBoxes` and
as pid 1 of each; its first comment is the protocol. Each box has one socket to its agent, and ends
when that socket does, however this process ends.

Inside: /workspace, /tmp and /dev/shm (one tmpfs of `Limits.workspace_mb`, which persists over
commands; nothing else can be written), a read-only /usr, pytest in /opt/python, no network but what
`Limits.network` names, no capabilities, uid 1000, no way to a new namespace. Commands of one box
run one after the other: at the end of each, all that it started is killed.

A snapshot is a stack of layers: what a box wrote stays as it is, and the box goes on with a new
agent and an empty layer over it. So a fork costs a mount, however much the box holds.
"""

import asyncio
import contextlib
import hashlib
import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from practicum.core import Limits, SandboxError
from practicum.sandbox.agent import Agent, Layer
from practicum.sandbox.agent_box import AgentBox
from practicum.sandbox.command import SETUP_SECONDS, spawn, unbroken
from practicum.sandbox.contract import Archive, Result, Snapshot
from practicum.sandbox.image import PYTHON
from practicum.sandbox.layout import Row
from practicum.sandbox.local import ENVIRONMENT, INODES, OPEN_FILES, Kind, LocalBox, LocalBoxes
from practicum.sandbox.network import network
from practicum.sandbox.seccomp import program

DEPTH = 16  # layers; more make each look at a file slower
SOURCE = Path(__file__).with_name("box.c")
PROGRAM = Path(__file__).with_name("practicum-box")  # made when the package is built
LIBRARY = PROGRAM.with_suffix(".so")  # the same for an interpreter
ZYGOTE = Path(__file__).with_name("zygote.py")
_PAUSE = 0.005  # before a spawner is asked again
_LAYOUT = 1 << 16  # bytes of a layout, as box.c has it
_LIBRARY = 200  # its descriptor in the interpreter, as box.c has it


@cache
def helper() -> str:
    """The path of the program. Raises SandboxError when it was not built, or of another source."""
    try:
        built = PROGRAM.read_bytes()
    except OSError as error:
        raise SandboxError(
            f"the native box was not built ({error.strerror}): install a C compiler and Practicum "
            "again, or use bubblewrap"
        ) from error
    if f"practicum-box source {source_hash()}\0".encode() not in built:
        raise SandboxError(f"{PROGRAM} is older than box.c: install Practicum again")
    return str(PROGRAM)


def source_hash() -> str:
    """Names the source that the program must have been built from."""
    return hashlib.blake2b(SOURCE.read_bytes(), digest_size=8).hexdigest()


class NativeBoxes(LocalBoxes):
    """Makes native boxes; implements `Boxes`."""

    def _set_up(self) -> None:
        self._spawners: dict[Kind, Spawner] = {}

    def _new(self, slot: int, limits: Limits, kind: Kind) -> "NativeBox":
        return NativeBox(self, slot, limits, kind)

    async def restore(self, snapshot: Snapshot) -> LocalBox:
        """A fresh box that holds what another one held; see `Boxes`."""
        if not isinstance(snapshot, Layers):
            return await super().restore(snapshot)
        box = NativeBox(self, 0, snapshot.limits, snapshot.kind, snapshot)
        return await self._start(box, b"")

    async def ask(self, request: bytes, fds: Sequence[int], kind: Kind) -> None:
        """Have a spawner make a box, and a new spawner if there is none that lives."""
        for _ in range(2):
            try:
                if kind not in self._spawners:
                    self._spawners[kind] = Spawner(self.layout(kind.root), kind.preload)
                return await self._spawners[kind].ask(request, fds)
            except OSError:
                if kind in self._spawners:
                    self._spawners.pop(kind).close()
        raise SandboxError("the spawner of boxes dies at once: is the host full?")

    async def close(self) -> None:
        """Close every box that is still open, and the spawners."""
        await super().close()
        while self._spawners:
            self._spawners.popitem()[1].close()


class Spawner:
    """The process that clones boxes, far from this one's memory and threads.

    All of its boxes see what `rows` say. With `preload` it is an interpreter that has imported
    these modules; see `zygote.py`.
    """

    def __init__(self, rows: Sequence[Row], preload: tuple[str, ...] = ()) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            theirs_fd = theirs.fileno()
            argv = [helper(), str(theirs_fd), str(os.getpid())]
            self._process = spawn(argv, stdin=subprocess.DEVNULL, pass_fds=(theirs_fd,))
        except OSError as error:
            raise SandboxError(f"cannot start {PROGRAM}: {error}; is the host full?") from error
        finally:
            theirs.close()
        self._socket.send(b"L" + encode(rows))
        if preload:
            code = ZYGOTE.read_text()
            words = [PYTHON, "-c", code, str(theirs_fd), str(_LIBRARY), str(os.getpid()), *preload]
            with open(LIBRARY, "rb") as library:
                request = pack(b"Z0", "/", words, ENVIRONMENT)
                socket.send_fds(self._socket, [request], [library.fileno()])
        self._socket.send(b"F" + program())
        self._socket.setblocking(False)

    async def ask(self, request: bytes, fds: Sequence[int]) -> None:
        """Send a request; OSError when the process is gone, SandboxError when it takes none."""
        deadline = time.monotonic() + SETUP_SECONDS
        while True:
            try:
                socket.send_fds(self._socket, [request], fds)
                return
            except BlockingIOError:  # it has not taken those before
                if time.monotonic() > deadline:
                    raise SandboxError(
                        f"the spawner of boxes took no request for {SETUP_SECONDS:g} s"
                    ) from None
            await asyncio.sleep(_PAUSE)

    def close(self) -> None:
        """End the process. Its boxes live on until their own sockets end."""
        self._socket.close()
        try:
            self._process.wait(SETUP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def encode(rows: Sequence[Row]) -> bytes:
    """A layout as `box.c` reads it. SandboxError for one that is too long for it."""
    parts = [
        op.encode() + os.fsencode(source) + b"\0" + target.encode() + b"\0"
        for op, source, target in rows
    ]
    encoded = b"".join(parts)
    if len(encoded) >= _LAYOUT:
        raise SandboxError(
            f"a root of boxes has {len(rows)} entries, too many: mount a folder of them"
        )
    return encoded


def pack(
    kind: bytes, folder: str | bytes, words: Sequence[str | bytes], env: Mapping[str, str]
) -> bytes:
    """A request as `box.c` reads it. Raises ValueError for what no kernel could run."""
    variables = [os.fsencode(f"{name}={value}") for name, value in env.items()]
    parts = [os.fsencode(folder), b"%d" % len(words), *map(os.fsencode, words), *variables]
    if not words or any(b"\0" in part for part in parts):
        raise ValueError("no command, or something that holds a NUL byte")
    return kind + b"".join(part + b"\0" for part in parts)


class Layers(Snapshot):
    """A snapshot as the layers of a native box, the lowest first."""

    def __init__(self, box: "NativeBox", layers: Sequence[Layer]) -> None:
        self.boxes, self.limits, self.kind = box.boxes, box.limits, box.kind
        self.uid = box.uid  # whose the files are
        self.layers = tuple(layers)

    def left(self) -> tuple[int, int]:
        """Bytes and inodes that a box over these layers may still write."""
        used = [layer.used() for layer in self.layers]
        size = (self.limits.workspace_mb << 20) - sum(size for size, _ in used)
        return size, INODES - sum(inodes for _, inodes in used)

    def deep_or_full(self) -> bool:
        """Whether a copy is better: of many layers, or of some that leave too little for others."""
        size, inodes = self.left()
        half = self.limits.workspace_mb << 19
        return len(self.layers) > DEPTH or size < half or inodes < INODES // 2

    async def export(self) -> Archive:
        """The same as a plain archive."""
        box = await self.boxes.restore(self)
        async with box:
            return await box.archive()


class NativeBox(AgentBox):
    """One native box; implements `Sandbox`. Made by `NativeBoxes.open`."""

    boxes: NativeBoxes

    def __init__(
        self,
        boxes: NativeBoxes,
        slot: int,
        limits: Limits,
        kind: Kind,
        over: Layers | None = None,
    ) -> None:
        super().__init__(boxes, slot, limits, kind)
        self._over = over
        if over:
            self.uid = over.uid

    async def start(self, tar: bytes) -> None:
        """Make the box and lay the files of `tar` into its workspace."""
        self.group = self.boxes.cgroups.take(self.limits)
        await self._begin(self._over)
        await self.lay_first(tar)

    async def _begin(self, over: Layers | None) -> None:
        """Have an agent made in the cgroups of this box, over layers if there are some."""
        limits = self.limits
        layers = over.layers if over else ()
        size, inodes = over.left() if over else (limits.workspace_mb << 20, INODES)
        numbers = (
            self.uid,
            size,
            inodes,
            -1 if "memory" in self.boxes.cgroups.parents else limits.memory_mb << 20,
            limits.processes + 1,  # the agent
            OPEN_FILES,
            limits.workspace_mb << 20,
            network(limits),
            len(self.group.doors),
            len(layers),
        )
        agent = Agent()
        old, self._agent = self._agent, agent
        fds = [agent.theirs.fileno(), *self.group.doors, *(layer.fd for layer in layers)]
        try:
            await self.boxes.ask(b"C" + " ".join(map(str, numbers)).encode(), fds, self.kind)
        finally:
            agent.theirs.close()
            if old:
                await unbroken(old.close())
        await agent.ready()
        if self.proxy.hosts:
            await self.proxy.serve(await agent.listener())

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
        """See `LocalBox._execute`."""
        folder, *argv = words
        kind = b"1" if reads_all else b"2" if python and self.kind.preload else b"0"
        request = pack(b"X" + kind, folder, argv, env)
        return await self._ask(request, stdin, seconds=seconds, output_bytes=output_bytes)

    async def snapshot(self) -> Snapshot:
        """What the box holds now; see `Sandbox`."""
        async with self.boxes.turn(), self._one:  # in the order in which commands take them
            if self.closed or self._agent is None:
                raise SandboxError("the box is closed: open another")
            if self._agent.can_be_layer:
                below = self._over.layers if self._over else ()
                layers = (*below, await self._agent.written())
                taken = Layers(self, layers)
                if not taken.deep_or_full():
                    self.shares_files = True
                    self._over = taken
                    await self._begin(taken)
                    return taken
        return await self.archive()

    async def _end(self) -> None:
        """End the box: the kernel kills all that is in it."""
        agent, self._agent = self._agent, None
        self._over = None
        if agent:
            await self.proxy.close()
            with self.group.hurried() if self._one.locked() else contextlib.nullcontext():
                await agent.close()
