"""The local trainer: fp32 master weights, bf16 arithmetic, blind to algorithms.

The model holds the weights rounded to bf16; masters, gradients and optimiser are fp32 beside it. A
batch goes through in micro-batches of bounded size. The weights of its tokens are final, so neither
packing nor the size of a micro-batch changes the gradient.
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

import msgspec
import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import load_file, save_file

from practicum.core import EngineError, Sample, StoreError
from practicum.engines.attention import load_model
from practicum.engines.contract import TokenLoss, Weights
from practicum.engines.head import fast_fp32_matmul, token_logprobs
from practicum.engines.lora import LoRASettings, add_lora, merged
from practicum.engines.memory import release_freed_memory
from practicum.engines.packing import Packed, micro_batches
from practicum.engines.streams import Streams
from practicum.models.digest import digest

MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's state beside the number of steps


class TrainerSettings(BaseModel):
    """How the local trainer computes and optimises."""

    model_config = ConfigDict(extra="forbid")
    dtype: Literal["bfloat16", "float32"] = "bfloat16"  # arithmetic; master weights are fp32
    micro_batch_tokens: int = Field(512, ge=1)  # packed tokens of one forward and backward pass
    streams: int = Field(2, ge=1)  # micro-batches at once on a CPU, which share its threads
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    lora: LoRASettings | None = None


class LocalTrainer:
    """A `Trainer` on this machine's CPU or GPU."""

    def __init__(self, folder: Path, settings: TrainerSettings, *, device: str = "cpu") -> None:
        self.settings, self.device = settings, device
        self.dtype = getattr(torch, settings.dtype)
        self.fast = settings.dtype != "float32"
        self._streams = Streams(settings.streams if device == "cpu" else 1)
        self._rows: list[tuple[str, torch.Tensor]] = []
        self.model = load_model(folder, torch.float32, device).train()
        if settings.lora:
            add_lora(self.model, settings.lora)
        self.model.get_input_embeddings().sparse = True  # few rows of it have a gradient
        named = dict(self.model.named_parameters())
        trained = {name: p.data for name, p in named.items() if p.requires_grad}
        self.shapes = {name: tensor.shape for name, tensor in trained.items()}
        # All that is trained lies in one block of memory: it comes and goes as a whole.
        self.flat = torch.nn.Parameter(torch.cat([t.flatten() for t in trained.values()]))
        self.masters = {name: p.data for name, p in named.items()} | self._views(self.flat.data)
        self.gradient: dict[str, torch.Tensor] = {}  # in fp32; empty before the first batch
        head = self.model.get_output_embeddings().weight
        (self.head,) = (name for name, parameter in named.items() if parameter is head)
        self._models = [self.model, *(_double(self.model) for _ in range(1, self._streams.count))]
        self._idle: SimpleQueue[Any] = SimpleQueue()
        for model in self._models:
            self._idle.put(model)
            for name in trained:
                hook = partial(_add_gradient, weakref.ref(self), name)
                model.get_parameter(name).register_post_accumulate_grad_hook(hook)
        self._give({n: t.to(self.dtype) for n, t in self.masters.items() if n not in trained})
        self._give_rounded()
        self.optimizer = torch.optim.AdamW(
            [self.flat],
            lr=0.0,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.steps = 0

    def forward_backward(self, batch: Sequence[Sample], loss: TokenLoss) -> dict[str, float]:
        """Add gradients; see `Trainer`. Returns the means of the loss and of its metrics."""
        rl = sum(sum(sample.rl_weight) for sample in batch)
        ce = sum(sum(sample.ce_weight) for sample in batch)

        def backward(model: Any, packed: Packed) -> dict[str, float]:
            logprobs, entropy = self._logprobs(model, packed)
            total = torch.zeros((), device=self.device)
            sums: dict[str, torch.Tensor] = {}
            if rl:
                losses, metrics = loss(packed.tokens(logprobs))
                total = total + (losses * packed.rl_weight).sum()
                for name, values in {**metrics, "entropy": entropy, "loss": losses}.items():
                    sums[name] = (values.detach() * packed.rl_weight).sum() / rl
            if ce:
                nll = -(logprobs * packed.ce_weight).sum()
                total = total + nll
                sums["nll"] = nll.detach() / ce
            total.backward()
            return {name: float(value) for name, value in sums.items()}

        if self.flat.grad is None:
            self.flat.grad = torch.zeros_like(self.flat)
            self.gradient = self._views(self.flat.grad)
        totals: dict[str, float] = {}
        for sums in self._each(batch, backward):
            for name, value in sums.items():
                totals[name] = totals.get(name, 0.0) + value
        for name, grad in self._rows:
            self.gradient[name].index_add_(0, grad._indices()[0], grad._values().float())
        self._rows.clear()
        release_freed_memory()
        totals["rl_tokens"] = float(sum(w > 0 for sample in batch for w in sample.rl_weight))
        totals["ce_tokens"] = float(sum(w > 0 for sample in batch for w in sample.ce_weight))
        return totals

    def score(self, batch: Sequence[Sample]) -> list[Sample]:
        """The samples with `reference`; see `Trainer`."""
        found = {id(sample): [0.0] * len(sample.tokens) for sample in batch}

        @torch.no_grad()
        def logprobs(model: Any, packed: Packed) -> None:
            values = self._logprobs(model, packed)[0].tolist()
            for (sample, t), value in zip(packed.places, values, strict=True):
                found[id(sample)][t] = value

        self._each(batch, logprobs)
        return [msgspec.structs.replace(s, reference=tuple(found[id(s)])) for s in batch]

    def evaluate(self, batch: Sequence[Sample]) -> dict[str, float]:
        """Mean cross-entropy over the tokens with `ce_weight`."""
        count = sum(sum(s.ce_weight) for s in batch)
        if not count:
            raise EngineError("nothing to evaluate: no token has cross-entropy weight")

        @torch.no_grad()
        def nll(model: Any, packed: Packed) -> float:
            return -float((self._logprobs(model, packed)[0] * packed.ce_weight).sum())

        return {"nll": sum(self._each(batch, nll)) / count, "tokens": count}

    def _each(self, batch: Sequence[Sample], work: Callable[[Any, Packed], Any]) -> list[Any]:
        """What `work` says of each micro-batch, in their order; several are at work at once."""
        packs = [
            Packed(bundles, self.device)
            for bundles in micro_batches(batch, self.settings.micro_batch_tokens)
        ]

        def with_a_model(packed: Packed) -> Any:
            model = self._idle.get()
            try:
                return work(model, packed)
            finally:
                self._idle.put(model)

        with fast_fp32_matmul(self.fast):  # one setting of the process, so set around all threads
            return self._streams.run(with_a_model, [p for p in packs if len(p.target)])

    def _logprobs(self, model: Any, packed: Packed) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = model.get_decoder()(
            input_ids=packed.ids, position_ids=packed.positions, use_cache=False, plan=packed
        ).last_hidden_state[0]
        return token_logprobs(
            hidden[packed.source],
            self.masters[self.head],
            packed.target,
            packed.temperature,
            fast=self.fast,
            gradient=self.gradient.get(self.head),
            turn=self._streams.turn,
        )

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
        if self.flat.grad is None:
            raise EngineError("there is no gradient to apply: call forward_backward first")
        norm = torch.nn.utils.clip_grad_norm_([self.flat], self.settings.max_grad_norm)
        accepted = accept(float(norm))
        if accepted:
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self.optimizer.step()
            self.steps += 1
            self._give_rounded()
        self.flat.grad, self.gradient = None, {}
        release_freed_memory()
        return {"grad_norm": float(norm), "skipped": float(not accepted), "lr": learning_rate}

    def _views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parts of a block like `self.flat`, by name."""
        parts = flat.split([shape.numel() for shape in self.shapes.values()])
        return {n: part.view(s) for (n, s), part in zip(self.shapes.items(), parts, strict=True)}

    def _give(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Let the models compute with these."""
        for model in self._models:
            for name, tensor in tensors.items():
                model.get_parameter(name).data = tensor

    def _give_rounded(self) -> None:
        """The trained masters as they are now, in new memory: what was published stays."""
        self._give(self._views(self.flat.data.to(self.dtype)))

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

    def _merged(self) -> dict[str, torch.Tensor]:
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
        state = self.optimizer.state.get(self.flat, {})
        for kind, flat in {"weights": self.flat.data, **state}.items():
            if kind != "step":
                save_file(self._views(flat), folder / f"{kind}.safetensors")
        (folder / "trainer.json").write_text(json.dumps({"steps": self.steps}))

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote. Raises StoreError when it does not fit this model."""
        self.steps = json.loads((folder / "trainer.json").read_text())["steps"]
        state = self.optimizer.state[self.flat]
        state.clear()
        if self.steps:
            state["step"] = torch.tensor(float(self.steps))
            state |= {moment: torch.empty_like(self.flat) for moment in MOMENTS}
        for kind, flat in {"weights": self.flat.data, **state}.items():
            if kind != "step":
                self._read(folder / f"{kind}.safetensors", flat)
        self._give_rounded()

    def _read(self, path: Path, flat: torch.Tensor) -> None:
        saved = load_file(path)
        if self.shapes != {name: tensor.shape for name, tensor in saved.items()}:
            raise StoreError(
                f"the checkpoint in {path.parent} is of another model or another LoRA setting; "
                "resume with the recipe it was made with"
            )
        for name, view in self._views(flat).items():
            view.copy_(saved[name])

    def export(self, folder: Path) -> None:
        """The merged weights as a model folder that transformers and vLLM can load."""
        config = self.model.config
        with torch.no_grad():
            weights = self._merged()
        folder.mkdir(parents=True, exist_ok=True)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(folder)


def _add_gradient(
    trainer: "weakref.ref[LocalTrainer]", name: str, parameter: torch.nn.Parameter
) -> None:
    """A parameter's hook. It must not hold the trainer: the collector cannot see into hooks."""
    owner = trainer()
    assert owner is not None
    owner._add_gradient(name, parameter)


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
