"""Distillation: the student samples, and learns of each token how likely it is to its teacher.

On-policy, so the student is corrected where it goes itself. Reverse KL: the advantage of a token is
the teacher's log-probability of it minus the student's, and no reward is needed.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
from pydantic import Field

from practicum.core import Group, Sample
from practicum.engines.contract import Trainer
from practicum.learn.objective import LossSettings
from practicum.learn.rl import RLSettings
from practicum.learn.samples import sampled


class DistilSettings(RLSettings):
    """Settings of a distillation stage: those of practice, and a teacher in place of rewards."""

    type: Literal["distil"]  # type: ignore[assignment]
    name: str = "distil"
    teacher: str = Field(min_length=1)  # a model reference, or the name of a stage before this one
    coefficient: float = Field(1.0, gt=0)
    group_size: int = Field(1, ge=1)  # nothing is compared within a group
    loss: LossSettings = Field(default_factory=lambda: LossSettings(policy="importance"))


def distilled(group: Group, teacher: Trainer, coefficient: float = 1.0) -> list[Sample]:
    """The trained episodes of a group; each token's advantage is what the teacher thinks of it."""
    return [
        msgspec.structs.replace(sample, advantage=_advantages(sample, coefficient))
        for sample in teacher.score(sampled(group))
    ]


def _advantages(sample: Sample, coefficient: float) -> tuple[float, ...]:
    streams: Sequence[tuple[float, float, float]] = list(
        zip(sample.rl_weight, sample.reference, sample.logprobs, strict=True)
    )
    return tuple(coefficient * (theirs - ours) if w else 0.0 for w, theirs, ours in streams)
