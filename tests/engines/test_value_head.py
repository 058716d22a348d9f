"""The value head: values and gradients are the plain model's, whatever the layout; it is kept."""

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from practicum.core import EngineError, Sample, StoreError
from practicum.engines.contract import TokenLoss, Tokens
from practicum.engines.sampler import LocalSampler
from practicum.engines.trainer import LocalTrainer, LoRASettings, TrainerSettings, read_weights
from practicum.engines.value_head import VALUE_HEAD, token_values, write_value_head
from practicum.learn.aggregate import aggregated
from practicum.learn.losses import clip, dpo, paired, penalised, scored, single, with_values

FP32 = TrainerSettings(dtype="float32")
LORA = TrainerSettings(dtype="float32", lora=LoRASettings(rank=4, alpha=8))
LOSSES: dict[str, tuple[TokenLoss, str]] = {
    "critic": (with_values(clip(), 0.5, clip=0.2), "token-mean"),
    "critic and reference": (with_values(penalised(clip(), 0.3), 0.5), "sequence-mean"),
    "scores": (scored(), "prompt-mean"),
    "pairs": (paired(dpo, beta=0.3), "prompt-mean"),
    "answers": (single(0.05, beta=0.3, weight_bad=0.5), "prompt-mean"),
}


@pytest.fixture
def folder(sharp: Path, tmp_path: Path) -> Path:
    """A model folder with a value head that has opinions."""
    made = tmp_path / "model"
    made.mkdir()
    for path in sharp.iterdir():
        (made / path.name).symlink_to(path)
    torch.manual_seed(7)
    write_value_head(made, torch.randn(1, 64) / 10)
    return made


def batch_of(seed: int = 0, pairs: int = 3) -> list[Sample]:
    """Pairs of good and bad samples after long shared prompts, with all streams there are."""
    rng = random.Random(seed)
    made = []
    for number in range(pairs):
        prompt = tuple(rng.randrange(3, 512) for _ in range(rng.randint(2, 40)))
        for sign in (1.0, -1.0):
            own = (0.0,) * len(prompt) + (1.0,) * rng.randint(1, 7) + (0.0,) * 3 + (1.0,) * 2
            rest = tuple(rng.randrange(3, 512) for _ in own[len(prompt) :])

            def stream(low: float, high: float, own: tuple[float, ...] = own) -> tuple[float, ...]:
                return tuple(w * rng.uniform(low, high) for w in own)

            made.append(
                Sample(
                    tokens=prompt + rest,
                    rl_weight=own,
                    ce_weight=(0.0,) * len(own),
                    advantage=tuple(sign * w for w in own),
                    logprobs=stream(-7, -5),
                    reference=stream(-7, -5),
                    values=stream(-1, 1),
                    returns=stream(-1, 1),
                    group=str(number),
                    unit=str(number),
                )
            )
    return made


def forward(model: torch.nn.Module, head: torch.Tensor, batch: Sequence[Sample]) -> Tokens:
    """What a loss is told, by transformers alone, one sample after another."""
    logprobs, values = [], []
    columns: list[list[float]] = [[] for _ in range(8)]
    for number, one in enumerate(batch):
        tokens = torch.tensor(one.tokens)
        out = model(tokens[None], output_hidden_states=True)
        weighted = [t for t, w in enumerate(one.rl_weight) if w]
        before = torch.tensor(weighted) - 1
        said = (out.logits[0].float() / one.temperature).log_softmax(-1)
        logprobs.append(said[before].gather(1, tokens[weighted][:, None])[:, 0])
        values.append(out.hidden_states[-1][0, before].float() @ head[0])
        streams = (
            *(one.logprobs, one.advantage, [number] * len(one.tokens), one.rl_weight),
            *(one.reference, [int(one.unit)] * len(one.tokens), one.values, one.returns),
        )
        for column, stream in zip(columns, streams, strict=True):
            column += [stream[t] for t in weighted]
    sampler, advantage, sequence, weight, reference, unit, old, returns = map(torch.tensor, columns)
    return Tokens(
        *(torch.cat(logprobs), sampler, advantage, sequence, weight, reference, unit),
        *(torch.cat(values), old, returns),
    )


