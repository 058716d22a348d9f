"""Policy losses: small pure functions over log-probabilities, the sampler's, and advantages."""

import torch

from practicum.engines.contract import TokenLoss

LOG_RATIO_LIMIT = 20.0  # keeps exp() finite


def clip(low: float = 0.2, high: float = 0.2) -> TokenLoss:
    """The clipped surrogate of PPO (arXiv 1707.06347) against the sampler's own log-probabilities.

    `max(-r A, -clip(r, 1 - low, 1 + high) A)` per token, r the ratio to the sampler. A larger
    `high` is clip-higher (DAPO, arXiv 2503.14476). Metrics: `ratio`, `clipped` (share of tokens
    without a gradient), `kl` (the k3 estimate of KL(sampler || policy), nats).
    """

    def loss(
        logprobs: torch.Tensor, sampler: torch.Tensor, advantage: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        log_ratio = (logprobs - sampler).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        ratio = log_ratio.exp()
        plain = -ratio * advantage
        bounded = -ratio.clamp(1 - low, 1 + high) * advantage
        kl = ratio.detach() - 1 - log_ratio.detach()
        return torch.maximum(plain, bounded), {
            "ratio": ratio.detach(),
            "clipped": (bounded > plain).float(),
            "kl": kl,
        }

    return loss
