"""Boxes by bubblewrap: a keeper process holds the workspace, and each command gets its own bwrap.

The keeper is a small shell, pid 1 of its own user, mount and pid namespace. It mounts a sized tmpfs
there and then waits for its standard input to end. So the workspace is never visible on the host
and needs no root; and when this process ends, however it does, the keeper ends, and with it every
process and mount of the box. As root everything runs under a uid of the box's own; bwrap is never
root on the host.

Inside: /workspace, /tmp and /dev/shm (one tmpfs of `Limits.workspace_mb`, which persists over
commands; nothing else can be written), a read-only /usr, pytest in /opt/python, no network, no
capabilities, uid 1000, no way to a new namespace. A command that ends with a status over 128
counts as ended by signal (status - 128), as bwrap and every shell report it.
"""

import asyncio
import errno
import math
import os
import resource
from collections.abc import Mapping, Sequence

import msgspec

from practicum.core import Limits, SandboxError
from practicum.sandbox.command import (
    SETUP_SECONDS,
    Drain,
    Ended,
    Feed,
    Handle,
    execute,
    spawn,
    unbroken,
)
from practicum.sandbox.contract import Result
from practicum.sandbox.host import Programs, advice, hard_limit
from practicum.sandbox.layout import Row
from practicum.sandbox.local import INODES, OPEN_FILES, WORKSPACE, Kind, LocalBox, LocalBoxes
from practicum.sandbox.seccomp import program

# $1 mount options, $2 bytes of tar on standard input. bash reaps the orphans of its namespace.
_KEEP = """
set -e
mount -t tmpfs -o "$1" box /dev/shm
mkdir -m 755 /dev/shm/workspace /dev/shm/tmp /dev/shm/shm
[ "$2" = 0 ] || head -c "$2" | tar -xpf - --no-same-owner -C /dev/shm/workspace
echo ready
exec 1>&- 2>&-
read -r _
"""
# The gate (one byte out, one line in), the limits, the folder, then the command. The limit on
# processes is -p in dash and -u elsewhere.
_ENTER = """
echo; read -r gate || exit 125
echo 900 > /proc/self/oom_score_adj
ulimit -c 0; ulimit -n {files}; ulimit -f {blocks}; {data}
ulimit -p {processes} 2>/dev/null || ulimit -u {processes}
cd -- "$1" || exit 126
shift; unset gate OLDPWD; exec "$@" {redirect}
"""


_MOUNTS = {"b": "--ro-bind", "?": "--ro-bind-try", "l": "--symlink"}  # the operations of a layout


class BubblewrapBoxes(LocalBoxes):
    """Makes bubblewrap boxes; implements `Boxes`."""

    def _set_up(self) -> None:
        self.programs = Programs.find()
        self.capabilities = msgspec.structs.replace(self.capabilities, network="own loopback")

    def _new(self, slot: int, limits: Limits, kind: Kind) -> "BubblewrapBox":
        return BubblewrapBox(self, slot, limits, kind)


