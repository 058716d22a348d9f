from collections.abc import AsyncIterator

import pytest

from practicum.sandbox.bubblewrap import BubblewrapBoxes


@pytest.fixture
async def boxes() -> AsyncIterator[BubblewrapBoxes]:
    made = BubblewrapBoxes(max_running=2)
    yield made
    await made.close()
