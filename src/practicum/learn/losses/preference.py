"""Losses on pairs: summed log-probabilities of whole answers, or scores, one of each pair better.

All take and give tensors [B], B pairs (kto: B answers). `chosen` and `rejected` are of the policy,
with gradient; the reference's are constants.
"""

from collections.abc import Callable

import torch
from torch.nn.functional import logsigmoid

from practicum.engines.contract import TokenLoss, Tokens


def paired(loss: Callable[..., torch.Tensor], **options: float) -> TokenLoss:
    """A loss on pairs as one on tokens: each token has the loss of its pair.

    Two sequences of one unit are a pair; advantages above 0 mark the chosen one, below 0 the other.
    With weights by prompt ("prompt-mean") the sum over tokens is the mean over pairs.
    """

    def found(tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        if tokens.reference is None:
            raise ValueError("the samples carry no log-probabilities of a reference")
        count = int(tokens.unit.max()) + 1 if len(tokens.unit) else 0

        def total(values: torch.Tensor, sign: int) -> torch.Tensor:
            mine = torch.where(sign * tokens.advantage > 0, values, torch.zeros_like(values))
            return values.new_zeros(count).index_add(0, tokens.unit, mine)

        sums = [total(v, sign) for v in (tokens.logprobs, tokens.reference) for sign in (1, -1)]
        losses = loss(*sums, **options)
        margin = _margin(*sums).detach()
        metrics = {"margin": margin, "accuracy": (margin > 0).to(margin.dtype)}
        return losses[tokens.unit], {name: v[tokens.unit] for name, v in metrics.items()}

    return found


def dpo(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    reference_chosen: torch.Tensor,
    reference_rejected: torch.Tensor,
    *,
    beta: float = 0.1,
    smoothing: float = 0.0,
) -> torch.Tensor:
    """DPO (arXiv 2305.18290): `-log sigmoid(beta h)`, h the log-ratio of chosen minus rejected.

    `smoothing` is the share of pairs taken to be labelled the wrong way (cDPO).
    """
    h = beta * _margin(chosen, rejected, reference_chosen, reference_rejected)
    return -(1 - smoothing) * logsigmoid(h) - smoothing * logsigmoid(-h)


def ipo(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    reference_chosen: torch.Tensor,
    reference_rejected: torch.Tensor,
    *,
    beta: float = 0.1,
) -> torch.Tensor:
    """IPO (arXiv 2310.12036): `(h - 1 / (2 beta))^2`: a margin to be met, not to be grown."""
    h = _margin(chosen, rejected, reference_chosen, reference_rejected)
    return (h - 1 / (2 * beta)).square()


def kto(
    logprobs: torch.Tensor,
    reference: torch.Tensor,
    good: torch.Tensor,
    baseline: torch.Tensor,
    *,
    beta: float = 0.1,
    weight_good: float = 1.0,
    weight_bad: float = 1.0,
) -> torch.Tensor:
    """KTO (arXiv 2402.01306) on single answers marked good (bool [B]) or bad.

    `w (1 - sigmoid(+-beta (log-ratio - z)))`. z, the `baseline`, is the policy's KL to the
    reference, estimated on mismatched answers, at least 0 and without gradient.
    """
    h = beta * (logprobs - reference - baseline.detach().clamp(min=0))
    value = torch.sigmoid(torch.where(good, h, -h))
    weights = torch.where(good, weight_good, weight_bad)
    return weights * (1 - value)


def bradley_terry(chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
    """`-log sigmoid(s_chosen - s_rejected)` over the scores of a reward model."""
    return -logsigmoid(chosen - rejected)


def _margin(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    reference_chosen: torch.Tensor,
    reference_rejected: torch.Tensor,
) -> torch.Tensor:
    return (chosen - reference_chosen) - (rejected - reference_rejected)
