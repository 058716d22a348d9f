"""What is computed again changes no gradient, and memory grows with the layers' inputs only."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from batches import LOSS, batch_of
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from practicum.core import EngineError, Sample
from practicum.engines import packed_attention
from practicum.engines.attention import load_model
from practicum.engines.checkpointing import _recomputed, limit_activations
from practicum.engines.lora import LoRASettings
from practicum.engines.trainer import LocalTrainer, TrainerSettings
from practicum.learn.aggregate import aggregated


def settings(**changes: Any) -> TrainerSettings:
    return TrainerSettings.model_validate(
        {"dtype": "float32", "micro_batch_tokens": 40, "streams": 1} | changes
    )


def made(folder: Path, *, device: str = "cpu", **changes: Any) -> LocalTrainer:
    torch.manual_seed(0)  # of the adapters
    return LocalTrainer(folder, settings(**changes), device=device)


def gradient(trainer: LocalTrainer) -> torch.Tensor:
    """Where what is trained was moved a little, as adapters begin with zeros."""
    block = trainer.block.part(0, len(trainer.block)).clone()
    noise = torch.randn(block.shape, generator=torch.Generator().manual_seed(1))
    trainer.block.fill(block + 0.1 * block.abs().mean() * noise.to(trainer.device))
    trainer._give_rounded()
    trainer.forward_backward(aggregated(batch_of()), LOSS)
    assert trainer.gradient_block is not None
    return trainer.gradient_block


def off(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Distance in parts of the whole."""
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("lora", [None, LoRASettings(rank=4, alpha=8)], ids=["full", "lora"])
@pytest.mark.parametrize("streams", [1, 2])
def test_gradients_are_those_of_kept_activations(
    sharp: Path, lora: LoRASettings | None, streams: int
) -> None:
    kept = gradient(made(sharp, lora=lora))
    torch.set_num_threads(2)
    try:
        trainer = made(sharp, lora=lora, streams=streams, activations="recompute")
        assert trainer._streams.count == streams
        assert off(gradient(trainer), kept) < 1e-6
    finally:
        torch.set_num_threads(1)


def inputs(trainer: LocalTrainer) -> list[StorageWeakRef]:
    """Where the layers' inputs lie, from now on."""
    found: list[StorageWeakRef] = []

    def look(_: Any, args: tuple[torch.Tensor, ...]) -> None:
        found.append(StorageWeakRef(args[0].untyped_storage()))

    for layer in trainer.model.model.layers:
        layer.register_forward_pre_hook(look)
    return found


def forward(trainer: LocalTrainer) -> torch.Tensor:
    ids = torch.arange(3, 40)[None]
    positions = torch.arange(ids.shape[1])[None]

    class Causal:
        def attend(
            self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
        ) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=scale, enable_gqa=True
            ).transpose(1, 2)

    decoder = trainer.model.get_decoder()
    out = decoder(input_ids=ids, position_ids=positions, use_cache=False, plan=Causal())
    return out.last_hidden_state


def test_inputs_that_are_moved_leave_the_device(sharp: Path) -> None:
    """All that a CPU can tell of it: they are copied, let go, and the gradient is the same."""
    kept = gradient(made(sharp))
    held = {}
    for offload in (False, True):
        trainer = made(sharp, activations="recompute")
        for layer in trainer.model.model.layers:
            layer.forward = partial(_recomputed, layer, offload)
        assert off(gradient(trainer), kept) < 1e-6
        where = inputs(trainer)
        out = forward(trainer)
        held[offload] = [not ref.expired() for ref in where]
        del out
    assert held == {False: [True, True], True: [False, False]}


def test_without_a_gpu_there_is_nowhere_to_move_them_from(sharp: Path) -> None:
    with pytest.raises(EngineError, match='there is no GPU in use: set "recompute"'):
        made(sharp, activations="offload")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("how", ["recompute", "offload"])
def test_a_gpu_gives_the_same_gradient(sharp: Path, how: str) -> None:
    kept = gradient(made(sharp, device="cuda"))
    assert off(gradient(made(sharp, activations=how, device="cuda")), kept) < 1e-6


def test_a_model_whose_layers_are_unknown_is_told(sharp: Path) -> None:
    model = load_model(sharp, torch.float32)
    model.model.layers = torch.nn.ModuleList()
    with pytest.raises(EngineError, match='set activations = "keep"'):
        limit_activations(model, "recompute")


class Peak(TorchDispatchMode):
    """Most bytes at once in the tensors that were made within it."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.at_most = 0  # `at_most` counts what has gone since it was last looked at
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor) and not tensor.is_sparse:
                storage = tensor.untyped_storage()
                known = self.made.get(storage._cdata)
                if known is None or known[0].expired():
                    self.made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                    self.at_most += storage.nbytes()
        if self.at_most > self.bytes:
            self.made = {at: pair for at, pair in self.made.items() if not pair[0].expired()}
            self.at_most = sum(size for _, size in self.made.values())
            self.bytes = max(self.bytes, self.at_most)
        return results


def peak(folder: Path, length: int, activations: str) -> int:
    trainer = made(folder, dtype="bfloat16", activations=activations, lora=LoRASettings())
    zeros = (0.0,) * length
    weights = (0.0, *zeros[1:-64], *(1.0,) * 64)
    tokens = torch.randint(3, 512, (length,), generator=torch.Generator().manual_seed(0))
    sample = Sample(tuple(tokens.tolist()), zeros, weights, zeros, zeros)
    with Peak() as found:
        trainer.forward_backward([sample], LOSS)
    return found.bytes


@pytest.mark.slow
def test_memory_grows_with_the_length_and_hardly_with_the_layers(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_attention, "QUERIES", 64)  # less than each length
    found: dict[tuple[int, str], list[int]] = {}
    lengths = (256, 512, 1024)
    for layers, how in ((6, "recompute"), (2, "recompute"), (6, "keep")):
        config = AutoConfig.from_pretrained(tiny)
        config.num_hidden_layers = layers
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / str(layers))
        found[layers, how] = [peak(tmp_path / str(layers), length, how) for length in lengths]
    growth = {
        key: (first, second)
        for key, (low, middle, high) in found.items()
        for first, second in [(middle - low, high - middle)]
    }
    for first, second in growth.values():
        assert second / first == pytest.approx(2, rel=0.1)
    inputs = 4 * 512 * config.hidden_size * 2  # of four layers, in bf16
    assert growth[6, "recompute"][1] - growth[2, "recompute"][1] == pytest.approx(inputs, rel=0.1)
    assert growth[6, "keep"][1] > 2 * growth[6, "recompute"][1]
