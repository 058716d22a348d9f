"""Activations that are made again in the backward pass: only each layer's input is kept.

Memory grows with the layers' inputs instead of all that is computed in them, for one more forward
pass (Chen et al. 2016, arXiv 1604.06174). The inputs can wait in the host's memory, too.
"""

from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from practicum.core import EngineError

Activations = Literal["keep", "recompute", "offload"]
"""Keep all; keep layers' inputs; keep these in the memory of the host and not of the GPU."""


def limit_activations(model: Any, how: Activations) -> None:
    """Change the layers of a model in place. Raises EngineError where `how` is not possible."""
    if how == "keep":
        return
    if how == "offload" and model.device.type == "cpu":
        raise EngineError(
            'activations = "offload" moves them from a GPU to the memory of the host, and there is '
            'no GPU in use: set "recompute"'
        )
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise EngineError(
            f"{type(model).__name__} has no layers that can be computed again: "
            'set activations = "keep"'
        )
    for layer in layers:
        layer.forward = partial(_recomputed, layer, how == "offload")


def _recomputed(layer: Any, offload: bool, *args: Any, **kwargs: Any) -> Any:
    """A layer's own forward pass, of which only `args` are kept.

    It is not that of `fused`, whose hooks would keep what the checkpoint drops.
    """
    forward = partial(type(layer).forward, layer)
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    with save_on_cpu(pin_memory=True) if offload else nullcontext():
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
