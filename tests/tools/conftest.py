from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from practicum.core import File, Limits
from practicum.sandbox import BubblewrapBoxes
from practicum.tools import Observation, ToolContext, get_tool

Call = Callable[..., Awaitable[Observation]]


@pytest.fixture
async def context() -> AsyncIterator[ToolContext]:
    boxes = BubblewrapBoxes()
    files = [
        File("notes/a.txt", b"one\ntwo\nthree\ntwo\n"),
        File("notes/deep/b.txt", b"two hundred\n"),
        File("top.bin", b"\0\1\2"),
    ]
    async with await boxes.open(files) as box:
        yield ToolContext(box, Limits(command_seconds=5.0), seconds_left=30.0)
    await boxes.close()


@pytest.fixture
def call(context: ToolContext) -> Call:
    async def run(name: str, **arguments: object) -> Observation:
        return await get_tool(name).call(context, arguments)

    return run
