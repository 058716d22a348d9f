"""Estimates of KL(policy || reference) from tokens that the policy sampled, d = log pi - log ref.

As a loss, an estimate must have the right gradient, not only the right value: k2 has it, k1 has
none in expectation, and that of k3 is of the reverse divergence (arXiv 2506.09477).
"""

from typing import Literal

import torch

from practicum.engines.contract import TokenLoss, Tokens
from practicum.learn.losses.ratio import LOG_RATIO_LIMIT

Estimate = Literal["k1", "k2", "k3", "k3+"]


def estimate(kind: Estimate, logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """The estimate of each token [N], in nats.

    k1: d, unbiased and sometimes negative, for rewards. k2: d^2 / 2. k3: exp(-d) - 1 + d, unbiased
    and never negative. k3+: the value of k3 with the gradient of k2.
    """
    d = (logprobs - reference).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if kind == "k1":
        return d
    k2 = d.square() / 2
    if kind == "k2":
        return k2
    k3 = torch.exp(-d) - 1 + d
    return k3 if kind == "k3" else k2 + (k3 - k2).detach()


def penalised(loss: TokenLoss, coefficient: float, kind: Estimate = "k3+") -> TokenLoss:
    """`loss` plus `coefficient` times the KL to the reference, which the samples must carry."""

    def found(tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        if tokens.reference is None:
            raise ValueError("the samples carry no log-probabilities of a reference")
        losses, metrics = loss(tokens)
        kl = estimate(kind, tokens.logprobs, tokens.reference)
        return losses + coefficient * kl, {**metrics, "kl_reference": kl.detach()}

    return found
