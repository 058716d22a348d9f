"""Episodes to samples: which tokens are trained, by what, and by how much."""

import math

import msgspec

from practicum.core import EFFECTS, Episode, Group, Sample
from practicum.learn.advantages import ESTIMATORS, Estimator


def demonstration(episode: Episode) -> Sample:
    """A gold episode whose own tokens carry cross-entropy weight; observations carry none."""
    return _sample(episode, advantage=0.0, rl=0.0, ce=1.0)


def practice(group: Group, estimator: Estimator = "mean-centred") -> list[Sample]:
    """The trained episodes of a group with their advantages; none when all advantages are 0."""
    advantages = ESTIMATORS[estimator]([episode.reward for episode in group.episodes])
    if not any(advantages):
        return []
    return [
        _sample(episode, advantage=advantage, rl=1.0, ce=0.0)
        for episode, advantage in zip(group.episodes, advantages, strict=True)
        if advantage is not None and EFFECTS[episode.outcome].trained and episode.sampled_tokens
    ]


def sampled(group: Group) -> list[Sample]:
    """The trained episodes of a group, whatever their rewards; advantages are 0."""
    return [
        _sample(episode, advantage=0.0, rl=1.0, ce=0.0)
        for episode in group.episodes
        if EFFECTS[episode.outcome].trained and episode.sampled_tokens
    ]


def pair(group: Group) -> list[Sample]:
    """The best and the worst trained episode of a group; nothing where their rewards are equal.

    Log-probabilities are those of temperature 1. The first of equals is taken.
    """
    there = [
        episode
        for episode in group.episodes
        if episode.reward is not None
        and math.isfinite(episode.reward)
        and EFFECTS[episode.outcome].trained
        and episode.sampled_tokens
    ]
    if not there:
        return []
    best = max(there, key=lambda e: e.reward or 0.0)
    worst = min(there, key=lambda e: e.reward or 0.0)
    if best.reward == worst.reward:
        return []
    return [
        msgspec.structs.replace(
            _sample(episode, advantage=sign, rl=1.0, ce=0.0),
            temperature=1.0,
            group=best.id,
            unit=best.id,
        )
        for episode, sign in ((best, 1.0), (worst, -1.0))
    ]


def _sample(episode: Episode, *, advantage: float, rl: float, ce: float) -> Sample:
    tokens: list[int] = []
    own: list[float] = []
    logprobs: list[float] = []
    records = [turn.record for turn in episode.turns]
    for record in records:
        if record is None:
            raise ValueError(f"{episode.id}: without token records it cannot be trained on")
        tokens += (*record.context, *record.ids)
        own += [0.0] * len(record.context) + [1.0] * len(record.ids)
        logprobs += [0.0] * len(record.context)
        logprobs += record.logprobs or [0.0] * len(record.ids)
    first = records[0]
    assert first is not None
    return Sample(
        tokens=tuple(tokens),
        rl_weight=tuple(rl * x for x in own),
        ce_weight=tuple(ce * x for x in own),
        advantage=tuple(advantage * x for x in own),
        logprobs=tuple(logprobs),
        temperature=first.temperature,
        prefix=len(first.context),
        group=episode.task,
        episode=episode.id,
    )
