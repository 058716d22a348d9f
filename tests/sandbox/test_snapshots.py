"""Snapshots and forks: the same state in each, and from then on each its own."""

import asyncio
import io
import os
import tarfile

import pytest

from practicum.core import File, Limits, SandboxError
from practicum.sandbox import Archive, Sandbox
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
    # over layers, a hard link is parted from its file when one of them is written: a file is copied
    # to the upper layer by its name, and the kernel cannot find its other names
    plain = isinstance(await parent.snapshot(), Archive)
    together = [b"0", b"1", b"2"] if plain else [b"o"] * 3
    assert [(await child.read(["hard"]))["hard"].data[:1] for child in children] == together
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


async def test_a_snapshot_outlives_its_box_and_can_be_a_plain_archive(boxes: LocalBoxes) -> None:
    async with await boxes.open([File("f", b"kept", 0o640)], LIMITS) as box:
        taken = await box.snapshot()
        await box.run(["sh", "-c", "echo gone > f"])
    exported = await taken.export()
    with tarfile.open(fileobj=io.BytesIO(exported.data)) as archive:
        assert archive.getmember("workspace/f").mode == 0o640
    for snapshot in (taken, exported):
        async with await boxes.restore(snapshot) as again:
            assert (await again.read(["f"]))["f"].data == b"kept"


async def test_what_does_not_fit_is_our_error(boxes: LocalBoxes) -> None:
    async with await boxes.open([File("f", bytes(3 << 20))], LIMITS) as box:
        taken = await (await box.snapshot()).export()
    with pytest.raises(SandboxError, match="cannot restore"):
        await boxes.restore(Archive(taken.data, Limits(workspace_mb=1)))


CHANGES = """
rm -r gone; mkdir gone; echo new > gone/new; rm file; mv other moved; chmod 700 kept; ln -sf x link
echo more >> kept/f; echo t > /tmp/t; rm /dev/shm/s; mv dir away
"""


async def test_what_was_changed_since_is_seen_and_what_was_removed_is_not(
    boxes: LocalBoxes,
) -> None:
    names = ("gone/old", "file", "other", "kept/f", "dir/in/f", "link")
    parent = await boxes.open([File(name, name.encode()) for name in names], LIMITS)
    await parent.run(["sh", "-c", "echo s > /dev/shm/s"])
    (child,) = await parent.fork(1)
    plain = await boxes.restore(await (await parent.snapshot()).export())
    for box in (child, plain):
        result = await box.run(["sh", "-ec", CHANGES])
        assert (result.exit_code, result.stderr) == (0, b"")
    listing = "cd /; find workspace tmp dev/shm -type f -exec md5sum {} + | sort; cat workspace/*/f"
    seen = [(await box.run(["sh", "-c", listing])).stdout for box in (child, plain)]
    assert seen[0] == seen[1]
    assert b"workspace/gone/new" in seen[0]
    assert not {b"gone/old", b"file", b"other", b"shm/s"} & set(seen[0].split())


async def test_a_box_may_write_as_much_after_a_fork_as_before(boxes: LocalBoxes) -> None:
    box: Sandbox = await boxes.open(limits=LIMITS)
    fill = "for n in 1 2 3 4 5 6 7; do head -c 1M /dev/zero > f$n || exit 1; done; rm f*"
    for megabytes in (1, 5):
        await box.run(["sh", "-c", f"head -c {megabytes}M /dev/zero > kept"])
        (box,) = await box.fork(1)
        await box.run(["rm", "kept"])
    assert (await box.run(["sh", "-c", fill])).exit_code == 0
    too_much = await box.run(["sh", "-c", "head -c 9M /dev/zero > f"])
    assert too_much.exit_code != 0


HIDE = """
import os
os.mkdir("d")
open("d/f", "w").write("x")
for name in ("opaque", "redirect", "metacopy", "origin", "whiteout", "xwhiteouts"):
    try:
        os.setxattr("d", f"user.overlay.{name}", b"/etc" if name == "redirect" else b"y")
    except OSError:
        pass  # an overlay keeps these for itself
try:
    os.mknod("whiteout", 0o600 | 0o020000, os.makedev(0, 0))
except OSError:
    pass
"""


async def test_marks_of_a_layer_that_a_guest_plants_lead_nowhere(boxes: LocalBoxes) -> None:
    box: Sandbox = await boxes.open(limits=LIMITS)
    for _ in range(2):  # on a plain file system, then in a layer over it
        assert (await box.run(["python3", "-c", HIDE])).exit_code in (0, 1)
        (box,) = await box.fork(1)
    seen = await box.run(["sh", "-c", "ls -A . d; cat d/passwd; cat d/f"])
    assert b"passwd" not in seen.stdout
    assert b"root" not in seen.stdout
    assert (await box.run(["sh", "-c", "echo on > g && cat g"])).stdout == b"on\n"


async def test_the_layers_of_closed_boxes_are_given_back(boxes: LocalBoxes) -> None:
    async def chain() -> int:
        box: Sandbox = await boxes.open([File("f", b"x")], LIMITS)
        for _ in range(5):
            (child,) = await box.fork(1)
            await box.close()
            box = child
        await box.close()
        return len(os.listdir("/proc/self/fd"))

    assert await chain() == await chain()


async def test_snapshots_beside_commands_do_not_lock_up(kind: type[LocalBoxes]) -> None:
    boxes = kind(max_running=1)
    box = await boxes.open([File("f", b"x")], LIMITS)
    work = [box.run(["true"]) if n % 2 else box.snapshot() for n in range(12)]
    await asyncio.wait_for(asyncio.gather(*work), 60)
    await boxes.close()
