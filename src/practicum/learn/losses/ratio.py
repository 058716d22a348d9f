"""What policy losses share: ratios of probabilities that stay finite, and means over sequences."""

import torch

from practicum.engines.contract import Tokens

LOG_RATIO_LIMIT = 20.0  # keeps exp() finite


def log_ratio(tokens: Tokens) -> torch.Tensor:
    """log(pi / mu) of each token [N], the trainer's over the sampler's, within +-20."""
    return (tokens.logprobs - tokens.sampler).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def described(tokens: Tokens, without: torch.Tensor) -> dict[str, torch.Tensor]:
    """The metrics of every policy loss; `without` marks tokens that have no gradient.

    `ratio` to the sampler, `clipped`, and `kl`: the k3 estimate of KL(sampler || policy) in nats.
    """
    log = log_ratio(tokens).detach()
    ratio = log.exp()
    return {"ratio": ratio, "clipped": without.float(), "kl": ratio - 1 - log}


def sequence_sum(values: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    """For each token [N], the sum of `values` over the RL tokens of its sequence."""
    trained = torch.where(tokens.weight > 0, values, torch.zeros_like(values))
    count = int(tokens.sequence.max()) + 1 if len(tokens.sequence) else 0
    return values.new_zeros(count).index_add(0, tokens.sequence, trained)[tokens.sequence]


def sequence_mean(values: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    """For each token [N], the mean of `values` over the RL tokens of its sequence."""
    length = sequence_sum(torch.ones_like(values), tokens)
    return sequence_sum(values, tokens) / length.clamp(min=1)
