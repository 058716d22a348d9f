"""RMS norms and gated units in one operation each, which keep their inputs only for the gradient.

What the textbook form stores in between (in fp32, some of it) is made again in the backward pass,
as Liger Kernel does on GPUs (arXiv 2410.10989). Models are changed in place, module by module; a
module of another kind stays as it is.
"""

from functools import partial
from typing import Any

import torch
from torch.nn.functional import rms_norm, silu
from transformers.activations import SiLUActivation

NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")
GATED = ("LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP")


def fuse(model: Any) -> None:
    """Replace the forward pass of every RMS norm and SiLU-gated MLP that is known here."""
    for module in model.modules():
        name = type(module).__name__
        if name in NORMS:
            module.forward = partial(_norm, module)
        elif name in GATED and isinstance(module.act_fn, SiLUActivation):
            module.forward = partial(_gated, module)


def _norm(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    if torch.is_grad_enabled():
        return _RMSNorm.apply(hidden, module.weight, module.variance_epsilon)  # type: ignore[return-value]
    return rms_norm(hidden, module.weight.shape, module.weight, module.variance_epsilon)


def _gated(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    gate, up = module.gate_proj(hidden), module.up_proj(hidden)
    if not torch.is_grad_enabled():
        return module.down_proj(silu(gate, inplace=True).mul_(up))
    product = _SwiGLU.apply(gate, up)
    assert isinstance(product, torch.Tensor)
    place, inputs = product.data_ptr(), (gate.detach(), up.detach())

    def keep(tensor: torch.Tensor) -> torch.Tensor | torch.Size:
        return tensor.shape if tensor.data_ptr() == place else tensor

    def make(kept: torch.Tensor | torch.Size) -> torch.Tensor:
        return kept if isinstance(kept, torch.Tensor) else _swiglu(*inputs).view(kept)

    with torch.autograd.graph.saved_tensors_hooks(keep, make):
        return module.down_proj(product)


def _swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return silu(gate).mul_(up)


class _RMSNorm(torch.autograd.Function):
    """x / rms(x) * weight over the last dimension (Zhang and Sennrich 2019, arXiv 1910.07467)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return rms_norm(x, weight.shape, weight, eps)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        unit, grad = x.float(), grads[0].float()
        scale = unit.square().mean(-1, keepdim=True).add_(ctx.eps).rsqrt_()
        unit = unit * scale
        d_weight = (grad * unit).flatten(0, -2).sum(0).to(weight.dtype)
        grad = grad * weight
        along = (grad * unit).mean(-1, keepdim=True)
        return torch.addcmul(grad, unit, along, value=-1).mul_(scale).to(x.dtype), d_weight, None


class _SwiGLU(torch.autograd.Function):
    """silu(gate) * up (Shazeer 2020, arXiv 2002.05202)."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return _swiglu(gate, up)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = ctx.saved_tensors
        d_up = silu(gate).mul_(grads[0])
        return torch.ops.aten.silu_backward(up * grads[0], gate), d_up