@pytest.mark.parametrize("budget", [1, 80, 100_000])
@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient_are_the_plain_models_whatever_the_layout(
    folder: Path, name: str, budget: int
) -> None:
    loss, how = LOSSES[name]
    batch = aggregated(batch_of(), how)  # type: ignore[arg-type]
    settings = TrainerSettings(dtype="float32", micro_batch_tokens=budget)
    trainer = LocalTrainer(folder, settings, value_head=True)
    mixed = random.Random(budget).sample(batch, len(batch))
    metrics = trainer.forward_backward(mixed, loss)

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert trainer.value_head is not None
    head = trainer.value_head.clone().requires_grad_()
    tokens = forward(model, head, batch)
    losses, seen = loss(tokens)
    total = (losses * tokens.weight).sum()
    total.backward()
    assert metrics["loss"] == pytest.approx(float(total.detach() / tokens.weight.sum()), rel=1e-4)
    for key, values in seen.items():
        mean = float((values.detach() * tokens.weight).sum() / tokens.weight.sum())
        assert metrics[key] == pytest.approx(mean, rel=1e-3, abs=1e-5)
    wanted = {n: p.grad for n, p in model.named_parameters()} | {VALUE_HEAD: head.grad}
    off = size = 0.0
    for key, gradient in trainer.gradient.items():
        expected = wanted[key]
        there = torch.zeros_like(gradient) if expected is None else expected
        off += float((gradient - there).double().square().sum())
        size += float(there.double().square().sum())
    assert size > 0
    assert (off / size) ** 0.5 < 1e-4
    assert bool(trainer.gradient[VALUE_HEAD].any()) == ("critic" in name or name == "scores")


def test_values_are_the_plain_models(folder: Path) -> None:
    batch = batch_of(1)
    trainer = LocalTrainer(folder, FP32, value_head=True)
    assert trainer.value_head is not None
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        wanted = forward(model, trainer.value_head, batch).value.tolist()
    for budget in (1, 60, 100_000):
        settings = TrainerSettings(dtype="float32", micro_batch_tokens=budget)
        valued = LocalTrainer(folder, settings, value_head=True).values(batch)
        found = [v for s in valued for v, w in zip(s.values, s.rl_weight, strict=True) if w]
        assert found == pytest.approx(wanted, rel=1e-4, abs=1e-4)
        assert all(
            not v for s in valued for v, w in zip(s.values, s.rl_weight, strict=True) if not w
        )


def test_token_values_match_finite_differences() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(5, 3, requires_grad=True), torch.randn(1, 3)
    upstream, gradient = torch.randn(5), torch.ones(1, 3)
    values = token_values(hidden, weight, gradient=gradient)
    assert torch.allclose(values, hidden @ weight[0])
    (values * upstream).sum().backward()
    assert hidden.grad is not None
    assert torch.allclose(hidden.grad, upstream[:, None] * weight)
    assert torch.allclose(gradient, 1 + (upstream[:, None] * hidden.detach()).sum(0))


def test_a_new_head_says_nothing_and_a_step_teaches_it(sharp: Path) -> None:
    trainer = LocalTrainer(sharp, FP32, value_head=True)
    assert all(not any(s.values) for s in trainer.values(batch_of()))
    loss = with_values(clip(), 0.5)
    errors = []
    for _ in range(30):
        errors.append(trainer.forward_backward(aggregated(batch_of()), loss)["value_loss"])
        trainer.step(3e-3)
    assert errors[-1] < 0.5 * errors[0]


def test_a_head_has_its_own_rate_and_its_own_bound(folder: Path) -> None:
    def moved(**options: float) -> tuple[torch.Tensor, dict[str, torch.Tensor], float]:
        bound = TrainerSettings(dtype="float32", max_grad_norm=0.5, eps=1e-3)
        trainer = LocalTrainer(folder, bound, value_head=True, **options)  # type: ignore[arg-type]
        assert trainer.value_head is not None
        before = trainer.value_head.clone()
        trainer.forward_backward(aggregated(batch_of()), with_values(clip(), 50.0))
        policy = [g for name, g in trainer.gradient.items() if name != VALUE_HEAD]
        wanted = sum(float(g.square().sum()) for g in policy) ** 0.5
        norm = trainer.step(1e-3)["grad_norm"]
        assert norm == pytest.approx(wanted, rel=1e-4)
        assert norm > 0.5
        return trainer.value_head - before, trainer.publish().tensors, norm

    plain, quick = moved(), moved(head_rate=20.0)
    assert torch.allclose(quick[0], 20 * plain[0], rtol=1e-3, atol=1e-6)
    assert plain[0].any()
    assert all(torch.equal(t, quick[1][name]) for name, t in plain[1].items())


