"""A score: named parts, each with a value or unscored, and the evidence for it.

Outcome parts say what was achieved, process parts how. Outcomes are rewarded in equal steps, and
all process parts together weigh less than half a step: so shaping orders what is otherwise equal,
and never lifts an episode above one with a better outcome. Where nothing was achieved, nothing is
earned, in whatever manner.
"""

import math
from typing import Literal

import msgspec

SHAPING = 0.5
"""All process parts of a score together weigh less than this share of a step of its outcome."""


class ScorePart(msgspec.Struct, frozen=True):
    """One part. `value` lies in 0..1, or is None when it could not be scored.

    Outcome parts are weighted against each other. The weight of a process part is the share of one
    step of the outcome that its full value earns. A part of weight 0 is reported, never rewarded.
    """

    name: str
    value: float | None
    weight: float = 1.0
    kind: Literal["outcome", "process", "metric"] = "outcome"
    evidence: str = ""
    turns: tuple[int, ...] = ()  # that earned it, from 0; empty: the episode as a whole

    def __post_init__(self) -> None:
        if self.value is not None and not 0.0 <= self.value <= 1.0:  # NaN fails this too
            raise ValueError(f"score part {self.name!r}: {self.value} is not within 0..1")
        if not 0.0 <= self.weight < float("inf"):
            raise ValueError(f"score part {self.name!r}: weight {self.weight} is not >= 0")
        if self.kind == "metric" and self.weight:
            raise ValueError(f"score part {self.name!r}: a metric has weight 0, as nobody earns it")


class Score(msgspec.Struct, frozen=True):
    """Parts and what follows from them. Parts of weight 0 are metrics: reported, never rewarded.

    Raises ValueError for weighted process parts without declared steps, or of too much weight.
    """

    parts: tuple[ScorePart, ...]
    tampered: str = ""  # evidence that the candidate attacked the grader; empty if none
    steps: int = 0  # equal steps that the outcome is rewarded in; 0: as it is, and never shaped

    def __post_init__(self) -> None:
        shaping = self._shaping
        if shaping and self.steps < 1:
            raise ValueError("process parts shape an outcome in declared steps: set `steps`")
        if shaping >= SHAPING:
            raise ValueError(
                f"process parts weigh {shaping:g} of a step together, which must be less than "
                f"{SHAPING:g}: make some of them lighter, or metrics (weight 0)"
            )

    @classmethod
    def of(cls, *parts: ScorePart, tampered: str = "", steps: int = 0) -> "Score":
        """A score of these parts."""
        return cls(parts, tampered, steps)

    def plus(self, *parts: ScorePart) -> "Score":
        """The score with more parts."""
        return msgspec.structs.replace(self, parts=(*self.parts, *parts))

    @property
    def _weighted(self) -> list[ScorePart]:
        return [part for part in self.parts if part.weight > 0]

    @property
    def _shaping(self) -> float:
        return sum(part.weight for part in self._weighted if part.kind == "process")

    @property
    def outcome(self) -> float | None:
        """Weighted mean of the outcome parts in 0..1, rounded down to a declared step.

        None when a weighted part is unscored, and when no outcome part has a weight.
        """
        if any(part.value is None for part in self._weighted):
            return None
        parts = [part for part in self._weighted if part.kind == "outcome"]
        if not parts:
            return None
        total = sum(part.weight for part in parts)
        mean = sum(part.weight * (part.value or 0.0) for part in parts) / total
        return math.floor(mean * self.steps + 1e-9) / self.steps if self.steps else mean

    @property
    def value(self) -> float | None:
        """What is earned, 0..1: the outcome and its shaping; None when it could not be scored."""
        outcome = self.outcome
        if outcome is None:
            return None
        return outcome / self._most + sum(self.earned(part) for part in self._weighted)

    def earned(self, part: ScorePart) -> float:
        """What a process part adds to the value; 0 for others, and where nothing was achieved."""
        if part.kind != "process" or not part.weight or not self.outcome:
            return 0.0
        return part.weight * (part.value or 0.0) / self.steps / self._most

    @property
    def _most(self) -> float:
        return 1 + (self._shaping / self.steps if self.steps else 0.0)

    @property
    def solved(self) -> bool:
        """Every weighted outcome part has its full value, and nothing was tampered with.

        Process parts shape what an episode earns; how it was done does not make it unsolved.
        """
        if self.tampered or self.value is None:
            return False
        outcomes = [part.value for part in self._weighted if part.kind == "outcome"]
        return all(value is not None and value >= 1.0 - 1e-9 for value in outcomes)
