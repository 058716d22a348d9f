"""Boxes made ahead, files laid once for many boxes, and the list of what is open."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from practicum.core import File, Limits, SandboxError
from practicum.sandbox import Sandbox
from practicum.sandbox.local import SHARED_FROM, LocalBoxes
from practicum.sandbox.running import clean, running

LIMITS = Limits(workspace_mb=8)
MANY = [File(f"d/{n}", b"%d" % n) for n in range(SHARED_FROM)]


async def filled(boxes: LocalBoxes, count: int) -> None:
    for _ in range(500):
        if len(boxes.pool) == count:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{len(boxes.pool)} boxes are ready, not {count}")


async def test_boxes_are_made_ahead_for_the_sizes_that_are_asked_for(
    kind: type[LocalBoxes],
) -> None:
    boxes = kind(ahead=3)
    first = await boxes.open(limits=LIMITS)
    await filled(boxes, 3)
    made = boxes.made
    again = await boxes.open([File("f", b"x")], Limits(workspace_mb=8, output_bytes=4))
    assert again.pid  # it was there before
    assert (await again.read(["f"]))["f"].data == b"x"
    assert (await again.run(["echo", "longer"])).stdout == b"long"
    assert (await first.run(["ls"])).stdout == b""
    await filled(boxes, 3)
    assert boxes.made == made + 1  # in place of the one that was taken
    other = Limits(workspace_mb=4)
    await boxes.open(limits=other)
    await filled(boxes, 3)
    for _ in range(500):
        if (len(boxes.pool._ready), boxes.pool.take(other)) != (0, None):
            break
        await asyncio.sleep(0.02)
    await boxes.close()
    assert not boxes._open


async def test_a_box_that_died_in_the_pool_is_not_handed_out(kind: type[LocalBoxes]) -> None:
    boxes = kind(ahead=2)
    await boxes.open(limits=LIMITS)
    await filled(boxes, 2)
    for waiting in boxes.pool._ready.values():
        for box in waiting:
            os.kill(box.pid, signal.SIGKILL)
    await asyncio.sleep(0.5)
    box = await boxes.open(limits=LIMITS)
    assert (await box.run(["echo", "well"])).stdout == b"well\n"
    await boxes.close()


async def test_what_cannot_be_laid_closes_the_box_from_the_pool(kind: type[LocalBoxes]) -> None:
    boxes = kind(ahead=1)
    await boxes.open(limits=LIMITS)
    await filled(boxes, 1)
    before = len(boxes._open)
    with pytest.raises(SandboxError, match="workspace_mb"):
        await boxes.open([File("f", bytes(9 << 20))], LIMITS)
    await filled(boxes, 1)
    assert len(boxes._open) == before
    await boxes.close()


async def test_many_files_are_laid_once_and_each_box_has_its_own(boxes: LocalBoxes) -> None:
    made: list[Sandbox] = await asyncio.gather(*(boxes.open(MANY, LIMITS) for _ in range(4)))
    assert len(boxes._shared) == 1
    await made[0].run(["sh", "-c", "echo x > d/0; rm d/1"])
    seen = [await box.read(["d"]) for box in made[1:]]
    assert all(found[f.path].data == f.data for found in seen for f in MANY)
    with pytest.raises(SandboxError, match="workspace_mb"):
        await boxes.open([*MANY, File("large", bytes(9 << 20))], LIMITS)
    assert len(boxes._shared) == 1


OWNER = """
import asyncio, sys, time
from practicum.sandbox import NativeBoxes

async def main():
    boxes = NativeBoxes(ahead=2)
    box = await boxes.open()
    await boxes.open(preload=["json"])
    while len(boxes.pool) < 2:
        await asyncio.sleep(0.01)
    print(flush=True)
    await box.run(["sleep", "100"], seconds=100)

asyncio.run(main())
"""


@pytest.mark.usefixtures("native_built")
async def test_open_boxes_are_listed_with_their_owner_and_go_with_it() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE)  # noqa: ASYNC220
    assert owner.stdout is not None
    owner.stdout.readline()
    mine = [box for box in running() if box.owner == owner.pid]
    assert len(mine) == 4
    assert "NativeBoxes" in mine[0].command
    assert sorted(box.processes for box in mine) in ([0, 0, 0, 0], [0, 0, 0, 1])
    assert clean()[0] == 0  # none is without an owner
    owner.kill()
    owner.wait()
    owner.stdout.close()
    for _ in range(250):
        if not [box for box in running() if box.owner == owner.pid]:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("boxes outlived their owner")
