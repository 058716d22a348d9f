"""The language-model head in fp32, on the tokens that matter only, never as one [T, V] tensor.

The vocabulary is taken in blocks: each block of logits stays in the cache and each block of weights
is read once a pass, with the log-sum-exp kept as it goes (as in FlashAttention, arXiv 2205.14135).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.functional import linear

Turn = Callable[[str], AbstractContextManager[Any]]
BLOCK = 1 << 21  # logits at once: 8 MB in fp32
WIDEST = 8192  # tokens of the vocabulary at once, so that blocks of weights stay small as well


@contextmanager
def fast_fp32_matmul(enabled: bool = True) -> Iterator[None]:
    """fp32 matrices multiplied from bf16 inputs with fp32 sums, where the CPU can do that.

    The result stays fp32: unlike a bf16 matmul, log-probabilities keep their precision.
    """
    setting: Any = torch.backends.mkldnn
    before = setting.matmul.fp32_precision
    setting.matmul.fp32_precision = "bf16" if enabled else "ieee"
    try:
        yield
    finally:
        setting.matmul.fp32_precision = before


class _TokenLogprobs(torch.autograd.Function):
    """log p(target) per row. The backward pass makes the logits again and adds dW in place."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        temperature: torch.Tensor,
        fast: bool,
        gradient: torch.Tensor | None,
        turn: Turn,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden32 = hidden.float() / temperature[:, None]
        n = hidden.shape[0]
        highest = torch.full((n,), float("-inf"), device=hidden.device)
        total = torch.zeros(n, device=hidden.device)  # sum of exp(logit - highest)
        moment = torch.zeros(n, device=hidden.device)  # sum of exp(logit - highest) * logit
        chosen = torch.empty(n, device=hidden.device)
        for block in _blocks(n, weight.shape[0]):
            logits = linear(hidden32, weight[block])
            inside = (targets >= block.start) & (targets < block.stop)
            chosen[inside] = logits[inside, targets[inside] - block.start]
            higher = torch.maximum(highest, logits.amax(-1))
            scale = (highest - higher).exp()
            mass = (logits - higher[:, None]).exp_()
            total = total * scale + mass.sum(-1)
            moment = moment * scale + mass.mul_(logits).sum(-1)
            highest = higher
        lse = highest + total.log()
        ctx.save_for_backward(hidden32, weight, targets, temperature, lse)
        ctx.fast, ctx.gradient, ctx.turn, ctx.dtype = fast, gradient, turn, hidden.dtype
        entropy = lse - moment / total
        ctx.mark_non_differentiable(entropy)
        return chosen - lse, entropy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, temperature, lse = ctx.saved_tensors
        grad = grads[0]
        dtype = torch.bfloat16 if ctx.fast else torch.float32
        inputs = hidden.to(dtype)
        d_hidden = torch.zeros_like(hidden)
        with nullcontext() if ctx.gradient is None else ctx.turn("head"):
            for block in _blocks(hidden.shape[0], weight.shape[0]):
                d = linear(hidden, weight[block])
                d.sub_(lse[:, None]).exp_().mul_(-grad[:, None])
                inside = ((targets >= block.start) & (targets < block.stop)).nonzero()[:, 0]
                d[inside, targets[inside] - block.start] += grad[inside]
                d = d.to(dtype)
                d_hidden += d @ weight[block].to(dtype)
                if ctx.gradient is not None:
                    ctx.gradient[block] += d.t() @ inputs
        return (d_hidden / temperature[:, None]).to(ctx.dtype), *[None] * 6


def _blocks(rows: int, vocabulary: int) -> Iterator[slice]:
    """Slices of the vocabulary that keep a block of logits within BLOCK numbers."""
    width = min(max(512, BLOCK // max(rows, 1) // 64 * 64), WIDEST)
    for start in range(0, vocabulary, width):
        yield slice(start, min(start + width, vocabulary))


def token_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    temperature: torch.Tensor,
    *,
    fast: bool,
    gradient: torch.Tensor | None = None,
    turn: Turn = nullcontext,
) -> tuple[torch.Tensor, torch.Tensor]:
    """log p(target) and the entropy (no gradient) of softmax(hidden @ weight.T / temperature).

    hidden [N, D] of any dtype, weight [V, D] fp32, targets and temperature [N] -> [N], [N] in fp32.
    The gradient of `weight`, which is as large as the weight, is added to `gradient` in place if
    that is given, within `turn("head")`. `fast` goes with `fast_fp32_matmul` around it.
    """
    return _TokenLogprobs.apply(hidden, weight, targets, temperature, fast, gradient, turn)  # type: ignore[return-value]
