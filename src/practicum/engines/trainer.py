"""The local trainer: fp32 master weights, bf16 arithmetic, blind to algorithms.

A batch goes through in micro-batches of bounded size. Losses are divided by the token counts of the
whole batch, so that neither packing nor the size of a micro-batch changes the gradient.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import load_file, save_file

from practicum.core import EngineError, Sample, StoreError
from practicum.engines.attention import load_model
from practicum.engines.contract import TokenLoss, Weights
from practicum.engines.head import token_logprobs
from practicum.engines.memory import release_freed_memory
from practicum.engines.packing import Packed, micro_batches
from practicum.models.digest import digest


class LoRASettings(BaseModel):
    """Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) instead of all weights."""

    model_config = ConfigDict(extra="forbid")
    rank: int = Field(16, ge=1)
    alpha: int = Field(32, ge=1)
    rank_stabilised: bool = False  # scale by alpha / sqrt(rank), arXiv 2312.03732
    targets: Literal["all-linear"] | list[str] = "all-linear"


class TrainerSettings(BaseModel):
    """How the local trainer computes and optimises."""

    model_config = ConfigDict(extra="forbid")
    dtype: Literal["bfloat16", "float32"] = "bfloat16"  # arithmetic; master weights are fp32
    micro_batch_tokens: int = Field(1024, ge=1)  # packed tokens of one forward and backward pass
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    lora: LoRASettings | None = None


class LocalTrainer:
    """A `Trainer` on this machine's CPU or GPU."""

    def __init__(self, folder: Path, settings: TrainerSettings, *, device: str = "cpu") -> None:
        self.settings, self.device = settings, device
        self.model = load_model(folder, torch.float32, device).train()
        self.adapted = _add_lora(self.model, settings.lora) if settings.lora else None
        self.trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.AdamW(
            list(self.trained.values()),
            lr=0.0,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.steps = 0

    def forward_backward(self, batch: Sequence[Sample], loss: TokenLoss) -> dict[str, float]:
        """Add gradients; see `Trainer`. Returns the means of the loss and of its metrics."""
        counts = {
            "rl": sum(sum(s.rl_weight) for s in batch),
            "ce": sum(sum(s.ce_weight) for s in batch),
        }
        totals: dict[str, float] = {}

        def add(name: str, values: torch.Tensor, weight: torch.Tensor, kind: str) -> None:
            share = float((values.detach() * weight).sum()) / counts[kind]
            totals[name] = totals.get(name, 0.0) + share

        for packed, logprobs, entropy in self._forward(batch):
            total = torch.zeros((), device=self.device)
            if counts["rl"]:
                losses, metrics = loss(logprobs, packed.logprobs, packed.advantage)
                total = total + (losses * packed.rl_weight).sum() / counts["rl"]
                for name, values in {**metrics, "entropy": entropy, "loss": losses}.items():
                    add(name, values, packed.rl_weight, "rl")
            if counts["ce"]:
                total = total - (logprobs * packed.ce_weight).sum() / counts["ce"]
                add("nll", -logprobs, packed.ce_weight, "ce")
            total.backward()
        return {**totals, "rl_tokens": counts["rl"], "ce_tokens": counts["ce"]}

    @torch.no_grad()
    def evaluate(self, batch: Sequence[Sample]) -> dict[str, float]:
        """Mean cross-entropy over the tokens with `ce_weight`."""
        total = count = 0.0
        for packed, logprobs, _ in self._forward(batch):
            total -= float((logprobs * packed.ce_weight).sum())
            count += float(packed.ce_weight.sum())
        if not count:
            raise EngineError("nothing to evaluate: no token has cross-entropy weight")
        return {"nll": total / count, "tokens": count}

    def _forward(
        self, batch: Sequence[Sample]
    ) -> Iterator[tuple[Packed, torch.Tensor, torch.Tensor]]:
        fast = self.settings.dtype != "float32"
        decoder = self.model.get_decoder()
        head = self.model.get_output_embeddings().weight
        for bundles in micro_batches(batch, self.settings.micro_batch_tokens):
            packed = Packed(bundles, self.device)
            if not len(packed.target):
                continue
            with torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled=fast):
                hidden = decoder(
                    input_ids=packed.ids,
                    position_ids=packed.positions,
                    use_cache=False,
                    plan=packed,
                ).last_hidden_state[0]
            logprobs, entropy = token_logprobs(
                hidden[packed.source], head, packed.target, packed.temperature, fast=fast
            )
            yield packed, logprobs, entropy

    def step(self, learning_rate: float) -> dict[str, float]:
        """Clip, apply and clear the gradient; one that is not finite is dropped (`skipped` 1)."""
        parameters = list(self.trained.values())
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.settings.max_grad_norm)
        finite = bool(torch.isfinite(norm))
        if finite:
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self.optimizer.step()
            self.steps += 1
        self.optimizer.zero_grad(set_to_none=False)
        release_freed_memory()
        return {"grad_norm": float(norm), "skipped": float(not finite), "lr": learning_rate}

    @torch.no_grad()
    def publish(self) -> Weights:
        """The merged fp32 weights, by the names that a model without adapters has."""
        tensors = {n: p.detach() for n, p in self.model.named_parameters()}
        if self.adapted is not None:
            tensors = _merged(self.model)
        return Weights(digest(tensors), tensors)

    def save(self, folder: Path) -> None:
        """Trained weights and optimiser state as safetensors."""
        state: dict[str, torch.Tensor] = {}
        for name, parameter in self.trained.items():
            state[f"weight:{name}"] = parameter.detach()
            for key, value in self.optimizer.state.get(parameter, {}).items():
                state[f"{key}:{name}"] = value
        save_file({n: t.contiguous() for n, t in state.items()}, folder / "trainer.safetensors")
        (folder / "trainer.json").write_text(json.dumps({"steps": self.steps}))

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote. Raises StoreError when it does not fit this model."""
        state = load_file(folder / "trainer.safetensors")
        wanted = {f"weight:{name}" for name in self.trained}
        if wanted != {name for name in state if name.startswith("weight:")}:
            raise StoreError(
                f"the checkpoint in {folder} is of another model or another LoRA setting; resume "
                "with the recipe it was made with"
            )
        for name, parameter in self.trained.items():
            parameter.copy_(state[f"weight:{name}"])
            kept = {
                key: state[f"{key}:{name}"].clone()
                for key in ("step", "exp_avg", "exp_avg_sq")
                if f"{key}:{name}" in state
            }
            if kept:
                self.optimizer.state[parameter] = kept
        self.steps = json.loads((folder / "trainer.json").read_text())["steps"]

    def export(self, folder: Path) -> None:
        """The merged weights as a model folder that transformers and vLLM can load."""
        config = self.model.config
        weights = {n: t.contiguous() for n, t in self.publish().tensors.items()}
        folder.mkdir(parents=True, exist_ok=True)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(folder)


def read_weights(folder: Path) -> Weights:
    """The fp32 weights of a model folder, as a trainer that starts from it would publish them."""
    model = load_model(folder, torch.float32)
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    return Weights(digest(tensors), tensors)


def _add_lora(model: Any, settings: LoRASettings) -> Any:
    """Put adapters into the model in place; only they are trained."""
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        use_rslora=settings.rank_stabilised,
        target_modules=settings.targets,
        task_type="CAUSAL_LM",
    )
    try:
        adapted = inject_adapter_in_model(config, model)
    except ValueError as error:
        raise EngineError(f"cannot add LoRA adapters: {error}") from error
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    return adapted


def _merged(model: Any) -> dict[str, torch.Tensor]:
    """Weights by plain names, each adapted layer's update added to its base."""
    from peft.tuners.lora import LoraLayer

    merged: dict[str, torch.Tensor] = {}
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
        merged[name.replace(".base_layer.", ".")] = value
    return merged
