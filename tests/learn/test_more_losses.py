"""Losses on single answers, on scores, of values, and against a reference: by hand, by finite
differences, and by what they must not depend on."""

import math

import pytest
import torch

from practicum.engines.contract import TokenLoss, Tokens
from practicum.learn import losses

LOSSES: dict[str, TokenLoss] = {
    "kto": losses.single(0.3, beta=0.7, weight_good=1.5, weight_bad=0.5),
    "dpo": losses.paired(losses.dpo, beta=0.3),
    "scores": losses.scored(),
    "values": losses.with_values(losses.clip(), 0.5),
    "clipped values": losses.with_values(losses.clip(), 0.5, clip=0.2),
    "k2": losses.penalised(losses.clip(), 0.5, "k2"),
    "k3": losses.penalised(losses.clip(), 0.5, "k3"),
    "k3+": losses.penalised(losses.clip(), 0.5, "k3+"),
    "all": losses.with_values(losses.penalised(losses.gspo(0.1, 0.1), 0.1), 0.5, clip=0.2),
}


def random_tokens(count: int = 48, seed: int = 5) -> Tokens:
    """Tokens of eight sequences in four units, one sequence of each good and one bad."""
    torch.manual_seed(seed)

    def numbers(scale: float) -> torch.Tensor:
        return scale * torch.randn(count, dtype=torch.float64)

    sequence = torch.arange(count) % 8
    mu = -3 * torch.rand(count, dtype=torch.float64) - 0.5
    value = numbers(1.0)
    return Tokens(
        logprobs=(mu + numbers(0.02)).requires_grad_(),
        sampler=mu,
        advantage=torch.where(sequence % 2 == 0, 1.0, -1.0).double(),
        sequence=sequence,
        weight=torch.ones(count, dtype=torch.float64),
        reference=mu + numbers(0.3),
        unit=sequence // 2,
        value=value.clone().requires_grad_(),
        old_value=value + numbers(0.3),
        returns=numbers(1.0),
    )


def moved(given: Tokens, logprobs: torch.Tensor, value: torch.Tensor) -> Tokens:
    return given._replace(logprobs=logprobs, value=value)


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in ("k3+", "all")])
def test_the_gradient_is_that_of_the_value(name: str) -> None:
    given = random_tokens()
    assert torch.autograd.gradcheck(
        lambda x, v: LOSSES[name](moved(given, x, v))[0],
        (given.logprobs, given.value),
        eps=1e-6,
        atol=1e-6,
    )


def test_k3_with_the_gradient_of_k2_is_so_inside_a_loss() -> None:
    """Its value is not what its gradient belongs to, so finite differences are of two losses."""
    given = random_tokens()

    def of(name: str) -> tuple[torch.Tensor, torch.Tensor]:
        values, _ = LOSSES[name](given)
        return values, torch.autograd.grad(values.sum(), given.logprobs)[0]

    assert torch.allclose(of("k3+")[0], of("k3")[0])
    assert torch.allclose(of("k3+")[1], of("k2")[1])
    assert not torch.allclose(of("k3")[1], of("k2")[1])


