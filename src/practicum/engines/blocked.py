"""Linear layers with their weights in the blocked layout that a CPU's bf16 units multiply from.

With plain weights oneDNN rearranges them in every call, which costs as much as multiplying a few
rows. The copy lives as long as the block: it is made of the weights there are, and never outlives
them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch


@contextmanager
def blocked_weights(model: Any) -> Iterator[None]:
    """Within the block the model's bf16 linear layers compute from blocked copies, on a CPU.

    The head is left out: it is computed apart. Elsewhere, and in fp32, nothing changes.
    """
    changed = []
    if torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        changed = [module for module in model.modules() if _gains(module, model)]
    for module in changed:
        weight = torch.ops.mkldnn._reorder_linear_weight(module.weight)
        module.forward = partial(_linear, weight, module.bias)
    try:
        yield
    finally:
        for module in changed:
            del module.forward


def _gains(module: Any, model: Any) -> bool:
    plain = type(module) is torch.nn.Linear and "forward" not in vars(module)
    head = module is model.get_output_embeddings()
    return plain and not head and module.weight.dtype is torch.bfloat16 and module.weight.is_cpu


def _linear(weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
