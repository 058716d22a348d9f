"""The abuse table on each kind of box, and on a naive sandbox, which shows that it has teeth."""

import asyncio
import ctypes
import os
import pty
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from cases import CASES, KEYSTROKES, SECRET, VARIABLE, Case, Scene, Victims
from test_death import fresh_mark

from practicum.sandbox.contract import Result
from practicum.sandbox.host import box_uid
from practicum.sandbox.local import LocalBoxes

FLOOD = 16 << 20  # bytes of output after which a naive run is over
ROOT_ONLY = "only root can give the attacks a uid of their own, so that they hit nobody else"


def test_the_table_is_whole() -> None:
    numbers = [case.number for case in CASES]
    assert numbers == sorted(set(numbers))
    assert len(set(numbers) - {43, 57}) == 61
    assert sum(case.naive for case in CASES) == 29


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_box_contains(boxes: LocalBoxes, case: Case) -> None:
    uid = box_uid(boxes.made)
    with exposed(uid) as (victims, _):
        async with await boxes.open(limits=case.limits) as box:
            assert box.uid == uid
            escaped = await case.escapes(Scene(box, victims, boxes=boxes))
            assert (await box.run(["echo", "well"], seconds=30)).stdout == b"well\n"
    if case.known == type(boxes).__name__:
        assert escaped, "docs/sandbox.md says that this kind of box does not contain it"
    elif escaped:
        assert case.weak(boxes.capabilities), "not contained, and the record does not say so"


@pytest.mark.skipif(os.geteuid() != 0, reason=ROOT_ONLY)
@pytest.mark.parametrize("case", [case for case in CASES if case.naive], ids=str)
async def test_a_naive_sandbox_does_not(case: Case) -> None:
    if not case.possible():
        pytest.skip("this host stops the attack itself")
    # above all uids of boxes, and another one for each run of this test
    uid = 2_080_000_000 + os.getpid() % 500_000 * 100 + case.number
    assert not processes(uid)
    with exposed(uid) as (victims, descriptor):
        work = victims.folder / "work"
        work.mkdir()
        os.chown(work, uid, uid)
        naive = Naive(uid, str(work), descriptor, terminal=case.attack is KEYSTROKES)
        try:
            assert await case.escapes(Scene(naive, victims, str(work)))
        finally:
            end(uid)


@contextmanager
def exposed(uid: int) -> Iterator[tuple[Victims, int]]:
    """Victims for guests of `uid`, and a descriptor of the root folder that will be inherited."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o777)
        secret = folder / "secret"
        secret.write_text(SECRET)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv(VARIABLE, SECRET)
        root = os.open("/", os.O_RDONLY)
        stack.callback(os.close, root)
        os.set_inheritable(root, True)
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        names = {"abstract": f"practicum-{fresh_mark()}", "path": str(folder / "socket")}
        for name in (f"\0{names['abstract']}", names["path"]):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(name)
            listener.listen()
        Path(names["path"]).chmod(0o777)
        command = ["sleep", f"120.{fresh_mark()}"]
        sentinel = subprocess.Popen([*as_user(uid), *command], stdin=subprocess.DEVNULL)
        stack.callback(sentinel.wait)
        stack.callback(sentinel.kill)
        memory = stack.enter_context(shared_memory())
        port = server.getsockname()[1]
        yield Victims(folder, secret, sentinel, command, port, memory=memory, **names), root


@contextmanager
def shared_memory() -> Iterator[int]:
    """The key of a System V shared memory that anybody may use."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    key = int.from_bytes(os.urandom(4)) & 0x7FFFFFFF | 1
    found = libc.shmget(key, 4096, 0o3666)  # IPC_CREAT, IPC_EXCL
    assert found >= 0, os.strerror(ctypes.get_errno())
    try:
        address = ctypes.c_void_p(libc.shmat(found, None, 0))
        ctypes.memmove(address, b"secret", 6)
        libc.shmdt(address)
        yield key
    finally:
        libc.shmctl(found, 0, None)  # IPC_RMID


def as_user(uid: int) -> list[str]:
    if uid == os.geteuid():
        return []
    ids = ["--reuid", str(uid), "--regid", str(uid), "--clear-groups", "--inh-caps=-all"]
    return ["setpriv", *ids]


def processes(uid: int) -> list[int]:
    """All of this user, but for zombies."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if folder.stat().st_uid == uid:
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                found += [int(folder.name)] if state not in "ZX" else []
    return found


def end(uid: int) -> None:
    """Kill every process of a user."""
    assert uid > 1_000_000_000
    for _ in range(500):
        if not (found := processes(uid)):
            return
        for pid in found:
            with suppress(OSError):
                handle = os.pidfd_open(pid)
                try:
                    if Path(f"/proc/{pid}").stat().st_uid == uid:  # not another by now
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                finally:
                    os.close(handle)
        time.sleep(0.01)
    raise AssertionError(f"processes of {uid} do not die")


class Naive:
    """What one might write first: bubblewrap with its defaults, and a deadline for bubblewrap."""

    def __init__(self, uid: int, workspace: str, inherited: int, *, terminal: bool) -> None:
        self.uid, self.workspace, self.inherited = uid, workspace, inherited
        self.terminal = terminal

    async def run(self, argv: Sequence[str], *, seconds: float | None = None) -> Result:
        return await asyncio.to_thread(self._run, argv, seconds or 30.0)

    def _run(self, argv: Sequence[str], seconds: float) -> Result:
        bwrap = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        bwrap += ["--bind", self.workspace, self.workspace, "--chdir", self.workspace, "--"]
        command = [*as_user(self.uid), *bwrap, *argv]
        with ExitStack() as stack:
            stdin = stack.enter_context(open(os.devnull)).fileno()
            if self.terminal:
                leader, stdin = pty.openpty()
                stack.callback(os.close, leader)
                stack.callback(os.close, stdin)
                command = ["setsid", "--ctty", *command]
            process = stack.enter_context(
                subprocess.Popen(
                    command,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env={"PATH": "/usr/bin:/bin", VARIABLE: os.environ[VARIABLE]},
                    pass_fds=[self.inherited],
                    start_new_session=not self.terminal,  # setsid makes that one's
                )
            )
            assert process.stdout is not None
            said = listen(process, process.stdout.fileno(), seconds)
            late = process.poll() is None
            process.kill()
            return Result(said, b"", None if late else process.returncode, timed_out=late)


def listen(process: subprocess.Popen[bytes], pipe: int, seconds: float) -> bytes:
    """What a process says until its end, its deadline, or a flood."""
    deadline = time.monotonic() + seconds
    said = bytearray()
    over = False
    while len(said) < FLOOD:
        ready = select.select([pipe], [], [], 0 if over else 0.02)[0]
        chunk = os.read(pipe, 1 << 20) if ready else b""
        said += chunk
        if over and not chunk:
            break
        over = process.poll() is not None or time.monotonic() > deadline
    return bytes(said)
