"""The language-model head in fp32, on the tokens that matter only, never as one [T, V] tensor.

The vocabulary is taken in blocks: each block of logits stays in the cache and each block of weights
is read once a pass, with the log-sum-exp kept as it goes (as in FlashAttention, arXiv 2205.14135).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import linear

Turn = Callable[[str], AbstractContextManager[Any]]
BLOCK = 1 << 20  # logits at once: 4 MB in fp32
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


@dataclass(frozen=True)
class Part:
    """The tokens of the vocabulary from `first` on, one process's part of a head over `group`."""

    first: int
    group: Any

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of what each part has, in place."""
        dist.all_reduce(values, group=self.group)
        return values

    def most(self, values: torch.Tensor) -> torch.Tensor:
        """The largest of what the parts have."""
        values = values.clone()
        dist.all_reduce(values, dist.ReduceOp.MAX, group=self.group)
        return values


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
        part: "Part | None",
    ) -> tuple[torch.Tensor, torch.Tensor]:
        targets = targets - part.first if part else targets
        hidden32 = hidden.float() / temperature[:, None]
        n = hidden.shape[0]
        highest = torch.full((n,), float("-inf"), device=hidden.device)
        total = torch.zeros(n, device=hidden.device)  # sum of exp(logit - highest)
        moment = torch.zeros(n, device=hidden.device)  # sum of exp(logit - highest) * logit
        chosen = torch.zeros(n, device=hidden.device)
        for block in _blocks(n, weight.shape[0]):
            logits = linear(hidden32, weight[block].float())
            inside = (targets >= block.start) & (targets < block.stop)
            chosen[inside] = logits[inside, targets[inside] - block.start]
            higher = torch.maximum(highest, logits.amax(-1))
            scale = (highest - higher).exp()
            mass = (logits - higher[:, None]).exp_()
            total = total * scale + mass.sum(-1)
            moment = moment * scale + mass.mul_(logits).sum(-1)
            highest = higher
        if part:
            most = part.most(highest)
            scale = (highest - most).exp()
            total, moment, chosen = part.sum(torch.stack([total * scale, moment * scale, chosen]))
            highest = most
        lse = highest + total.log()
        ctx.save_for_backward(hidden32, weight, targets, temperature, lse)
        ctx.fast, ctx.turn, ctx.part, ctx.dtype = fast, turn, part, hidden.dtype
        ctx.gradient = gradient
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
        gradient = ctx.gradient
        if gradient is None and ctx.needs_input_grad[1]:
            gradient = torch.zeros_like(weight)
        with nullcontext() if gradient is None else ctx.turn("head"):
            for block in _blocks(hidden.shape[0], weight.shape[0]):
                d = linear(hidden, weight[block].float())
                d.sub_(lse[:, None]).exp_().mul_(-grad[:, None])
                inside = ((targets >= block.start) & (targets < block.stop)).nonzero()[:, 0]
                d[inside, targets[inside] - block.start] += grad[inside]
                d = d.to(dtype)
                d_hidden += d @ weight[block].to(dtype)
                if gradient is not None:
                    gradient[block] += d.t() @ inputs
        if ctx.part:
            d_hidden = ctx.part.sum(d_hidden)
        returned = None if ctx.gradient is not None else gradient
        return (d_hidden / temperature[:, None]).to(ctx.dtype), returned, *[None] * 6


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
    part: Part | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """log p(target) and the entropy (no gradient) of softmax(hidden @ weight.T / temperature).

    hidden [N, D] and weight [V, D] of any dtype, targets and temperature [N] -> [N], [N] in fp32.
    The gradient of `weight`, which is as large as the weight, is added to `gradient` in place if
    that is given, within `turn("head")`. `fast` goes with `fast_fp32_matmul` around it. With `part`
    the weight is a part of the vocabulary only, and other processes hold the others.
    """
    inputs = hidden, weight, targets, temperature, fast, gradient, turn, part
    return _TokenLogprobs.apply(*inputs)  # type: ignore[return-value]
