"""What boxes of container engines share: a first process that is the box, and `exec` for commands.

The first process is bash with a few lines of ours, attached to us by the engine's `run`. It ends
when its standard input does, and the container with it: so a box ends when this process does,
however that ends. When a command is over it kills all that is left in the container. It is root
there with three capabilities, so that the guest (uid 1000, none) can neither trace nor stop it.

Words, variables and input of a command go through its standard input, where any byte is safe. Its
exit status is the engine's; one over 128 counts as a signal, as every shell reports it.
"""

import asyncio
import errno
import os
import resource
import subprocess
import time
from abc import abstractmethod
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from signal import SIGKILL
from typing import Any

import msgspec

from practicum.core import Limits, SandboxError
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
from practicum.sandbox.host import hard_limit
from practicum.sandbox.layout import Root
from practicum.sandbox.local import OPEN_FILES, Kind, LocalBox, LocalBoxes

CAPABILITIES = ("CHOWN", "DAC_READ_SEARCH", "KILL")  # of the first process, and of our reading
GUEST = "1000:1000"
PER_SECOND, STARTING = 10.0, 4  # how fast boxes are made unless told otherwise

# Says "ready"; then, for each line that comes in, kills all but itself until there is nobody left,
# and says how often memory has run out.
_FIRST = """
chown 1000:1000 /workspace /tmp /dev/shm || exit 1
echo ready
while read -r _; do
    while kill -KILL -1; do read -rt 0.001 _; done 2>/dev/null
    times=0
    for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
        [ -r $file ] && while read -r name value; do
            [ "$name" = oom_kill ] && times=$value
        done < $file
    done
    echo $times
done
"""
FIRST = ("/bin/bash", "-c", _FIRST)
# One byte out: the command's time begins. $1 variables and $2 words in: a folder, then the command.
_GATE = """
printf +
mapfile -d '' -t -n "$1" variables; mapfile -d '' -t -n "$2" words
[ ${#words[@]} = "$2" ] || exit 125
LIMITS
cd -- "${words[0]}" || exit 126
exec env -i "${variables[@]}" "${words[@]:1}"
"""
_LONGEST = 1 << 17  # of one word, for the kernel
_SAYS = 4096  # bytes kept of what an engine says


