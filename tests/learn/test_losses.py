"""Every loss by hand, by finite differences, and by what it must not depend on."""

import math
from collections.abc import Callable

import pytest
import torch

from practicum.engines.contract import TokenLoss, Tokens
from practicum.learn import losses
from practicum.learn.losses.ratio import LOG_RATIO_LIMIT

LOSSES: dict[str, TokenLoss] = {
    "clip": losses.clip(0.2, 0.28),
    "dual clip": losses.clip(0.2, 0.2, dual=3.0),
    "gspo": losses.gspo(0.1, 0.2),
    "gspo by token": losses.gspo(0.1, 0.2, by_token=True),
    "cispo": losses.cispo(),
    "dppo": losses.dppo(),
    "sapo": losses.sapo(),
    "importance": losses.importance(),
}
CORRECTIONS = {
    "truncated": losses.truncated(),
    "truncated sequence": losses.truncated_sequence(),
    "icepop": losses.icepop(),
    "geometric mask": losses.geometric_mask(0.9, 1.1),
    "veto": losses.veto(0.5),
}


def tokens(
    ratios: list[float],
    advantages: list[float],
    *,
    sampler: float = -1.5,
    sequence: list[int] | None = None,
    weight: list[float] | None = None,
) -> Tokens:
    """Tokens with given ratios of policy to sampler, in one sequence unless said otherwise."""
    mu = torch.full((len(ratios),), sampler, dtype=torch.float64)
    logprobs = (mu + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    return Tokens(
        logprobs,
        mu,
        torch.tensor(advantages, dtype=torch.float64),
        torch.tensor(sequence or [0] * len(ratios)),
        torch.tensor(weight or [1.0] * len(ratios), dtype=torch.float64),
    )


def found(
    loss: TokenLoss, given: Tokens
) -> tuple[list[float], list[float], dict[str, list[float]]]:
    """Losses, the gradient of their sum by the log-probabilities, and metrics."""
    values, metrics = loss(given)
    (gradient,) = torch.autograd.grad(values.sum(), given.logprobs)
    return values.tolist(), gradient.tolist(), {n: m.tolist() for n, m in metrics.items()}


@pytest.mark.parametrize(
    ("name", "ratio", "advantage", "loss", "gradient"),
    [
        ("clip", 1.0, 2.0, -2.0, -2.0),  # on policy: plain policy gradient
        ("clip", 1.0, -2.0, 2.0, 2.0),
        ("clip", 1.1, 2.0, -2.2, -2.2),  # within the bounds
        ("clip", 0.9, -2.0, 1.8, 1.8),
        ("clip", 1.5, 2.0, -2.56, 0.0),  # good and already likelier: no more of it
        ("clip", 0.5, 2.0, -1.0, -1.0),  # good and too unlikely: back to it
        ("clip", 1.5, -2.0, 3.0, 3.0),  # bad and likelier: away from it
        ("clip", 0.5, -2.0, 1.6, 0.0),  # bad and already unlikely: enough
        ("dual clip", 2.5, -2.0, 5.0, 5.0),
        ("dual clip", 4.0, -2.0, 6.0, 0.0),  # at most 3 |A|
        ("dual clip", 4.0, 2.0, -2.4, 0.0),  # only bad tokens
        ("cispo", 1.0, 2.0, 3.0, -2.0),  # -1 * 2 * log pi, log pi = -1.5
        ("cispo", 3.0, 2.0, -6.0 * (math.log(3) - 1.5), -6.0),
        ("cispo", 7.0, 2.0, -10.0 * (math.log(7) - 1.5), -10.0),  # the cap is on r: 5
        ("cispo", 0.01, -2.0, 0.02 * (math.log(0.01) - 1.5), 0.02),  # and none below
        ("dppo", 1.0, 2.0, 3.0, -2.0),
        ("dppo", 1.8, 2.0, -3.6 * (math.log(1.8) - 1.5), -3.6),  # p - mu = 0.178
        ("dppo", 2.0, 2.0, -4.0 * (math.log(2.0) - 1.5), 0.0),  # 0.223: outside
        ("dppo", 2.0, -2.0, 4.0 * (math.log(2.0) - 1.5), 4.0),  # but against its direction
        ("dppo", 0.05, -2.0, 0.1 * (math.log(0.05) - 1.5), 0.0),  # mu - p = 0.212
        ("sapo", 1.0, 2.0, -4.0, -2.0),  # 4/1 * 0.5 * 2, and slope r A
        ("sapo", 1.0, -2.0, 4 / 1.05, 2.0),
        ("importance", 1.5, 2.0, -3.0, -3.0),
        ("importance", 1.5, -2.0, 3.0, 3.0),
    ],
)
def test_by_hand(name: str, ratio: float, advantage: float, loss: float, gradient: float) -> None:
    values, slopes, metrics = found(LOSSES[name], tokens([ratio], [advantage]))
    assert values == pytest.approx([loss])
    assert slopes == pytest.approx([gradient])
    assert metrics["ratio"] == pytest.approx([ratio])
    assert metrics["clipped"] == [float(gradient == 0)]
    assert metrics["kl"] == pytest.approx([ratio - 1 - math.log(ratio)])


def test_gspo_by_hand() -> None:
    """s is the geometric mean of a sequence: 2 tokens of ratio 1.21 and 1 make 1.1."""
    given = tokens([1.21, 1.0, 1.44], [2.0, 2.0, -1.0], sequence=[0, 0, 1])
    loss = losses.gspo(0.05, 0.2)
    values, slopes, metrics = found(loss, given)
    assert values == pytest.approx([-2.2, -2.2, 1.44])
    # each loss depends on both tokens by s / 2: two losses of slope -2.2 / 2 for each token
    assert slopes == pytest.approx([-2.2, -2.2, 1.44])
    assert metrics["clipped"] == [0, 0, 0]
    values, slopes, _ = found(losses.gspo(0.05, 0.05), given)
    assert values == pytest.approx([-2.1, -2.1, 1.44])
    assert slopes == pytest.approx([0, 0, 1.44])
    by_token, slopes, _ = found(losses.gspo(0.05, 0.2, by_token=True), given)
    assert by_token == pytest.approx([-2.2, -2.2, 1.44])
    assert slopes == pytest.approx([-2.2, -2.2, 1.44])


def test_gspo_counts_the_tokens_that_rl_trains_only() -> None:
    given = tokens([1.1, 9.0, 1.1], [1.0, 0.0, 1.0], weight=[1.0, 0.0, 1.0])
    values, _, _ = found(losses.gspo(0.2, 0.2), given)
    assert [values[0], values[2]] == pytest.approx([-1.1, -1.1])


def test_gspos_bounds_are_those_of_the_paper() -> None:
    _, slopes, _ = found(losses.gspo(), tokens([1.00039, 1.00041], [1.0, 1.0], sequence=[0, 1]))
    assert slopes == pytest.approx([-1.00039, 0.0])


def random_tokens(count: int = 60, seed: int = 3) -> Tokens:
    """Tokens of four sequences, away from the places where a loss has a kink."""
    torch.manual_seed(seed)
    sequence = torch.arange(count) % 4
    mu = -4 * torch.rand(count, dtype=torch.float64) - 0.3
    log = torch.randn(count, dtype=torch.float64) / 3
    for kink in (0.8, 1.2, 1.28, 3.0, 5.0):
        log[(log - math.log(kink)).abs() < 1e-3] = 0.05
    advantage = torch.randn(count, dtype=torch.float64)
    return Tokens((mu + log).requires_grad_(), mu, advantage, sequence, torch.ones(count).double())


@pytest.mark.parametrize("name", ["clip", "dual clip", "gspo", "sapo", "importance"])
def test_the_gradient_is_that_of_the_value(name: str) -> None:
    given = random_tokens()
    assert torch.autograd.gradcheck(
        lambda x: LOSSES[name](given._replace(logprobs=x))[0], given.logprobs, eps=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("name", ["cispo", "dppo", "gspo by token"])
def test_the_gradient_is_that_of_the_value_with_its_weights_held(name: str) -> None:
    """Where sg() holds a weight, finite differences must hold it too: the weight is the slope."""
    given = random_tokens()
    values, _ = LOSSES[name](given)
    (gradient,) = torch.autograd.grad(values.sum(), given.logprobs)
    if name == "gspo by token":
        slope, _ = losses.gspo(0.1, 0.2)(given)
        moving = gradient != 0
        assert torch.allclose(gradient[moving], slope[moving])
    else:
        ratio = (given.logprobs - given.sampler).detach().exp()
        weight = ratio.clamp(max=5.0 if name == "cispo" else 20.0)
        wanted = -weight * given.advantage
        moving = gradient != 0
        assert torch.allclose(gradient[moving], wanted[moving])
        assert bool(moving.all()) == (name == "cispo")


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("correction", [None, *CORRECTIONS])
def test_order_and_company_change_nothing(name: str, correction: str | None) -> None:
    """Invariant 6: a sequence has the same loss alone, among others, and in any order."""
    loss = LOSSES[name]
    if correction:
        loss = losses.corrected(loss, CORRECTIONS[correction])
    given = random_tokens()
    whole, _ = loss(given)
    order = torch.randperm(len(whole))
    mixed, _ = loss(Tokens(*(t[order] for t in given[:5])))
    assert torch.allclose(mixed, whole[order], atol=1e-12)
    for number in range(4):
        mine = given.sequence == number
        alone = Tokens(*(t[mine] for t in given[:5]))._replace(sequence=torch.zeros(15).long())
        assert torch.allclose(loss(alone)[0], whole[mine], atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_on_policy_all_have_the_policy_gradient(name: str) -> None:
    """Where policy and sampler agree, each is REINFORCE: the slope of a token is -A."""
    given = tokens([1.0] * 4, [1.0, 1.0, -0.5, -0.5], sequence=[0, 0, 1, 1])
    _, slopes, metrics = found(LOSSES[name], given)
    assert slopes == pytest.approx([-1.0, -1.0, 0.5, 0.5])
    assert metrics["clipped"] == [0.0] * 4
    assert metrics["kl"] == pytest.approx([0.0] * 4, abs=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_a_wild_ratio_stays_finite(name: str) -> None:
    logprobs = torch.tensor([0.0, -1000.0], requires_grad=True)
    given = Tokens(
        logprobs,
        torch.tensor([-1000.0, 0.0]),
        torch.tensor([-1.0, 1.0]),
        torch.tensor([0, 1]),
        torch.ones(2),
    )
    values, metrics = LOSSES[name](given)
    (gradient,) = torch.autograd.grad(values.sum(), logprobs)
    for found_values in (values, gradient, *metrics.values()):
        assert torch.isfinite(found_values).all()
    assert float(metrics["ratio"][0]) == pytest.approx(math.exp(LOG_RATIO_LIMIT))


@pytest.mark.parametrize("name", LOSSES)
def test_no_tokens_are_no_error(name: str) -> None:
    nothing = torch.zeros(0, requires_grad=True)
    values, _ = LOSSES[name](Tokens(nothing, nothing, nothing, torch.zeros(0).long(), nothing))
    assert values.shape == (0,)


def weights(correction: losses.Correction, ratios: list[float], sequence: list[int]) -> list[float]:
    return correction(tokens(ratios, [1.0] * len(ratios), sequence=sequence)).tolist()


def test_corrections_by_hand() -> None:
    ratios, sequence = [0.25, 1.0, 3.0, 8.0], [0, 0, 1, 1]
    assert weights(losses.truncated(2.0), ratios, sequence) == pytest.approx([0.25, 1, 2, 2])
    assert weights(losses.truncated_sequence(5.0), ratios, sequence) == pytest.approx(
        [0.25, 0.25, 5, 5]
    )
    assert weights(losses.icepop(0.5, 5.0), ratios, sequence) == pytest.approx([0, 1, 3, 0])
    # geometric means: sqrt(0.25) = 0.5 and sqrt(24) = 4.9
    assert weights(losses.geometric_mask(0.4, 2.0), ratios, sequence) == [1, 1, 0, 0]
    assert weights(losses.veto(0.3), ratios, sequence) == [0, 0, 1, 1]
    assert weights(losses.veto(1e-4), ratios, sequence) == [1, 1, 1, 1]


def test_a_corrected_loss_takes_the_samplers_share_once() -> None:
    given = tokens([3.0, 0.25], [2.0, 2.0])
    values, slopes, metrics = found(losses.corrected(losses.clip(), losses.truncated(2.0)), given)
    assert values == pytest.approx([-4.0, -0.5])  # weight times -A, r = 1 by the trainer's own
    assert slopes == pytest.approx([-4.0, -0.5])
    assert metrics["corrected"] == pytest.approx([2.0, 0.25])
    assert metrics["dropped"] == [0.0, 0.0]
    assert metrics["ratio"] == pytest.approx([3.0, 0.25])  # of policy to sampler, to be watched
    both = losses.corrected(losses.clip(), losses.icepop(0.5, 5.0), losses.veto(1e-4))
    values, slopes, metrics = found(both, given)
    assert slopes == pytest.approx([-6.0, 0.0])
    assert metrics["dropped"] == [0.0, 1.0]


def test_the_estimates_of_kl_by_hand() -> None:
    d = math.log(2)
    logprobs = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-1.0 - d], dtype=torch.float64)
    wanted = {
        "k1": (d, 1.0),
        "k2": (d * d / 2, d),
        "k3": (0.5 - 1 + d, 1 - 0.5),
        "k3+": (0.5 - 1 + d, d),
    }
    for kind, (value, slope) in wanted.items():
        found_value = losses.estimate(kind, logprobs, reference)  # type: ignore[arg-type]
        (gradient,) = torch.autograd.grad(found_value.sum(), logprobs)
        assert found_value.item() == pytest.approx(value)
        assert float(gradient) == pytest.approx(slope)


def test_k2_has_the_gradient_of_the_divergence_and_k3_has_not() -> None:
    """In expectation over the policy's own samples, against the exact gradient of KL(pi || ref)."""
    torch.manual_seed(0)
    logits = torch.randn(5, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(5, dtype=torch.float64).log_softmax(0)
    policy = logits.log_softmax(0)
    exact = (policy.exp() * (policy - reference)).sum()
    (wanted,) = torch.autograd.grad(exact, logits, retain_graph=True)
    for kind, right in (("k2", True), ("k3+", True), ("k3", False), ("k1", False)):
        estimates = losses.estimate(kind, policy, reference)  # type: ignore[arg-type]
        expected = (policy.detach().exp() * estimates).sum()
        (gradient,) = torch.autograd.grad(expected, logits, retain_graph=True)
        assert torch.allclose(gradient, wanted) == right, kind


def test_a_penalty_needs_a_reference_and_adds_to_the_loss() -> None:
    given = tokens([1.0, 1.0], [1.0, -1.0])
    loss = losses.penalised(losses.clip(), 0.5, "k2")
    with pytest.raises(ValueError, match="no log-probabilities of a reference"):
        loss(given)
    given = given._replace(reference=given.logprobs.detach() - 0.2)
    values, slopes, metrics = found(loss, given)
    assert values == pytest.approx([-1 + 0.5 * 0.02, 1 + 0.5 * 0.02])
    assert slopes == pytest.approx([-1 + 0.5 * 0.2, 1 + 0.5 * 0.2])
    assert metrics["kl_reference"] == pytest.approx([0.02, 0.02])


def pair(*values: float) -> list[torch.Tensor]:
    return [torch.tensor([v], dtype=torch.float64, requires_grad=True) for v in values]


def test_preference_losses_by_hand() -> None:
    chosen, rejected, ref_chosen, ref_rejected = pair(-10.0, -14.0, -12.0, -13.0)
    margin = 3.0  # (-10 + 12) - (-14 + 13)
    loss = losses.dpo(chosen, rejected, ref_chosen, ref_rejected, beta=0.5)
    sigmoid = 1 / (1 + math.exp(-0.5 * margin))
    assert loss.item() == pytest.approx(-math.log(sigmoid))
    slopes = torch.autograd.grad(loss, (chosen, rejected))
    assert [float(s) for s in slopes] == pytest.approx([-0.5 * (1 - sigmoid), 0.5 * (1 - sigmoid)])
    smooth = losses.dpo(chosen, rejected, ref_chosen, ref_rejected, beta=0.5, smoothing=0.1)
    assert smooth.item() == pytest.approx(-0.9 * math.log(sigmoid) - 0.1 * math.log(1 - sigmoid))
    ipo = losses.ipo(chosen, rejected, ref_chosen, ref_rejected, beta=0.25)
    assert ipo.item() == pytest.approx((3.0 - 2.0) ** 2)
    slopes = torch.autograd.grad(ipo, (chosen, rejected))
    assert [float(s) for s in slopes] == pytest.approx([2.0, -2.0])
    assert losses.bradley_terry(*pair(1.0, -1.0)).item() == pytest.approx(
        math.log(1 + math.exp(-2.0))
    )


def test_kto_by_hand() -> None:
    logprobs = torch.tensor([-10.0, -14.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-12.0, -13.0], dtype=torch.float64)
    good = torch.tensor([True, False])
    values = losses.kto(logprobs, reference, good, torch.tensor(1.0), beta=0.5, weight_bad=2.0)

    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    # log-ratios 2 and -1 against z = 1
    assert values.tolist() == pytest.approx([1 - sigmoid(0.5), 2 * (1 - sigmoid(1.0))])
    negative = losses.kto(logprobs, reference, good, torch.tensor(-5.0), beta=0.5)
    at_zero = losses.kto(logprobs, reference, good, torch.tensor(0.0), beta=0.5)
    assert negative.tolist() == at_zero.tolist()  # a KL is not below 0


@pytest.mark.parametrize("loss", [losses.dpo, losses.ipo])
def test_gradients_of_pairs_match_finite_differences(
    loss: Callable[..., torch.Tensor],
) -> None:
    torch.manual_seed(1)
    values = [(-10 * torch.rand(7, dtype=torch.float64)).requires_grad_() for _ in range(4)]
    assert torch.autograd.gradcheck(lambda *v: loss(*v, beta=0.3), values, eps=1e-6, atol=1e-6)
