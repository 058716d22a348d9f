"""The local trainer: fp32 master weights, bf16 arithmetic, blind to algorithms.

The model holds the weights rounded to bf16; masters, gradients and optimiser are fp32 beside it.
"""

import copy
import json
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

import torch
import torch.distributed.checkpoint as dcp
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import load_file, save_file

from practicum.core import EngineError, Sample, StoreError
from practicum.engines.attention import load_model
from practicum.engines.checkpointing import Activations, limit_activations
from practicum.engines.contract import TokenLoss, Weights
from practicum.engines.head import fast_fp32_matmul, token_logprobs
from practicum.engines.lora import LoRASettings, add_lora, merged
from practicum.engines.masters import Halves, Masters, Named, Whole
from practicum.engines.memory import release_freed_memory
from practicum.engines.optimizer import AdamW, AdamW8bit, Optimizer, OptimizerName
from practicum.engines.packing import Packed, micro_batches
from practicum.engines.passes import Outputs, Passes
from practicum.engines.rope import RopeSettings, position_limit
from practicum.engines.routing import Routes
from practicum.engines.streams import Streams
from practicum.engines.value_head import (
    VALUE_HEAD,
    read_value_head,
    token_values,
    write_value_head,
)
from practicum.models.digest import digest


class TrainerSettings(BaseModel):
    """How the local trainer computes and optimises."""

    model_config = ConfigDict(extra="forbid")
    dtype: Literal["bfloat16", "float32"] = "bfloat16"  # arithmetic; master weights are fp32
    micro_batch_tokens: int = Field(512, ge=1)  # packed tokens of one forward and backward pass
    streams: int = Field(2, ge=1)  # micro-batches at once on a CPU, which share its threads
    activations: Activations = "keep"  # "recompute": a fraction of the memory, a third more time
    optimizer: OptimizerName = "adamw"
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    lora: LoRASettings | None = None


