from collections.abc import AsyncIterator

import pytest

from practicum.core import Limits
from practicum.sandbox import BACKENDS, Sandbox
from practicum.sandbox.local import LocalBoxes
from practicum.sandbox.native import PROGRAM


@pytest.fixture
def native_built() -> None:
    """Skip where there was no C compiler when Practicum was installed."""
    if not PROGRAM.exists():
        pytest.skip("the native box was not built here")


@pytest.fixture(params=list(BACKENDS))
def kind(request: pytest.FixtureRequest) -> type[LocalBoxes]:
    if request.param == "native":
        request.getfixturevalue("native_built")
    return BACKENDS[request.param]


@pytest.fixture
async def boxes(kind: type[LocalBoxes]) -> AsyncIterator[LocalBoxes]:
    made = kind(max_running=4)
    yield made
    await made.close()


@pytest.fixture
async def box(boxes: LocalBoxes) -> AsyncIterator[Sandbox]:
    async with await boxes.open(limits=Limits(output_bytes=32 * 1024)) as opened:
        yield opened
