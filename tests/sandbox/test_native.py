"""The native box alone: its processes may die at any moment, and it must have been built."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from practicum.core import SandboxError
from practicum.sandbox import BubblewrapBoxes, NativeBoxes, native, open_boxes
from practicum.sandbox.local import Kind

pytestmark = pytest.mark.usefixtures("native_built")


@pytest.fixture
async def boxes() -> AsyncIterator[NativeBoxes]:
    made = NativeBoxes(max_running=4)
    yield made
    await made.close()


async def test_a_killed_spawner_takes_no_box_with_it_and_is_replaced(boxes: NativeBoxes) -> None:
    async with await boxes.open() as old:
        await old.run(["sh", "-c", "echo kept > f"])
        assert boxes._spawners
        boxes._spawners[Kind()]._process.kill()
        boxes._spawners[Kind()]._process.wait()
        async with await boxes.open() as new:
            assert (await new.run(["echo", "new"])).stdout == b"new\n"
        assert (await old.run(["cat", "f"])).stdout == b"kept\n"


async def test_a_box_killed_from_outside_is_our_failure_not_the_guests(boxes: NativeBoxes) -> None:
    box = await boxes.open()
    assert isinstance(box, native.NativeBox)
    task = asyncio.create_task(box.run(["sleep", "60"], seconds=60))
    await asyncio.sleep(0.2)
    os.kill(box.pid, signal.SIGKILL)
    with pytest.raises(SandboxError, match="died"):
        await asyncio.wait_for(task, 10)
    with pytest.raises(SandboxError, match="died"):
        await box.run(["true"])
    await box.close()


async def test_a_box_killed_while_it_is_made_is_our_failure(boxes: NativeBoxes) -> None:
    async with await boxes.open():
        pass
    assert boxes._spawners
    os.kill(
        boxes._spawners[Kind()]._process.pid, signal.SIGSTOP
    )  # what is asked for is not made yet
    opening = asyncio.create_task(boxes.open())
    await asyncio.sleep(0.2)
    os.kill(boxes._spawners[Kind()]._process.pid, signal.SIGKILL)
    with pytest.raises(SandboxError, match="cannot make a box"):
        await asyncio.wait_for(opening, 10)


async def test_more_words_than_the_agent_takes_are_a_result(boxes: NativeBoxes) -> None:
    async with await boxes.open() as box:
        assert (await box.run(["true", *["x"] * 70_000])).exit_code == 126
        assert (await box.run(["true", *["x"] * 9_000])).exit_code == 0


def test_a_program_that_was_not_built_or_of_another_source_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(native, "PROGRAM", tmp_path / "practicum-box")
    for content, message in ((None, "was not built"), (b"other source", "older than box.c")):
        if content:
            native.PROGRAM.write_bytes(content)
        native.helper.cache_clear()
        with pytest.raises(SandboxError, match=message):
            native.helper()
        assert isinstance(open_boxes(), BubblewrapBoxes)
    monkeypatch.undo()
    native.helper.cache_clear()
    assert isinstance(open_boxes(), NativeBoxes)


async def test_a_box_that_is_cancelled_while_it_is_made_is_gone_at_once(boxes: NativeBoxes) -> None:
    for delay in (0, 0.0005, 0.001, 0.002, 0.004):
        task = asyncio.create_task(boxes.open())
        await asyncio.sleep(delay)
        task.cancel()
        begin = time.monotonic()
        (found,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(found, BaseException):  # it was made in time
            await found.close()
        assert time.monotonic() - begin < 10
    assert not boxes._open
