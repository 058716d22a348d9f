"""How tokens are weighed, and how a recipe names a loss."""

import pytest
from pydantic import ValidationError

from practicum.core import Sample
from practicum.engines.contract import Tokens
from practicum.learn.aggregate import aggregated
from practicum.learn.objective import CORRECTIONS, POLICY, LossSettings


def sample(own: int, group: str, *, kind: str = "rl") -> Sample:
    """Two prompt tokens, then `own` trained ones, then an observation."""
    weights = (0.0, 0.0, *[1.0] * own, 0.0)
    nothing = (0.0,) * len(weights)
    rl, ce = (weights, nothing) if kind == "rl" else (nothing, weights)
    return Sample(tuple(range(len(weights))), rl, ce, nothing, nothing, group=group)


BATCH = [sample(1, "a"), sample(3, "a"), sample(2, "b"), sample(4, "", kind="ce"), sample(0, "b")]


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ("token-mean", [1 / 6, 1 / 6, 1 / 6]),
        ("sequence-mean", [1 / 3, 1 / 9, 1 / 6]),
        ("prompt-mean", [1 / 8, 1 / 8, 1 / 4]),
        ("constant", [1 / 30, 1 / 30, 1 / 30]),
    ],
)
def test_weights_by_hand(how: str, wanted: list[float]) -> None:
    found = aggregated(BATCH, how, length=10)  # type: ignore[arg-type]
    for one, weight, own in zip(found, wanted, (1, 3, 2), strict=False):
        assert one.rl_weight == pytest.approx((0.0, 0.0, *[weight] * own, 0.0))
    assert found[3].ce_weight == pytest.approx((0.0, 0.0, *[0.25] * 4, 0.0))
    assert not any(found[3].rl_weight)
    assert not any(found[4].rl_weight)
    if how != "constant":
        assert sum(sum(one.rl_weight) for one in found) == pytest.approx(1.0)


def test_a_batch_without_tokens_is_no_error() -> None:
    for how in ("token-mean", "sequence-mean", "prompt-mean"):
        assert aggregated([], how) == []  # type: ignore[arg-type]
        assert aggregated([sample(0, "a")], how) == [sample(0, "a")]  # type: ignore[arg-type]


def test_a_constant_needs_a_length() -> None:
    with pytest.raises(ValueError, match="greatest length"):
        aggregated(BATCH, "constant")
    with pytest.raises(ValidationError, match="needs longest"):
        LossSettings(aggregation="constant")
    assert LossSettings(aggregation="constant", longest=9).weighted(BATCH)[0].rl_weight[2] == (
        pytest.approx(1 / 27)
    )


@pytest.mark.parametrize("policy", POLICY)
def test_every_loss_can_be_named(policy: str) -> None:
    import torch

    settings = LossSettings(policy=policy, corrections=list(CORRECTIONS))  # type: ignore[arg-type]
    ones = torch.zeros(3, requires_grad=True)
    values, metrics = settings.make()(
        Tokens(ones, torch.zeros(3), torch.ones(3), torch.zeros(3).long(), torch.ones(3))
    )
    assert torch.isfinite(values).all()
    assert {"ratio", "kl", "clipped", "dropped"} <= set(metrics)


def test_gspo_is_averaged_by_sequence_and_the_rest_by_token() -> None:
    assert LossSettings(policy="gspo").weighted(BATCH) == aggregated(BATCH, "sequence-mean")
    assert LossSettings(policy="cispo").weighted(BATCH) == aggregated(BATCH, "token-mean")


def test_an_option_that_a_loss_does_not_have_is_named() -> None:
    with pytest.raises(ValidationError, match=r"cispo has no option 'low'; it has: high"):
        LossSettings(policy="cispo", options={"low": 0.1})
    assert LossSettings(policy="clip", options={"low": 0.1, "dual": 3.0}).make()
