"""Low-rank adapters: put into a model, and merged out of it again."""

from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field

from practicum.core import EngineError
from practicum.models.quiet import quiet


class LoRASettings(BaseModel):
    """Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) instead of all weights."""

    model_config = ConfigDict(extra="forbid")
    rank: int = Field(16, ge=1)
    alpha: int = Field(32, ge=1)
    rank_stabilised: bool = False  # scale by alpha / sqrt(rank), arXiv 2312.03732
    targets: Literal["all-linear"] | list[str] = "all-linear"


def add_lora(model: Any, settings: LoRASettings) -> None:
    """Put adapters into the model in place; only they are trained.

    Raises EngineError for targets that the model lacks, and for its head, which is computed apart.
    """
    with quiet():  # it looks for bitsandbytes, which has much to say
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.lora import LoraLayer

    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        use_rslora=settings.rank_stabilised,
        target_modules=settings.targets,
        task_type="CAUSAL_LM",
    )
    try:
        with quiet(), torch.random.fork_rng(devices=[]):  # the same adapters in every process
            torch.manual_seed(0)
            inject_adapter_in_model(config, model)
    except ValueError as error:
        raise EngineError(f"cannot add LoRA adapters: {error}") from error
    if isinstance(model.get_output_embeddings(), LoraLayer):
        raise EngineError("the head cannot have LoRA adapters: leave it out of lora.targets")
    tied = model.config.get_text_config().tie_word_embeddings
    if tied and isinstance(model.get_input_embeddings(), LoraLayer):
        raise EngineError(
            "the embeddings are the head's own table in this model, and the head cannot have LoRA "
            "adapters: leave them out of lora.targets"
        )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)


def merged(model: Any) -> dict[str, torch.Tensor]:
    """Weights by plain names, each adapted layer's update added to its base."""
    from peft.tuners.lora import LoraLayer

    tensors: dict[str, torch.Tensor] = {}
    layers: dict[str, Any] = {
        name: m for name, m in model.named_modules() if isinstance(m, LoraLayer)
    }
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            continue
        owner = name.partition(".base_layer.")[0]
        value = parameter.detach()
        if ".base_layer." in name and owner in layers and name.endswith("weight"):
            value = value + layers[owner].get_delta_weight("default")
        tensors[name.replace(".base_layer.", ".")] = value
    return tensors
