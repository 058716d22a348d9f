from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from practicum.sandbox import BubblewrapBoxes


@pytest.fixture
async def boxes() -> AsyncIterator[BubblewrapBoxes]:
    made = BubblewrapBoxes(max_running=2)
    yield made
    await made.close()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRACTICUM_CACHE", str(tmp_path / "cache"))
