"""The trainer over many processes: FSDP2, tensor, expert and context parallelism, by one recipe.

transformers shards the model by its own plans and torch's DTensor; what this adds is what a batch
is. Every process calls every method with the same arguments. Teams take micro-batches in turn, the
sum of their gradients is that of the batch, and the results are the same everywhere.
"""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard

from practicum.core import EngineError, Sample
from practicum.engines.attention import load_model
from practicum.engines.checkpointing import limit_activations
from practicum.engines.context_parallel import Share
from practicum.engines.contract import TokenLoss, Weights
from practicum.engines.head import Part, fast_fp32_matmul, token_logprobs
from practicum.engines.packing import Packed, micro_batches
from practicum.engines.parallel import Layout
from practicum.engines.passes import Outputs, Passes
from practicum.engines.rope import RopeSettings, position_limit
from practicum.engines.routing import Routes
from practicum.engines.trainer import TrainerSettings
from practicum.models.digest import digest


class ShardedTrainer(Passes):
    """A `Trainer` of which each process has a part. Weights are published to the first one only."""

    def __init__(
        self,
        folder: Path,
        settings: TrainerSettings,
        layout: Layout,
        *,
        device: str = "cpu",
        rope: RopeSettings | None = None,
    ) -> None:
        if settings.lora or settings.optimizer != "adamw":
            raise EngineError(
                "[parallel] trains all weights with AdamW: leave out trainer.lora and "
                "trainer.optimizer, or [parallel]"
            )
        self.settings, self.layout, self.device = settings, layout, device
        self.fast = settings.dtype != "float32"
        parallel = layout.settings.config(settings.dtype)
        self.model = load_model(folder, torch.float32, device, rope, parallel).train()
        self.limit = position_limit(self.model.config)
        limit_activations(self.model, settings.activations)
        self.model.get_output_embeddings().forward = self._head
        self.packed: Packed | None = None  # what the model is computing
        self.routes = Routes(self.model)
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(),
            lr=0.0,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
        self.steps = 0

    def forward_backward(self, batch: Sequence[Sample], loss: TokenLoss) -> dict[str, float]:
        """Add gradients; see `Trainer`."""
        return self._forward_backward(batch, loss)

    def _go_back(self, total: torch.Tensor) -> None:
        # FSDP takes the mean over those that have samples of their own, and a batch is their sum.
        data = self.layout.settings.shard * self.layout.settings.replicate
        (total * data).backward()

    def _each(self, batch: Sequence[Sample], work: Callable[[Any, Packed], Any]) -> list[Any]:
        """Micro-batches of one size are computed at the same time, one by each team."""
        longest = max((len(sample.tokens) for sample in batch), default=0)
        if longest > self.limit:
            raise EngineError(
                f"a sample of {longest} tokens is longer than the {self.limit} positions that the "
                "model has: leave such samples out, or let [rope] scale its positions"
            )
        layout = self.layout
        size = layout.settings.context
        packs = micro_batches(batch, self.settings.micro_batch_tokens * size)
        results = []
        with fast_fp32_matmul(self.fast and self.device == "cpu"):
            for first in range(0, len(packs), layout.teams):
                mine = packs[first : first + layout.teams][layout.team :][:1]
                # All processes compute, even where there is nothing left for this one.
                samples = mine[0] if mine else [_nothing(packs[0][0])]
                if size > 1:
                    packed: Packed = Share(samples, layout.context_group, self.device)
                else:
                    packed = Packed(samples, self.device)
                result = work(self.model, packed)
                if mine:
                    results.append(result)
        return layout.together(results)

    def _arithmetic(self) -> AbstractContextManager[Any]:
        """FSDP casts what it gathers; without it autocast does."""
        if not self.fast or self.layout.settings.shard * self.layout.settings.replicate > 1:
            return nullcontext()
        return torch.autocast(self.device, torch.bfloat16)

    def _outputs(self, model: Any, packed: Packed) -> Outputs:
        self.packed = packed
        self.routes.follow(packed)
        with self._arithmetic():
            logprobs, entropy = model(
                input_ids=packed.ids, position_ids=packed.positions, use_cache=False, plan=packed
            ).logits
        self.packed = None
        if isinstance(packed, Share):
            logprobs, entropy = packed.whole(logprobs), packed.whole(entropy)
        return Outputs(logprobs[packed.row], entropy[packed.row])

    def _head(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """In place of the model's own head, while its weight is whole: hidden [1, N, D]."""
        packed = self.packed
        assert packed is not None
        weight = self.model.get_output_embeddings().weight
        part = None
        if isinstance(weight, DTensor):  # a part of the vocabulary, by the tensor plan
            mesh = weight.device_mesh
            size = -(-weight.shape[0] // mesh.size())
            part = Part(mesh.get_local_rank() * size, mesh.get_group())
            weight = weight.to_local()
        with torch.autocast(self.device, enabled=False):  # its logits are fp32
            return token_logprobs(
                hidden[0][packed.source],
                weight,
                packed.target,
                packed.temperature,
                fast=self.fast,
                part=part,
            )

    @torch.no_grad()
    def step(
        self, learning_rate: float, accept: Callable[[float], bool] = math.isfinite
    ) -> dict[str, float]:
        """Clip, apply and clear the gradient; see `Trainer`. The first process is asked."""
        grads = [p.grad for p in self.parameters.values() if p.grad is not None]
        if not grads:
            raise EngineError("there is no gradient to apply: call forward_backward first")
        norm = _norm(grads)
        verdict = [accept(norm) if self.layout.rank == 0 else None]
        dist.broadcast_object_list(verdict, group=self.layout.control)
        accepted = bool(verdict[0])
        self._let_go()
        if accepted:
            if norm > self.settings.max_grad_norm:
                for grad in grads:
                    grad.mul_(self.settings.max_grad_norm / (norm + 1e-6))
            self.optimizer.param_groups[0]["lr"] = learning_rate
            self.optimizer.step()
            self.steps += 1
        self.optimizer.zero_grad()
        return {"grad_norm": norm, "skipped": float(not accepted), "lr": learning_rate}

    def _let_go(self) -> None:
        """Free what a pass without a gradient left whole: it goes stale when weights change."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def publish(self) -> Weights:
        """The whole weights, rounded to the arithmetic's dtype; the others get the digest only."""
        dtype = getattr(torch, self.settings.dtype)
        masters = self._whole()
        name = [digest(masters) if self.layout.rank == 0 else ""]
        dist.broadcast_object_list(name, group=self.layout.control)
        return Weights(name[0], {n: t.to(dtype) for n, t in masters.items()})

    @torch.no_grad()
    def _whole(self) -> dict[str, torch.Tensor]:
        """The fp32 weights on the CPU, in the first process; one tensor at a time is gathered."""
        found = {}
        for name, parameter in self.parameters.items():
            tensor = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            if self.layout.rank == 0:
                found[name] = tensor.detach().cpu().clone()
        return found

    def save(self, folder: Path) -> None:
        """Every process writes its part (torch.distributed.checkpoint); see `Trainer`."""
        state = {k: {n: _in_order(t) for n, t in kind.items()} for k, kind in self._state().items()}
        dcp.save(state, checkpoint_id=folder)
        if self.layout.rank == 0:
            (folder / "trainer.json").write_text(json.dumps({"steps": self.steps}))
        dist.barrier(self.layout.control)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote, with however many processes that was."""
        self.steps = json.loads((folder / "trainer.json").read_text())["steps"]
        if self.steps:
            for parameter in self.parameters.values():
                self.optimizer.state[parameter] = {
                    "step": torch.tensor(float(self.steps)),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        else:
            self.optimizer.state.clear()
        self._let_go()
        own = self._state()
        state = {k: {n: _in_order(t) for n, t in kind.items()} for k, kind in own.items()}
        dcp.load(state, checkpoint_id=folder)
        for kind, tensors in own.items():
            for name, tensor in tensors.items():
                read = state[kind][name]
                if read is not tensor and isinstance(tensor, DTensor):
                    tensor.copy_(read.redistribute(placements=tensor.placements))

    def _state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Weights and moments by the parameters' names, as `LocalTrainer` has them."""
        kinds: dict[str, dict[str, torch.Tensor]] = {
            "weights": {name: p.detach() for name, p in self.parameters.items()}
        }
        for kind in ("exp_avg", "exp_avg_sq"):
            kept = {n: self.optimizer.state.get(p, {}) for n, p in self.parameters.items()}
            moments = {name: state[kind] for name, state in kept.items() if kind in state}
            if moments:
                kinds[kind] = moments
        return kinds

    def export(self, folder: Path) -> None:
        """A plain model folder, written by the first process."""
        weights = self._whole()
        if self.layout.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
            self.model.config.save_pretrained(folder)
        dist.barrier(self.layout.control)


def _norm(grads: Sequence[torch.Tensor]) -> float:
    """The norm of all of them together, whichever way each is shared."""
    groups: dict[Any, list[torch.Tensor]] = {}
    for grad in grads:
        shared = (grad.device_mesh, grad.placements) if isinstance(grad, DTensor) else None
        groups.setdefault(shared, []).append(grad)
    total = 0.0
    for some in groups.values():
        norm = torch.nn.utils.get_total_norm(some)
        total += float(norm.full_tensor() if isinstance(norm, DTensor) else norm) ** 2
    return math.sqrt(total)


def _in_order(tensor: torch.Tensor) -> Any:
    """The tensor shared in contiguous pieces, as a checkpoint describes them: not interleaved."""
    if not isinstance(tensor, DTensor):
        return tensor
    plain = [p if type(p) in (Replicate, Shard) else Shard(p.dim) for p in tensor.placements]  # type: ignore[attr-defined]
    return tensor if plain == list(tensor.placements) else tensor.redistribute(placements=plain)


def _nothing(sample: Sample) -> Sample:
    """A sample of one token that carries no weight."""
    nothing = (0.0,)
    return Sample(sample.tokens[:1], nothing, nothing, nothing, nothing)