def test_a_heads_gradient_that_is_no_number_drops_the_step(folder: Path) -> None:
    trainer = LocalTrainer(folder, FP32, value_head=True)
    trainer.forward_backward(aggregated(batch_of()), with_values(clip(), 0.5))
    trainer.gradient[VALUE_HEAD].fill_(float("nan"))
    assert trainer.step(1e-3)["skipped"] == 1.0


@pytest.mark.parametrize("settings", [FP32, TrainerSettings(), LORA], ids=["fp32", "bf16", "lora"])
def test_a_head_is_no_part_of_the_policy(folder: Path, settings: TrainerSettings) -> None:
    trainer = LocalTrainer(folder, settings, value_head=True)
    published = trainer.publish()
    assert published.digest == read_weights(folder).digest
    assert VALUE_HEAD not in published.tensors
    sampler = LocalSampler(folder, stop_ids=[2], dtype="float32")
    sampler.load(published)
    trainer.forward_backward(aggregated(batch_of()), with_values(clip(), 0.5))
    trainer.step(1e-2)
    assert VALUE_HEAD not in trainer.publish().tensors


@pytest.mark.parametrize("settings", [FP32, LORA], ids=["full", "lora"])
def test_a_head_goes_on_from_a_checkpoint_and_with_its_folder(
    folder: Path, tmp_path: Path, settings: TrainerSettings
) -> None:
    def learn(trainer: LocalTrainer) -> tuple[str, list[float]]:
        trainer.forward_backward(aggregated(batch_of()), with_values(clip(), 0.5))
        trainer.step(1e-3)
        assert trainer.value_head is not None
        return trainer.publish().digest, trainer.value_head.flatten().tolist()

    first = LocalTrainer(folder, settings, value_head=True)
    learn(first)
    (tmp_path / "saved").mkdir()
    first.save(tmp_path / "saved")
    second = LocalTrainer(folder, settings, value_head=True)
    second.load(tmp_path / "saved")
    assert learn(first) == learn(second)
    first.export(tmp_path / "exported")
    third = LocalTrainer(tmp_path / "exported", FP32, value_head=True)
    assert third.publish().digest == first.publish().digest
    assert first.value_head is not None
    assert third.value_head is not None
    assert torch.equal(first.value_head, third.value_head)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    assert VALUE_HEAD not in dict(plain.named_parameters())


def test_without_a_head_there_are_no_values(folder: Path, tmp_path: Path) -> None:
    plain = LocalTrainer(folder, FP32)
    with pytest.raises(EngineError, match="no value head"):
        plain.values(batch_of())
    with pytest.raises(ValueError, match="value head"):
        plain.forward_backward(aggregated(batch_of()), scored())
    plain.export(tmp_path / "exported")
    assert not (tmp_path / "exported" / "value_head.safetensors").exists()
    (tmp_path / "saved").mkdir()
    plain.save(tmp_path / "saved")
    with pytest.raises(StoreError, match="another model"):
        LocalTrainer(folder, FP32, value_head=True).load(tmp_path / "saved")


def test_a_head_of_another_model_is_refused(folder: Path) -> None:
    save_file({VALUE_HEAD: torch.zeros(1, 5)}, folder / "value_head.safetensors")
    with pytest.raises(EngineError, match="not the value head of this model"):
        LocalTrainer(folder, FP32, value_head=True)


def test_streams_of_other_lengths_are_refused() -> None:
    (one, *_) = batch_of()
    for name in ("values", "returns", "reference"):
        with pytest.raises(ValueError, match="different lengths"):
            msgspec.structs.replace(one, **{name: (0.0,)})


def test_kto_takes_the_baseline_as_it_is_whatever_the_layout(folder: Path) -> None:
    """z belongs to the whole batch; a micro-batch that made its own would give another loss."""
    batch = aggregated(batch_of(), "prompt-mean")
    found = []
    for budget in (1, 100_000):
        settings = TrainerSettings(dtype="float32", micro_batch_tokens=budget)
        trainer = LocalTrainer(folder, settings)
        found.append([trainer.forward_backward(batch, single(z, beta=0.3)) for z in (0.0, 2.0)])
    assert found[0][0]["loss"] == pytest.approx(found[1][0]["loss"], rel=1e-5)
    assert found[0][1]["loss"] == pytest.approx(found[1][1]["loss"], rel=1e-5)
    assert found[0][0]["loss"] != pytest.approx(found[0][1]["loss"], rel=1e-3)
