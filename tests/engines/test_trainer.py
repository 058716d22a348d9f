"""Gradients are those of the plain model, however a batch is laid out; weights survive a stop."""

import gc
import random
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from batches import LOSS, batch_of, distance
from plain_model import plain_logprobs, plain_model
from transformers import AutoModelForCausalLM

from practicum.core import EngineError, Sample, StoreError
from practicum.engines.contract import TokenLoss, Tokens
from practicum.engines.head import token_logprobs
from practicum.engines.packing import micro_batches, packed_tokens
from practicum.engines.trainer import LocalTrainer, LoRASettings, TrainerSettings, read_weights
from practicum.learn.aggregate import aggregated

FP32 = TrainerSettings(dtype="float32")
LORA = TrainerSettings(dtype="float32", lora=LoRASettings(rank=4, alpha=8.0))


def computed(
    folder: Path, batch: Sequence[Sample], settings: TrainerSettings = FP32, loss: TokenLoss = LOSS
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Metrics and gradients of one batch."""
    trainer = LocalTrainer(folder, settings)
    metrics = trainer.forward_backward(aggregated(batch), loss)
    return metrics, trainer.gradient


def expected(folder: Path, batch: Sequence[Sample]) -> tuple[float, float, dict[str, torch.Tensor]]:
    """RL loss, cross-entropy and gradients by transformers alone, one sample after another."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rl_count = sum(sum(s.rl_weight) for s in batch) or 1.0
    ce_count = sum(sum(s.ce_weight) for s in batch) or 1.0
    rl_total = ce_total = torch.zeros(())
    for one in batch:
        tokens = torch.tensor(one.tokens)
        logits = model(tokens[None]).logits[0, :-1].float() / one.temperature
        logprobs = logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
        rl, ce, advantage, old = (
            torch.tensor(stream[1:])
            for stream in (one.rl_weight, one.ce_weight, one.advantage, one.logprobs)
        )
        losses, _ = LOSS(Tokens(logprobs, old, advantage, torch.zeros(len(old)).long(), rl))
        rl_total = rl_total + (losses * rl).sum() / rl_count
        ce_total = ce_total - (logprobs * ce).sum() / ce_count
    (rl_total + ce_total).backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return float(rl_total.detach()), float(ce_total.detach()), gradients


def shuffled(batch: Sequence[Sample]) -> list[Sample]:
    return random.Random(1).sample(list(batch), len(batch))


@pytest.mark.parametrize("budget", [1, 60, 100_000])
@pytest.mark.parametrize("layout", [list, shuffled])
def test_loss_and_gradient_are_the_plain_models_whatever_the_layout(
    sharp: Path, budget: int, layout: type
) -> None:
    batch = batch_of()
    settings = TrainerSettings(dtype="float32", micro_batch_tokens=budget)
    metrics, gradients = computed(sharp, layout(batch), settings)
    rl, ce, wanted = expected(sharp, batch)
    assert metrics["loss"] == pytest.approx(rl, rel=1e-4)
    assert metrics["nll"] == pytest.approx(ce, rel=1e-4)
    assert distance(gradients, wanted) < 1e-4


def test_a_batch_in_two_halves_adds_the_gradient_of_each(sharp: Path) -> None:
    """Nothing is cleared between two calls; each is divided by its own counts."""
    batch = batch_of()
    trainer = LocalTrainer(sharp, FP32)
    for half in (batch[:5], batch[5:]):
        trainer.forward_backward(aggregated(half), LOSS)
    both = [expected(sharp, half)[2] for half in (batch[:5], batch[5:])]
    wanted = {n: both[0][n] + both[1][n] for n in both[0]}
    assert distance(trainer.gradient, wanted) < 1e-4


def test_a_repeated_sample_changes_nothing_in_a_mean(sharp: Path) -> None:
    batch = batch_of()
    assert distance(computed(sharp, [*batch, *batch])[1], computed(sharp, batch)[1]) < 1e-4


@pytest.mark.parametrize("budget", [1, 30, 60, 100_000])
def test_budgets_hold_and_every_sample_is_there_once(budget: int) -> None:
    packs = micro_batches(batch_of(), budget)
    assert sorted(s.tokens for pack in packs for s in pack) == sorted(s.tokens for s in batch_of())
    for pack in packs:
        assert packed_tokens(pack) <= budget or len(pack) == 1


def test_bf16_arithmetic_stays_near_the_fp32_gradient(sharp: Path) -> None:
    batch = batch_of()
    assert distance(computed(sharp, batch, TrainerSettings())[1], expected(sharp, batch)[2]) < 0.2


def test_cross_entropy_of_an_evaluation_is_the_plain_models(sharp: Path) -> None:
    batch = [s for s in batch_of() if any(s.ce_weight)]
    found = LocalTrainer(sharp, FP32).evaluate(batch)
    total = count = 0.0
    for one in batch:
        logprobs = plain_logprobs(sharp, one.tokens)
        for t, weight in enumerate(one.ce_weight):
            if weight:
                total -= float(logprobs[t - 1, one.tokens[t]])
                count += 1
    assert found == {"nll": pytest.approx(total / count, rel=1e-5), "tokens": count}
    with pytest.raises(EngineError, match="nothing to evaluate"):
        LocalTrainer(sharp, FP32).evaluate([s for s in batch_of() if any(s.rl_weight)])


def test_token_logprobs_and_their_gradient_match_finite_differences() -> None:
    torch.manual_seed(0)
    n, d, v = 300, 7, 11  # more rows than one chunk holds
    hidden = torch.randn(n, d, requires_grad=True)
    weight, gradient = torch.randn(v, d), torch.zeros(v, d)
    targets, temperature = torch.randint(v, (n,)), torch.rand(n) + 0.5
    upstream = torch.randn(n)

    def exact(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        logits = h @ w.T / temperature.double()[:, None]
        return logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]

    logprobs, entropy = token_logprobs(
        hidden, weight, targets, temperature, fast=False, gradient=gradient
    )
    h, w = hidden.detach().double(), weight.double()
    assert torch.allclose(logprobs.double(), exact(h, w), atol=1e-5)
    p = (h @ w.T / temperature.double()[:, None]).softmax(-1)
    assert torch.allclose(entropy.double(), -(p * p.log()).sum(-1), atol=1e-5)
    (logprobs * upstream).sum().backward()
    assert hidden.grad is not None
    eps = 1e-6
    for _ in range(10):
        dh, dw = torch.randn_like(h), torch.randn_like(w)
        high, low = exact(h + eps * dh, w + eps * dw), exact(h - eps * dh, w - eps * dw)
        slope = float(((high - low) * upstream.double()).sum()) / (2 * eps)
        said = float((hidden.grad.double() * dh).sum() + (gradient.double() * dw).sum())
        assert said == pytest.approx(slope, rel=1e-4, abs=1e-3)


def test_the_gradient_of_the_head_is_added_to_what_is_there() -> None:
    weight, gradient = torch.randn(5, 3), torch.zeros(5, 3)
    hidden, targets = torch.randn(2, 3, requires_grad=True), torch.tensor([1, 4])
    found = []
    for _ in range(2):
        logprobs, _ = token_logprobs(
            hidden, weight, targets, torch.ones(2), fast=False, gradient=gradient
        )
        logprobs.sum().backward()
        found.append(gradient.clone())
    assert torch.allclose(found[1], 2 * found[0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_dropped_and_told(sharp: Path, bad: float) -> None:
    def spoilt(tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return tokens.logprobs * bad, {}

    trainer = LocalTrainer(sharp, FP32)
    before = trainer.publish().digest
    trainer.forward_backward(aggregated(batch_of()), spoilt)
    assert trainer.step(1e-3)["skipped"] == 1.0
    assert trainer.publish().digest == before
    fresh = LocalTrainer(sharp, FP32)
    for one in (trainer, fresh):  # nothing of it is left
        one.forward_backward(aggregated(batch_of()), LOSS)
        assert one.step(1e-3)["skipped"] == 0.0
    assert trainer.publish().digest == fresh.publish().digest != before


def test_a_gradient_is_clipped_by_its_norm(sharp: Path) -> None:
    trainer = LocalTrainer(sharp, TrainerSettings(dtype="float32", max_grad_norm=1e-3))
    trainer.forward_backward(aggregated(batch_of()), LOSS)
    norm = sum(float(g.square().sum()) for g in trainer.gradient.values()) ** 0.5
    assert trainer.step(0.0)["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert not trainer.gradient


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_master_weights_move_at_rl_learning_rates(sharp: Path, tmp_path: Path, dtype: str) -> None:
    trainer = LocalTrainer(sharp, TrainerSettings(dtype=dtype))
    trainer.forward_backward(aggregated(batch_of()), LOSS)
    trainer.step(1e-6)
    trainer.export(tmp_path / "model")
    before, after = (read_weights(folder).tensors for folder in (sharp, tmp_path / "model"))
    moved = [n for n, t in after.items() if not torch.equal(t, before[n])]
    assert len(moved) > len(before) / 2
    assert all(t.dtype == torch.float32 for t in after.values())


@pytest.mark.parametrize("settings", [TrainerSettings(), FP32, LORA], ids=["bf16", "fp32", "lora"])
def test_what_was_published_never_changes(sharp: Path, settings: TrainerSettings) -> None:
    trainer = LocalTrainer(sharp, settings)
    published = trainer.publish()
    before = {n: t.clone() for n, t in published.tensors.items()}
    trainer.forward_backward(aggregated(batch_of()), LOSS)
    trainer.step(1e-2)
    now = trainer.publish()
    assert now.digest != published.digest
    assert all(torch.equal(t, before[n]) for n, t in published.tensors.items())
    assert any(not torch.equal(t, before[n]) for n, t in now.tensors.items())


def test_published_weights_are_the_masters_rounded_and_the_models_own(sharp: Path) -> None:
    trainer = LocalTrainer(sharp, TrainerSettings())
    trainer.forward_backward(aggregated(batch_of()), LOSS)
    trainer.step(1e-3)
    published = trainer.publish().tensors
    own = dict(trainer.model.named_parameters())
    for name, tensor in published.items():
        assert torch.equal(tensor, trainer.masters[name].bfloat16())
        assert tensor.data_ptr() == own[name].data_ptr()


@pytest.mark.parametrize("settings", [FP32, LORA], ids=["full", "lora"])
def test_what_was_saved_goes_on_bit_for_bit(
    sharp: Path, tmp_path: Path, settings: TrainerSettings
) -> None:
    def learn(trainer: LocalTrainer, seed: int) -> str:
        trainer.forward_backward(aggregated(batch_of(seed)), LOSS)
        trainer.step(1e-3)
        return trainer.publish().digest

    torch.manual_seed(0)
    first = LocalTrainer(sharp, settings)
    learn(first, 1)
    first.save(tmp_path)
    torch.manual_seed(99)
    second = LocalTrainer(sharp, settings)
    second.load(tmp_path)
    assert second.steps == first.steps == 1
    assert first.publish().digest == second.publish().digest
    assert [learn(first, s) for s in (2, 3)] == [learn(second, s) for s in (2, 3)]


def test_a_checkpoint_of_another_setting_is_refused(sharp: Path, tmp_path: Path) -> None:
    LocalTrainer(sharp, FP32).save(tmp_path)
    with pytest.raises(StoreError, match="another LoRA setting"):
        LocalTrainer(sharp, LORA).load(tmp_path)


@pytest.mark.parametrize(
    "settings", [TrainerSettings(), FP32, LORA, TrainerSettings(lora=LoRASettings())]
)
def test_before_the_first_step_the_digest_is_that_of_the_folder(
    sharp: Path, settings: TrainerSettings
) -> None:
    assert LocalTrainer(sharp, settings).publish().digest == read_weights(sharp).digest


def test_lora_trains_adapters_only_and_publishes_them_merged(sharp: Path, tmp_path: Path) -> None:
    trainer = LocalTrainer(sharp, LORA)
    base = read_weights(sharp)
    assert all("lora_" in name for name in trainer.shapes)
    frozen = {n: p.clone() for n, p in trainer.model.named_parameters() if "lora_" not in n}
    for seed in range(3):
        trainer.forward_backward(aggregated(batch_of(seed)), LOSS)
        trainer.step(1e-2)
    now = dict(trainer.model.named_parameters())
    assert all(torch.equal(now[name], kept) for name, kept in frozen.items())
    merged = trainer.publish()
    assert merged.tensors.keys() == base.tensors.keys()
    changed = {n for n, t in merged.tensors.items() if not torch.equal(t, base.tensors[n])}
    assert changed
    assert all("proj" in name for name in changed)
    trainer.export(tmp_path / "model")
    assert read_weights(tmp_path / "model").digest == merged.digest
    # the adapted model itself, through its own loss, says what the exported folder says
    (one,) = [s for s in batch_of() if s.tokens[0] == 8]
    nll = trainer.evaluate([one])["nll"]
    logprobs = plain_logprobs(tmp_path / "model", one.tokens)
    own = [t for t, weight in enumerate(one.ce_weight) if weight]
    plain = -sum(float(logprobs[t - 1, one.tokens[t]]) for t in own) / len(own)
    assert nll == pytest.approx(plain, rel=1e-4)
    assert nll != pytest.approx(LocalTrainer(sharp, FP32).evaluate([one])["nll"], rel=1e-3)


@pytest.mark.parametrize(
    ("targets", "said"), [(["lm_head"], "head cannot have"), (["nowhere"], "cannot add LoRA")]
)
def test_adapters_that_cannot_be_are_refused(sharp: Path, targets: list[str], said: str) -> None:
    with pytest.raises(EngineError, match=said):
        LocalTrainer(sharp, TrainerSettings(lora=LoRASettings(targets=targets)))


def test_a_trainer_that_is_done_with_leaves_the_memory(sharp: Path) -> None:
    trainer = LocalTrainer(sharp, TrainerSettings())
    trainer.forward_backward(aggregated(batch_of()), LOSS)
    trainer.step(1e-3)
    left = weakref.ref(trainer.block)
    del trainer
    gc.collect()
    assert left() is None


def test_a_step_without_a_gradient_is_refused(sharp: Path) -> None:
    with pytest.raises(EngineError, match="call forward_backward first"):
        LocalTrainer(sharp, FP32).step(1e-3)


def test_an_export_is_a_folder_that_transformers_loads(sharp: Path, tmp_path: Path) -> None:
    trainer = LocalTrainer(sharp, FP32)
    trainer.forward_backward(aggregated(batch_of()), LOSS)
    trainer.step(1e-2)
    trainer.export(tmp_path / "model")
    state = dict(plain_model(tmp_path / "model").named_parameters())
    published = trainer.publish().tensors
    assert state.keys() == published.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in published.items())


def test_a_model_that_is_computed_differently_is_refused(sharp: Path, tmp_path: Path) -> None:
    import json
    import shutil

    shutil.copytree(sharp, tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    (tmp_path / "model/config.json").write_text(
        json.dumps(config | {"attn_logit_softcapping": 30.0})
    )
    with pytest.raises(EngineError, match="attn_logit_softcapping"):
        LocalTrainer(tmp_path / "model", FP32)
    with pytest.raises(EngineError, match="cannot load the model"):
        LocalTrainer(tmp_path, FP32)
