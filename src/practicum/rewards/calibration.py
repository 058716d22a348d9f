"""How far a judge can be trusted: its errors on labelled items, carried into what it counts."""

import math
from collections.abc import Sequence
from statistics import NormalDist

import msgspec

LEAST = 20
"""Labelled items of each kind that a calibration needs."""


class Calibration(msgspec.Struct, frozen=True):
    """What a judge says of items whose label people gave."""

    right: int  # of the good items, those that it calls good
    good: int
    rejected: int  # of the bad items, those that it calls bad
    bad: int

    @property
    def sensitivity(self) -> float:
        """Share of good items that it calls good."""
        return self.right / self.good

    @property
    def specificity(self) -> float:
        """Share of bad items that it calls bad."""
        return self.rejected / self.bad


def calibrated(verdicts: Sequence[bool], labels: Sequence[bool]) -> Calibration:
    """The errors of a judge. Raises ValueError for too few labels, or a judge that only guesses."""
    pairs = list(zip(verdicts, labels, strict=True))
    good = [verdict for verdict, label in pairs if label]
    bad = [verdict for verdict, label in pairs if not label]
    if min(len(good), len(bad)) < LEAST:
        raise ValueError(
            f"{len(good)} good and {len(bad)} bad labelled items: label at least {LEAST} of each"
        )
    found = Calibration(sum(good), len(good), len(bad) - sum(bad), len(bad))
    if found.sensitivity + found.specificity <= 1:
        raise ValueError(
            f"sensitivity {found.sensitivity:.2f} and specificity {found.specificity:.2f} say that "
            "this judge does no better than guessing: nothing can be read from its verdicts"
        )
    return found


def corrected(
    said_good: int, total: int, judge: Calibration, *, level: float = 0.95
) -> tuple[float, float, float]:
    """The true rate of good items, and its interval, from the verdicts of a judge that errs.

    The estimate is that of Rogan and Gladen (Am. J. Epidemiol. 107, 1978):
    (said + specificity - 1) / (sensitivity + specificity - 1). The interval is that of Lang and
    Reiczigel (Prev. Vet. Med. 113, 2014), which has the judge's own uncertainty in it. All within
    0..1. Raises ValueError for counts that cannot be.
    """
    if not 0 <= said_good <= total or not total:
        raise ValueError(f"{said_good} of {total} verdicts is no share")
    spread = judge.sensitivity + judge.specificity - 1
    estimate = (said_good / total + judge.specificity - 1) / spread
    z = NormalDist().inv_cdf((1 + level) / 2)
    n, n1, n0 = total + z * z, judge.good + 2, judge.bad + 2
    said = (said_good + z * z / 2) / n
    sens, spec = (judge.right + 1) / n1, (judge.rejected + 1) / n0
    slope = sens + spec - 1
    rate = (said + spec - 1) / slope
    of_sens, of_spec = sens * (1 - sens) / n1, spec * (1 - spec) / n0
    shift = 2 * z * z * (rate * of_sens - (1 - rate) * of_spec)
    width = math.sqrt(said * (1 - said) / n + rate**2 * of_sens + (1 - rate) ** 2 * of_spec)
    middle, half = rate + shift, z * width / abs(slope)
    low, high = (min(1.0, max(0.0, edge)) for edge in (middle - half, middle + half))
    return min(1.0, max(0.0, estimate)), low, high
