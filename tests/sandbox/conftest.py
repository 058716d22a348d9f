from collections.abc import AsyncIterator

import pytest

from practicum.core import Limits
from practicum.sandbox import BubblewrapBoxes, Sandbox


@pytest.fixture
async def boxes() -> AsyncIterator[BubblewrapBoxes]:
    made = BubblewrapBoxes(max_running=4)
    yield made
    await made.close()


@pytest.fixture
async def box(boxes: BubblewrapBoxes) -> AsyncIterator[Sandbox]:
    async with await boxes.open(limits=Limits(output_bytes=32 * 1024)) as opened:
        yield opened
