"""Distillation: the student samples, and learns of each token how likely it is to its teacher.

On-policy, so the student is corrected where it goes itself. Reverse KL: the advantage of a token is
the teacher's log-probability of it minus the student's, and no reward is needed.
"""

from collections.abc import Sequence
from typing import Literal, Self

import msgspec
from pydantic import Field, model_validator

from practicum.core import Group, Sample
from practicum.engines.contract import Sampler, Trainer
from practicum.learn.curriculum import Cell
from practicum.learn.objective import LossSettings
from practicum.learn.practise import Practise, PractiseSettings, practise_and_learn
from practicum.learn.samples import is_trained, referenced, sampled
from practicum.learn.stage import Stage


class DistilSettings(PractiseSettings):
    """Settings of a distillation stage: those of practice, and a teacher in place of rewards."""

    type: Literal["distil"]
    name: str = "distil"
    teacher: str = Field(min_length=1)  # a model reference, or the name of a stage before this one
    coefficient: float = Field(1.0, gt=0)
    group_size: int = Field(1, ge=1)  # nothing is compared within a group
    loss: LossSettings = Field(default_factory=lambda: LossSettings(policy="importance"))

    @model_validator(mode="after")
    def _one_reference(self) -> Self:
        if self.loss.kl:
            raise ValueError("the teacher is the reference of a distil stage: leave loss.kl out")
        return self


def distil(
    stage: Stage,
    settings: DistilSettings,
    sampler: Sampler,
    cells: Sequence[Cell],
    practise: Practise,
    teacher: Trainer,
    *,
    seed: int = 0,
) -> None:
    """Train for `settings.steps` steps on what the student does and `teacher` thinks of it."""

    def make(step: int, groups: Sequence[Group]) -> list[Sample]:
        return [s for group in groups for s in distilled(group, teacher, settings.coefficient)]

    loss = settings.loss.make()
    practise_and_learn(stage, settings, sampler, cells, practise, make, loss, seed=seed)


def distilled(group: Group, teacher: Trainer, coefficient: float = 1.0) -> list[Sample]:
    """The trained episodes of a group; each token's advantage is what the teacher thinks of it."""
    played = [sampled(episode) for episode in group.episodes if is_trained(episode)]
    return [
        msgspec.structs.replace(sample, advantage=_advantages(sample, coefficient))
        for sample in referenced(played, teacher)
    ]


def _advantages(sample: Sample, coefficient: float) -> tuple[float, ...]:
    streams: Sequence[tuple[float, float, float]] = list(
        zip(sample.rl_weight, sample.reference, sample.logprobs, strict=True)
    )
    return tuple(coefficient * (theirs - ours) if w else 0.0 for w, theirs, ours in streams)
