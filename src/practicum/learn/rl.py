"""Reinforcement learning on verified outcomes: practise, see what was better, take one step."""

import random
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from practicum.core import Group, Sample, content_hash
from practicum.engines.contract import Sampler, TokenLoss, Trainer
from practicum.learn.credit import ALONE, DISCOUNTED, Advantage, CriticSettings, credited
from practicum.learn.curriculum import Cell
from practicum.learn.losses import with_values
from practicum.learn.practise import Practise, PractiseSettings, practise_and_learn
from practicum.learn.samples import referenced
from practicum.learn.stage import Stage


class MixSettings(BaseModel):
    """Cross-entropy beside RL: every batch holds some demonstrations, too."""

    model_config = ConfigDict(extra="forbid")
    demonstrations: int = Field(64, ge=1)  # that are played, over all trained domains
    each_step: int = Field(8, ge=1)  # of them in a batch
    weight: float = Field(0.1, gt=0)  # of their mean cross-entropy beside the mean RL loss


class RLSettings(PractiseSettings):
    """Settings of an RL stage."""

    type: Literal["rl"]
    name: str = "rl"
    advantage: Advantage = "mean-centred"
    discount: float = Field(1.0, gt=0, le=1)  # a token or turn; of the advantages that look ahead
    critic: CriticSettings | None = None  # of advantage "gae"
    mix: MixSettings | None = None
    reward_model: str = ""  # name of an earlier stage: its value becomes a part of each score
    reward_weight: float = Field(0.1, ge=0, le=0.2)  # in a step of the outcome; 0: only measured

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.group_size < 2 and self.advantage not in ALONE:
            raise ValueError(
                f"advantage {self.advantage!r} compares within a group: group_size must be 2 or "
                f"more (or take one of {', '.join(ALONE)})"
            )
        if self.discount != 1 and self.advantage not in DISCOUNTED:
            raise ValueError(
                f"discount has no effect on advantage {self.advantage!r}: leave it at 1, or take "
                f"one of {', '.join(DISCOUNTED)}"
            )
        if self.critic and self.advantage != "gae":
            raise ValueError('a critic has no effect: set advantage = "gae", or leave it out')
        if self.advantage == "gae" and self.critic is None:
            self.critic = CriticSettings()
        return self

    def make(self) -> TokenLoss:
        """The loss."""
        loss = self.loss.make()
        if self.critic is None:
            return loss
        return with_values(loss, self.critic.coefficient, self.critic.clip)


def rl(
    stage: Stage,
    settings: RLSettings,
    sampler: Sampler,
    cells: Sequence[Cell],
    practise: Practise,
    *,
    reference: Trainer | None = None,
    demonstrations: Sequence[Sample] = (),
    seed: int = 0,
) -> None:
    """Train for `settings.steps` steps on tasks of `cells`, which `practise` plays.

    `reference` scores what a KL penalty is measured against; of `demonstrations` every batch holds
    some, as `settings.mix` says.
    """

    def make(step: int, groups: Sequence[Group]) -> list[Sample]:
        batch = credited(
            groups,
            settings.advantage,
            discount=settings.discount,
            critic=settings.critic,
            trainer=stage.trainer,
        )
        if reference and batch:
            batch = referenced(batch, reference)
        if settings.mix:
            rng = random.Random(content_hash([stage.name, "mix", seed, step]))
            count = min(settings.mix.each_step, len(demonstrations))
            batch = [*batch, *rng.sample(list(demonstrations), count)]
        return batch

    practise_and_learn(
        stage,
        settings,
        sampler,
        cells,
        practise,
        make,
        settings.make(),
        cross_entropy=settings.mix.weight if settings.mix else 1.0,
        seed=seed,
    )
