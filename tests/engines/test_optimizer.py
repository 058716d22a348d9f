"""The optimiser is AdamW as the paper has it; in eight bits nearly so, and both resume exactly."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from batches import LOSS, batch_of

from practicum.core import EngineError, StoreError
from practicum.engines import masters, optimizer
from practicum.engines.lora import LoRASettings
from practicum.engines.masters import Halves, Whole
from practicum.engines.optimizer import AdamW, AdamW8bit, Optimizer, OptimizerName
from practicum.engines.trainer import LocalTrainer, TrainerSettings
from practicum.learn.aggregate import aggregated

SETTINGS: dict[str, Any] = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
NAMES: list[OptimizerName] = ["adamw", "adamw8bit"]
NEAR: dict[OptimizerName, float] = {"adamw": 1e-5, "adamw8bit": 0.1}


def made_for(name: OptimizerName, block: Whole) -> Optimizer:
    return AdamW8bit(block, **SETTINGS) if name == "adamw8bit" else AdamW(block, "cpu", **SETTINGS)


def by_hand(
    block: torch.Tensor, gradients: list[torch.Tensor], learning_rate: float
) -> torch.Tensor:
    """arXiv 1711.05101, algorithm 2."""
    w = block.detach().double()
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for t, g in enumerate(gradients, start=1):
        m = 0.9 * m + 0.1 * g
        v = 0.95 * v + 0.05 * g * g
        step = m / (1 - 0.9**t) / ((v / (1 - 0.95**t)).sqrt() + 1e-8)
        w = w - learning_rate * (step + 0.1 * w)
    return w


@pytest.fixture
def library(request: pytest.FixtureRequest) -> None:
    if "adamw8bit" in str(request.node.name):
        pytest.importorskip("bitsandbytes")


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", NAMES)
def test_it_moves_as_the_paper_says(name: OptimizerName, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "CHUNK", 1024)  # the last one is of less than a run
    torch.manual_seed(0)
    start = torch.randn(5000)
    block = Whole(start.clone())
    gradients = [torch.randn(5000) for _ in range(4)]
    made = made_for(name, block)
    assert made.state() == {}
    for gradient in gradients:
        made.step(1e-2, gradient.clone())
    wanted = by_hand(start, gradients, 1e-2) - start.double()
    moved = block.block.double() - start.double()
    assert (moved - wanted).norm() < NEAR[name] * wanted.norm()


def test_halves_move_as_a_whole_block_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masters, "CHUNK", 999)
    torch.manual_seed(0)
    start = torch.randn(5000)
    blocks = Whole(start.clone()), Halves(start)
    optimizers = [AdamW(block, "cpu", **SETTINGS) for block in blocks]
    for _ in range(4):
        gradient = torch.randn(5000)
        for one in optimizers:
            one.step(1e-2, gradient)
    whole, halves = (block.part(0, 5000) for block in blocks)
    torch.testing.assert_close(halves, whole, rtol=0, atol=1e-7)


@pytest.mark.usefixtures("library")
def test_adamw8bit_remembers_two_bytes_a_parameter() -> None:
    sizes = {}
    for name in NAMES:
        block = Whole(torch.randn(optimizer.CHUNK + 1000))
        made = made_for(name, block)
        made.step(1e-3, torch.randn(len(block)))
        sizes[name] = sum(t.numel() * t.element_size() for t in made.state().values())
    assert sizes["adamw"] == 8 * (optimizer.CHUNK + 1000)
    assert sizes["adamw8bit"] == pytest.approx(sizes["adamw"] / 4, rel=0.02)


def learn(trainer: LocalTrainer, seed: int) -> str:
    trainer.forward_backward(aggregated(batch_of(seed)), LOSS)
    trainer.step(1e-3)
    return trainer.publish().digest


def settings(name: OptimizerName, lora: LoRASettings | None = None) -> TrainerSettings:
    return TrainerSettings(dtype="float32", optimizer=name, weight_decay=0.01, lora=lora)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("lora", [None, LoRASettings(rank=4)], ids=["full", "lora"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [0, 2])
def test_what_was_saved_goes_on_bit_for_bit(
    sharp: Path,
    tmp_path: Path,
    name: OptimizerName,
    lora: LoRASettings | None,
    steps: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optimizer, "CHUNK", 1 << 14)
    first = LocalTrainer(sharp, settings(name, lora))
    for seed in range(steps):
        learn(first, seed)
    first.save(tmp_path)
    second = LocalTrainer(sharp, settings(name, lora))
    learn(second, 77)  # what it remembers of its own is gone
    second.load(tmp_path)
    assert second.publish().digest == first.publish().digest
    assert [learn(first, s) for s in (2, 3)] == [learn(second, s) for s in (2, 3)]
    kept, found = first.optimizer.state(), second.optimizer.state()
    assert kept.keys() == found.keys()
    assert all(torch.equal(found[kind], tensor) for kind, tensor in kept.items())


@pytest.mark.usefixtures("library")
def test_adamw8bit_does_not_go_on_from_what_adamw_remembers(sharp: Path, tmp_path: Path) -> None:
    first = LocalTrainer(sharp, settings("adamw"))
    learn(first, 0)
    first.save(tmp_path)
    with pytest.raises(StoreError, match="another LoRA setting or optimizer"):
        LocalTrainer(sharp, settings("adamw8bit")).load(tmp_path)


def test_a_library_that_is_missing_is_named(sharp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(EngineError, match=r'pip install "practicum\[8bit\]"'):
        LocalTrainer(sharp, settings("adamw8bit"))
