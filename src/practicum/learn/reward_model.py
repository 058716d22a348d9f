"""A reward model: a scalar over the whole of an attempt, trained to order pairs (Bradley-Terry).

It is the trunk of the model that the stage starts from with a value head, read behind the last
token. The policy stays as it is: the stage after this one starts from the model before it.
"""

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from practicum.core import Episode, Group, Sample
from practicum.engines.contract import Trainer
from practicum.learn import losses
from practicum.learn.aggregate import aggregated
from practicum.learn.comparisons import ComparisonSettings, Play, Two, compared, flat, go_over
from practicum.learn.samples import ended, is_trained, pair, sampled
from practicum.learn.stage import Stage


class RewardModelSettings(ComparisonSettings):
    """Settings of a reward-model stage."""

    type: Literal["reward-model"]
    name: str = "reward-model"
    learning_rate: float = Field(1e-5, gt=0)
    head_learning_rate: float = Field(2e-4, gt=0)  # of the value head, which begins at nothing
    validation: float = Field(0.1, ge=0, lt=1)  # of the pairs, which are not trained on


def reward_model(
    stage: Stage, settings: RewardModelSettings, play: Play, end: int, *, seed: int = 0
) -> None:
    """Train a trainer with a value head on the pairs of what `play` plays; `end` ends a sample.

    The share of held-out pairs in the right order is told, and is a metric of the last step.
    """
    trainer = stage.trainer

    def make(groups: list[Group]) -> list[Sample]:
        return [ended(sample, end) for group in groups for sample in pair(group)]

    def learn(items: Sequence[Two]) -> dict[str, float]:
        return trainer.forward_backward(aggregated(flat(items), "prompt-mean"), losses.scored())

    items = compared(stage, play, make)
    kept = min(math.ceil(settings.validation * len(items)), len(items) - 1)
    train, held_out = items[: len(items) - kept], items[len(items) - kept :]
    stage.progress.note(f"{stage.name}: {len(train)} pairs to learn from, {kept} to check it with")

    def check() -> dict[str, float]:
        if not held_out:
            return {}
        right = accuracy(trainer, held_out)
        stage.progress.note(
            f"{stage.name}: {right:.0%} of {kept} held-out pairs in the right order"
        )
        return {"val_accuracy": right}

    go_over(stage, settings, train, learn, check=check, seed=seed)


def accuracy(trainer: Trainer, pairs: Sequence[Two]) -> float:
    """The share of pairs whose first sample has the higher value; equal values count half."""
    values = [sample.values[-1] for sample in trainer.values(flat(pairs))]
    twos = list(zip(values[::2], values[1::2], strict=True))
    return math.fsum((good > bad) + (good == bad) / 2 for good, bad in twos) / len(twos)


def rewards(trainer: Trainer, episodes: Sequence[Episode], end: int) -> list[float | None]:
    """What a reward model says of each episode, any real number; None where nothing can be read."""
    read = [e for e in episodes if is_trained(e)]
    samples = trainer.values([ended(sampled(e), end) for e in read]) if read else []
    said = {e.id: sample.values[-1] for e, sample in zip(read, samples, strict=True)}
    return [said.get(episode.id) for episode in episodes]
