"""Everything inside dies: at the deadline, when the command ends, and when we die."""

# ruff: noqa: ASYNC220, ASYNC240

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from practicum.core import SandboxError
from practicum.sandbox import Sandbox
from practicum.sandbox.cgroups import PREFIX, Cgroups
from practicum.sandbox.local import LocalBoxes


def alive(mark: str) -> list[int]:
    """Processes whose command line holds `mark`, zombies excluded."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                words = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in words:
                found.append(int(folder.name))
    return found


def command_of(pid: str) -> bytes:
    """What a process runs; nothing when it is gone or a zombie."""
    try:
        return Path("/proc", pid, "cmdline").read_bytes()
    except OSError:
        return b""


def children() -> dict[int, str]:
    """Our child processes and what each runs, zombies included (their command is empty)."""
    found = {}
    for status in Path("/proc/self/task").glob("*/children"):
        for pid in status.read_text().split():
            found[int(pid)] = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    return found


def fresh_mark() -> str:
    return f"7{int.from_bytes(os.urandom(6))}"  # an argument for sleep


async def until_alive(mark: str) -> None:
    for _ in range(500):
        if alive(mark):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the command never started")


async def test_deadline_kills_and_keeps_the_output_so_far(box: Sandbox) -> None:
    mark = fresh_mark()
    begin = time.monotonic()
    result = await box.run(["sh", "-c", f"echo begun; sleep {mark}"], seconds=0.5)
    assert result.timed_out
    assert result.exit_code is None
    assert result.stdout == b"begun\n"
    assert time.monotonic() - begin < 10
    assert not alive(mark)


@pytest.mark.parametrize(
    "stubborn",
    [
        "trap '' TERM INT HUP; while :; do sleep 1; done",
        "kill -STOP $$; sleep 60",
        "(setsid setsid sleep 60 &) ; sleep 60",
    ],
    ids=["ignores signals", "stops itself", "daemon"],
)
async def test_deadline_holds_against(box: Sandbox, stubborn: str) -> None:
    mark = fresh_mark()
    result = await box.run(["bash", "-c", f"{stubborn}; : {mark}"], seconds=0.5)
    assert result.timed_out
    assert not alive(mark)


async def test_daemons_die_with_their_command_and_do_not_hold_it(box: Sandbox) -> None:
    mark = fresh_mark()
    begin = time.monotonic()
    result = await box.run(["bash", "-c", f"(setsid sleep {mark} &) & disown; echo left"])
    assert result.exit_code == 0
    assert result.stdout == b"left\n"
    assert time.monotonic() - begin < 8  # the limit is 10 s, the daemon holds stdout for ever
    assert not alive(mark)


async def test_cancelling_kills(box: Sandbox) -> None:
    mark = fresh_mark()
    task = asyncio.create_task(box.run(["sleep", mark], seconds=60))
    await until_alive(mark)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(mark)
    assert (await box.run(["echo", "on"])).stdout == b"on\n"


async def test_closing_kills_what_runs(boxes: LocalBoxes) -> None:
    mark = fresh_mark()
    box = await boxes.open()
    task = asyncio.create_task(box.run(["sleep", mark], seconds=60))
    await until_alive(mark)
    await box.close()
    with pytest.raises(SandboxError, match="closed"):
        await task
    assert not alive(mark)


async def test_no_descriptor_and_no_zombie_is_left(boxes: LocalBoxes) -> None:
    async def once() -> None:
        async with await boxes.open() as box:
            await box.run(["sh", "-c", "sleep 9 & true"])
            await box.run(["sleep", "9"], seconds=0.05)
            await box.read(["."])

    def descriptors() -> int:
        """All but those of cgroups, which serve the next box."""
        links = []
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # that of the listing itself
                links.append(os.readlink(f"/proc/self/fd/{name}"))
        return sum(not link.startswith("/sys/fs/cgroup") for link in links)

    await once()
    processes, before = children(), descriptors()  # the spawner of native boxes stays
    await once()
    assert descriptors() == before
    assert children() == processes  # a zombie would be among them
    everything = len(os.listdir("/proc/self/fd"))
    await boxes.close()
    assert len(os.listdir("/proc/self/fd")) < everything or not boxes.cgroups.parents


VICTIM = """
import asyncio, sys
import practicum.sandbox

async def main():
    boxes = getattr(practicum.sandbox, sys.argv[2])()
    box = await boxes.open()
    print("keeper", box.pid, *box.group.folders, flush=True)
    guest = f"(setsid sleep {sys.argv[1]} &); sleep {sys.argv[1]}"
    await box.run(["bash", "-c", guest], seconds=600)

asyncio.run(main())
"""


async def test_a_killed_parent_leaves_nothing(kind: type[LocalBoxes]) -> None:
    mark = fresh_mark()
    mounts = Path("/proc/self/mounts").read_text()
    victim = subprocess.Popen(
        [sys.executable, "-c", VICTIM, mark, kind.__name__], stdout=subprocess.PIPE, text=True
    )
    assert victim.stdout is not None
    _, keeper, *groups = victim.stdout.readline().split()
    for _ in range(500):
        if len(alive(mark)) >= 3:  # the victim, the shell, and a sleep at least
            break
        await asyncio.sleep(0.02)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    victim.stdout.close()
    for _ in range(250):
        if not alive(mark) and not command_of(keeper):
            break
        await asyncio.sleep(0.02)
    assert not alive(mark)
    assert not command_of(keeper)
    assert Path("/proc/self/mounts").read_text() == mounts
    assert all(PREFIX in group and os.path.isdir(group) for group in groups)
    await asyncio.sleep(0.6)
    Cgroups().sweep(older_than=0.5)  # not 0: others on this machine may be making theirs
    assert not any(os.path.exists(group) for group in groups)


async def test_the_sweep_spares_the_living(boxes: LocalBoxes) -> None:
    async with await boxes.open() as box:
        await asyncio.sleep(0.6)
        Cgroups().sweep(older_than=0.5)
        assert (await box.run(["echo", "alive"])).stdout == b"alive\n"
