import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from practicum.evaluate.statistics import (
    clustered_mean,
    paired_difference,
    pass_at_k,
    rate,
    wilson,
)


def test_clustered_interval_by_hand() -> None:
    # residuals 1/4 -3/4 | 1/4 1/4: cluster sums -1/2 and 1/2, V = 2/1 * (1/4 + 1/4) / 16 = 1/16
    found = clustered_mean([1, 0, 1, 1], ["a", "a", "b", "b"])
    assert found.mean == 0.75
    assert (found.n, found.clusters) == (4, 2)
    assert found.high is not None
    assert found.high - 0.75 == pytest.approx(12.7062 * 0.25, rel=1e-5)  # t(0.975, 1)


def test_single_attempts_give_the_classical_t_interval() -> None:
    data = [0.2, 0.9, 0.4, 0.7, 0.1]
    found = clustered_mean(data, range(5))
    low, high = stats.t.interval(0.95, 4, np.mean(data), stats.sem(data))
    assert (found.low, found.high) == pytest.approx((low, high))


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_copying_every_attempt_adds_no_certainty(values: list[float]) -> None:
    once = clustered_mean(values, range(len(values)), bounds=(0, 1))
    thrice = clustered_mean(values * 3, list(range(len(values))) * 3, bounds=(0, 1))
    assert (thrice.low, thrice.high) == pytest.approx((once.low, once.high), abs=1e-9)


def test_wilson_against_published_numbers() -> None:
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)


def test_a_rate_of_repeated_attempts_is_clustered() -> None:
    assert rate([True] * 8 + [False] * 2, range(10)).low == pytest.approx(0.4902, abs=1e-4)
    five = rate([True] * 8 + [False] * 2, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    assert five.low is not None
    assert five.low < 0.4902  # five tasks say less than ten


def test_nothing_varied_is_not_certainty() -> None:
    found = rate([False] * 20, [i // 2 for i in range(20)])
    assert found.low == 0
    assert found.high == pytest.approx(1 - 0.025 ** (1 / 10))
    same = paired_difference([1] * 10, [1] * 10, range(10), bounds=(0, 1))
    assert same.high == pytest.approx(1 - 0.025 ** (1 / 10))
    assert same.low == -same.high
    assert (same.improved, same.regressed) == (0, 0)


def test_one_task_has_no_interval() -> None:
    found = clustered_mean([0, 1], ["a", "a"], bounds=(0, 1))
    assert (found.mean, found.low, found.high) == (0.5, None, None)
    assert paired_difference([0], [1], ["a"]).minimum_detectable is None


def test_paired_difference_by_hand() -> None:
    found = paired_difference([0, 0, 1, 0], [1, 0, 0, 1], ["a", "b", "c", "d"], bounds=(0, 1))
    # d = 1 0 -1 1: mean 1/4, sum of squares 11/4, SE = sqrt(11/4 / 3 / 4) = 0.478714
    assert found.mean == 0.25
    assert (found.improved, found.regressed, found.clusters) == (2, 1, 4)
    assert found.minimum_detectable == pytest.approx((3.182446 + 0.978472) * 0.478714, rel=1e-5)
    assert (found.low, found.high) == (-1.0, 1.0)  # 0.25 -+ 1.523, kept within what is possible
    free = paired_difference([0, 0, 1, 0], [1, 0, 0, 1], ["a", "b", "c", "d"])
    assert free.low == pytest.approx(0.25 - 3.182446 * 0.478714, rel=1e-5)


def test_pairs_must_match() -> None:
    with pytest.raises(ValueError, match="equal length"):
        paired_difference([0, 1], [1], ["a"])
    with pytest.raises(ValueError, match="at least one value"):
        clustered_mean([], [])


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 1), (5, 2, 3), (6, 0, 2), (6, 6, 2), (10, 3, 5)])
def test_pass_at_k_counts_subsets(n: int, c: int, k: int) -> None:
    subsets = list(itertools.combinations(range(n), k))
    share = sum(any(i < c for i in s) for s in subsets) / len(subsets)
    assert pass_at_k(n, c, k) == pytest.approx(share)
    with pytest.raises(ValueError, match="pass@k"):
        pass_at_k(n, n + 1, k)


def coverage(groups: int, size: int, repeats: int = 600) -> float:
    """Share of intervals that hold the truth, for Bernoulli(.7) with ICC .3 within tasks."""
    random = np.random.default_rng(7)
    a, b = 0.7 * 7 / 3, 0.3 * 7 / 3  # beta-binomial: ICC = 1 / (a + b + 1) = 0.3
    clusters = [i // size for i in range(groups * size)]
    hits = 0
    for _ in range(repeats):
        chance = np.repeat(random.beta(a, b, groups), size)
        found = rate(list(random.random(groups * size) < chance), clusters)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0.7 <= found.high
    return hits / repeats


@pytest.mark.parametrize(("groups", "size"), [(20, 10), (50, 4), (200, 1)])
def test_intervals_cover_as_often_as_they_say(groups: int, size: int) -> None:
    error = math.sqrt(0.95 * 0.05 / 600)
    assert coverage(groups, size) > 0.95 - 0.02 - 2 * error


def test_paired_intervals_cover_and_detect_what_they_claim() -> None:
    random = np.random.default_rng(3)
    groups, repeats = 60, 500
    hits, found_effects, claimed = 0, 0, []
    for _ in range(repeats):
        base = random.random(groups) * 0.6
        noise = random.normal(0, 0.2, groups)
        effect = 0.0739  # the MDE for sd .2 and 60 tasks: (2.0010 + 0.8478) * .2 / sqrt(60)
        found = paired_difference(list(base), list(base + effect + noise), range(groups))
        assert found.low is not None
        assert found.high is not None
        assert found.minimum_detectable is not None
        hits += found.low <= effect <= found.high
        found_effects += found.low > 0
        claimed.append(found.minimum_detectable)
    assert 0.92 < hits / repeats < 0.98
    assert 0.75 < found_effects / repeats < 0.85
    assert np.mean(claimed) == pytest.approx(0.0739, rel=0.02)