class LocalTrainer(Passes):
    """A `Trainer` on this machine's CPU or GPU.

    With `value_head` it has one more parameter, read from the folder or zeros, which is trained,
    saved and exported with the others, and is no part of what is published. It is clipped apart,
    and its learning rate is `head_rate` times that of the others.
    """

    def __init__(
        self,
        folder: Path,
        settings: TrainerSettings,
        *,
        device: str = "cpu",
        value_head: bool = False,
        head_rate: float = 1.0,
        rope: RopeSettings | None = None,
    ) -> None:
        self.settings, self.device = settings, device
        self.dtype = getattr(torch, settings.dtype)
        self.fast = settings.dtype != "float32"
        self._streams = Streams(settings.streams if device == "cpu" else 1)
        self._rows: list[tuple[str, torch.Tensor]] = []
        self.model = load_model(folder, torch.float32, device, rope).train()
        self.limit = position_limit(self.model.config)
        if settings.lora:
            add_lora(self.model, settings.lora)
        limit_activations(self.model, settings.activations)
        self.model.get_input_embeddings().sparse = True  # few rows of it have a gradient
        named = dict(self.model.named_parameters())
        trained = {name: p.data for name, p in named.items() if p.requires_grad}
        if value_head:
            width = self.model.get_input_embeddings().weight.shape[1]
            trained[VALUE_HEAD] = read_value_head(folder, width).to(device)
        self.shapes = {name: tensor.shape for name, tensor in trained.items()}
        # All that is trained lies in one block of memory: it comes and goes as a whole.
        block = torch.cat([t.flatten() for t in trained.values()])
        frozen = {name: p.data for name, p in named.items() if name not in trained}
        eight_bit = settings.optimizer == "adamw8bit"
        whole = frozen or value_head or eight_bit or self.dtype == torch.float32
        self.block: Masters = Whole(block) if whole else Halves(block)
        self.value_head = self._views(block)[VALUE_HEAD] if value_head else None
        self.head_rate = head_rate
        named_shapes = {n: shape for n, shape in self.shapes.items() if n != VALUE_HEAD}
        self.masters = Named(named_shapes, self.block, frozen)
        self.gradient_block: torch.Tensor | None = None  # in fp32; None before the first batch
        self.gradient: dict[str, torch.Tensor] = {}  # its parts by name
        head = self.model.get_output_embeddings().weight
        (self.head,) = (name for name, parameter in named.items() if parameter is head)
        self._models = [self.model, *(_double(self.model) for _ in range(1, self._streams.count))]
        self._routes = {id(model): Routes(model) for model in self._models}
        self._idle: SimpleQueue[Any] = SimpleQueue()
        for model in self._models:
            self._idle.put(model)
            for name in self.shapes.keys() - {VALUE_HEAD}:
                hook = partial(_add_gradient, weakref.ref(self), name)
                model.get_parameter(name).register_post_accumulate_grad_hook(hook)
        self._give({name: tensor.to(self.dtype) for name, tensor in frozen.items()})
        self._give_rounded()
        options: dict[str, Any] = settings.model_dump(include={"betas", "eps", "weight_decay"})
        self.optimizer: Optimizer = (
            AdamW8bit(self.block, **options)
            if eight_bit and isinstance(self.block, Whole)
            else AdamW(self.block, device, **options)
        )
        self.steps = 0

    def forward_backward(self, batch: Sequence[Sample], loss: TokenLoss) -> dict[str, float]:
        """Add gradients; see `Trainer`. Returns the means of the loss and of its metrics."""
        if self.gradient_block is None:
            self.gradient_block = torch.zeros(len(self.block), device=self.device)
            self.gradient = self._views(self.gradient_block)
        totals = self._forward_backward(batch, loss)
        for name, grad in self._rows:
            self.gradient[name].index_add_(0, grad._indices()[0], grad._values().float())
        self._rows.clear()
        release_freed_memory()
        return totals

    def _each(self, batch: Sequence[Sample], work: Callable[[Any, Packed], Any]) -> list[Any]:
        """What `work` says of each micro-batch, in their order; several are at work at once."""
        longest = max((len(sample.tokens) for sample in batch), default=0)
        if longest > self.limit:
            raise EngineError(
                f"a sample of {longest} tokens is longer than the {self.limit} positions that the "
                "model has: leave such samples out, or let [rope] scale its positions"
            )
        packs = [
            Packed(samples, self.device)
            for samples in micro_batches(batch, self.settings.micro_batch_tokens)
        ]

        def with_a_model(packed: Packed) -> Any:
            model = self._idle.get()
            try:
                return work(model, packed)
            finally:
                self._idle.put(model)

        with fast_fp32_matmul(self.fast):  # one setting of the process, so set around all threads
            return self._streams.run(with_a_model, [p for p in packs if len(p.target)])

    def _outputs(self, model: Any, packed: Packed) -> Outputs:
        self._routes[id(model)].follow(packed)
        hidden = model.get_decoder()(
            input_ids=packed.ids, position_ids=packed.positions, use_cache=False, plan=packed
        ).last_hidden_state[0]
        hidden = hidden[packed.source]  # [U, D]
        logprobs, entropy = token_logprobs(
            hidden,
            model.get_output_embeddings().weight,
            packed.target,
            packed.temperature,
            fast=self.fast,
            gradient=self.gradient.get(self.head),
            turn=self._streams.turn,
        )
        values = None
        if self.value_head is not None:
            values = token_values(
                hidden,
                self.value_head,
                gradient=self.gradient.get(VALUE_HEAD),
                turn=self._streams.turn,
            )[packed.row]
        return Outputs(logprobs[packed.row], entropy[packed.row], values)

    def _add_gradient(self, name: str, parameter: torch.nn.Parameter) -> None:
        """Add a parameter's gradient to that of its fp32 master, and drop it."""
        grad, parameter.grad = parameter.grad, None
        assert grad is not None
        with self._streams.turn(name), torch.no_grad():
            if grad.is_sparse:  # the embedding's, kept apart: the head may share its table
                self._rows.append((name, grad))
            else:
                self.gradient[name] += grad

    @torch.no_grad()
    def step(
        self, learning_rate: float, accept: Callable[[float], bool] = math.isfinite
    ) -> dict[str, float]:
        """Clip, apply and clear the gradient; see `Trainer`."""
        if self.gradient_block is None:
            raise EngineError("there is no gradient to apply: call forward_backward first")
        norm = self._clip(self.gradient_block)
        accepted = accept(norm)
        if accepted:
            head = self.value_head
            before = None if head is None else head.clone()
            self.optimizer.step(learning_rate, self.gradient_block)
            if head is not None and before is not None:
                head.copy_(before + self.head_rate * (head - before))
            self.steps += 1
        self.gradient_block, self.gradient = None, {}  # before a rounded copy takes its place
        release_freed_memory()
        if accepted:
            self._give_rounded()
        return {"grad_norm": norm, "skipped": float(not accepted), "lr": learning_rate}

    def _clip(self, gradient: torch.Tensor) -> float:
        """Bound the norm of the gradient; the norm that it had. That of a value head is apart."""
        head = 0 if self.value_head is None else self.value_head.numel()
        norms = []
        for part in gradient.split([len(gradient) - head, head]):
            block = torch.nn.Parameter(part)
            block.grad = part
            norm = torch.nn.utils.clip_grad_norm_([block], self.settings.max_grad_norm)
            norms.append(float(norm))
        return norms[0] if math.isfinite(norms[1]) else norms[1]

    def _views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parts of a block of what is trained, by name."""
        parts = flat.split([shape.numel() for shape in self.shapes.values()])
        return {n: part.view(s) for (n, s), part in zip(self.shapes.items(), parts, strict=True)}

    def _give(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Let the models compute with these."""
        for model in self._models:
            for name in tensors.keys() & self.masters.keys():
                model.get_parameter(name).data = tensors[name]

    def _give_rounded(self) -> None:
        """The trained masters as they are now; in bf16 what was published stays as it was."""
        self._give(self._views(self.block.rounded(self.dtype)))

    @torch.no_grad()
    def publish(self) -> Weights:
        """The merged weights by the names that a model without adapters has.

        The digest is that of the masters; the tensors are in the dtype of the model's arithmetic
        and shared with it, so that a sampler in this process needs no copy.
        """
        masters = self._merged()
        if self.settings.lora or self.dtype == torch.float32:
            tensors = {name: tensor.to(self.dtype, copy=True) for name, tensor in masters.items()}
            return Weights(digest(masters), tensors)
        return Weights(digest(masters), {n: p.data for n, p in self.model.named_parameters()})

    def _merged(self) -> Mapping[str, torch.Tensor]:
        """The fp32 weights by plain names, each adapted layer's update added to its base."""
        if not self.settings.lora:
            return self.masters
        rounded = {name: parameter.data for name, parameter in self.model.named_parameters()}
        self._give(self.masters)
        try:
            return merged(self.model)
        finally:
            self._give(rounded)

    def save(self, folder: Path) -> None:
        """Trained weights and optimiser state as safetensors, a file each."""
        for kind, tensors in self._state(self.block.part(0, len(self.block))).items():
            save_file(tensors, folder / f"{kind}.safetensors")
        (folder / "trainer.json").write_text(json.dumps({"steps": self.steps}))

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote. Raises StoreError when it does not fit this model."""
        self.steps = json.loads((folder / "trainer.json").read_text())["steps"]
        self.optimizer.begin(self.steps)
        read = torch.empty(len(self.block), device=self.device)
        state = self._state(read)
        if (folder / ".metadata").exists():
            _read_sharded(folder, state)
        else:
            for kind, tensors in state.items():
                _read(folder / f"{kind}.safetensors", tensors)
        self.block.fill(read)
        self._give_rounded()

    def _state(self, block: torch.Tensor) -> dict[str, dict[str, torch.Tensor]]:
        """What is trained, in `block`, and what the optimiser remembers, each by its names."""
        blocks = {"weights": block, **self.optimizer.state()}
        return {
            kind: self._views(one) if len(one) == len(block) else {kind: one}
            for kind, one in blocks.items()
        }

    def export(self, folder: Path) -> None:
        """The merged weights as a model folder that transformers and vLLM can load."""
        config = self.model.config
        with torch.no_grad():
            weights = self._merged()
        folder.mkdir(parents=True, exist_ok=True)
        save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})
        if self.value_head is not None:
            write_value_head(folder, self.value_head)
        config.save_pretrained(folder)


def _add_gradient(
    trainer: "weakref.ref[LocalTrainer]", name: str, parameter: torch.nn.Parameter
) -> None:
    """A parameter's hook. It must not hold the trainer: the collector cannot see into hooks."""
    owner = trainer()
    assert owner is not None
    owner._add_gradient(name, parameter)


