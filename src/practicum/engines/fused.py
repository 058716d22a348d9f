"""RMS norms and gated units in one operation each, which keep their inputs only for the gradient.

What the textbook form stores in between (in fp32, some of it) is made again in the backward pass,
as Liger Kernel does on GPUs (arXiv 2410.10989). So are their results, which the projections behind
them would keep, and a unit's two inner projections: more than half of all that a layer would keep,
for a few hundredths of the time. Models are changed in place, module by module; another kind stays
as it is.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import Linear
from torch.nn.functional import rms_norm, silu
from transformers.activations import SiLUActivation

LAYERS = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")
NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")
GATED = ("LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP")


def fuse(model: Any) -> None:
    """Replace the forward pass of every RMS norm, SiLU-gated MLP and layer that is known here."""
    for module in model.modules():
        name = type(module).__name__
        if name in NORMS:
            module.forward = partial(_norm, module)
        elif name in GATED and isinstance(module.act_fn, SiLUActivation):
            module.forward = partial(_gated, module)
        elif name in LAYERS:
            module.forward = partial(_layer, module)


class _Cheap:
    """A result that is made again when the backward pass asks for it, instead of being kept."""

    def __init__(self, result: torch.Tensor, make: Callable[[], torch.Tensor]) -> None:
        self.result: torch.Tensor | None = result
        self.make = make

    def again(self) -> torch.Tensor:
        """The result, made once for all that ask."""
        if self.result is None:
            with torch.no_grad():
                self.result = self.make()
        return self.result


class _Layer(threading.local):
    cheap: dict[int, _Cheap] | None = None  # address of the result; of the layer being computed


_current = _Layer()


def _layer(module: Any, *args: Any, **kwargs: Any) -> Any:
    """A layer's own forward pass, in which cheap results are not kept."""
    if not torch.is_grad_enabled():
        return type(module).forward(module, *args, **kwargs)
    cheap = _current.cheap = {}

    def keep(tensor: torch.Tensor) -> Any:
        found = cheap.get(tensor.data_ptr())
        return tensor if found is None else (found, tensor.shape)

    def give(kept: Any) -> torch.Tensor:
        return kept if isinstance(kept, torch.Tensor) else kept[0].again().view(kept[1])

    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, give):
            return type(module).forward(module, *args, **kwargs)
    finally:  # until here the results are held, so that no other tensor can have their address
        for item in cheap.values():
            item.result = None
        _current.cheap = None


def _note_cheap(result: Any, make: Callable[[], torch.Tensor]) -> torch.Tensor:
    if _current.cheap is not None:
        _current.cheap[result.data_ptr()] = _Cheap(result.detach(), make)
    return result


def _again(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """What gives the tensor in the backward pass, without keeping it if it is cheap."""
    found = _current.cheap.get(tensor.data_ptr()) if _current.cheap is not None else None
    kept = tensor.detach()
    return found.again if found else lambda: kept


def _norm(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    weight, eps = module.weight, module.variance_epsilon
    if not torch.is_grad_enabled():
        return rms_norm(hidden, weight.shape, weight, eps)
    inputs = (hidden.detach(), weight.shape, weight.detach(), eps)
    return _note_cheap(_RMSNorm.apply(hidden, weight, eps), lambda: rms_norm(*inputs))


def _gated(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    if not torch.is_grad_enabled():
        gate = silu(module.gate_proj(hidden), inplace=True)
        return module.down_proj(gate.mul_(module.up_proj(hidden)))
    gate, up = _projected(module.gate_proj, hidden), _projected(module.up_proj, hidden)
    gates, ups = _again(gate), _again(up)
    return module.down_proj(_note_cheap(_SwiGLU.apply(gate, up), lambda: _swiglu(gates(), ups())))


def _projected(layer: Any, hidden: torch.Tensor) -> torch.Tensor:
    result, inputs = layer(hidden), _again(hidden)
    if type(layer) is not Linear:  # an adapter may drop out at random
        return result
    return _note_cheap(result, lambda: layer(inputs()))


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
