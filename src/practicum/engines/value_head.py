"""A value head: one number for each hidden state, computed in fp32 beside the language-model head.

It is what a critic or a reward model has more than a policy. It lies in a file of its own next to
the weights, so that the same folder is a policy to all who do not ask for the head.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from practicum.core import EngineError
from practicum.engines.head import Turn

VALUE_HEAD = "value_head.weight"
FILE = "value_head.safetensors"


class _Values(torch.autograd.Function):
    """hidden @ weight. The gradient of the weight is added in place, as that of the other head."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        gradient: torch.Tensor | None,
        turn: Turn,
    ) -> torch.Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.gradient, ctx.turn = gradient, turn
        return (hidden.float() * weight).sum(-1)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        grad = grads[0][:, None]
        if ctx.gradient is not None:
            with ctx.turn(VALUE_HEAD):
                ctx.gradient += (grad * hidden.float()).sum(0)
        return (grad * weight).to(hidden.dtype), None, None, None


def token_values(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    *,
    gradient: torch.Tensor | None = None,
    turn: Turn = nullcontext,
) -> torch.Tensor:
    """hidden [N, D] of any dtype, weight [1, D] fp32 -> values [N] in fp32.

    The gradient of `weight` is added to `gradient` in place if that is given, in its own turn.
    """
    return _Values.apply(hidden, weight, gradient, turn)  # type: ignore[return-value]


def read_value_head(folder: Path, width: int) -> torch.Tensor:
    """The head of a model folder [1, width]; zeros where it has none. Raises EngineError."""
    path = folder / FILE
    if not path.exists():
        return torch.zeros(1, width)
    weight = load_file(path).get(VALUE_HEAD)
    if weight is None or weight.shape != (1, width):
        raise EngineError(
            f"{path} is not the value head of this model: delete it to begin with a new one"
        )
    return weight.float()


def write_value_head(folder: Path, weight: torch.Tensor) -> None:
    """Put a head [1, width] into a model folder."""
    save_file({VALUE_HEAD: weight.contiguous()}, folder / FILE)
