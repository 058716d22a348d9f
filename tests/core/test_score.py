"""What a score accepts, and what follows from its parts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.core import Score, ScorePart

values = st.floats(0, 1)
weights = st.floats(0.01, 100)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.001, 1.001])
def test_a_value_outside_0_to_1_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="is not within"):
        ScorePart("tests", value)


@pytest.mark.parametrize("weight", [math.nan, math.inf, -1.0])
def test_a_weight_that_is_not_a_finite_amount_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="not >= 0"):
        ScorePart("tests", 1.0, weight)


@given(st.lists(st.tuples(values, weights), min_size=1, max_size=6))
def test_the_value_is_the_weighted_mean(pairs: list[tuple[float, float]]) -> None:
    score = Score.of(*(ScorePart(str(i), v, w) for i, (v, w) in enumerate(pairs)))
    expected = sum(v * w for v, w in pairs) / sum(w for _, w in pairs)
    assert score.value == pytest.approx(expected)
    assert score.solved == (score.value is not None and score.value >= 1 - 1e-9)


@given(st.lists(st.tuples(values, weights), max_size=4), weights)
def test_one_unscored_weighted_part_leaves_the_whole_unscored(
    pairs: list[tuple[float, float]], weight: float
) -> None:
    parts = [ScorePart(str(i), v, w) for i, (v, w) in enumerate(pairs)]
    score = Score.of(*parts, ScorePart("broken", None, weight))
    assert score.value is None
    assert not score.solved


def test_parts_of_weight_zero_are_reported_but_never_rewarded() -> None:
    metrics = (ScorePart("speed", 0.0, 0.0, "metric"), ScorePart("length", None, 0.0, "metric"))
    assert Score.of(ScorePart("answer", 1.0), *metrics).value == 1.0
    assert Score.of(*metrics).value is None


def test_a_score_without_parts_is_unscored() -> None:
    assert Score.of().value is None
    assert not Score.of().solved


def test_full_marks_by_tampering_are_not_solved() -> None:
    part = ScorePart("answer", 1.0)
    assert Score.of(part).solved
    assert not Score.of(part, tampered="wrote to the grader's folder").solved


def test_success_is_a_matter_of_outcome_parts_alone() -> None:
    slow = ScorePart("quick", 0.0, kind="process")
    assert Score.of(ScorePart("answer", 1.0), slow).solved
    assert Score.of(ScorePart("answer", 1.0), slow).value == 0.5
    assert not Score.of(ScorePart("answer", 0.9), ScorePart("quick", 1.0, kind="process")).solved
    assert not Score.of(ScorePart("quick", 1.0, kind="process")).solved
