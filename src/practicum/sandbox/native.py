"""The native box: namespaces that live as long as the box, and in them an agent that runs commands.

`box.c` is the small program on the other side, as the spawner of all boxes of a `NativeBoxes` and
as pid 1 of each; its first comment is the protocol. Each box has one socket to its agent, and ends
when that socket does, however this process ends.

Inside: /workspace, /tmp and /dev/shm (one tmpfs of `Limits.workspace_mb`, which persists over
commands; nothing else can be written), a read-only /usr, pytest in /opt/python, a loopback and no
other network, no capabilities, uid 1000, no way to a new namespace. Commands of one box run one
after the other: at the end of each, all that it started is killed.
"""

import asyncio
import contextlib
import errno
import hashlib
import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from practicum.core import Limits, SandboxError
from practicum.sandbox import cgroups
from practicum.sandbox.command import (
    DEATH_SECONDS,
    SETUP_SECONDS,
    Drain,
    Feed,
    Handle,
    spawn,
    unbroken,
)
from practicum.sandbox.contract import Result
from practicum.sandbox.host import advice
from practicum.sandbox.local import INODES, OPEN_FILES, LocalBox, LocalBoxes
from practicum.sandbox.seccomp import program

SOURCE = Path(__file__).with_name("box.c")
PROGRAM = Path(__file__).with_name("practicum-box")  # made when the package is built


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

    _spawner: "Spawner | None" = None

    def _new(self, slot: int, limits: Limits) -> "NativeBox":
        return NativeBox(self, slot, limits)

    def ask(self, request: bytes, fds: Sequence[int]) -> None:
        """Have the spawner make a box, with a new spawner if the old one has died."""
        for _ in range(2):
            if self._spawner is None:
                self._spawner = Spawner(self.image)
            try:
                return self._spawner.ask(request, fds)
            except OSError:
                self._spawner.close()
                self._spawner = None
        raise SandboxError("the spawner of boxes dies at once: is the host full?")

    async def close(self) -> None:
        """Close every box that is still open, and the spawner."""
        await super().close()
        if self._spawner is not None:
            self._spawner.close()
            self._spawner = None


