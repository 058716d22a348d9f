"""Estimates with honest intervals: tasks are the independent units, never single attempts.

Sources: cluster-robust errors with the CR1 correction and t(G-1): Cameron and Miller, "A
Practitioner's Guide to Cluster-Robust Inference", J. Human Resources 50 (2015); their use for model
evaluations and paired differences: Miller, "Adding Error Bars to Evals", arXiv 2411.00640.
"""

import math
from collections.abc import Hashable, Sequence

import msgspec
import numpy as np
from scipy import stats


class Estimate(msgspec.Struct, frozen=True):
    """A mean and its 95 % interval. With fewer than two tasks there is no interval (None)."""

    mean: float
    low: float | None
    high: float | None
    n: int  # observations
    clusters: int  # independent units (tasks)


class Difference(msgspec.Struct, frozen=True):
    """A paired difference, new minus old, and what the data could have shown at all."""

    mean: float
    low: float | None
    high: float | None
    n: int  # pairs
    clusters: int  # tasks
    improved: int  # tasks whose mean difference is above zero
    regressed: int  # tasks whose mean difference is below zero
    minimum_detectable: float | None  # the true difference found with 80 % power


def clustered_mean(
    values: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    bounds: tuple[float, float] | None = None,
    level: float = 0.95,
) -> Estimate:
    """The mean of `values` with a t interval whose errors are clustered (CR1, G-1 degrees).

    V = G/(G-1) / n^2 * sum over clusters of (sum of residuals in it)^2. `bounds` are the least and
    the largest possible value: the interval stays within, and where nothing varied it is widened by
    what G like observations can exclude (see `_unseen`). Raises ValueError without values.
    """
    mean, error, groups = _mean_and_error(values, clusters)
    if groups < 2:
        return Estimate(mean, None, None, len(values), groups)
    half = float(stats.t.ppf(0.5 + level / 2, groups - 1)) * error
    low, high = mean - half, mean + half
    if bounds and error < 1e-12:
        share = _unseen(groups, level)
        low, high = mean - share * (mean - bounds[0]), mean + share * (bounds[1] - mean)
    if bounds:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return Estimate(mean, low, high, len(values), groups)


def rate(
    successes: Sequence[bool], clusters: Sequence[Hashable], *, level: float = 0.95
) -> Estimate:
    """A success rate: Wilson's interval when every task was tried once, else `clustered_mean`."""
    if len(set(clusters)) == len(clusters):
        low, high = wilson(sum(successes), len(successes), level=level)
        return Estimate(float(np.mean(successes)), low, high, len(successes), len(successes))
    return clustered_mean([float(s) for s in successes], clusters, bounds=(0.0, 1.0), level=level)


def wilson(successes: int, n: int, *, level: float = 0.95) -> tuple[float, float]:
    """Interval of a proportion by inverting the score test (Wilson, JASA 22, 1927)."""
    interval = stats.binomtest(successes, n).proportion_ci(level, method="wilson")
    return float(interval.low), float(interval.high)


def paired_difference(
    old: Sequence[float],
    new: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    bounds: tuple[float, float] | None = None,
    level: float = 0.95,
) -> Difference:
    """Mean of `new[i] - old[i]`, its errors clustered over tasks (Miller, section 4).

    `bounds` are those of a single value. The minimum detectable effect is
    (t[1 - alpha/2] + t[0.8]) * SE (Bloom, Evaluation Review 19, 1995).
    """
    if not len(old) == len(new) == len(clusters):
        raise ValueError("pairs need old, new and cluster of equal length")
    deltas = [b - a for a, b in zip(old, new, strict=True)]
    span = (bounds[0] - bounds[1], bounds[1] - bounds[0]) if bounds else None
    estimate = clustered_mean(deltas, clusters, bounds=span, level=level)
    _, error, groups = _mean_and_error(deltas, clusters)
    detectable = None
    if groups >= 2:
        test, power = (float(stats.t.ppf(q, groups - 1)) for q in (0.5 + level / 2, 0.8))
        detectable = (test + power) * error
    totals = _sums(np.asarray(deltas, dtype=float), clusters)
    return Difference(
        mean=estimate.mean,
        low=estimate.low,
        high=estimate.high,
        n=estimate.n,
        clusters=groups,
        improved=int((totals > 1e-12).sum()),
        regressed=int((totals < -1e-12).sum()),
        minimum_detectable=detectable,
    )


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased chance that one of k attempts succeeds, from `correct` of n (arXiv 2107.03374)."""
    if not 0 <= correct <= n or not 1 <= k <= n:
        raise ValueError(
            f"pass@k needs 0 <= correct <= n and 1 <= k <= n, not {n=} {correct=} {k=}"
        )
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def _mean_and_error(
    values: Sequence[float], clusters: Sequence[Hashable]
) -> tuple[float, float, int]:
    """Mean, CR1 standard error and number of clusters; the error is 0 for a single cluster."""
    if len(values) != len(clusters) or not len(values):
        raise ValueError("a mean needs at least one value, and a cluster for each")
    data = np.asarray(values, dtype=float)
    mean = float(data.mean())
    sums = _sums(data - mean, clusters)
    groups = len(sums)
    if groups < 2:
        return mean, 0.0, groups
    variance = groups / (groups - 1) * float((sums**2).sum()) / len(data) ** 2
    return mean, math.sqrt(variance), groups


def _sums(values: np.ndarray, clusters: Sequence[Hashable]) -> np.ndarray:
    """Sum of the values of each cluster."""
    index: dict[Hashable, int] = {}
    rows = [index.setdefault(c, len(index)) for c in clusters]
    return np.bincount(rows, weights=values, minlength=len(index))


def _unseen(groups: int, level: float) -> float:
    """The largest share of other outcomes that G like ones leave possible (exact, two-sided).

    The upper Clopper-Pearson limit of 0 in G: 1 - (alpha/2)^(1/G).
    """
    return float(1.0 - ((1.0 - level) / 2) ** (1.0 / groups))
