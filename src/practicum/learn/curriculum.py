"""Which tasks to practise: those that are sometimes solved teach most. A pure state machine."""

import random
from collections.abc import Sequence

from practicum.core import content_hash

Cell = tuple[str, int]
"""A domain and a level."""


class Curriculum:
    """Draws cells with probability proportional to p (1 - p) plus a floor.

    p is a cell's success rate, an exponential mean over its groups; it is 0.5 before the first. The
    floor keeps every cell in practice, so that what was learnt is not lost unnoticed.
    """

    def __init__(
        self, cells: Sequence[Cell], *, seed: int = 0, memory: float = 0.7, floor: float = 0.05
    ) -> None:
        self.rates: dict[Cell, float] = dict.fromkeys(cells, 0.5)
        self.seed, self.memory, self.floor = seed, memory, floor

    def pick(
        self, step: int, count: int, among: Sequence[Cell] | None = None
    ) -> list[tuple[Cell, int]]:
        """`count` cells for a step, each with a task seed below 1,000,000. Equal calls agree.

        They are drawn `among` some of the cells, or from all.
        """
        rng = random.Random(content_hash(["curriculum", self.seed, step]))
        cells = list(self.rates if among is None else among)
        weights = [self.rates[cell] * (1 - self.rates[cell]) + self.floor for cell in cells]
        chosen = rng.choices(cells, weights, k=count)
        return [(cell, rng.randrange(1_000_000)) for cell in chosen]

    def update(self, cell: Cell, rewards: Sequence[float]) -> None:
        """Note the rewards of one group."""
        if cell in self.rates and rewards:
            mean = sum(rewards) / len(rewards)
            self.rates[cell] = self.memory * self.rates[cell] + (1 - self.memory) * mean

    def state(self) -> list[list[str | int | float]]:
        """What a checkpoint needs."""
        return [[domain, level, rate] for (domain, level), rate in self.rates.items()]

    def restore(self, state: Sequence[Sequence[str | int | float]]) -> None:
        """Go on from `state`; cells that are unknown here are left out."""
        for domain, level, rate in state:
            cell = (str(domain), int(level))
            if cell in self.rates:
                self.rates[cell] = float(rate)
