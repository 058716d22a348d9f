"""Snapshots and forks: the same state in each, and from then on each its own."""

import io
import tarfile

import pytest

from practicum.core import File, Limits, SandboxError
from practicum.sandbox import Sandbox
from practicum.sandbox.local import LocalBoxes

LIMITS = Limits(workspace_mb=8, output_bytes=32 * 1024)
STATE = """
echo one > a; mkdir -m 700 d; echo two > d/b; chmod 000 d/b; ln -s a link; ln a hard
mkfifo pipe; echo x > /tmp/t; echo y > /dev/shm/s; echo z > 'späce\nname'; truncate -s 5M sparse
touch -d '2001-02-03 04:05:06Z' old; chmod 000 d
"""
LOOK = """
cd /; find workspace tmp dev/shm -printf '%P %m %y %n %l %s\\n' | sort; stat -c %Y workspace/old
"""


async def look(box: Sandbox) -> bytes:
    result = await box.run(["sh", "-c", LOOK])
    assert result.exit_code == 0 or b"Permission denied" in result.stderr
    return result.stdout


async def test_forks_hold_the_same_and_then_diverge(boxes: LocalBoxes) -> None:
    parent = await boxes.open(limits=LIMITS)
    await parent.run(["bash", "-c", STATE])
    before = await look(parent)
    children = await parent.fork(3)
    assert [await look(child) for child in children] == [before] * 3
    for number, child in enumerate(children):
        await child.run(["sh", "-c", f"echo {number} > a; rm /tmp/t; chmod 700 d; cat d/b"])
    assert [(await child.read(["a"]))["a"].data for child in children] == [b"0\n", b"1\n", b"2\n"]
    assert [(await child.read(["hard"]))["hard"].data[:1] for child in children] == [
        b"0",
        b"1",
        b"2",
    ]
    assert await look(parent) == before


async def test_a_chain_of_forks_goes_on_for_ever(boxes: LocalBoxes) -> None:
    box: Sandbox = await boxes.open(limits=LIMITS)
    for number in range(24):
        (child,) = await box.fork(1)
        await box.close()
        await child.run(["sh", "-c", f"echo {number} >> log"])
        box = child
    lines = (await box.read(["log"]))["log"].data.split()
    assert [int(line) for line in lines] == list(range(24))


async def test_a_snapshot_is_a_plain_archive_and_outlives_its_box(boxes: LocalBoxes) -> None:
    async with await boxes.open([File("f", b"kept", 0o640)], LIMITS) as box:
        taken = await box.snapshot()
    with tarfile.open(fileobj=io.BytesIO(taken.archive)) as archive:
        assert archive.getmember("workspace/f").mode == 0o640
    async with await boxes.restore(taken) as again:
        assert (await again.read(["f"]))["f"].data == b"kept"


async def test_what_does_not_fit_is_our_error(boxes: LocalBoxes) -> None:
    async with await boxes.open([File("f", bytes(3 << 20))], LIMITS) as box:
        taken = await box.snapshot()
    small = type(taken)(taken.archive, Limits(workspace_mb=1))
    with pytest.raises(SandboxError, match="cannot restore"):
        await boxes.restore(small)