class Spawner:
    """The process that clones boxes, far from this one's memory and threads."""

    def __init__(self, image: Path) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            argv = [helper(), str(theirs.fileno())]
            self._process = spawn(argv, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
        except OSError as error:
            raise SandboxError(f"cannot start {PROGRAM}: {error}; is the host full?") from error
        finally:
            theirs.close()
        self._socket.send(b"L" + layout(image))
        self._socket.send(b"F" + program())

    def ask(self, request: bytes, fds: Sequence[int]) -> None:
        """Send a request; OSError when the process is gone."""
        socket.send_fds(self._socket, [request], fds)

    def close(self) -> None:
        """End the process. Its boxes live on until their own sockets end."""
        self._socket.close()
        try:
            self._process.wait(SETUP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def layout(image: Path) -> bytes:
    """The parts of the host that every box sees: (operation, source, target) as `box.c` reads it.

    b: bind read-only; ?: the same if there is such a path; l: a symlink.
    """
    rows = [("b", "/usr", "usr")]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        if os.path.islink(f"/{name}"):
            rows.append(("l", os.readlink(f"/{name}"), name))
        elif os.path.isdir(f"/{name}"):
            rows.append(("b", f"/{name}", name))
    rows += [("?", f"/etc/{n}", f"etc/{n}") for n in ("alternatives", "ld.so.cache", "ssl/certs")]
    for name in ("passwd", "group", "hosts", "nsswitch.conf"):
        rows.append(("b", str(image / "etc" / name), f"etc/{name}"))
    rows.append(("b", str(image / "python"), "opt/python"))
    return b"".join(
        op.encode() + os.fsencode(source) + b"\0" + target.encode() + b"\0"
        for op, source, target in rows
    )


class NativeBox(LocalBox):
    """One native box; implements `Sandbox`. Made by `NativeBoxes.open`."""

    boxes: NativeBoxes

    def __init__(self, boxes: NativeBoxes, slot: int, limits: Limits) -> None:
        super().__init__(boxes, slot, limits)
        self._one = asyncio.Lock()  # command at a time
        self._socket: socket.socket | None = None
        self._init: Handle | None = None  # pid 1
        self._error = ""
        self._over = False  # nothing will be said on the socket any more
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[bool] = loop.create_future()
        self._status: asyncio.Future[bytes] = loop.create_future()  # of the last command

    async def start(self, tar: bytes) -> None:
        """Make the box and lay the files of `tar` into its workspace."""
        limits = self.limits
        self.groups = self.boxes.cgroups.make(f"{os.getpid()}-{os.urandom(4).hex()}", limits)
        memory = -1 if "memory" in self.boxes.cgroups.parents else limits.memory_mb << 20
        numbers = (
            self.uid,
            limits.workspace_mb << 20,
            INODES,
            memory,
            limits.processes + 1,  # the agent
            OPEN_FILES,
            limits.workspace_mb << 20,
        )
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 19)
        ours.setblocking(False)
        self._socket = ours
        fds = [theirs.fileno()]
        try:
            fds += [os.open(cgroups.entrance(group), os.O_WRONLY) for group in self.groups]
            self.boxes.ask(b"C" + " ".join(map(str, numbers)).encode(), fds)
        except OSError as error:
            raise SandboxError(f"cannot make a box: {error}") from error
        finally:
            theirs.close()
            for fd in fds[1:]:
                os.close(fd)
        asyncio.get_running_loop().add_reader(ours, self._hear)
        await asyncio.wait([self._ready], timeout=SETUP_SECONDS)
        if not self._ready.done():
            raise SandboxError(f"a box was not ready within {SETUP_SECONDS:g} s; lower max_running")
        if not self._ready.result():
            raise SandboxError(advice(self._error))
        if tar and (detail := await self.lay(tar)):
            raise SandboxError(
                f"cannot lay the files of a task into its box: {detail}; "
                "does Limits.workspace_mb leave room for them?"
            )

    def _hear(self) -> None:
        """Take one message from the box."""
        assert self._socket is not None
        try:
            said, fds, _, _ = socket.recv_fds(self._socket, 4096, 1)
        except BlockingIOError:
            return
        except OSError:
            said, fds = b"", []
        if fds:
            self._init = Handle(fds[0])
            words = Path(f"/proc/self/fdinfo/{fds[0]}").read_text().split()
            self.pid = int(words[words.index("Pid:") + 1])
        if said[:1] == b"R":
            self._ready.set_result(True)
        elif said[:1] == b"S" and not self._status.done():
            self._status.set_result(said[1:])
        elif said[:1] == b"E":
            self._error = said[1:].decode("utf-8", "replace")
        elif not said:
            self._end_of_talk(self._socket)

    def _end_of_talk(self, ours: socket.socket) -> None:
        """Let nobody wait for what the box would say."""
        asyncio.get_running_loop().remove_reader(ours)
        self._over = True
        if not self._ready.done():
            self._ready.set_result(False)
        if not self._status.done():
            self._status.set_result(b"")

    async def _execute(
        self,
        words: Sequence[bytes],
        *,
        env: Mapping[str, str],
        seconds: float,
        output_bytes: int,
        stdin: bytes = b"",
        reads_all: bool = False,
    ) -> Result:
        """See `LocalBox._execute`."""
        folder, *argv = words
        variables = [os.fsencode(f"{name}={value}") for name, value in env.items()]
        if not argv or any(b"\0" in v for v in variables):
            raise ValueError("no command, or a variable that holds a NUL byte")
        parts = [folder, str(len(argv)).encode(), *argv, *variables]
        request = (b"X1" if reads_all else b"X0") + b"".join(part + b"\0" for part in parts)
        async with self._one:
            if self.closed or self._socket is None:
                raise SandboxError("the box is closed: open another")
            if self._over:
                raise SandboxError(f"the box died: {self._error or 'it was killed'}")
            self._status = asyncio.get_running_loop().create_future()
            killed = cgroups.out_of_memory(self.groups)
            running = _Streams(self._socket, request, bool(stdin), output_bytes)
            begin = time.monotonic()
            try:
                running.feed(stdin)
                _, late = await asyncio.wait([self._status], timeout=seconds)
                spent = time.monotonic() - begin
            finally:
                await unbroken(self._finish(running))
            said = self._status.result()
            if self.closed:
                raise SandboxError("the box was closed while a command ran in it")
            if not said:
                raise SandboxError(f"the box died: {self._error or 'it was killed'}")
            code = int(said)
            return Result(
                stdout=bytes(running.out.data),
                stderr=bytes(running.err.data),
                exit_code=None if late or code < 0 else code,
                timed_out=bool(late),
                signal=-code if code < 0 and not late else None,
                output_cut=running.out.cut or running.err.cut,
                out_of_memory=cgroups.out_of_memory(self.groups) > killed,
                seconds=spent,
            )

    async def _finish(self, running: "_Streams") -> None:
        """Wait until all of a command is dead, killing what still lives; then take its output."""
        running.stop_feeding()
        if not self._status.done():
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.send(b"K")
            await asyncio.wait([self._status], timeout=DEATH_SECONDS / 2)
        if not self._status.done() and self._init:
            self._init.kill()
            await asyncio.wait([self._status], timeout=DEATH_SECONDS / 2)
        running.finish()
        if not self._status.done():
            raise SandboxError(
                f"a command did not die within {DEATH_SECONDS:g} s of SIGKILL: the machine is "
                "overloaded or a process hangs in the kernel; see `ps -eo pid,stat,cmd`"
            )

    async def _end(self) -> None:
        """End the box: the kernel kills all that is in it."""
        if self._socket is not None and not self._ready.done():
            await asyncio.wait([self._ready], timeout=SETUP_SECONDS)  # until it can be killed
        ours, self._socket = self._socket, None
        if ours is None:
            return
        self._end_of_talk(ours)
        ours.close()
        if self._init:
            self._init.kill()
            await asyncio.wait([self._init.gone], timeout=DEATH_SECONDS)
            self._init.close()


class _Streams:
    """The host's ends of a command's three streams; sends the request with the other ends."""

    def __init__(self, box: socket.socket, request: bytes, has_input: bool, cap: int) -> None:
        out_r, out_w = os.pipe()
        err_r, err_w = os.pipe()
        in_r, in_w = os.pipe() if has_input else (os.open(os.devnull, os.O_RDONLY), -1)
        try:
            socket.send_fds(box, [request], [in_r, out_w, err_w])
        except OSError as error:
            for fd in (out_r, err_r, *((in_w,) if has_input else ())):
                os.close(fd)
            if error.errno == errno.EMSGSIZE:
                raise OSError(errno.E2BIG, os.strerror(errno.E2BIG)) from error
            raise SandboxError(f"the box died: {error}") from error
        finally:
            for fd in (in_r, out_w, err_w):
                os.close(fd)
        self._in = Feed(in_w) if has_input else None
        self.out, self.err = Drain(out_r, cap), Drain(err_r, cap)

    def feed(self, data: bytes) -> None:
        """Begin to write the command's input."""
        if self._in:
            self._in.start(data)

    def stop_feeding(self) -> None:
        """Close the command's input."""
        if self._in:
            self._in.close()

    def finish(self) -> None:
        """Take what is left once all writers are dead."""
        self.out.finish()
        self.err.finish()
