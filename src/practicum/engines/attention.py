"""One attention function for transformers' models that leaves the layout of keys to a plan.

Models loaded by `load_model` call `plan.attend` in each layer. Sampling and training have their own
plans, both of which compute what a group shares only once.
"""

from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.distributed import DistributedConfig
from transformers.modeling_utils import AttentionInterface

from practicum.core import EngineError
from practicum.engines.fused import fuse
from practicum.engines.rope import RopeSettings


class Plan(Protocol):
    """Decides which keys each query sees."""

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """q [B, H, C, D], k and v [B, Hkv, C, D] -> [B, C, H, D]."""
        ...


def _attend(
    module: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scaling: float,
    plan: Plan | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    if plan is None:
        raise EngineError(
            f"the layers of {type(module).__name__} do not hand on which tokens see which, so the "
            "local engine cannot compute them; use another base model"
        )
    return plan.attend(module.layer_idx, q, k, v, scaling), None


AttentionInterface.register("practicum", _attend)

_UNSUPPORTED = (
    "final_logit_softcapping",
    "attn_logit_softcapping",
    "logits_scaling",
    "logit_scale",
)


_MOVING = ("dynamic", "longrope")  # positions that change with the length of the text


def load_model(
    folder: Path,
    dtype: torch.dtype,
    device: str = "cpu",
    rope: RopeSettings | None = None,
    parallel: DistributedConfig | None = None,
) -> Any:
    """A causal language model from a safetensors folder, wired to our attention, without dropout.

    With dropout a token would have another probability each time that it is computed, and never the
    one that it was sampled with. `rope` scales its positions, unless they have that scaling
    already. Raises EngineError for architectures whose attention or head we would compute wrongly.
    """
    try:
        config = AutoConfig.from_pretrained(folder)
        if rope:
            rope.scale(config)
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation="practicum",
            distributed_config=parallel,
        )
    except (OSError, ValueError) as error:
        raise EngineError(f"cannot load the model in {folder}: {error}") from error
    config = model.config.get_text_config()
    odd = [name for name in _UNSUPPORTED if getattr(config, name, None)]
    if getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None):
        odd.append("sliding_window")
    if (kind := (getattr(config, "rope_parameters", None) or {}).get("rope_type")) in _MOVING:
        odd.append(f"rope_type {kind!r}")
    if odd:
        raise EngineError(
            f"{type(model).__name__} uses {', '.join(odd)}, which the local engine does not "
            "compute; use another base model"
        )
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, float) and (
                isinstance(module, torch.nn.Dropout) or "drop" in name
            ):
                setattr(module, name, 0.0)
    fuse(model)
    moved: Any = model
    return moved.to(device)


def attend_with_lse(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and the log-sum-exp of its scores, so that parts over disjoint keys can be merged.

    q [B, H, C, D], k and v [B, H, T, D], additive mask [B, 1, C, T] -> [B, H, C, D], [B, H, C].
    """
    if q.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
            q, k, v, 0.0, False, attn_mask=mask, scale=scale
        )
    scores = (q @ k.transpose(-1, -2)).float() * scale + mask
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp().to(v.dtype) @ v, lse


def merge(
    a: torch.Tensor, a_lse: torch.Tensor, b: torch.Tensor, b_lse: torch.Tensor
) -> torch.Tensor:
    """Attention over the union of two disjoint sets of keys, from the two parts."""
    return torch.lerp(b, a, torch.sigmoid(a_lse - b_lse)[..., None].to(a.dtype))