@pytest.mark.parametrize("name", LOSSES)
def test_order_and_company_change_nothing(name: str) -> None:
    """Invariant 6: a unit has the same loss alone, among others, and in any order."""
    loss, given = LOSSES[name], random_tokens()
    whole, metrics = loss(given)
    order = torch.randperm(len(whole))
    mixed, again = loss(Tokens(*(t[order] for t in given)))
    assert torch.allclose(mixed, whole[order], atol=1e-12)
    assert all(torch.allclose(again[n], metrics[n][order], atol=1e-12) for n in metrics)
    for number in range(4):
        mine = given.unit == number
        alone = Tokens(*(t[mine] for t in given))
        alone = alone._replace(sequence=alone.sequence % 2, unit=torch.zeros_like(alone.unit))
        assert torch.allclose(loss(alone)[0], whole[mine], atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_no_tokens_are_no_error(name: str) -> None:
    nothing = torch.zeros(0, requires_grad=True)
    none = torch.zeros(0).long()
    given = Tokens(
        nothing, nothing, nothing, none, nothing, nothing, none, nothing, nothing, nothing
    )
    assert LOSSES[name](given)[0].shape == (0,)


@pytest.mark.parametrize("name", LOSSES)
def test_wild_numbers_stay_finite(name: str) -> None:
    given = random_tokens(8)
    wild = given._replace(
        logprobs=torch.where(given.advantage > 0, -1000.0, -1e-9).double().requires_grad_(),
        reference=torch.where(given.advantage > 0, -1e-9, -1000.0).double(),
    )
    values, metrics = LOSSES[name](wild)
    (gradient,) = torch.autograd.grad(values.sum() + 0 * wild.logprobs.sum(), wild.logprobs)
    for found in (values, gradient, *metrics.values()):
        assert torch.isfinite(found).all()


@pytest.mark.parametrize(
    ("name", "field", "said"),
    [
        ("kto", "reference", "no log-probabilities of a reference"),
        ("dpo", "reference", "no log-probabilities of a reference"),
        ("k2", "reference", "no log-probabilities of a reference"),
        ("scores", "value", "value head"),
        ("values", "value", "value head"),
        ("values", "returns", "returns"),
        ("clipped values", "old_value", "cannot be clipped"),
    ],
)
def test_what_is_missing_is_named(name: str, field: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LOSSES[name](random_tokens()._replace(**{field: None}))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_kto_over_sequences_by_hand() -> None:
    """A good answer of two tokens and a bad one of one; z = 0.5."""
    given = random_tokens(3)._replace(
        logprobs=torch.tensor([-1.0, -2.0, -4.0], dtype=torch.float64, requires_grad=True),
        reference=torch.tensor([-2.0, -2.5, -3.0], dtype=torch.float64),
        advantage=torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64),
        sequence=torch.tensor([0, 0, 1]),
    )
    values, metrics = losses.single(0.5, beta=0.2, weight_good=2.0)(given)
    good, bad = 0.2 * (1.5 - 0.5), 0.2 * (-1.0 - 0.5)  # beta (log-ratio - z)
    wanted_good, wanted_bad = 2 * (1 - sigmoid(good)), 1 - sigmoid(-bad)
    assert values.tolist() == pytest.approx([wanted_good, wanted_good, wanted_bad])
    assert metrics["margin"].tolist() == pytest.approx([1.0, 1.0, 1.5])
    assert metrics["accuracy"].tolist() == [1.0, 1.0, 1.0]
    # each of the good answer's tokens bears the loss of both: half of it with weights by prompt
    (slope,) = torch.autograd.grad(values.sum(), given.logprobs)
    up = -0.2 * 2 * sigmoid(good) * (1 - sigmoid(good))
    down = 0.2 * sigmoid(-bad) * (1 - sigmoid(-bad))
    assert slope.tolist() == pytest.approx([2 * up, 2 * up, down])
    below, _ = losses.single(-3.0, beta=0.2)(given)
    at_zero, _ = losses.single(0.0, beta=0.2)(given)
    assert below.tolist() == at_zero.tolist()


def test_scores_of_a_pair_by_hand() -> None:
    given = random_tokens(2)._replace(
        value=torch.tensor([0.5, -1.5], dtype=torch.float64, requires_grad=True),
        advantage=torch.tensor([1.0, -1.0], dtype=torch.float64),
        unit=torch.zeros(2).long(),
    )
    values, metrics = losses.scored()(given)
    assert values.tolist() == pytest.approx([math.log(1 + math.exp(-2.0))] * 2)
    assert metrics["margin"].tolist() == [2.0, 2.0]
    (slope,) = torch.autograd.grad(values.sum() / 2, given.value)
    assert slope.tolist() == pytest.approx([sigmoid(2.0) - 1, 1 - sigmoid(2.0)])


@pytest.mark.parametrize(
    ("value", "old", "clip", "loss", "slope"),
    [
        (0.5, None, None, 0.125, -0.5),  # R = 1
        (0.5, 0.4, 0.2, 0.125, -0.5),  # within reach of the old value
        (0.9, 0.4, 0.2, 0.08, 0.0),  # further than it may go: that of 0.6, and enough
        (0.1, 0.4, 0.2, 0.405, -0.9),  # gone the wrong way: back
        (1.5, 0.4, 0.2, 0.125, 0.5),  # gone past R: back, although it is far from the old value
    ],
)
def test_value_loss_by_hand(
    value: float, old: float | None, clip: float | None, loss: float, slope: float
) -> None:
    v = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    before = None if old is None else torch.tensor([old], dtype=torch.float64)
    found = losses.squared(v, torch.ones(1, dtype=torch.float64), before, clip)
    assert found.item() == pytest.approx(loss)
    assert torch.autograd.grad(found.sum(), v)[0].item() == pytest.approx(slope)


def test_the_value_loss_is_beside_the_policy_loss() -> None:
    given = random_tokens()
    plain, _ = losses.clip()(given)
    both, metrics = losses.with_values(losses.clip(), 0.25)(given)
    assert torch.allclose(both - plain, 0.25 * (given.value - given.returns).square() / 2)
    assert torch.equal(metrics["value"], given.value.detach())
    assert "ratio" in metrics
