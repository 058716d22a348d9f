"""The language-model head in fp32 on the tokens that matter, in chunks, never as one [T, V] tensor."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

CHUNK = 256  # rows of logits at once: 256 x 49,152 in fp32 is 50 MB


@contextmanager
def fast_fp32_matmul(enabled: bool = True) -> Iterator[None]:
    """fp32 matrices multiplied from bf16 inputs with fp32 sums, where the CPU can do that.

    The result stays fp32: unlike a bf16 matmul, log-probabilities keep their precision.
    """
    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = "bf16" if enabled else "ieee"
    try:
        yield
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before


class _TokenLogprobs(torch.autograd.Function):
    """log p(target) per row. The backward pass recomputes the logits and adds dW in place."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        temperature: torch.Tensor,
        fast: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden32 = hidden.float()
        n = hidden.shape[0]
        logprobs = torch.empty(n, device=hidden.device)
        lse = torch.empty(n, device=hidden.device)
        entropy = torch.empty(n, device=hidden.device)
        with fast_fp32_matmul(fast):
            for lo in range(0, n, CHUNK):
                rows = slice(lo, lo + CHUNK)
                logits = hidden32[rows] @ weight.t()
                logits /= temperature[rows, None]
                lse[rows] = logits.logsumexp(-1)
                logprobs[rows] = logits.gather(1, targets[rows, None])[:, 0] - lse[rows]
                p = (logits - lse[rows, None]).exp_()
                entropy[rows] = lse[rows] - p.mul_(logits).sum(-1)
        ctx.save_for_backward(hidden32, weight, targets, temperature, lse)
        ctx.fast = fast
        ctx.dtype = hidden.dtype
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad = grads[0]
        hidden, weight, targets, temperature, lse = ctx.saved_tensors
        d_hidden = torch.empty_like(hidden)
        trains_weight = weight.requires_grad
        if trains_weight and weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        with fast_fp32_matmul(ctx.fast):
            for lo in range(0, hidden.shape[0], CHUNK):
                rows = slice(lo, lo + CHUNK)
                d = hidden[rows] @ weight.t()
                d /= temperature[rows, None]
                d -= lse[rows, None]
                d.exp_().neg_()
                d[torch.arange(d.shape[0], device=d.device), targets[rows]] += 1
                d *= (grad[rows] / temperature[rows])[:, None]
                d_hidden[rows] = d @ weight
                if trains_weight:
                    weight.grad.addmm_(d.t(), hidden[rows])
        return d_hidden.to(ctx.dtype), None, None, None, None


def token_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    temperature: torch.Tensor,
    *,
    fast: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """log p(target) and the entropy (no gradient) of softmax(hidden @ weight.T / temperature).

    hidden [N, D] of any dtype, weight [V, D] fp32, targets [N], temperature [N] -> [N], [N] in fp32.
    The gradient of `weight` is added to `weight.grad` directly: it is as large as the weight.
    """
    return _TokenLogprobs.apply(hidden, weight, targets, temperature, fast)  # type: ignore[return-value]