class Pace:
    """Bounds creations: at most `per_second`, and at most `at_once` under way."""

    def __init__(self, per_second: float, at_once: int) -> None:
        self._gap = 1 / per_second
        self._places = asyncio.Semaphore(at_once)
        self._next = 0.0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place among those under way, when it is time for one more."""
        async with self._places:
            now = time.monotonic()
            wait = max(0.0, self._next - now)
            self._next = now + wait + self._gap
            await asyncio.sleep(wait)
            yield


class ContainerBoxes(LocalBoxes):
    """Makes boxes by a container engine; implements `Boxes`."""

    fds: tuple[int, ...] = ()  # that the engine reads when it makes a box

    def __init__(
        self,
        max_running: int = 4,
        *,
        ahead: int = 0,
        roots: Mapping[str, Root] | None = None,
        delay: Callable[[], Awaitable[None]] | None = None,
        per_second: float = PER_SECOND,
        starting: int = STARTING,
    ) -> None:
        """See `LocalBoxes`; `per_second` and `starting` bound how fast boxes are made."""
        super().__init__(max_running, ahead=ahead, roots=roots, delay=delay)
        self.pace = Pace(per_second, starting)

    async def _start(self, box: LocalBox, tar: bytes) -> LocalBox:
        async with self.pace.place():
            return await super()._start(box, tar)


class ContainerBox(LocalBox):
    """One box; implements `Sandbox`."""

    boxes: ContainerBoxes

    def __init__(self, boxes: ContainerBoxes, slot: int, limits: Limits, kind: Kind) -> None:
        super().__init__(boxes, slot, limits, kind)
        self.name = f"practicum-{os.getpid()}-{os.urandom(4).hex()}"
        self._first: First | None = None
        self._one = asyncio.Lock()  # command at a time
        self._times = 0  # that memory has run out
        self._starved = False  # whether the box has died of that

    @abstractmethod
    async def _making(self) -> list[str]:
        """The engine's words that run `FIRST` as root and stay attached to it."""

    @abstractmethod
    def _entering(self, root: bool) -> list[str]:
        """The engine's words that run what follows in the box, as root or as the guest."""

    @abstractmethod
    def _removing(self) -> list[str]:
        """The engine's words that end the box whatever happens in it."""

    @property
    def alive(self) -> bool:
        """Whether it can run commands, as far as is known."""
        return self._first is not None and self._first.alive

    @property
    def pid(self) -> int:
        """Of the engine's `run`, with which the box ends."""
        assert self._first is not None
        return self._first.pid

    async def start(self, tar: bytes) -> None:
        """Make the box, then lay the files of `tar` into its workspace."""
        if self.proxy.hosts:
            raise SandboxError(
                f"boxes of container engines reach no host, and the task asks for "
                f"{self.limits.network}: use native boxes (boxes.backend)"
            )
        self._first = First(await self._making(), self.boxes.fds)
        await self._first.ready()
        await self.lay_first(tar)

    async def _end(self) -> None:
        first, self._first = self._first, None
        if first:
            await unbroken(self._unmake(first))

    async def _unmake(self, first: "First") -> None:
        first.stdin.close()
        if not await first.ended(DEATH_SECONDS / 2):
            with suppress(SandboxError):
                await asyncio.to_thread(call, self._removing())
            first.kill()
            await first.ended(DEATH_SECONDS / 2)
        first.finish()
        async with self._one:  # until what ran in it has seen that
            pass

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
        """Run by the engine's `exec`; see `LocalBox._execute`."""
        variables = [os.fsencode(f"{name}={value}") for name, value in env.items()]
        if len(words) < 2 or any(b"\0" in word for word in variables):
            raise ValueError("no command, or a variable that holds a NUL byte")
        if max(map(len, (*words, *variables))) >= _LONGEST:
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
        if b"=" in words[1]:  # which `env` would take for a variable
            words = [words[0], b"/bin/sh", b"-c", b'exec "$@"', b"sh", *words[1:]]
        counts = (str(len(variables)), str(len(words)))
        gate = _GATE.replace("LIMITS", self._limits())
        argv = [*self._entering(reads_all), "/bin/bash", "-c", gate, "gate", *counts]
        async with self._one:
            first = self._first
            if self.closed or first is None:
                raise SandboxError("the box is closed: open another")
            if not first.alive:
                return self._died(first, Result(b"", b"", None))
            command = Command(argv, output_bytes)
            timed_out, spent = False, 0.0
            before = self._times
            try:
                if await command.begun():
                    begin = time.monotonic()
                    command.stdin.start(b"".join(w + b"\0" for w in (*variables, *words)) + stdin)
                    timed_out = not await command.ended(seconds)
                    spent = time.monotonic() - begin
            finally:
                await unbroken(self._stop(first, command))
            if self.closed:
                raise SandboxError("the box was closed while a command ran in it")
            out_of_memory = self._times > before or self.group.out_of_memory()
            result = command.result(timed_out, out_of_memory, spent)
            return result if first.alive else self._died(first, result)

    def _died(self, first: "First", result: Result) -> Result:
        """What is said of a command in a dead box: it is the guest's doing that memory ran out."""
        self._starved = self._starved or result.out_of_memory
        if not self._starved:
            raise SandboxError(f"the box died: {first.said() or 'it was killed'}; open another")
        end: dict[str, Any] = {"exit_code": None, "timed_out": False, "signal": int(SIGKILL)}
        return msgspec.structs.replace(result, **end, out_of_memory=True)

    async def _stop(self, first: "First", command: "Command") -> None:
        """Kill all that the command started, and wait until it is dead."""
        command.stdin.close()
        try:
            self._times = max(self._times, await first.kill_others())
        finally:
            if not await command.ended(DEATH_SECONDS / 2):
                command.kill()
                await command.ended(DEATH_SECONDS / 2)
            command.finish()

    def _limits(self) -> str:
        """The words of bash that limit one process, and all of them where no cgroup does."""
        limits, record = self.limits, self.boxes.capabilities
        lines = [
            "ulimit -c 0",
            f"ulimit -n {hard_limit(resource.RLIMIT_NOFILE, OPEN_FILES)}",
            f"ulimit -f {hard_limit(resource.RLIMIT_FSIZE, limits.workspace_mb << 20) >> 10}",
        ]
        if record.memory != "cgroup":
            lines.append(
                f"ulimit -d {hard_limit(resource.RLIMIT_DATA, limits.memory_mb << 20) >> 10}"
            )
        if record.processes != "cgroup":
            lines.append(f"ulimit -u {hard_limit(resource.RLIMIT_NPROC, limits.processes)}")
        return "\n".join(lines)


