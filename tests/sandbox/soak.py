"""Many boxes with random commands, some killed from outside; then, what is left on this machine?

    python tests/sandbox/soak.py [COUNT] [SEED]

Prints a line of JSON at the end, and fails when anything is left.
"""

import asyncio
import contextlib
import gc
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from practicum.core import File, Limits, SandboxError
from practicum.sandbox import NativeBoxes
from practicum.sandbox.cgroups import PREFIX
from practicum.sandbox.local import LocalBox
from practicum.sandbox.running import running

AT_ONCE = 6
KILLED = 0.05
LIMITS = (
    Limits(memory_mb=64, processes=16, workspace_mb=4, output_bytes=2000),
    Limits(memory_mb=32, processes=8, workspace_mb=2, network=("loopback",)),
    Limits(memory_mb=64, processes=16, workspace_mb=4, network=("localhost:9",)),
)
COMMANDS = (
    "true",
    "exit 3",
    "kill -9 $$",
    "echo x > f; mkdir -p d; mv f d; ln -sf d l; cat d/f",
    "head -c 9M /dev/zero > big",
    "(setsid sleep 60 &) ; sleep 0.01",
    "sleep 60",
    "yes",
    "for n in 1 2 3 4 5 6 7 8 9; do sleep 60 & done",
    "python3 -c 'x = bytearray(200 << 20)'",
    "rm -rf / 2>/dev/null; chmod 000 /workspace",
    ": < /dev/tcp/127.0.0.1/3128",
)
FILES = [File(f"folder/{n}", b"%d" % n) for n in range(40)]


class Left:
    """What this machine and this process hold."""

    def __init__(self) -> None:
        gc.collect()
        self.boxes = sum(box.owner == os.getpid() for box in running())
        self.processes = sum(p.name.isdecimal() for p in Path("/proc").iterdir())
        self.mounts = len(Path("/proc/self/mounts").read_text().splitlines())
        self.descriptors = len(os.listdir("/proc/self/fd"))
        self.temporary = len(os.listdir("/tmp"))
        mine = f"{PREFIX}{os.getpid()}-"
        self.cgroups = sum(
            name.startswith(mine) for _, inner, _ in os.walk("/sys/fs/cgroup") for name in inner
        )
        words = Path("/proc/meminfo").read_text().split()
        self.free_mb = int(words[words.index("MemAvailable:") + 1]) >> 10
        status = Path("/proc/self/status").read_text().split()
        self.resident_mb = int(status[status.index("VmRSS:") + 1]) >> 10


async def one(boxes: NativeBoxes, seed: int, seen: Counter[str]) -> None:
    """One box, a few commands, perhaps a fork, perhaps a violent end."""
    dice = random.Random(seed)
    killer: asyncio.Task[None] | None = None
    try:
        preload = ["json"] if dice.random() < 0.1 else []
        files = FILES if dice.random() < 0.1 else FILES[:2]
        box = await boxes.open(files, dice.choice(LIMITS), preload=preload)
        async with box:
            if dice.random() < KILLED:
                killer = asyncio.create_task(kill(box, dice.random() * 0.05))
            for _ in range(dice.randint(1, 3)):
                result = await box.run(["bash", "-c", dice.choice(COMMANDS)], seconds=0.1)
                kind = "late" if result.timed_out else "signal" if result.signal else "ended"
                seen[kind] += 1
            if dice.random() < 0.1:
                for child in await box.fork(2):
                    async with child:
                        await child.run(["true"])
                        seen["forked"] += 1
            if preload:
                await box.python(["-c", "import json"])
    except SandboxError as error:
        seen["killed" if killer else f"failed: {error}"] += 1
    finally:
        if killer:
            killer.cancel()
            await asyncio.gather(killer, return_exceptions=True)


async def kill(box: LocalBox, seconds: float) -> None:
    """Pid 1 of a box, from outside."""
    await asyncio.sleep(seconds)
    with contextlib.suppress(ProcessLookupError, FileNotFoundError, ValueError, AssertionError):
        os.kill(box.pid, signal.SIGKILL)


async def soak(count: int, seed: int) -> dict[str, object]:
    """Open `count` boxes; what happened, and what is left that was not there before."""
    boxes = NativeBoxes(max_running=AT_ONCE)
    async with await boxes.open(preload=["json"]) as box:  # both spawners are there from here on
        await box.run(["true"])
    async with await boxes.open():
        pass
    seen: Counter[str] = Counter()
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await one(boxes, seed * 1_000_003 + number, seen)

    before, begin = Left(), time.monotonic()
    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    spent = time.monotonic() - begin
    await boxes.close()
    for _ in range(100):
        await asyncio.sleep(0.1)  # processes of others come and go
        after = Left()
        if after.boxes <= before.boxes and after.processes <= before.processes:
            break
    grown = {name: getattr(after, name) - value for name, value in vars(before).items()}
    return {"boxes": count, "seconds": round(spent, 1), "seen": dict(seen), "grown": grown}


def faults(report: dict[str, object]) -> list[str]:
    """What a report says that must not be."""
    grown, seen = report["grown"], report["seen"]
    assert isinstance(grown, dict)
    assert isinstance(seen, dict)
    names = ("boxes", "mounts", "descriptors", "cgroups")
    found = [f"{grown[name]} {name} more" for name in names if grown[name] > 0]
    return found + [name for name in seen if name.startswith("failed")]


if __name__ == "__main__":
    arguments = [int(word) for word in sys.argv[1:]]
    report = asyncio.run(soak(*(arguments + [20_000, 1][len(arguments) :])))
    print(json.dumps(report))
    sys.exit("; ".join(faults(report)) or 0)
