"""A score: named parts, each with a value or unscored, and the evidence for it."""

from typing import Literal

import msgspec


class ScorePart(msgspec.Struct, frozen=True):
    """One part. `value` lies in 0..1, or is None when it could not be scored."""

    name: str
    value: float | None
    weight: float = 1.0
    kind: Literal["outcome", "process", "metric"] = "outcome"
    evidence: str = ""

    def __post_init__(self) -> None:
        if self.value is not None and not 0.0 <= self.value <= 1.0:  # NaN fails this too
            raise ValueError(f"score part {self.name!r}: {self.value} is not within 0..1")
        if not 0.0 <= self.weight < float("inf"):
            raise ValueError(f"score part {self.name!r}: weight {self.weight} is not >= 0")


class Score(msgspec.Struct, frozen=True):
    """Parts and what follows from them. Parts of weight 0 are metrics: reported, never rewarded."""

    parts: tuple[ScorePart, ...]
    tampered: str = ""  # evidence that the candidate attacked the grader; empty if none

    @classmethod
    def of(cls, *parts: ScorePart, tampered: str = "") -> "Score":
        """A score of these parts."""
        return cls(parts, tampered)

    @property
    def value(self) -> float | None:
        """Weighted mean of the parts in 0..1; None when a weighted part is unscored."""
        weighted = [p for p in self.parts if p.weight > 0]
        if not weighted or any(p.value is None for p in weighted):
            return None
        total = sum(p.weight for p in weighted)
        return sum(p.weight * p.value for p in weighted if p.value is not None) / total

    @property
    def solved(self) -> bool:
        """Every weighted outcome part has its full value, and nothing was tampered with.

        Process parts shape what an episode earns; how it was done does not make it unsolved.
        """
        if self.tampered or self.value is None:
            return False
        outcomes = [p.value for p in self.parts if p.weight > 0 and p.kind == "outcome"]
        return bool(outcomes) and all(v is not None and v >= 1.0 - 1e-9 for v in outcomes)
