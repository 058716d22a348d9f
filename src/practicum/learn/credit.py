"""Which advantage each token of a step has: by group, by batch, by turn, or against a critic.

Our own failures (a reward that is missing, NaN or infinite) have no vote and are not trained.
"""

import math
from collections.abc import Sequence
from statistics import pvariance
from typing import Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from practicum.core import EFFECTS, Episode, Group, Sample
from practicum.engines.contract import Trainer
from practicum.learn.advantages import (
    ESTIMATORS,
    Estimator,
    by_turn,
    gae,
    mean_centred,
    returns,
    whitened,
)
from practicum.learn.samples import is_trained, practice, sampled

Advantage = Literal[
    "mean-centred",
    "grpo",
    "rloo",
    "maxrl",
    "reinforce++",
    "reinforce++-baseline",
    "by-turn",
    "gae",
]
DISCOUNTED = ("reinforce++", "by-turn", "gae")
ALONE = ("reinforce++", "gae")  # what needs no group to compare with
IDLE_TURNS = 0.05  # what an episode loses at most by turns without a usable call


class CriticSettings(BaseModel):
    """The value head on the policy's own trunk, and what is learnt of it and by it."""

    model_config = ConfigDict(extra="forbid")
    learning_rate: float = Field(2e-4, gt=0)  # of the head, which begins at nothing
    trace: float = Field(0.95, ge=0, le=1)  # lambda of GAE
    coefficient: float = Field(0.5, gt=0)  # of the value loss beside the policy loss
    clip: float | None = Field(0.2, gt=0)  # of a value's move from the old one
    whiten: bool = True  # advantages brought to mean 0 and deviation 1 over the batch


def credited(
    groups: Sequence[Group],
    how: Advantage,
    *,
    discount: float = 1.0,
    critic: CriticSettings | None = None,
    trainer: Trainer | None = None,
) -> list[Sample]:
    """The trained episodes of a step with their advantages; none when there is nothing to learn.

    "gae" needs a critic's settings and a trainer with a value head; its samples carry the values
    as they are now, and the returns that they should have been.
    """
    if how in ESTIMATORS:
        estimator: Estimator = how  # type: ignore[assignment]
        return [sample for group in groups for sample in practice(group, estimator)]
    if how == "by-turn":
        return [sample for group in groups for sample in _by_turn(group, discount)]
    if how == "gae":
        if critic is None or trainer is None:
            raise ValueError("gae needs a critic and a trainer with a value head")
        return _against_values(groups, discount, critic, trainer)
    return _reinforced(groups, discount, baseline=how == "reinforce++-baseline")


def turn_rewards(episode: Episode) -> list[float] | None:
    """What each turn earned: its share of the process parts that name it, less a little if idle.

    What no part gives to a turn is earned by the last one. A turn is idle in which no call could be
    run. All of them together cost at most `IDLE_TURNS`. None for our own failures.
    """
    if episode.reward is None or not math.isfinite(episode.reward):
        return None
    usable = {event.turn for event in episode.events if event.kind == "call"}
    cost = IDLE_TURNS / max(1, len(episode.turns))
    rewards = [0.0 if turn in usable else -cost for turn in range(len(episode.turns))]
    if rewards:
        left = episode.reward
        for turn, share in _earned_by_turns(episode):
            rewards[turn] += share
            left -= share
        rewards[-1] += left
    return rewards


def _earned_by_turns(episode: Episode) -> list[tuple[int, float]]:
    """What process parts give to the turns that earned it, in equal shares."""
    score = episode.score
    if score is None or EFFECTS[episode.outcome].at_floor:
        return []
    return [
        (turn, score.earned(part) / len(part.turns)) for part in score.parts for turn in part.turns
    ]


def explained(samples: Sequence[Sample]) -> dict[str, float]:
    """How well the values of a batch foretold its returns: `explained_variance`, at most 1."""
    places = [(s, t) for s in samples if s.returns and s.values for t in own(s)]
    if not places or not (spread := pvariance([s.returns[t] for s, t in places])):
        return {}
    missed = pvariance([s.returns[t] - s.values[t] for s, t in places])
    return {"explained_variance": 1 - missed / spread}


def own(sample: Sample) -> list[int]:
    """The positions that RL trains."""
    return [t for t, weight in enumerate(sample.rl_weight) if weight]


def _rewarded(groups: Sequence[Group]) -> list[tuple[Sample, float]]:
    return [
        (sampled(episode), episode.reward)
        for group in groups
        for episode in group.episodes
        if is_trained(episode) and episode.reward is not None and math.isfinite(episode.reward)
    ]


def _reinforced(groups: Sequence[Group], discount: float, *, baseline: bool) -> list[Sample]:
    """REINFORCE++ (arXiv 2501.03262): returns of tokens, whitened over all tokens of the batch.

    With `baseline` a reward less the mean of its group, whitened in the same way.
    """
    centred = {
        episode.id: advantage
        for group in groups
        for episode, advantage in zip(
            group.episodes, mean_centred([e.reward for e in group.episodes]), strict=True
        )
    }
    found = _rewarded(groups)
    credits: list[list[float | None]] = []
    for sample, reward in found:
        count = len(own(sample))
        if baseline:
            credits.append([centred[sample.episode]] * count)
        else:
            credits.append([*returns([0.0] * (count - 1) + [reward], discount=discount)])
    return _stamped([sample for sample, _ in found], whitened(credits))


def _by_turn(group: Group, discount: float) -> list[Sample]:
    """Each turn's return against the mean of that turn over the group."""
    found = by_turn([turn_rewards(episode) for episode in group.episodes], discount=discount)
    samples, credits = [], []
    for episode, turns in zip(group.episodes, found, strict=True):
        if turns is None or not is_trained(episode):
            continue
        lengths = [len(turn.record.ids) if turn.record else 0 for turn in episode.turns]
        samples.append(sampled(episode))
        credits.append([a for a, n in zip(turns, lengths, strict=True) for _ in range(n)])
    return _stamped(samples, credits)


def _against_values(
    groups: Sequence[Group], discount: float, critic: CriticSettings, trainer: Trainer
) -> list[Sample]:
    """GAE (arXiv 1506.02438), the reward on the last token of an episode."""
    found = _rewarded(groups)
    samples: list[Sample] = []
    credits: list[list[float | None]] = []
    valued = trainer.values([sample for sample, _ in found]) if found else []
    for sample, (_, reward) in zip(valued, found, strict=True):
        mine = [weight > 0 for weight in sample.rl_weight]
        rewards = [0.0] * len(mine)
        rewards[own(sample)[-1]] = reward
        advantages, targets = gae(
            rewards, sample.values, mine, discount=discount, trace=critic.trace
        )
        samples.append(msgspec.structs.replace(sample, returns=tuple(targets)))
        credits.append([*(advantages[t] for t in own(sample))])
    if critic.whiten:
        credits = whitened(credits)
    return [_with(sample, credit) for sample, credit in zip(samples, credits, strict=True)]


def _stamped(samples: Sequence[Sample], credits: Sequence[Sequence[float | None]]) -> list[Sample]:
    """The samples with the advantages of their own tokens; none when all of them are 0."""
    if not any(any(credit) for credit in credits):
        return []
    return [_with(sample, credit) for sample, credit in zip(samples, credits, strict=True)]


def _with(sample: Sample, credit: Sequence[float | None]) -> Sample:
    advantage = [0.0] * len(sample.tokens)
    for t, value in zip(own(sample), credit, strict=True):
        advantage[t] = value or 0.0
    return msgspec.structs.replace(sample, advantage=tuple(advantage))