def _read(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Fill tensors with those that were saved."""
    saved = load_file(path) if path.exists() else {}
    if {n: t.shape for n, t in tensors.items()} != {n: t.shape for n, t in saved.items()}:
        raise _other_model(path.parent)
    for name, tensor in tensors.items():
        tensor.copy_(saved[name])


def _read_sharded(folder: Path, state: dict[str, dict[str, torch.Tensor]]) -> None:
    """The same, from a checkpoint of several processes."""
    try:
        dcp.load(state, checkpoint_id=folder, no_dist=True)
    except dcp.api.CheckpointException as error:
        raise _other_model(folder) from error


def _other_model(folder: Path) -> StoreError:
    return StoreError(
        f"the checkpoint in {folder} is of another model, or of another LoRA setting or "
        "optimizer; resume with the recipe it was made with"
    )


def _double(model: Any) -> Any:
    """The same model on the same memory, whose gradients are its own: for another thread."""
    shared = {
        id(parameter): torch.nn.Parameter(parameter.data, parameter.requires_grad)
        for parameter in model.parameters()
    }
    return copy.deepcopy(model, shared)


def read_weights(folder: Path) -> Weights:
    """The fp32 weights of a model folder, as a trainer that starts from it would publish them."""
    model = load_model(folder, torch.float32)
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    return Weights(digest(tensors), tensors)
