"""How far a judge can be trusted: its errors on labelled items, carried into what it counts."""

import math
from collections.abc import Hashable, Sequence

import msgspec
from scipy import stats

from practicum.evaluate.statistics import clustered_mean, wilson
from practicum.rewards.judge import Judge

LEAST = 20
"""Labelled items of each kind that a calibration needs."""


class Calibration(msgspec.Struct, frozen=True):
    """What a judge says of items whose label people gave.

    Raises ValueError for too few items, and for a judge that does no better than guessing.
    """

    right: int  # of the good items, those that it calls good
    good: int
    rejected: int  # of the bad items, those that it calls bad
    bad: int

    def __post_init__(self) -> None:
        if min(self.good, self.bad) < LEAST:
            raise ValueError(
                f"{self.good} good and {self.bad} bad labelled items: label at least {LEAST} of "
                "each"
            )
        if self.sensitivity + self.specificity <= 1 or self.slope <= 0:
            raise ValueError(
                f"sensitivity {self.sensitivity:.2f} and specificity {self.specificity:.2f} of "
                f"{self.good} and {self.bad} items say that this judge does no better than "
                "guessing: nothing can be read from its verdicts"
            )

    @property
    def sensitivity(self) -> float:
        """Share of good items that it calls good."""
        return self.right / self.good

    @property
    def specificity(self) -> float:
        """Share of bad items that it calls bad."""
        return self.rejected / self.bad

    @property
    def intervals(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Of sensitivity and of specificity, 95 % (Wilson)."""
        return wilson(self.right, self.good), wilson(self.rejected, self.bad)

    @property
    def shrunk(self) -> tuple[float, float]:
        """Sensitivity and specificity with one more item of each kind right and one wrong."""
        return (self.right + 1) / (self.good + 2), (self.rejected + 1) / (self.bad + 2)

    @property
    def slope(self) -> float:
        """By how much the share of its verdicts rises with the true rate."""
        return sum(self.shrunk) - 1


def calibrated(verdicts: Sequence[bool], labels: Sequence[bool]) -> Calibration:
    """The errors of a judge on labelled items. Raises ValueError as `Calibration` does."""
    pairs = list(zip(verdicts, labels, strict=True))
    good = [verdict for verdict, label in pairs if label]
    bad = [verdict for verdict, label in pairs if not label]
    return Calibration(sum(good), len(good), len(bad) - sum(bad), len(bad))


async def calibrate(
    judge: Judge, texts: Sequence[str], labels: Sequence[bool], *, good_from: int = 1
) -> Calibration:
    """Ask a judge about labelled texts; verdicts of `good_from` and above call them good.

    What it has no verdict for is left out. Raises GraderError when it likes junk, and ValueError as
    `Calibration` does.
    """
    parts = [await judge.part(text) for text in texts]
    least = good_from / judge.rubric.most
    said = [
        (part.value >= least, label)
        for part, label in zip(parts, labels, strict=True)
        if part.value is not None
    ]
    return calibrated([verdict for verdict, _ in said], [label for _, label in said])


def corrected(
    verdicts: Sequence[bool],
    tasks: Sequence[Hashable],
    judge: Calibration,
    *,
    level: float = 0.95,
) -> tuple[float, float, float]:
    """The true rate of good items, and its interval, from the verdicts of a judge that errs.

    `tasks` says which task each verdict belongs to: attempts at one are no independent evidence.
    The estimate is that of Rogan and Gladen (Am. J. Epidemiol. 107, 1978):
    (said + specificity - 1) / (sensitivity + specificity - 1). The interval is that of Lang and
    Reiczigel (Prev. Vet. Med. 113, 2014), which has the judge's own uncertainty in it, at the
    effective number of verdicts: n divided by the design effect, times (z / t)^2 as in Korn and
    Graubard (Survey Methodology 24, 1998). All within 0..1. Raises ValueError for fewer than two
    tasks.
    """
    if len(set(tasks)) < 2:
        raise ValueError("verdicts on at least two tasks are needed for an interval")
    count = len(verdicts)
    share = sum(verdicts) / count
    spread = judge.sensitivity + judge.specificity - 1
    estimate = (share + judge.specificity - 1) / spread
    z = float(stats.norm.ppf((1 + level) / 2))
    total = _effective(verdicts, tasks, level, z)
    n, n1, n0 = total + z * z, judge.good + 2, judge.bad + 2
    said = (share * total + z * z / 2) / n
    sens, spec = judge.shrunk
    rate = (said + spec - 1) / judge.slope
    of_sens, of_spec = sens * (1 - sens) / n1, spec * (1 - spec) / n0
    shift = 2 * z * z * (rate * of_sens - (1 - rate) * of_spec)
    width = math.sqrt(said * (1 - said) / n + rate**2 * of_sens + (1 - rate) ** 2 * of_spec)
    half = z * width / judge.slope
    found = (estimate, rate + shift - half, rate + shift + half)
    middle, low, high = (min(1.0, max(0.0, value)) for value in found)
    return middle, low, high


def _effective(
    verdicts: Sequence[bool], tasks: Sequence[Hashable], level: float, z: float
) -> float:
    """How many independent verdicts tell as much as these; their number if each has a task."""
    count, groups = len(verdicts), len(set(tasks))
    if groups == count:
        return count
    t = float(stats.t.ppf((1 + level) / 2, groups - 1))
    found = clustered_mean([float(verdict) for verdict in verdicts], tasks, level=level)
    assert found.high is not None
    error, plain = (found.high - found.mean) / t, found.mean * (1 - found.mean)
    if not plain:  # all verdicts are the same: each task may be of one piece
        return groups * (z / t) ** 2
    return plain / max(error**2, plain / count) * (z / t) ** 2
