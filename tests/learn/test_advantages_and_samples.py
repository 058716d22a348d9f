"""The group baseline and samples, checked by hand and by their laws."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.core import (
    Episode,
    Group,
    Message,
    Outcome,
    Score,
    ScorePart,
    TokenRecord,
    Turn,
)
from practicum.learn.advantages import mean_centred
from practicum.learn.samples import demonstration, practice

rewards = st.lists(st.none() | st.floats(0, 1), max_size=12)


@pytest.mark.parametrize(
    ("given_rewards", "wanted"),
    [
        ([], []),
        ([None, None], [None, None]),
        ([0.7], [0.0]),
        ([None, 0.7], [None, 0.0]),
        ([0.5, 0.5, 0.5], [0.0, 0.0, 0.0]),
        ([0.1 + 0.2, 0.1 + 0.2, None], [0.0, 0.0, None]),
        ([1.0, 0.0], [0.5, -0.5]),
        ([1.0, None, 0.0, 0.5], [0.5, None, -0.5, 0.0]),
        ([1.0, 0.0, 0.0, 0.0], [0.75, -0.25, -0.25, -0.25]),
    ],
)
def test_rewards_are_centred_on_their_mean(given_rewards: list, wanted: list) -> None:
    assert mean_centred(given_rewards) == wanted


@given(rewards)
def test_our_own_failures_have_no_vote(values: list[float | None]) -> None:
    found = mean_centred(values)
    assert [a is None for a in found] == [r is None for r in values]
    known = [r for r in values if r is not None]
    assert [a for a in found if a is not None] == mean_centred(known)
    assert all(math.isfinite(a) for a in found if a is not None)
    assert sum(a for a in found if a is not None) == pytest.approx(0, abs=1e-9)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_a_better_episode_never_has_the_smaller_advantage(values: list[float]) -> None:
    found = mean_centred(values)
    for r1, a1 in zip(values, found, strict=True):
        for r2, a2 in zip(values, found, strict=True):
            assert a1 is not None
            assert a2 is not None
            assert r1 <= r2 or a1 >= a2


def episode(
    index: int, outcome: Outcome = Outcome.COMPLETED, value: float | None = 0.0, turns: int = 2
) -> Episode:
    """Two turns with records: prompt 1 2 3, said 10 11, observed 4, said 12."""
    records = [
        TokenRecord((1, 2, 3), (10, 11), (-0.5, -0.25), "d", 0.9),
        TokenRecord((4,), (12,), (-2.0,), "d", 0.9),
    ][:turns]
    return Episode(
        id=f"e-{index}",
        task="task",
        domain="d",
        level=1,
        policy="p",
        prompt=(Message.of("user", "Do it."),),
        turns=tuple(Turn(Message.of("assistant"), record=record) for record in records),
        events=(),
        outcome=outcome,
        score=Score.of(ScorePart("part", value)),
    )


def test_only_sampled_tokens_are_trained_by_rl() -> None:
    best, _ = practice(Group("task", [episode(0, value=1.0), episode(1, value=0.0)]))
    assert best.tokens == (1, 2, 3, 10, 11, 4, 12)
    assert best.rl_weight == (0, 0, 0, 1, 1, 0, 1)
    assert best.ce_weight == (0,) * 7
    assert best.advantage == (0, 0, 0, 0.5, 0.5, 0, 0.5)
    assert best.logprobs == (0, 0, 0, -0.5, -0.25, 0, -2.0)
    assert (best.temperature, best.group) == (0.9, "task")


def test_only_demonstrated_tokens_are_trained_by_cross_entropy() -> None:
    found = demonstration(episode(0))
    assert found.ce_weight == (0, 0, 0, 1, 1, 0, 1)
    assert found.rl_weight == found.advantage == (0,) * 7


def test_our_own_failures_are_neither_trained_nor_in_the_baseline() -> None:
    group = [
        episode(0, value=1.0),
        episode(1, Outcome.INFRA_FAILED, value=0.0),
        episode(2, Outcome.GRADER_FAILED, value=None),
        episode(3, value=0.0),
    ]
    samples = practice(Group("task", group))
    assert [s.episode for s in samples] == ["e-0", "e-3"]
    assert [max(s.advantage, key=abs) for s in samples] == [0.5, -0.5]


def test_tampering_is_trained_on_with_a_reward_of_zero() -> None:
    group = [
        episode(0, Outcome.TAMPERED, value=1.0),
        episode(1, value=1.0),
        episode(2, Outcome.TRUNCATED, value=0.5),
        episode(3, Outcome.MALFORMED, value=0.5),
    ]
    samples = practice(Group("task", group))
    assert [max(s.advantage, key=abs) for s in samples] == [-0.5, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("values", [[0.5, 0.5], [1.0, None]])
def test_a_group_with_nothing_to_compare_is_not_trained(values: list[float | None]) -> None:
    outcomes = [Outcome.COMPLETED if v is not None else Outcome.GRADER_FAILED for v in values]
    group = [episode(i, o, v) for i, (o, v) in enumerate(zip(outcomes, values, strict=True))]
    assert practice(Group("task", group)) == []


def test_an_episode_without_tokens_carries_its_vote_but_no_sample() -> None:
    group = [episode(0, value=1.0), episode(1, Outcome.TRUNCATED, value=0.0, turns=0)]
    (only,) = practice(Group("task", group))
    assert max(only.advantage) == 0.5


def test_an_episode_without_records_cannot_be_trained_on() -> None:
    scripted = Episode(
        "e", "t", "d", 1, "p", (), (Turn(Message.of("assistant")),), (), Outcome.COMPLETED
    )
    with pytest.raises(ValueError, match="without token records"):
        demonstration(scripted)
