"""Losses on answers of which it is known which are better: pairs of them, or one at a time.

`dpo`, `ipo`, `kto` and `bradley_terry` take and give tensors [B], B pairs (kto: B answers).
`chosen` and `rejected` are of the policy, with gradient; the reference's are constants. `paired`,
`single` and `scored` make losses on tokens of them: each token has the loss of its pair or answer,
so that with weights by prompt ("prompt-mean") the sum over tokens is the mean over those. An
advantage above 0 marks a good answer, one below 0 a bad one.
"""

from collections.abc import Callable

import torch
from torch.nn.functional import logsigmoid

from practicum.engines.contract import TokenLoss, Tokens


def paired(loss: Callable[..., torch.Tensor], **options: float) -> TokenLoss:
    """`dpo` or `ipo` over pairs: two sequences of one unit, one good and one bad."""

    def found(tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        reference = _reference(tokens)
        sums = [_of_unit(v, tokens, s) for v in (tokens.logprobs, reference) for s in (1, -1)]
        return _spread(loss(*sums, **options), _margin(*sums), tokens.unit)

    return found


def scored() -> TokenLoss:
    """`bradley_terry` over pairs: the score of a sequence is the sum of its tokens' values."""

    def found(tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        if tokens.value is None:
            raise ValueError("scores need a trainer with a value head")
        chosen, rejected = (_of_unit(tokens.value, tokens, sign) for sign in (1, -1))
        return _spread(bradley_terry(chosen, rejected), chosen - rejected, tokens.unit)

    return found


def single(baseline: float, **options: float) -> TokenLoss:
    """`kto` over sequences, each good or bad by itself; `baseline` is z."""

    def found(tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        good = _total(tokens.advantage, tokens.sequence) > 0
        logprobs, reference = (
            _total(v, tokens.sequence) for v in (tokens.logprobs, _reference(tokens))
        )
        z = torch.full_like(reference, baseline)
        losses = kto(logprobs, reference, good, z, **options)
        h = logprobs - reference - z
        return _spread(losses, torch.where(good, h, -h), tokens.sequence)

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


def _reference(tokens: Tokens) -> torch.Tensor:
    if tokens.reference is None:
        raise ValueError("the samples carry no log-probabilities of a reference")
    return tokens.reference


def _total(values: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    """The sums of `values` [N] by the number `of` [N] that each belongs to."""
    count = int(of.max()) + 1 if len(of) else 0
    return values.new_zeros(count).index_add(0, of, values)


def _of_unit(values: torch.Tensor, tokens: Tokens, sign: int) -> torch.Tensor:
    """The sum over the good (`sign` 1) or the bad (-1) sequence of each unit."""
    mine = torch.where(sign * tokens.advantage > 0, values, torch.zeros_like(values))
    return _total(mine, tokens.unit)


def _spread(
    losses: torch.Tensor, margin: torch.Tensor, of: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Losses and metrics of pairs or answers, given to each of their tokens."""
    margin = margin.detach()
    metrics = {"margin": margin, "accuracy": (margin > 0).to(margin.dtype)}
    return losses[of], {name: value[of] for name, value in metrics.items()}
