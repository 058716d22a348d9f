"""Advantages: how much better an episode did than its group."""

from collections.abc import Sequence


def mean_centred(rewards: Sequence[float | None]) -> list[float | None]:
    """`R - mean(R)` over the rewards there are; None (our own failure) stays None and has no vote.

    Without the division by the standard deviation, as in Dr. GRPO (arXiv 2503.20783). A group with
    fewer than two rewards, or with equal ones, has nothing to compare: its advantages are 0.
    """
    known = [r for r in rewards if r is not None]
    if len(known) < 2 or max(known) == min(known):
        return [None if r is None else 0.0 for r in rewards]
    mean = sum(known) / len(known)
    return [None if r is None else r - mean for r in rewards]
