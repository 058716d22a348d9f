"""A judge's errors are carried into the intervals: they cover, by simulation."""

import random

import pytest

from practicum.rewards.calibration import Calibration, calibrated, corrected


def test_by_hand() -> None:
    judge = calibrated(
        [True] * 18 + [False] * 2 + [True] * 4 + [False] * 16, [True] * 20 + [False] * 20
    )
    assert judge == Calibration(18, 20, 16, 20)
    estimate, low, high = corrected(55, 100, judge)
    assert estimate == pytest.approx((0.55 + 0.8 - 1) / 0.7)
    assert low < estimate < high
    assert corrected(10, 100, judge)[0] == 0.0


@pytest.mark.parametrize(
    ("sens", "spec", "rate"),
    [(0.95, 0.9, 0.5), (0.8, 0.7, 0.2), (0.9, 0.6, 0.8), (0.99, 0.99, 0.1)],
)
def test_the_interval_covers_the_true_rate(sens: float, spec: float, rate: float) -> None:
    rng = random.Random(f"{sens} {spec} {rate}")
    covered, runs = 0, 800
    for _ in range(runs):
        right = sum(rng.random() < sens for _ in range(60))
        rejected = sum(rng.random() < spec for _ in range(60))
        said = sum(rng.random() < (sens if rng.random() < rate else 1 - spec) for _ in range(200))
        _, low, high = corrected(said, 200, Calibration(right, 60, rejected, 60))
        covered += low <= rate <= high
    assert covered / runs >= 0.925  # three standard errors below 95 %


def test_an_interval_that_forgets_the_judges_errors_does_not() -> None:
    """What the correction is for: the plain interval of the judged rate misses nearly always."""
    rng = random.Random(5)
    covered = 0
    for _ in range(200):
        said = sum(rng.random() < (0.8 if rng.random() < 0.2 else 0.3) for _ in range(200)) / 200
        covered += abs(said - 0.2) <= 1.96 * (said * (1 - said) / 200) ** 0.5
    assert covered < 20


def test_what_says_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="label at least 20 of each"):
        calibrated([True] * 30, [True] * 25 + [False] * 5)
    with pytest.raises(ValueError, match="no better than guessing"):
        calibrated([True, False] * 40, [True] * 40 + [False] * 40)
    with pytest.raises(ValueError, match="no share"):
        corrected(5, 4, Calibration(18, 20, 16, 20))
