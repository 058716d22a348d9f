"""Policy losses per token, to be minimised; r is the ratio of the policy to the sampler, A the
advantage, sg() is without gradient.

Each returns a `TokenLoss`. How tokens are averaged is not theirs to say: see `learn.aggregate`.
"""

import torch

from practicum.engines.contract import TokenLoss, Tokens
from practicum.learn.losses.ratio import described, log_ratio, sequence_mean

_LOG_LIMIT = 10.0  # of a sequence's mean, in GSPO

Found = tuple[torch.Tensor, dict[str, torch.Tensor]]


def clip(low: float = 0.2, high: float = 0.2, dual: float | None = None) -> TokenLoss:
    """PPO's clipped surrogate (arXiv 1707.06347): `max(-r A, -clip(r, 1 - low, 1 + high) A)`.

    A larger `high` is clip-higher (DAPO, arXiv 2503.14476: 0.28). With `dual`, a bad token costs at
    most `dual |A|` however likely it became (dual clip, arXiv 1912.09729: 3).
    """

    def loss(tokens: Tokens) -> Found:
        ratio = log_ratio(tokens).exp()
        plain = -ratio * tokens.advantage
        bounded = -ratio.clamp(1 - low, 1 + high) * tokens.advantage
        found, without = torch.maximum(plain, bounded), bounded > plain
        if dual is not None:
            most = -dual * tokens.advantage
            over = (tokens.advantage < 0) & (found > most)
            found, without = torch.where(over, most, found), without | over
        return found, described(tokens, without)

    return loss


def gspo(low: float = 3e-4, high: float = 4e-4, *, by_token: bool = False) -> TokenLoss:
    """GSPO (arXiv 2507.18071): clip with s, the geometric mean of r over a sequence, in place of r.

    Its bounds are some hundred times narrower than PPO's. `by_token` is GSPO-token: the value of s
    with the gradient of each token, for advantages that differ within a sequence. To be averaged by
    sequence ("sequence-mean").
    """

    def loss(tokens: Tokens) -> Found:
        log = sequence_mean(log_ratio(tokens), tokens).clamp(-_LOG_LIMIT, _LOG_LIMIT)
        if by_token:
            log = log.detach() + tokens.logprobs - tokens.logprobs.detach()
        ratio = log.exp()
        plain = -ratio * tokens.advantage
        bounded = -ratio.clamp(1 - low, 1 + high) * tokens.advantage
        return torch.maximum(plain, bounded), described(tokens, bounded > plain)

    return loss


def cispo(high: float = 5.0) -> TokenLoss:
    """CISPO (MiniMax-M1, arXiv 2506.13585): `-sg(min(r, high)) A log pi`.

    The weight is bounded, so that no token loses its gradient. `high` is a bound on r itself, not
    on what it exceeds 1 by, and there is none below.
    """

    def loss(tokens: Tokens) -> Found:
        ratio = log_ratio(tokens).exp().detach()
        weight = ratio.clamp(max=high)
        never = torch.zeros_like(ratio, dtype=torch.bool)
        return -weight * tokens.advantage * tokens.logprobs, described(tokens, never)

    return loss


def dppo(threshold: float = 0.2, cap: float = 20.0) -> TokenLoss:
    """DPPO with the binary total-variation region: a token whose probability has already moved by
    `threshold` in the direction of its advantage has no gradient; `-sg(min(r, cap)) A log pi` else.

    The cap is needed: a rare token that became a thousand times likelier has moved by almost
    nothing.
    """

    def loss(tokens: Tokens) -> Found:
        moved = tokens.logprobs.detach().exp() - tokens.sampler.exp()
        without = torch.where(tokens.advantage > 0, moved > threshold, moved < -threshold)
        without &= tokens.advantage != 0
        weight = log_ratio(tokens).exp().detach().clamp(max=cap)
        found = -weight * tokens.advantage * tokens.logprobs
        return torch.where(without, found.detach(), found), described(tokens, without)

    return loss


def sapo(positive: float = 1.0, negative: float = 1.05) -> TokenLoss:
    """SAPO (arXiv 2511.20347): a soft gate in place of clipping, `-(4/t) sigmoid(t (r - 1)) A`.

    The temperature t is `positive` for A > 0, else `negative`: bad tokens are let go a bit sooner.
    """

    def loss(tokens: Tokens) -> Found:
        ratio = log_ratio(tokens).exp()
        t = torch.where(
            tokens.advantage > 0,
            torch.full_like(ratio, positive),
            torch.full_like(ratio, negative),
        )
        found = -(4 / t) * torch.sigmoid(t * (ratio - 1)) * tokens.advantage
        return found, described(tokens, torch.zeros_like(ratio, dtype=torch.bool))

    return loss


def importance() -> TokenLoss:
    """Plain importance sampling, `-r A`: REINFORCE where policy and sampler are the same."""

    def loss(tokens: Tokens) -> Found:
        ratio = log_ratio(tokens).exp()
        never = torch.zeros_like(ratio, dtype=torch.bool)
        return -ratio * tokens.advantage, described(tokens, never)

    return loss
