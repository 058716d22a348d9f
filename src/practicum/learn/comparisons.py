"""What preference and reward-model stages share: play once, journal what is compared, go over it.

The tasks are played several times each with the model that the stage starts from. What is made of
them is journalled before the first step, so a stage that was killed goes on with the same; in which
order it is gone over follows from the seed.
"""

import math
import random
import time
from collections.abc import Callable, Sequence

from pydantic import BaseModel, ConfigDict, Field

from practicum.core import EngineError, Episode, Group, Sample
from practicum.learn.stage import Stage, warmup

Two = list[Sample]
"""A pair, the better first; or an answer, and its prompt with another's answer."""


class ComparisonSettings(BaseModel):
    """Settings of a stage that learns from comparing attempts at the same task."""

    model_config = ConfigDict(extra="forbid")
    name: str
    start: str = ""  # "base" or the stage whose weights it starts from; empty: the one before
    tasks: int = Field(64, ge=1)  # that are played
    group_size: int = Field(4, ge=2)  # attempts at each
    temperature: float = Field(1.0, gt=0)
    epochs: int = Field(1, ge=1)
    batch_size: int = Field(8, ge=1)  # pairs a step, or answers
    learning_rate: float = Field(1e-6, gt=0)
    warmup_steps: int = Field(2, ge=0)
    checkpoint_every: int = Field(10, ge=1)

    @property
    def most_steps(self) -> int:
        """Steps, if every task makes a pair."""
        return self.epochs * math.ceil(self.tasks / self.batch_size)


Play = Callable[[], list[Group]]
"""Plays the tasks of the stage."""


def compared(stage: Stage, play: Play, make: Callable[[list[Group]], list[Sample]]) -> list[Two]:
    """Two by two, what `make` makes of what is played, or was before the stage was killed.

    Raises EngineError when there is nothing to compare.
    """
    if 0 in stage.run.batch_steps(stage.name):
        samples = stage.run.read_batch(stage.name, 0)
    else:
        groups = play()
        samples = make(groups)
        episodes: list[Episode] = [e for group in groups for e in group.episodes]
        stage.run.write_episodes(stage.name, 0, episodes)
        stage.run.write_batch(stage.name, 0, samples)
    for step in stage.run.episode_steps(stage.name):
        stage.paid(stage.run.read_episodes(stage.name, step))
    if not samples:
        raise EngineError(
            f"{stage.name}: no task was done better in one attempt than in another, so there is "
            "nothing to prefer: raise tasks, group_size or temperature, or train it before (sft)"
        )
    return [samples[i : i + 2] for i in range(0, len(samples), 2)]


def go_over(
    stage: Stage,
    settings: ComparisonSettings,
    items: Sequence[Two],
    learn: Callable[[Sequence[Two]], dict[str, float]],
    *,
    check: Callable[[], dict[str, float]] = dict,
    seed: int = 0,
) -> None:
    """Take a step on some of the items at a time, `learn` adding the gradient of each step.

    What `check` finds after the last step belongs to its metrics.
    """
    plan = [batch for e in range(settings.epochs) for batch in _batches(items, settings, seed, e)]
    stage.progress.stage(stage.name, len(plan))
    done, _ = stage.resume()
    factor = warmup(settings.warmup_steps)
    for step in range(done, len(plan)):
        started = time.perf_counter()
        values = learn(plan[step])
        values |= stage.trainer.step(settings.learning_rate * factor(step))
        values["seconds"] = time.perf_counter() - started
        last = step + 1 == len(plan)
        stage.metric(step, values | check() if last else values)
        if (step + 1) % settings.checkpoint_every == 0 or last:
            stage.save(step + 1, {})


def flat(items: Sequence[Two]) -> list[Sample]:
    """All samples of some items, in their order."""
    return [sample for two in items for sample in two]


def _batches(
    items: Sequence[Two], settings: ComparisonSettings, seed: int, epoch: int
) -> list[list[Two]]:
    """The items of an epoch in a random order, some at a time."""
    order = list(items)
    random.Random(f"{settings.name}-{seed}-{epoch}").shuffle(order)
    size = settings.batch_size
    return [order[i : i + size] for i in range(0, len(order), size)]