class Process:
    """A command of the engine: its streams and its end."""

    def __init__(
        self,
        argv: Sequence[str],
        out_bytes: int,
        err_bytes: int,
        heard: Callable[[bytearray], None],
        *,
        fds: Sequence[int] = (),
        keep_open: bool = False,
    ) -> None:
        pairs = [os.pipe() for _ in range(3)]
        (in_r, in_w), (out_r, out_w), (err_r, err_w) = pairs
        try:
            self._process = spawn(argv, stdin=in_r, stdout=out_w, stderr=err_w, pass_fds=fds)
        except OSError as error:
            for fd in (in_w, out_r, err_r):
                os.close(fd)
            raise SandboxError(f"cannot start {argv[0]}: {error}; is the host full?") from error
        finally:
            for fd in (in_r, out_w, err_w):
                os.close(fd)
        self.pid = self._process.pid
        self._handle = Handle(os.pidfd_open(self.pid))
        self.stdin = Feed(in_w, keep_open=keep_open)
        self.out, self.err = Drain(out_r, out_bytes, heard), Drain(err_r, err_bytes)

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return not self._handle.gone.done()

    async def ended(self, seconds: float) -> bool:
        """Wait for its end; whether it came."""
        await asyncio.wait([self._handle.gone], timeout=seconds)
        return not self.alive

    async def said_or_ended(self, said: asyncio.Future[bytes], seconds: float) -> None:
        """Wait until `said` is there, or for the end."""
        both: list[asyncio.Future[Any]] = [said, self._handle.gone]
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def said(self) -> str:
        """What it wrote as an error."""
        return self.err.data.decode("utf-8", "replace").strip()

    def kill(self) -> None:
        """Kill the engine's own process."""
        self._handle.kill()

    def finish(self) -> None:
        """Take the rest of the output of a process that has ended."""
        self.stdin.close()
        self.out.finish()
        self.err.finish()
        self.code = self._process.poll()
        self._handle.close()


class First(Process):
    """The first process of a box."""

    def __init__(self, argv: Sequence[str], fds: Sequence[int]) -> None:
        self._line: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        super().__init__(argv, _SAYS, _SAYS, self._hear, fds=fds, keep_open=True)

    def _hear(self, text: bytearray) -> None:
        line, end, rest = bytes(text).partition(b"\n")
        if end and not self._line.done():
            self._line.set_result(line)
            text[:] = rest

    async def ready(self) -> None:
        """Wait until the box is made; SandboxError says why it is not."""
        await self.said_or_ended(self._line, SETUP_SECONDS)
        if self._line.done():
            return
        if self.alive:
            raise SandboxError(f"a box was not ready within {SETUP_SECONDS:g} s; lower max_running")
        await asyncio.sleep(0.01)  # its last words are on their way
        cure = '; set runtime = "runc" in containers.conf' if "crun: cgroups" in self.said() else ""
        raise SandboxError(f"the container engine made no box: {self.said() or 'no message'}{cure}")

    async def kill_others(self) -> int:
        """Have all others in the box killed, until none is left; how often memory has run out."""
        self._line = asyncio.get_running_loop().create_future()
        self.stdin.start(b"\n")
        await self.said_or_ended(self._line, DEATH_SECONDS)
        if self._line.done():
            return int(self._line.result())
        if self.alive:
            raise SandboxError(
                f"a command did not die within {DEATH_SECONDS:g} s of SIGKILL: the machine is "
                "overloaded or a process hangs in the kernel; see `ps -eo pid,stat,cmd`"
            )
        return 0


class Command(Process):
    """A command in a box, from its gate on."""

    def __init__(self, argv: Sequence[str], output_bytes: int) -> None:
        self._begun: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        # one byte says "at the gate"
        super().__init__(argv, output_bytes + 1, output_bytes, self._hear)

    def _hear(self, _: bytearray) -> None:
        if not self._begun.done():
            self._begun.set_result(b"")

    async def begun(self) -> bool:
        """Wait until it is at its gate; whether it is. SandboxError when that takes too long."""
        await self.said_or_ended(self._begun, SETUP_SECONDS)
        if self.alive and not self._begun.done():
            raise SandboxError(f"no command began within {SETUP_SECONDS:g} s; lower max_running")
        return self._begun.done()

    def result(self, timed_out: bool, out_of_memory: bool, spent: float) -> Result:
        """How it ended; SandboxError when it never began."""
        if not self._begun.done():
            raise SandboxError(f"the container engine ran no command: {self.said()}")
        code = None if timed_out else self.code
        signal = code - 128 if code is not None and 128 < code <= 128 + 64 else None
        return Result(
            stdout=bytes(self.out.data[1:]),
            stderr=bytes(self.err.data),
            exit_code=code if signal is None else None,
            timed_out=timed_out,
            signal=signal,
            output_cut=self.out.cut or self.err.cut,
            out_of_memory=out_of_memory,
            seconds=spent,
        )


def call(argv: Sequence[str], stdin: bytes = b"") -> bytes:
    """What a command of an engine writes; SandboxError when it fails."""
    shown = " ".join(argv)
    pipe = subprocess.PIPE
    try:
        process = spawn(argv, stdin=pipe, stdout=pipe, stderr=pipe)
    except OSError as error:
        raise SandboxError(f"cannot start `{shown}`: {error}") from error
    try:
        out, err = process.communicate(stdin, SETUP_SECONDS)
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.communicate()
        raise SandboxError(f"`{shown}` took more than {SETUP_SECONDS:g} s") from error
    if process.returncode:
        said = err.decode("utf-8", "replace").strip()
        raise SandboxError(f"`{shown}` failed: {said or f'exit status {process.returncode}'}")
    return out
