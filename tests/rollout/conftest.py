import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from practicum.core import File, Limits, SandboxError
from practicum.sandbox.bubblewrap import BubblewrapBox, BubblewrapBoxes
from practicum.sandbox.contract import Sandbox


class CountedBoxes(BubblewrapBoxes):
    """Real boxes that know how many live, and how many commands ask to run at once.

    With `failures` set, so many attempts to open one fail as a full machine would make them.
    """

    def __init__(self) -> None:
        super().__init__(max_running=4, delay=self._count)
        self.alive: set[BubblewrapBox] = set()
        self.opened = self.failures = self.inside = self.most_inside = 0
        self.watched = False

    async def open(
        self,
        files: Sequence[File] = (),
        limits: Limits = Limits(),  # noqa: B008
        *,
        preload: Sequence[str] = (),
        root: str = "",
    ) -> Sandbox:
        if self.failures > 0:
            self.failures -= 1
            raise SandboxError("no box to be had: try again")
        self.opened += 1
        return await super().open(files, limits, preload=preload, root=root)

    def add(self, box: BubblewrapBox) -> None:
        super().add(box)
        self.alive.add(box)

    def discard(self, box: BubblewrapBox) -> None:
        super().discard(box)
        self.alive.discard(box)

    async def _count(self) -> None:
        if self.watched:
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
            await asyncio.sleep(0.15)
            self.inside -= 1


@pytest.fixture
async def boxes() -> AsyncIterator[CountedBoxes]:
    """No test may leave a box behind, whatever happened in it."""
    made = CountedBoxes()
    yield made
    left = set(made.alive)
    await made.close()
    assert not left
