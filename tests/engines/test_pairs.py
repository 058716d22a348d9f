"""Pairs through the trainer: the gradient is that of the plain model, however they are laid out."""

import random
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM

from practicum.core import Sample
from practicum.engines.packing import micro_batches
from practicum.engines.trainer import LocalTrainer, TrainerSettings
from practicum.learn.aggregate import aggregated
from practicum.learn.losses import dpo, ipo, paired


def pairs(seed: int = 0, count: int = 4) -> list[Sample]:
    """Chosen and rejected of different lengths after a shared prompt, observations within."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        prompt = tuple(rng.randrange(3, 512) for _ in range(rng.randint(2, 9)))
        for sign in (1.0, -1.0):
            parts = [
                (0.0, len(prompt)),
                (1.0, rng.randint(1, 9)),
                (0.0, 2),
                (1.0, rng.randint(1, 4)),
            ]
            own = tuple(mine for mine, size in parts for _ in range(size))
            rest = tuple(rng.randrange(3, 512) for _ in own[len(prompt) :])
            made.append(
                Sample(
                    tokens=prompt + rest,
                    rl_weight=own,
                    ce_weight=(0.0,) * len(own),
                    advantage=tuple(sign * x for x in own),
                    logprobs=(0.0,) * len(own),
                    group=str(number),
                    unit=str(number),
                )
            )
    return made


def logprobs(model: torch.nn.Module, sample: Sample) -> torch.Tensor:
    """The sum over the tokens that carry weight, by transformers alone."""
    tokens = torch.tensor(sample.tokens)
    found = model(tokens[None]).logits[0, :-1].float().log_softmax(-1)
    return (found.gather(1, tokens[1:, None])[:, 0] * torch.tensor(sample.rl_weight[1:])).sum()


@pytest.mark.parametrize("budget", [1, 40, 100_000])
@pytest.mark.parametrize("kind", ["dpo", "ipo"])
def test_the_gradient_of_pairs_is_the_plain_models(sharp: Path, budget: int, kind: str) -> None:
    batch = pairs()
    settings = TrainerSettings(dtype="float32", micro_batch_tokens=budget)
    trainer = LocalTrainer(sharp, settings)
    scored = trainer.score(batch)
    moved = [  # as if the policy had gone away from its reference
        msgspec.structs.replace(
            s, reference=tuple(r - 0.1 * (t % 3) for t, r in enumerate(s.reference))
        )
        for s in scored
    ]
    loss = {"dpo": dpo, "ipo": ipo}[kind]
    random.Random(2).shuffle(moved)
    metrics = trainer.forward_backward(aggregated(moved, "prompt-mean"), paired(loss, beta=0.3))

    model = AutoModelForCausalLM.from_pretrained(sharp, dtype=torch.float32)
    total, better = torch.zeros(()), 0
    by_unit = {(s.unit, s.advantage[-1] > 0): s for s in moved}
    for number in range(4):
        two = [by_unit[str(number), good] for good in (True, False)]
        sums = [logprobs(model, s) for s in two]
        references = [
            torch.tensor(sum(r for r, w in zip(s.reference, s.rl_weight, strict=True) if w))
            for s in two
        ]
        total = total + loss(*sums, *references, beta=0.3) / 4
        better += bool((sums[0] - references[0]) > (sums[1] - references[1]))
    total.backward()
    assert metrics["loss"] == pytest.approx(float(total.detach()), rel=1e-4)
    assert metrics["accuracy"] == pytest.approx(better / 4)
    off = size = 0.0
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        off += float((trainer.gradient[name] - parameter.grad).double().square().sum())
        size += float(parameter.grad.double().square().sum())
    assert (off / size) ** 0.5 < 1e-4


def test_scores_are_the_plain_models(sharp: Path) -> None:
    batch = pairs(1)
    model = AutoModelForCausalLM.from_pretrained(sharp, dtype=torch.float32)
    for sample in LocalTrainer(sharp, TrainerSettings(dtype="float32")).score(batch):
        own = sum(r for r, w in zip(sample.reference, sample.rl_weight, strict=True) if w)
        assert own == pytest.approx(float(logprobs(model, sample).detach()), rel=1e-4)
        assert all(not r for r, w in zip(sample.reference, sample.rl_weight, strict=True) if not w)


def test_a_policy_at_its_reference_has_the_loss_of_a_coin(sharp: Path) -> None:
    trainer = LocalTrainer(sharp, TrainerSettings())
    batch = aggregated(trainer.score(pairs()), "prompt-mean")
    metrics = trainer.forward_backward(batch, paired(dpo, beta=0.1))
    assert metrics["loss"] == pytest.approx(0.6931, abs=1e-3)


@pytest.mark.parametrize("budget", [1, 100])
def test_a_unit_is_never_parted(budget: int) -> None:
    stranger = msgspec.structs.replace(pairs(5)[0], unit="0")  # begins in another way
    packs = micro_batches([*pairs(), stranger], budget)
    found = [unit for pack in packs for unit in {s.unit for s in pack}]
    assert sorted(found) == ["0", "1", "2", "3"]
    if budget == 1:
        assert sorted(len(pack) for pack in packs) == [2, 2, 2, 3]
