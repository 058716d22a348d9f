"""One command in a box, seen from the host: spawned cheaply, drained with a cap, dead at its end.

`execute` guarantees that when it returns, raises or is cancelled, the launcher is reaped and every
process of the command's pid namespace is dead. For that the command waits behind a gate until the
host has a handle on pid 1 of its namespace. (When the host itself dies, the box's keeper ends, and
the kernel kills all that is in the keeper's pid namespace, in which every command lives.)
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from practicum.core import SandboxError

SETUP_SECONDS = 60.0  # to build the namespaces, on a machine under heavy load
DEATH_SECONDS = 60.0  # for the kernel to tear a pid namespace down
_CHUNK = 1 << 16
_PAUSE = 0.001  # between reads of output that is thrown away


class Ended(msgspec.Struct, frozen=True):
    """How a launched command ended. `code` is None when the launcher reported no exit status."""

    stdout: bytes
    stderr: bytes
    code: int | None
    timed_out: bool
    cut: bool
    seconds: float
    launcher: int  # return code of the launcher, negative for a signal


class Drain:
    """Keeps the first `cap` bytes of a pipe, and throws the rest away at a bounded pace."""

    def __init__(self, fd: int, cap: int, seen: Callable[[bytearray], None] | None = None) -> None:
        self.fd, self.cap, self.seen = fd, cap, seen
        self.data = bytearray()
        self.cut = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._ready)

    def _read(self) -> bool:
        """Take one chunk; False when there is none now, or none ever."""
        try:
            chunk = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return False
        room = self.cap - len(self.data)
        self.data += chunk[:room]
        self.cut = self.cut or len(chunk) > room
        if chunk and self.seen:
            self.seen(self.data)
        return bool(chunk)

    def _ready(self) -> None:
        if not self._read() or self.cut:
            self._loop.remove_reader(self.fd)
        if self.cut:
            self._timer = self._loop.call_later(_PAUSE, self._loop.add_reader, self.fd, self._ready)

    def finish(self) -> None:
        """Take what is left once all writers are dead, and close."""
        if self._timer:
            self._timer.cancel()
        self._loop.remove_reader(self.fd)
        while self._read():
            pass
        os.close(self.fd)


class Feed:
    """Writes data into a pipe as the reader takes it, then closes it unless told to keep it."""

    def __init__(self, fd: int, *, keep_open: bool = False) -> None:
        self.fd: int | None = fd
        self.keep_open = keep_open
        self.left = memoryview(b"")
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)

    def start(self, data: bytes) -> None:
        """Begin to write."""
        self.left = memoryview(data)
        if self.fd is not None:
            self._loop.add_writer(self.fd, self._ready)
            self._ready()

    def _ready(self) -> None:
        assert self.fd is not None
        try:
            self.left = self.left[os.write(self.fd, self.left[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.left = memoryview(b"")
        if not self.left and not self.keep_open:
            self.close()
        elif not self.left:
            self._loop.remove_writer(self.fd)

    def close(self) -> None:
        """Stop writing."""
        if self.fd is not None:
            self._loop.remove_writer(self.fd)
            os.close(self.fd)
            self.fd = None


class Handle:
    """A process by pidfd: it can be killed and waited for without ever hitting a reused pid."""

    def __init__(self, pidfd: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.fd = pidfd
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self.fd, self._ended)

    def _ended(self) -> None:
        self._loop.remove_reader(self.fd)
        if not self.gone.done():
            self.gone.set_result(None)

    def kill(self) -> None:
        """SIGKILL, if it still lives."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, signal.SIGKILL)

    def close(self) -> None:
        """Let go of the handle."""
        self._loop.remove_reader(self.fd)
        os.close(self.fd)


def _child(pid: int) -> int:
    """The pid of a process's first child; needs CONFIG_PROC_CHILDREN, as all distributions have."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


async def unbroken(work: Awaitable[None]) -> None:
    """Await `work` to its end even when cancelled meanwhile; the cancellation follows after it."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled:
        raise cancelled


def spawn(argv: Sequence[str | bytes], **pipes: int | Sequence[int]) -> subprocess.Popen[bytes]:
    """Start a launcher by vfork in a session of its own, with no other descriptor than given."""
    return subprocess.Popen(
        argv,
        cwd="/",
        env={"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C"},
        start_new_session=True,
        close_fds=True,
        **pipes,  # type: ignore[call-overload]
    )


