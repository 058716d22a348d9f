"""Advantages: how much better an episode did than its group, or a turn than was expected.

A reward that is None, NaN or infinite is our own failure: it has no vote in a baseline, and its
episode gets no advantage (None), so it is not trained. A group with fewer than two rewards, or with
equal ones, has nothing to compare: its advantages are 0, whatever the estimator.
"""

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Literal

Rewards = Sequence[float | None]
Advantages = list[float | None]
Estimator = Literal["mean-centred", "grpo", "rloo", "maxrl"]


def mean_centred(rewards: Rewards) -> Advantages:
    """`R - mean(R)`: the group baseline without a division, as in Dr. GRPO (arXiv 2503.20783)."""
    return _in_group(rewards, lambda known: 1.0)


def grpo(rewards: Rewards, *, eps: float = 1e-4) -> Advantages:
    """`(R - mean(R)) / (std(R) + eps)`, std unbiased (GRPO, arXiv 2402.03300)."""
    return _in_group(rewards, lambda known: 1 / (stdev(known) + eps))


def rloo(rewards: Rewards) -> Advantages:
    """R minus the mean of the others: `G / (G - 1) (R - mean(R))` (RLOO, arXiv 2402.14740)."""
    return _in_group(rewards, lambda known: len(known) / (len(known) - 1))


def maxrl(rewards: Rewards, *, eps: float = 1e-6) -> Advantages:
    """`(R - mean(R)) / (mean(R) + eps)` for rewards of at least 0: rare successes count more."""
    return _in_group(rewards, lambda known: 1 / (fmean(known) + eps))


ESTIMATORS: dict[Estimator, Callable[[Rewards], Advantages]] = {
    "mean-centred": mean_centred,
    "grpo": grpo,
    "rloo": rloo,
    "maxrl": maxrl,
}


def whitened(advantages: Sequence[Advantages], *, eps: float = 1e-8) -> list[Advantages]:
    """All numbers of a batch together brought to mean 0 and standard deviation 1.

    They come in lists of any kind: the groups of a step, or the tokens of each sample.
    """
    known = [a for group in advantages for a in group if a is not None and math.isfinite(a)]
    mean = fmean(known) if known else 0.0
    differ = len(known) > 1 and max(known) > min(known)
    scale = 1 / (stdev(known) + eps) if differ else 0.0
    return [
        [(a - mean) * scale if a is not None and math.isfinite(a) else None for a in group]
        for group in advantages
    ]


def returns(rewards: Sequence[float], *, discount: float = 1.0) -> list[float]:
    """For each turn, its reward and the discounted rewards of the turns after it."""
    found: list[float] = []
    ahead = 0.0
    for reward in reversed(rewards):
        ahead = reward + discount * ahead
        found.append(ahead)
    return found[::-1]


def by_turn(
    group: Sequence[Sequence[float] | None], *, discount: float = 1.0
) -> list[list[float] | None]:
    """Per-turn credit: each turn's return against the mean of that turn over the group.

    `group` holds the rewards of each episode's turns, None for our own failures. A turn that no
    other episode has is compared with nothing and gets 0.
    """
    found = [
        None
        if rewards is None or not all(map(math.isfinite, rewards))
        else returns(rewards, discount=discount)
        for rewards in group
    ]
    longest = max((len(values) for values in found if values is not None), default=0)
    made: list[list[float] | None] = [None if values is None else [] for values in found]
    for turn in range(longest):
        there = [v[turn] for v in found if v is not None and len(v) > turn]
        mean, differ = fmean(there), max(there) > min(there)
        for values, target in zip(found, made, strict=True):
            if values is not None and target is not None and len(values) > turn:
                target.append(values[turn] - mean if differ else 0.0)
    return made


def gae(
    rewards: Sequence[float],
    values: Sequence[float],
    own: Sequence[bool],
    *,
    discount: float = 1.0,
    trace: float = 0.95,
) -> tuple[list[float], list[float]]:
    """GAE (arXiv 1506.02438) over tokens [T]: advantages and targets of the value function.

    Tokens that the policy did not sample (`own` False: observations) are stepped over: the token
    before an observation is followed by the first token after it. They get advantage and target 0.
    """
    advantages, targets = [0.0] * len(rewards), [0.0] * len(rewards)
    next_value = carried = 0.0
    for t in reversed(range(len(rewards))):
        if not own[t]:
            continue
        delta = rewards[t] + discount * next_value - values[t]
        carried = delta + discount * trace * carried
        advantages[t], targets[t] = carried, carried + values[t]
        next_value = values[t]
    return advantages, targets


def _is_known(reward: float | None) -> bool:
    return reward is not None and math.isfinite(reward)


def _in_group(rewards: Rewards, scale: Callable[[list[float]], float]) -> Advantages:
    known = [r for r in rewards if r is not None and math.isfinite(r)]
    if len(known) < 2 or max(known) == min(known):
        return [0.0 if _is_known(r) else None for r in rewards]
    mean, factor = sum(known) / len(known), scale(known)
    return [(r - mean) * factor if r is not None and math.isfinite(r) else None for r in rewards]
