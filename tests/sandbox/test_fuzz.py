"""Random hostile conduct from inside, deaths at any moment outside: the box stays true to itself.

A guest has no descriptor of the agent; it can reach it by signals, limits, orphans, statuses,
output and the files that are read out. Seeds are fixed, so a failure can be had again.
"""

import asyncio
import contextlib
import os
import random
import signal
import time

import pytest

from practicum.core import File, Limits, SandboxError
from practicum.sandbox import NativeBoxes
from practicum.sandbox.local import LocalBoxes

LIMITS = Limits(memory_mb=128, processes=32, workspace_mb=8, output_bytes=20_000)
CONDUCT = """
import ctypes, os, random, resource, signal, socket, struct, sys, time
dice = random.Random(int(sys.argv[1]))
libc = ctypes.CDLL(None, use_errno=True)

def signal_pid_1():
    for number in dice.sample(range(1, 65), 20):
        libc.kill(1, number)

def queue_to_pid_1():
    info = struct.pack("=iiiiii", 17, 0, -1, 0, dice.randrange(1 << 16), 1000) + bytes(104)
    for number in (17, 9, 34):
        libc.syscall(129, 1, number, info)  # rt_sigqueueinfo, with the look of a dead child
        libc.syscall(297, 1, 1, number, info)

def orphans():
    for _ in range(dice.randrange(200)):
        if os.fork() == 0:
            if os.fork() == 0:
                os._exit(dice.randrange(256))
            os._exit(0)
        os.wait()

def names():
    for name in ("comm", "oom_score_adj", "setgroups", "uid_map", "coredump_filter"):
        try:
            open(f"/proc/{dice.choice(['1', 'self'])}/{name}", "w").write("0 0 1")
        except OSError:
            pass

def limits():
    for kind in range(16):
        try:
            resource.setrlimit(kind, (dice.randrange(100), -1))
        except (OSError, ValueError):
            pass
        try:
            resource.prlimit(1, kind, (0, 0))
        except OSError:
            pass

def slower():
    for change in (lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
                   lambda: os.sched_setaffinity(1, {0}),
                   lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))):
        try:
            change()
        except OSError:
            pass

def trace():
    for request in range(0, 0x4210, dice.randrange(1, 99)):
        libc.ptrace(request, 1, dice.randrange(1 << 40), 0)

def descriptors():
    for fd in range(3, 64):
        for call in (lambda: os.write(fd, b"S0"), lambda: socket.socket(fileno=fd).send(b"S0")):
            try:
                call()
            except OSError:
                pass

def stopped():
    if os.fork() == 0:
        os.kill(os.getpid(), signal.SIGSTOP)

def noise():
    for _ in range(300):
        os.write(dice.choice((1, 2)), bytes(dice.randrange(256) for _ in range(9)))

acts = (slower, signal_pid_1, queue_to_pid_1, orphans, names, trace, descriptors, stopped,
        noise, limits)
for act in dice.choices(acts, k=4):
    try:
        act()
    except OSError:
        pass
how = dice.randrange(4)
if how == 1:
    os.kill(os.getpid(), dice.choice((1, 9, 15, 34)))
elif how == 2:
    os.kill(-1, 9)
elif how == 3:
    time.sleep(60)
os._exit(dice.randrange(256))
"""


@pytest.mark.parametrize("seed", range(24))
async def test_hostile_conduct_moves_no_box(boxes: LocalBoxes, seed: int) -> None:
    async with await boxes.open([File("kept", b"kept")], LIMITS) as box:
        for number in range(2):
            await box.run(["python3", "-c", CONDUCT, f"{seed * 2 + number}"], seconds=1.5)
        for status in (0, 7, 255):
            assert (await box.run(["sh", "-c", f"exit {status}"])).exit_code in (status, None)
        said = await box.run(["sh", "-c", "echo out; echo err >&2; exit 9"])
        assert (said.stdout, said.stderr, said.exit_code) == (b"out\n", b"err\n", 9)
        assert (await box.read(["kept"]))["kept"].data == b"kept"
        assert len((await box.run(["sh", "-c", "ls -d /proc/[0-9]*"])).stdout.split()) <= 4