class _Running:
    """The host's end of one launched command."""

    def __init__(
        self, argv: Callable[[int, int], Sequence[str | bytes]], code: bytes, output_bytes: int
    ) -> None:
        self.code: int | None = None
        self.init: Handle | None = None  # pid 1 of the command's namespace
        loop = asyncio.get_running_loop()
        self.waiting: asyncio.Future[None] = loop.create_future()  # the command is at its gate
        pairs = [os.pipe() for _ in range(5)]
        (in_r, in_w), (out_r, out_w), (err_r, err_w), (status_r, status_w), (code_r, code_w) = pairs
        try:
            os.write(code_w, code)  # a few hundred bytes: a pipe holds them
            os.close(code_w)
            self.process = spawn(
                argv(status_w, code_r),
                stdin=in_r,
                stdout=out_w,
                stderr=err_w,
                pass_fds=(status_w, code_r),
            )
        except BaseException:
            for fd in (in_w, out_r, err_r, status_r):
                os.close(fd)
            raise
        finally:
            for fd in (in_r, out_w, err_w, status_w, code_r):
                os.close(fd)
        self.outer = Handle(os.pidfd_open(self.process.pid))
        self.stdin = Feed(in_w)
        self.out = Drain(out_r, output_bytes + 1, self._announce)  # one byte says "at the gate"
        self.err = Drain(err_r, output_bytes)
        self.status = Drain(status_r, _CHUNK, self._report)

    def _announce(self, _: bytearray) -> None:
        if not self.waiting.done():
            self.waiting.set_result(None)

    def _report(self, text: bytearray) -> None:
        for line in text.split(b"\n")[:-1]:
            report = json.loads(line)
            self.code = report.get("exit-code", self.code)

    async def reach_gate(self) -> None:
        """Wait until the command is at its gate, and take hold of pid 1 of its namespace.

        nsenter waits for bwrap, and bwrap for pid 1: at the gate each has just that child.
        """
        await self.waiting
        try:
            self.init = Handle(os.pidfd_open(_child(_child(self.process.pid))))
        except (ProcessLookupError, FileNotFoundError, IndexError):
            await self.outer.gone  # it died meanwhile, which decides

    async def finish(self) -> None:
        """Kill all, wait until all is dead, then take the rest of the output."""
        self.stdin.close()
        if self.init:
            self.init.kill()
        # Else it meets the end of its input at the gate. Killing the launcher instead would orphan
        # what it waits for, and a pid namespace ends only when all in it are reaped.
        waits = [handle.gone for handle in (self.outer, self.init) if handle]
        _, late = await asyncio.wait(waits, timeout=DEATH_SECONDS / 2)
        if late:
            self.outer.kill()
            _, late = await asyncio.wait(waits, timeout=DEATH_SECONDS / 2)
        if not late:
            self.process.wait()
        for pipe in (self.status, self.out, self.err):
            pipe.finish()
        for handle in (self.outer, self.init):
            if handle:
                handle.close()
        if late:
            raise SandboxError(
                f"a command did not die within {DEATH_SECONDS:g} s of SIGKILL: the machine is "
                "overloaded or a process hangs in the kernel; see `ps -eo pid,stat,cmd`"
            )


async def execute(
    argv: Callable[[int, int], Sequence[str | bytes]],
    *,
    code: bytes,
    stdin: bytes,
    seconds: float,
    output_bytes: int,
) -> Ended:
    """Run the launcher `argv(status_fd, filter_fd)` and what it launches, for at most `seconds`.

    The launcher is bwrap with `--json-status-fd`; its command must first write one byte, then read
    one line from its standard input. Time counts from that line on. `code` is what can be read
    from `filter_fd`.
    Raises OSError when it cannot be spawned, SandboxError when it hangs.
    """
    running = _Running(argv, code, output_bytes)
    gate = asyncio.ensure_future(running.reach_gate())
    timed_out, begin, spent = False, time.monotonic(), 0.0
    try:
        await asyncio.wait(
            [gate, running.outer.gone],
            timeout=SETUP_SECONDS,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if running.init:
            begin = time.monotonic()
            running.stdin.start(b"\n" + stdin)
            _, late = await asyncio.wait([running.outer.gone], timeout=seconds)
            timed_out = bool(late)
            spent = time.monotonic() - begin
        elif not running.outer.gone.done():
            raise SandboxError(f"a box was not ready within {SETUP_SECONDS:g} s; lower max_running")
    finally:
        gate.cancel()
        await unbroken(running.finish())
    return Ended(
        bytes(running.out.data[1:]),
        bytes(running.err.data),
        None if timed_out else running.code,
        timed_out,
        running.out.cut or running.err.cut,
        spent,
        running.process.returncode,
    )
