"""The `loss` table of a recipe's RL stage: which loss, with what corrections, averaged how."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from practicum.core import Sample
from practicum.engines.contract import TokenLoss
from practicum.learn import losses
from practicum.learn.aggregate import Aggregation, aggregated
from practicum.learn.losses.kl import Estimate

POLICY: dict[str, Callable[..., TokenLoss]] = {
    "clip": losses.clip,
    "gspo": losses.gspo,
    "cispo": losses.cispo,
    "dppo": losses.dppo,
    "sapo": losses.sapo,
    "importance": losses.importance,
}
CORRECTIONS: dict[str, Callable[..., losses.Correction]] = {
    "truncated": losses.truncated,
    "truncated-sequence": losses.truncated_sequence,
    "icepop": losses.icepop,
    "geometric-mask": losses.geometric_mask,
    "veto": losses.veto,
}
PolicyName = Literal["clip", "gspo", "cispo", "dppo", "sapo", "importance"]
CorrectionName = Literal["truncated", "truncated-sequence", "icepop", "geometric-mask", "veto"]


class LossSettings(BaseModel):
    """What an RL step minimises. Options that are not set have their papers' defaults."""

    model_config = ConfigDict(extra="forbid")
    policy: PolicyName = "clip"
    options: dict[str, float | bool] = Field(default_factory=dict)  # of the policy loss
    corrections: list[CorrectionName] = Field(default_factory=list)
    aggregation: Aggregation | None = None  # default: by sequence for gspo, else by token
    longest: int = Field(0, ge=0)  # tokens of a sequence, for aggregation "constant"
    kl: float = Field(0.0, ge=0)  # what a nat of KL to the reference costs a token
    kl_estimate: Estimate = "k3+"
    reference: str = ""  # a model or the name of an earlier stage; empty: what the stage began with

    @model_validator(mode="after")
    def _known(self) -> Self:
        known = inspect.signature(POLICY[self.policy]).parameters
        for name in self.options:
            if name not in known:
                listed = ", ".join(known) or "none"
                raise ValueError(f"{self.policy} has no option {name!r}; it has: {listed}")
        if self.aggregation == "constant" and not self.longest:
            raise ValueError('aggregation "constant" needs longest, the tokens of a long sequence')
        if self.kl_estimate == "k1":
            raise ValueError('kl_estimate "k1" has no gradient as a loss: take "k3+" or "k2"')
        if self.reference and not self.kl:
            raise ValueError("a reference has no effect without kl: set kl, such as 0.01")
        return self

    def make(self) -> TokenLoss:
        """The loss."""
        options: dict[str, Any] = dict(self.options)
        if self.policy == "clip" and not options:
            options = {"low": 0.2, "high": 0.28}  # clip-higher
        loss = POLICY[self.policy](**options)
        if self.corrections:
            loss = losses.corrected(loss, *(CORRECTIONS[name]() for name in self.corrections))
        return losses.penalised(loss, self.kl, self.kl_estimate) if self.kl else loss

    def weighted(self, batch: Sequence[Sample], cross_entropy: float = 1.0) -> list[Sample]:
        """The samples of a batch with their final weights."""
        default: Aggregation = "sequence-mean" if self.policy == "gspo" else "token-mean"
        how = self.aggregation or default
        return aggregated(batch, how, length=self.longest, cross_entropy=cross_entropy)
