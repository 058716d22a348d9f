"""What the sides that run TRL share: settings, and trainers whose optimiser steps are turns."""

from pathlib import Path
from typing import Any

from sides import Meter, Plan

BETAS, EPS, WEIGHT_DECAY, MAX_GRAD_NORM = (0.9, 0.95), 1e-8, 0.0, 1.0  # Practicum's defaults


def settings(folder: str, plan: Plan) -> dict[str, Any]:
    """Settings that every trainer of the peer has here; gradient checkpointing is off."""
    return {
        "output_dir": folder,
        "use_cpu": True,
        "bf16": plan["dtype"] == "bfloat16",  # autocast over fp32 master weights
        "optim": "adamw_torch_fused",
        "adam_beta1": BETAS[0],
        "adam_beta2": BETAS[1],
        "adam_epsilon": EPS,
        "weight_decay": WEIGHT_DECAY,
        "max_grad_norm": MAX_GRAD_NORM,
        "learning_rate": plan["learning_rate"],
        "lr_scheduler_type": "constant",
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def model(folder: str) -> Any:
    """The model as the peer trains it: fp32 weights, attention by torch's own kernel."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        Path(folder), dtype=torch.float32, attn_implementation="sdpa"
    )


def stepwise(base: type, meter: Meter) -> type:
    """A trainer like `base` whose every optimiser step is a turn, and reports its loss.

    A turn lasts until the next one: fetching and collating the data of a step are a part of it.
    """
    import trl
    from transformers import TrainerCallback

    class Turns(TrainerCallback):
        def __init__(self, trainer: Any) -> None:
            self.trainer = trainer

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            meter.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            meter.end(version=trl.__version__, **self.trainer.facts)
            self.trainer.facts = {"loss": 0.0}
            meter.begin()

    class Stepwise(base):  # type: ignore[misc, valid-type]
        def __init__(self, **options: Any) -> None:
            self.facts: dict[str, Any] = {"loss": 0.0}
            super().__init__(**options)
            self.add_callback(Turns(self))

        def training_step(self, *args: Any, **options: Any) -> Any:
            loss = super().training_step(*args, **options)  # of a micro-batch, by its share
            self.facts["loss"] += float(loss)
            return loss

    return Stepwise
