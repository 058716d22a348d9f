"""Advantage estimators by hand, and what they do with groups that say nothing."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.learn.advantages import (
    ESTIMATORS,
    by_turn,
    gae,
    grpo,
    maxrl,
    returns,
    rloo,
    whitened,
)

NOTHING = [None, math.nan, math.inf, -math.inf]
rewards = st.lists(st.none() | st.floats(0, 1) | st.sampled_from(NOTHING), max_size=9)


def test_estimators_by_hand() -> None:
    group = [1.0, 0.0, None, 0.0]  # mean 1/3, unbiased std sqrt(1/3)
    std = math.sqrt(1 / 3)
    assert grpo(group, eps=0.0) == [
        pytest.approx(2 / 3 / std),
        pytest.approx(-1 / 3 / std),
        None,
        pytest.approx(-1 / 3 / std),
    ]
    # R minus the mean of the others: 1 - 0, 0 - 1/2
    assert rloo(group) == [pytest.approx(1.0), pytest.approx(-0.5), None, pytest.approx(-0.5)]
    assert maxrl(group, eps=0.0) == [
        pytest.approx(2.0),
        pytest.approx(-1.0),
        None,
        pytest.approx(-1.0),
    ]


@pytest.mark.parametrize("name", ESTIMATORS)
@given(values=rewards)
def test_what_says_nothing_has_no_vote(name: str, values: list[float | None]) -> None:
    """Missing, NaN and infinite rewards, groups of one, and equal rewards, for every estimator."""
    estimator = ESTIMATORS[name]  # type: ignore[index]
    found = estimator(values)
    known = [r for r in values if r is not None and math.isfinite(r)]
    for reward, advantage in zip(values, found, strict=True):
        assert (advantage is None) == (reward is None or not math.isfinite(reward))
        assert advantage is None or math.isfinite(advantage)
    assert [a for a in found if a is not None] == estimator(known)
    if len(known) < 2 or max(known) == min(known):
        assert set(found) <= {0.0, None}
    assert estimator([0.7]) == [0.0]


def test_whitening_by_hand() -> None:
    found = whitened([[1.0, 0.0], [None, 2.0], [math.nan]], eps=0.0)
    assert found == [[0.0, -1.0], [None, 1.0], [None]]
    assert whitened([[0.5], [0.5, None]]) == [[0.0], [0.0, None]]
    assert whitened([[3.0]]) == [[0.0]]
    assert whitened([[], [None]]) == [[], [None]]


def test_returns_and_credit_by_turn_by_hand() -> None:
    assert returns([1.0, 0.0, 4.0], discount=0.5) == [2.0, 2.0, 4.0]
    assert returns([]) == []
    group = [[0.0, 1.0], [0.0, 0.0, 0.5], None, [math.nan]]
    # returns 1 1 and 0.5 0.5 0.5: turn by turn against their mean, a lone turn against nothing
    assert by_turn(group) == [[0.25, 0.25], [-0.25, -0.25, 0.0], None, None]
    assert by_turn([[], None]) == [[], None]


def test_gae_by_hand() -> None:
    # two tokens, an observation, one token; reward at the end
    rewards, values, own = [0.0, 0.0, 9.0, 1.0], [0.5, 0.4, 9.0, 0.2], [True, True, False, True]
    advantages, targets = gae(rewards, values, own, discount=0.9, trace=0.5)
    last = 1.0 - 0.2
    second = 0.9 * 0.2 - 0.4 + 0.45 * last
    first = 0.9 * 0.4 - 0.5 + 0.45 * second
    assert advantages == pytest.approx([first, second, 0.0, last])
    assert targets == pytest.approx([first + 0.5, second + 0.4, 0.0, 1.0])


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=1, max_size=8))
def test_gae_with_a_full_trace_is_the_return_minus_the_value(
    pairs: list[tuple[float, float]],
) -> None:
    rewards, values = [p[0] for p in pairs], [p[1] for p in pairs]
    advantages, targets = gae(rewards, values, [True] * len(pairs), trace=1.0)
    assert targets == pytest.approx(returns(rewards), abs=1e-9)
    assert advantages == pytest.approx(
        [r - v for r, v in zip(returns(rewards), values, strict=True)]
    )
