"""The name of weights: a hash of their fp32 bytes, taken before any cast."""

from collections.abc import Mapping

import torch
from blake3 import blake3


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """32 hex digits of BLAKE3 over names, shapes and fp32 bytes, in the order of the names."""
    hasher = blake3()
    for name in sorted(tensors):
        tensor = tensors[name].detach().to("cpu", torch.float32).contiguous()
        hasher.update(f"{name}{tuple(tensor.shape)}".encode())
        hasher.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest(length=16)
