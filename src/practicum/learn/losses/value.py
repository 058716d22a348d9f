"""The loss of a critic: how far its values are from what came."""

import torch

from practicum.engines.contract import TokenLoss, Tokens


def squared(
    value: torch.Tensor,
    returns: torch.Tensor,
    old_value: torch.Tensor | None = None,
    clip: float | None = None,
) -> torch.Tensor:
    """`(V - R)^2 / 2` of each token [N].

    With `clip` the larger of that and `(V' - R)^2 / 2`, V' within `clip` of the old value: a value
    that has moved so far towards R has no gradient (PPO's implementations, arXiv 2005.12729).
    """
    error = (value - returns).square() / 2
    if clip is None:
        return error
    if old_value is None:
        raise ValueError("the samples carry no values, so a value loss cannot be clipped")
    near = old_value + (value - old_value).clamp(-clip, clip)
    return torch.maximum(error, (near - returns).square() / 2)


def with_values(loss: TokenLoss, coefficient: float = 0.5, clip: float | None = None) -> TokenLoss:
    """`loss` plus `coefficient` times the loss of the value head (PPO, arXiv 1707.06347, eq. 9)."""

    def found(tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        if tokens.value is None or tokens.returns is None:
            raise ValueError("a value loss needs a trainer with a value head, and returns")
        losses, metrics = loss(tokens)
        error = squared(tokens.value, tokens.returns, tokens.old_value, clip)
        seen = {"value": tokens.value.detach(), "value_loss": error.detach()}
        return losses + coefficient * error, {**metrics, **seen}

    return found
