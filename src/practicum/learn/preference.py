"""Learning from preferences: of two attempts at a task, make the better one likelier.

The stage plays each of its tasks several times with the model it starts from, and pairs the best
attempt with the worst where their rewards differ. That model is the reference, too. Everything that
was played and paired is journalled before the first step, so a stage that was killed goes on with
the same pairs.
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from practicum.core import EngineError, Episode, Group, Sample
from practicum.engines.contract import TokenLoss
from practicum.learn import losses
from practicum.learn.aggregate import aggregated
from practicum.learn.losses.preference import paired
from practicum.learn.samples import pair
from practicum.learn.stage import Stage, warmup


class PreferenceSettings(BaseModel):
    """Settings of a preference stage."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["preference"]
    name: str = "preference"
    loss: Literal["dpo", "ipo"] = "dpo"
    beta: float = Field(0.1, gt=0)
    smoothing: float = Field(0.0, ge=0, lt=0.5)  # of dpo: pairs taken to be labelled wrongly
    tasks: int = Field(64, ge=1)  # that are played
    group_size: int = Field(4, ge=2)  # attempts at each
    temperature: float = Field(1.0, gt=0)
    epochs: int = Field(1, ge=1)
    batch_size: int = Field(8, ge=1)  # pairs a step
    learning_rate: float = Field(1e-6, gt=0)
    warmup_steps: int = Field(2, ge=0)
    checkpoint_every: int = Field(10, ge=1)

    @property
    def most_steps(self) -> int:
        """Steps, if every task makes a pair."""
        return self.epochs * math.ceil(self.tasks / self.batch_size)

    def make(self) -> TokenLoss:
        """The loss."""
        if self.loss == "ipo":
            return paired(losses.ipo, beta=self.beta)
        return paired(losses.dpo, beta=self.beta, smoothing=self.smoothing)


def preference(
    stage: Stage, settings: PreferenceSettings, play: Callable[[], list[Group]], *, seed: int = 0
) -> None:
    """Train on the pairs of what `play` plays, or of what it played before the stage was killed."""
    if 0 in stage.run.batch_steps(stage.name):
        samples = stage.run.read_batch(stage.name, 0)
    else:
        groups = play()
        samples = stage.trainer.score([s for group in groups for s in pair(group)])
        episodes: list[Episode] = [e for group in groups for e in group.episodes]
        stage.run.write_episodes(stage.name, 0, episodes)
        stage.run.write_batch(stage.name, 0, samples)
    pairs = [samples[i : i + 2] for i in range(0, len(samples), 2)]
    if not pairs:
        raise EngineError(
            f"{stage.name}: no task was done better in one attempt than in another, so there is "
            "nothing to prefer: raise tasks, group_size or temperature, or train it before (sft)"
        )
    stage.progress.note(f"{stage.name}: {len(pairs)} pairs from {settings.tasks} tasks")
    epochs = range(settings.epochs)
    plan = [batch for epoch in epochs for batch in _batches(pairs, settings, seed, epoch)]
    stage.progress.stage(stage.name, len(plan))
    done, _ = stage.resume()
    loss, factor = settings.make(), warmup(settings.warmup_steps)
    for step in range(done, len(plan)):
        started = time.perf_counter()
        values = stage.trainer.forward_backward(aggregated(plan[step], "prompt-mean"), loss)
        values |= stage.trainer.step(settings.learning_rate * factor(step))
        values["seconds"] = time.perf_counter() - started
        stage.metric(step, values)
        if (step + 1) % settings.checkpoint_every == 0 or step + 1 == len(plan):
            stage.save(step + 1, {})


def _batches(
    pairs: Sequence[list[Sample]], settings: PreferenceSettings, seed: int, epoch: int
) -> list[list[Sample]]:
    """The pairs of an epoch in a random order, some at a time."""
    order = list(pairs)
    random.Random(f"{settings.name}-{seed}-{epoch}").shuffle(order)
    size = settings.batch_size
    return [[s for two in order[i : i + size] for s in two] for i in range(0, len(order), size)]
