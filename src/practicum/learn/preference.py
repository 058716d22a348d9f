"""Learning from preferences: make better attempts likelier and worse ones less likely.

`dpo` and `ipo` pair the best attempt at a task with the worst; `kto` takes each attempt by itself.
The model that the stage starts from is the reference.
"""

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from practicum.core import EngineError, Group, Sample
from practicum.engines.contract import Trainer
from practicum.learn import losses
from practicum.learn.aggregate import aggregated
from practicum.learn.comparisons import ComparisonSettings, Play, Two, compared, flat, go_over
from practicum.learn.samples import Mark, marked, mismatched, pair
from practicum.learn.stage import Stage


class PreferenceSettings(ComparisonSettings):
    """Settings of a preference stage."""

    type: Literal["preference"]
    name: str = "preference"
    loss: Literal["dpo", "ipo", "kto"] = "dpo"
    beta: float = Field(0.1, gt=0)
    smoothing: float = Field(0.0, ge=0, lt=0.5)  # of dpo: pairs taken to be labelled wrongly
    good: Mark = "mean"  # of kto: attempts above the mean of their task, or those of "success"
    weight_good: float = Field(1.0, gt=0)  # of kto
    weight_bad: float = Field(1.0, gt=0)  # of kto

    @property
    def most_steps(self) -> int:
        """Steps, if every task makes a pair, or every attempt is good or bad."""
        items = self.tasks * (self.group_size if self.loss == "kto" else 1)
        return self.epochs * math.ceil(items / self.batch_size)


def preference(stage: Stage, settings: PreferenceSettings, play: Play, *, seed: int = 0) -> None:
    """Train on what is to be preferred in what `play` plays."""
    trainer = stage.trainer

    def make(groups: list[Group]) -> list[Sample]:
        if settings.loss != "kto":
            return trainer.score([sample for group in groups for sample in pair(group)])
        answers = [sample for group in groups for sample in marked(group, settings.good)]
        others = mismatched(answers)
        if answers and not others:
            raise EngineError(
                f"{stage.name}: all answers are to one prompt, and kto measures how far the model "
                "has gone with the answers to other prompts: raise tasks"
            )
        return trainer.score([s for two in zip(answers, others, strict=True) for s in two])

    def learn(items: Sequence[Two]) -> dict[str, float]:
        if settings.loss == "kto":
            return _kto(trainer, settings, items)
        if settings.loss == "ipo":
            loss = losses.paired(losses.ipo, beta=settings.beta)
        else:
            loss = losses.paired(losses.dpo, beta=settings.beta, smoothing=settings.smoothing)
        return trainer.forward_backward(aggregated(flat(items), "prompt-mean"), loss)

    items = compared(stage, play, make)
    kind = "answers" if settings.loss == "kto" else "pairs"
    stage.progress.note(f"{stage.name}: {len(items)} {kind} from {settings.tasks} tasks")
    go_over(stage, settings, items, learn, seed=seed)


def _kto(trainer: Trainer, settings: PreferenceSettings, items: Sequence[Two]) -> dict[str, float]:
    """A step of KTO, its baseline measured on the whole batch before the gradient."""
    z = divergence(trainer, [other for _, other in items])
    loss = losses.single(
        z,
        beta=settings.beta,
        weight_good=settings.weight_good,
        weight_bad=settings.weight_bad,
    )
    answers = aggregated([answer for answer, _ in items], "prompt-mean")
    return trainer.forward_backward(answers, loss) | {"baseline": z}


def divergence(trainer: Trainer, samples: Sequence[Sample]) -> float:
    """KTO's z (arXiv 2402.01306): the mean log-ratio of whole mismatched answers, at least 0.

    `samples` carry the reference's log-probabilities.
    """
    ratios = [
        math.fsum(now.reference) - math.fsum(sample.reference)
        for now, sample in zip(trainer.score(samples), samples, strict=True)
    ]
    return max(0.0, math.fsum(ratios) / len(ratios))
