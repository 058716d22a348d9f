"""The host's end of one native box: its pid 1, what is asked of it, and what it says.

`box.c` is the other end, and its first comment the protocol. A box is unmade when its socket ends.
"""

import asyncio
import contextlib
import errno
import itertools
import os
import signal
import socket
import time
import weakref
from pathlib import Path

from practicum.core import SandboxError
from practicum.sandbox.cgroups import Group
from practicum.sandbox.command import DEATH_SECONDS, SETUP_SECONDS, Drain, Feed, unbroken
from practicum.sandbox.host import advice

_SEND_BUFFER = 1 << 19  # room for the longest words that a kernel would run
_DEVNULL = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


class Layer:
    """All that one box wrote, as a detached mount; it exists as long as this object does."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        weakref.finalize(self, os.close, fd)

    def used(self) -> tuple[int, int]:
        """Bytes and inodes that it takes."""
        found = os.fstatvfs(self.fd)
        return (
            (found.f_blocks - found.f_bfree) * found.f_frsize,
            found.f_files - found.f_ffree,
        )


class Ended:
    """How a command ended: its status (minus the signal), None when it had to be killed."""

    def __init__(self, code: int | None, out: Drain, err: Drain, seconds: float) -> None:
        self.code, self.out, self.err, self.seconds = code, out, err, seconds


class Agent:
    """One pid 1; its maker sends `theirs` away, and `ready` comes before anything is run."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        ours.setblocking(False)
        self.can_be_layer = False
        self._socket: socket.socket | None = ours
        self._pidfd = -1
        self._error = ""
        self._over = False  # nothing will be said any more
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[bool] = self._loop.create_future()
        self._status: asyncio.Future[bytes] = self._loop.create_future()  # of the last command
        self._written: asyncio.Future[Layer | None] = self._loop.create_future()
        self._listening: asyncio.Future[socket.socket | None] = self._loop.create_future()
        self._loop.add_reader(ours, self._hear)

    async def ready(self) -> None:
        """Wait until it can run commands; SandboxError says why it cannot."""
        await asyncio.wait([self._ready], timeout=SETUP_SECONDS)
        if not self._ready.done():
            raise SandboxError(f"a box was not ready within {SETUP_SECONDS:g} s; lower max_running")
        if not self._ready.result():
            raise SandboxError(advice(self._error))

    @property
    def alive(self) -> bool:
        """Whether it can still run commands, as far as it was heard."""
        return not self._over

    @property
    def pid(self) -> int:
        """Of pid 1, on this host."""
        words = Path(f"/proc/self/fdinfo/{self._pidfd}").read_text().split()
        return int(words[words.index("Pid:") + 1])

    def _hear(self) -> None:
        """Take one message."""
        assert self._socket is not None
        try:
            said, fds, _, _ = socket.recv_fds(self._socket, 4096, 1)
        except BlockingIOError:
            return
        except OSError:
            said, fds = b"", []
        kind, rest = said[:1], said[1:]
        if kind == b"R":
            self._pidfd, self.can_be_layer = fds[0], rest == b"1"
            self._ready.set_result(True)
        elif kind == b"L":
            self._written.set_result(Layer(fds[0]))
        elif kind == b"N":
            self._listening.set_result(socket.socket(fileno=fds[0]) if fds else None)
        elif kind == b"S" and not self._status.done():
            self._status.set_result(rest)
        elif kind == b"E":
            self._error = rest.decode("utf-8", "replace")
        elif not said:
            self._end_of_talk()

    def _end_of_talk(self) -> None:
        """Let nobody wait for what would be said."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
        self._over = True
        if not self._ready.done():
            self._ready.set_result(False)
        if not self._status.done():
            self._status.set_result(b"")
        for future in (self._written, self._listening):
            if not future.done():
                future.set_result(None)

    async def written(self) -> Layer:
        """All that was written in it, as it will be when no command runs any more."""
        if not self._written.done() and self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.send(b"L")
            await asyncio.wait([self._written], timeout=SETUP_SECONDS)
        layer = self._written.result() if self._written.done() else None
        if layer is None:
            raise self._death()
        return layer

    async def run(
        self, request: bytes, stdin: bytes, *, seconds: float, cap: int, group: Group
    ) -> Ended:
        """Run a command for at most `seconds`; when this ends, all that it started is dead.

        `group` is the box's. Raises OSError for a request that is too long, SandboxError when the
        box is no more.
        """
        if self._over or self._socket is None:
            raise self._death()
        self._status = self._loop.create_future()
        running = _Streams(self._socket, request, bool(stdin), cap)
        begin = time.monotonic()
        try:
            running.feed(stdin)
            _, late = await asyncio.wait([self._status], timeout=seconds)
            spent = time.monotonic() - begin
        finally:
            if self._status.done():
                running.finish()
            else:
                with group.hurried():
                    await unbroken(self._kill(running))
        said = self._status.result()
        if not said:
            raise self._death()
        return Ended(None if late else int(said), running.out, running.err, spent)

    def _death(self) -> SandboxError:
        return SandboxError(f"the box died: {self._error or 'it was killed'}")

    async def _kill(self, running: "_Streams") -> None:
        """Kill all that a command started, and wait until it is dead."""
        running.stop_feeding()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.send(b"K")
        await asyncio.wait([self._status], timeout=DEATH_SECONDS / 2)
        if not self._status.done():
            self._kill_pid_1()
            await asyncio.wait([self._status], timeout=DEATH_SECONDS / 2)
        running.finish()
        if not self._status.done():
            raise SandboxError(
                f"a command did not die within {DEATH_SECONDS:g} s of SIGKILL: the machine is "
                "overloaded or a process hangs in the kernel; see `ps -eo pid,stat,cmd`"
            )

    def _kill_pid_1(self) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def listener(self) -> socket.socket:
        """A socket that listens in the box, for a proxy out here."""
        if not self._listening.done() and self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.send(b"N")
            await asyncio.wait([self._listening], timeout=SETUP_SECONDS)
        found = self._listening.result() if self._listening.done() else None
        if found is None:
            raise self._death()
        return found

    async def close(self, *, kill: bool = True) -> None:
        """Unmake the box: the kernel kills all that is in it. May be called twice.

        Without `kill` the agent is left to end by itself, as it does when its socket is closed.
        """
        if self._socket is not None and not self._ready.done():
            await asyncio.wait([self._ready], timeout=SETUP_SECONDS)  # until it can be killed
        ours, self._socket = self._socket, None
        if ours is None:
            return
        self._loop.remove_reader(ours)
        self._end_of_talk()
        ours.close()
        if self._pidfd >= 0:
            if kill:
                self._kill_pid_1()
            gone = asyncio.Event()
            self._loop.add_reader(self._pidfd, gone.set)
            try:
                async with asyncio.timeout(DEATH_SECONDS):
                    await gone.wait()
            except TimeoutError:
                pass  # its processes hang in the kernel; they do no more
            finally:
                self._loop.remove_reader(self._pidfd)
                os.close(self._pidfd)
                self._pidfd = -1


class _Streams:
    """The host's ends of a command's three streams; sends the request with the other ends."""

    def __init__(self, box: socket.socket, request: bytes, has_input: bool, cap: int) -> None:
        (out_r, out_w), (err_r, err_w), *rest = _pipes(3 if has_input else 2)
        in_r, in_w = rest[0] if rest else (_DEVNULL, -1)
        try:
            socket.send_fds(box, [request], [in_r, out_w, err_w])
        except OSError as error:
            for fd in (out_r, err_r, *((in_w,) if has_input else ())):
                os.close(fd)
            if error.errno == errno.EMSGSIZE:
                raise OSError(errno.E2BIG, os.strerror(errno.E2BIG)) from error
            raise SandboxError(f"the box died: {error}") from error
        finally:
            for fd in (out_w, err_w, *((in_r,) if has_input else ())):
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
        self.stop_feeding()
        self.out.finish()
        self.err.finish()


def _pipes(count: int) -> list[tuple[int, int]]:
    """So many pipes, or none and SandboxError."""
    made: list[tuple[int, int]] = []
    try:
        for _ in range(count):
            made.append(os.pipe())
    except OSError as error:
        for fd in itertools.chain(*made):
            os.close(fd)
        raise SandboxError(f"cannot open a pipe: {error}; is the host full?") from error
    return made
