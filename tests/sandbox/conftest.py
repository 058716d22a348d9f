from collections.abc import AsyncIterator

import pytest

from practicum.core import Limits
from practicum.sandbox import BubblewrapBoxes, Sandbox

LIMITS = Limits(memory_mb=256, processes=32, output_bytes=32 * 1024, workspace_mb=16)


@pytest.fixture
async def boxes() -> AsyncIterator[BubblewrapBoxes]:
    made = BubblewrapBoxes(max_running=4)
    yield made
    await made.close()


@pytest.fixture
async def box(boxes: BubblewrapBoxes) -> AsyncIterator[Sandbox]:
    async with await boxes.open(limits=LIMITS) as opened:
        yield opened