class BubblewrapBox(LocalBox):
    """One box; implements `Sandbox`. Made by `BubblewrapBoxes.open`."""

    boxes: BubblewrapBoxes

    def __init__(self, boxes: BubblewrapBoxes, slot: int, limits: Limits, kind: Kind) -> None:
        super().__init__(boxes, slot, limits, kind)
        self._keeper: Keeper | None = None
        self._tasks: set[asyncio.Task[Ended]] = set()

    @property
    def alive(self) -> bool:
        """Whether it can run commands, as far as is known."""
        return self._keeper is not None and self._keeper.alive

    @property
    def pid(self) -> int:
        """On this host, of the process with which the box ends."""
        assert self._keeper is not None
        return self._keeper.pid

    async def start(self, tar: bytes) -> None:
        """Make the workspace and lay the files of `tar` into it."""
        limits = self.limits
        if self.proxy.hosts:
            raise SandboxError(
                f"bubblewrap boxes reach no host, and the task asks for {limits.network}: "
                "use native boxes (boxes.backend)"
            )
        self.boxes.layout(self.kind.root)  # which raises here rather than at the first command
        self.group = self.boxes.cgroups.take(limits)
        options = f"size={limits.workspace_mb << 20},nr_inodes={INODES},mode=755,nosuid,nodev"
        programs = self.boxes.programs
        drop = ["--reuid", str(self.uid), "--regid", str(self.uid), "--clear-groups"]
        setpriv = [programs.setpriv, *drop, "--inh-caps=-all"]
        argv = [
            *self.group.launcher(),
            *(setpriv if self.uid != os.geteuid() else []),
            *(programs.unshare, "--user", "--map-root-user", "--mount", "--propagation", "private"),
            *("--pid", "--fork", "--kill-child", "--mount-proc"),
            *("/bin/bash", "-c", _KEEP, "sh", options, str(len(tar))),
        ]
        self._keeper = Keeper(argv)
        await self._keeper.ready(tar)

    async def _end(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        keeper, self._keeper = self._keeper, None
        if keeper:
            await unbroken(keeper.close())

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
        """Run under bwrap; see `LocalBox._execute`."""
        if self.closed or self._keeper is None:
            raise SandboxError("the box is closed: open another")
        spaces = f"/proc/{self.pid}/ns"
        keep = ["--preserve-credentials"] if self.uid == os.geteuid() else []
        nsenter = [self.boxes.programs.nsenter, f"--user={spaces}/user", *keep]
        nsenter += [f"--mount={spaces}/mnt", f"--pid={spaces}/pid_for_children"]
        added = ["--cap-add", "CAP_DAC_READ_SEARCH"] if reads_all else []
        enter = self._enter(bool(stdin))
        walls = bwrap_arguments(self.boxes.layout(self.kind.root), env)

        def argv(status_fd: int, filter_fd: int) -> list[str | bytes]:
            fds = ["--json-status-fd", str(status_fd)]
            if program():
                fds += ["--seccomp", str(filter_fd)]
            launcher = [*self.group.launcher(), *nsenter, "--", self.boxes.programs.bwrap]
            command: list[str | bytes] = ["--", "/bin/sh", "-c", enter, "sh", *words]
            return [*launcher, *walls, *added, *fds, *command]

        task = asyncio.create_task(
            execute(argv, code=program(), stdin=stdin, seconds=seconds, output_bytes=output_bytes)
        )
        self._tasks.add(task)
        try:
            ended = await task
        except OSError as error:
            if error.errno == errno.E2BIG:
                raise
            raise SandboxError(f"cannot start a command: {error}; is the host full?") from error
        except asyncio.CancelledError:
            if self.closed:
                raise SandboxError("the box was closed while a command ran in it") from None
            raise
        finally:
            self._tasks.discard(task)
        return _result(ended, self.group.out_of_memory())

    def _enter(self, has_stdin: bool) -> str:
        """The first words of a command: its gate and its resource limits."""
        limits = self.limits
        memory = hard_limit(resource.RLIMIT_DATA, limits.memory_mb << 20) >> 10
        size = hard_limit(resource.RLIMIT_FSIZE, limits.workspace_mb << 20)
        return _ENTER.format(
            files=hard_limit(resource.RLIMIT_NOFILE, OPEN_FILES),
            blocks=math.ceil(size / 512),
            data="" if "memory" in self.boxes.cgroups.parents else f"ulimit -d {memory}",
            processes=hard_limit(resource.RLIMIT_NPROC, limits.processes + 1),  # bwrap's pid 1
            redirect="" if has_stdin else "</dev/null",
        )


class Keeper:
    """The process that holds a workspace; it ends when its standard input does."""

    def __init__(self, argv: Sequence[str]) -> None:
        life_r, life_w = os.pipe()
        out_r, out_w = os.pipe()
        try:
            self._process = spawn(argv, stdin=life_r, stdout=out_w, stderr=out_w)
        except OSError as error:
            os.close(life_w)
            os.close(out_r)
            raise SandboxError(f"cannot start a box: {error}; is the host full?") from error
        finally:
            os.close(life_r)
            os.close(out_w)
        self.pid = self._process.pid
        self._handle = Handle(os.pidfd_open(self.pid))
        self._life = Feed(life_w, keep_open=True)
        self._said = asyncio.get_running_loop().create_future()
        self._out = Drain(out_r, 4096, self._hear)

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return not self._handle.gone.done()

    def _hear(self, text: bytearray) -> None:
        if text.endswith(b"ready\n") and not self._said.done():
            self._said.set_result(None)

    async def ready(self, tar: bytes) -> None:
        """Send the files and wait until they are laid; SandboxError says what went wrong."""
        if tar:
            self._life.start(tar)
        await asyncio.wait(
            [self._said, self._handle.gone],
            timeout=SETUP_SECONDS,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if self._said.done():
            return
        detail = self._out.data.decode("utf-8", "replace")
        if not self._handle.gone.done():
            raise SandboxError(f"a box was not ready within {SETUP_SECONDS:g} s; lower max_running")
        if "tar:" in detail:
            raise SandboxError(
                f"cannot lay the files of a task into its box: {detail.strip()}; "
                "does Limits.workspace_mb leave room for them?"
            )
        raise SandboxError(advice(detail))

    async def close(self) -> None:
        """End the process, and with it the workspace."""
        self._life.close()
        _, late = await asyncio.wait([self._handle.gone], timeout=SETUP_SECONDS / 2)
        if late:
            self._handle.kill()
            await asyncio.wait([self._handle.gone], timeout=SETUP_SECONDS / 2)
        self._out.finish()
        self._process.poll()
        self._handle.close()


def bwrap_arguments(rows: Sequence[Row], env: Mapping[str, str]) -> list[str]:
    """The walls of a box: an allow-list of mounts, no capabilities, no namespaces to come."""
    words = "--unshare-all --unshare-user --disable-userns --uid 1000 --gid 1000 --cap-drop ALL"
    argv = [*words.split(), "--new-session", "--die-with-parent", "--hostname", "box", "--clearenv"]
    for name, value in env.items():
        argv += ["--setenv", name, value]
    for op, source, target in rows:
        argv += [_MOUNTS[op], source, f"/{target}"]
    argv += ["--proc", "/proc", "--dev", "/dev", "--bind", "/dev/shm/shm", "/dev/shm"]
    argv += ["--bind", "/dev/shm/workspace", WORKSPACE, "--bind", "/dev/shm/tmp", "/tmp"]
    argv += ["--symlink", "../tmp", "/var/tmp", "--remount-ro", "/dev", "--remount-ro", "/"]
    return [*argv, "--chdir", "/"]


def _result(ended: Ended, out_of_memory: bool) -> Result:
    """What happened to the guest; SandboxError when the launcher failed before the guest began."""
    code: int | None = ended.code
    number: int | None = None
    if code is not None and 128 < code <= 128 + 64:
        number = code - 128
        code = None
    elif code is None and not ended.timed_out:
        if ended.launcher >= 0:
            raise SandboxError(advice(ended.stderr.decode("utf-8", "replace")))
        number = -ended.launcher  # killed with the guest, for example when memory ran out
    return Result(
        stdout=ended.stdout,
        stderr=ended.stderr,
        exit_code=code,
        timed_out=ended.timed_out,
        signal=number,
        output_cut=ended.cut,
        out_of_memory=out_of_memory,
        seconds=ended.seconds,
    )