async def test_ten_thousand_tiny_writes_arrive_in_order(boxes: LocalBoxes) -> None:
    code = "import os\nfor n in range(10_000): os.write(1, b'%d\\n' % n)"
    async with await boxes.open(limits=Limits(output_bytes=1 << 20)) as box:
        result = await box.run(["python3", "-c", code])
    assert result.stdout.split() == [b"%d" % n for n in range(10_000)]


async def test_terminal_escapes_come_out_as_the_bytes_they_are(boxes: LocalBoxes) -> None:
    said = b"\x1b]0;title\x07\x1b[2J\x00\xff\r\n\xe2\x80\xae"
    async with await boxes.open([File("f", said)]) as box:
        assert (await box.run(["cat", "f"])).stdout == said


async def test_files_that_change_while_they_are_read_hold_nothing(boxes: LocalBoxes) -> None:
    """Nothing runs in a box while it is read: grading meets no process that was left behind."""
    churn = "while :; do echo $RANDOM > f; mv f g; ln -s g f 2>/dev/null; rm -f f; done"
    async with await boxes.open() as box:
        await box.run(["bash", "-c", f"({churn}) & disown; echo last > done"])
        first = await box.read(["."])
        await asyncio.sleep(0.2)
        assert await box.read(["."]) == first


@pytest.mark.usefixtures("native_built")
@pytest.mark.parametrize("victim", ["agent", "spawner"])
async def test_whoever_dies_at_any_moment_the_next_box_works(victim: str) -> None:
    boxes = NativeBoxes()
    dice = random.Random(victim)
    async with await boxes.open():
        pass
    outcomes = set()

    async def work(opened: asyncio.Future[int]) -> None:
        async with await boxes.open([File("f", b"x")], LIMITS) as box:
            opened.set_result(box.pid)
            await box.run(["sh", "-c", "sleep 0.005; echo y > f"])
            await box.read(["f"])
            await box.fork(1)

    for _ in range(40):
        opened = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(work(opened))
        if victim == "agent":
            pid = await opened
            await asyncio.sleep(dice.random() * 0.02)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        else:
            await asyncio.sleep(dice.choice((0, 0, 0.0005, 0.001, 0.002, 0.004, 0.01)))
            for spawner in list(boxes._spawners.values()):
                spawner._process.kill()
        try:
            await asyncio.wait_for(task, 30)
            outcomes.add("finished")
        except SandboxError:
            outcomes.add("said so")
        async with await boxes.open() as box:
            assert (await box.run(["echo", "well"])).stdout == b"well\n"
    await boxes.close()
    assert outcomes == {"finished", "said so"}


IN_FLIGHT = """
import array, os, socket
ends = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(8)]
for number, (one, other) in enumerate(ends):
    kept = [os.open(place, os.O_RDONLY) for place in ("/workspace", "/proc", "/usr", "/dev/shm")]
    kept += [e.fileno() for e in ends[(number + 1) % 8]]  # a ring of sockets that hold each other
    one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", kept))])
server = socket.socket(socket.AF_UNIX)
server.bind("\\0kept")
open("/workspace/done", "w").write("x")
os._exit(0)
"""


async def test_descriptors_in_flight_keep_nothing_of_a_box_alive(boxes: LocalBoxes) -> None:
    held = len(os.listdir("/proc/self/fd"))
    box = await boxes.open(limits=LIMITS)
    assert (await box.run(["python3", "-c", IN_FLIGHT])).exit_code == 0
    again = "import socket; s = socket.socket(1); s.bind('\\0kept'); print('free')"
    assert (await box.run(["python3", "-c", again])).stdout == b"free\n"
    (child,) = await box.fork(1)
    assert (await child.read(["done"]))["done"].data == b"x"
    await box.close()
    await child.close()
    await boxes.close()
    assert len(os.listdir("/proc/self/fd")) <= held + 2  # the event loop's own


async def test_a_clock_that_jumps_moves_no_deadline(
    boxes: LocalBoxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await boxes.open(limits=LIMITS) as box:
        for skew in (-1e9, 1e9):
            real = time.time()
            monkeypatch.setattr(time, "time", lambda real=real, skew=skew: real + skew)
            begin = time.monotonic()
            assert (await box.run(["sleep", "60"], seconds=0.3)).timed_out
            assert 0.25 < time.monotonic() - begin < 10
            assert not (await box.run(["true"], seconds=5)).timed_out
