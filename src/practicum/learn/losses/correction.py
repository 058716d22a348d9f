"""What to do where the sampler's probabilities are not those the trainer would have sampled with.

rho = pi_old / mu: the trainer's probability of a token before the step over the sampler's. A
correction gives each token a weight without gradient, which multiplies its loss; 0 drops it. The
count of tokens that a loss is divided by stays as it was, so that rejecting some does not raise the
learning rate of the others; the share that was dropped is a metric.
"""

from collections.abc import Callable

import torch

from practicum.engines.contract import TokenLoss, Tokens
from practicum.learn.losses.ratio import log_ratio, sequence_mean, sequence_sum

Correction = Callable[[Tokens], torch.Tensor]
"""Tokens -> weight of each [N]."""


def corrected(loss: TokenLoss, *corrections: Correction) -> TokenLoss:
    """`loss` with the trainer's own probabilities in place of the sampler's, times the weights.

    So the sampler's share of the ratio is taken by the corrections alone, and not twice. Right
    where a batch is trained on once, as here: then pi_old are the probabilities of this pass.
    """

    def found(tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        weight = torch.ones_like(tokens.sampler)
        for correction in corrections:
            weight = weight * correction(tokens).detach()
        losses, metrics = loss(tokens._replace(sampler=tokens.logprobs.detach()))
        _, seen = loss(tokens)  # of ratio and KL to the sampler
        kept = {name: seen[name] for name in ("ratio", "kl")}
        dropped = (weight == 0).float()
        return losses * weight, {**metrics, **kept, "corrected": weight, "dropped": dropped}

    return found


def truncated(cap: float = 2.0) -> Correction:
    """Token TIS: `min(rho, cap)`."""
    return lambda tokens: _rho(tokens).clamp(max=cap)


def truncated_sequence(cap: float = 5.0) -> Correction:
    """Sequence TIS: `min(product of rho over the sequence, cap)`; varies more with length."""
    return lambda tokens: (
        sequence_sum(log_ratio(tokens).detach(), tokens).clamp(max=20.0).exp().clamp(max=cap)
    )


def icepop(low: float = 0.5, high: float = 5.0) -> Correction:
    """IcePop: rho where `low <= rho <= high`, and no gradient elsewhere."""

    def weight(tokens: Tokens) -> torch.Tensor:
        rho = _rho(tokens)
        return torch.where((rho >= low) & (rho <= high), rho, torch.zeros_like(rho))

    return weight


def geometric_mask(low: float = 0.99, high: float = 1.01) -> Correction:
    """Drops a sequence whose geometric mean of rho is outside the bounds, whatever its length."""

    def weight(tokens: Tokens) -> torch.Tensor:
        mean = sequence_mean(log_ratio(tokens).detach(), tokens).exp()
        return ((mean >= low) & (mean <= high)).to(mean.dtype)

    return weight


def veto(floor: float = 1e-4) -> Correction:
    """Drops a sequence in which any token has rho below `floor`: the trainer would not say that."""

    def weight(tokens: Tokens) -> torch.Tensor:
        bad = (_rho(tokens) < floor).to(tokens.sampler.dtype)
        return (sequence_sum(bad, tokens) == 0).to(bad.dtype)

    return weight


def _rho(tokens: Tokens) -> torch.Tensor:
    return log_ratio(tokens).detach().exp()
