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
    slow = ScorePart("quick", 0.0, 0.25, "process")
    score = Score.of(ScorePart("answer", 1.0), slow, steps=1)
    assert score.solved
    assert score.value == 0.8
    quick = ScorePart("quick", 1.0, 0.25, "process")
    assert not Score.of(ScorePart("answer", 0.9), quick, steps=10).solved
    assert not Score.of(ScorePart("quick", 1.0, 0.25, "process"), steps=1).solved


def test_a_metric_has_no_weight_and_shaping_has_declared_steps() -> None:
    with pytest.raises(ValueError, match="a metric has weight 0"):
        ScorePart("speed", 1.0, kind="metric")
    quick = ScorePart("quick", 1.0, 0.25, "process")
    with pytest.raises(ValueError, match="declared steps"):
        Score.of(ScorePart("answer", 1.0), quick)
    with pytest.raises(ValueError, match=r"weigh 0\.5 of a step together"):
        Score.of(ScorePart("answer", 1.0), quick, quick, steps=4)


parts = st.lists(st.tuples(values, st.floats(0.001, 0.16)), max_size=3)
steps = st.integers(1, 12)


def shaped(outcome: float, manner: list[tuple[float, float]], steps: int) -> Score:
    process = [ScorePart(f"p{i}", v, w, "process") for i, (v, w) in enumerate(manner)]
    return Score.of(ScorePart("o", outcome), *process, steps=steps)


@given(values, values, parts, parts, steps)
def test_shaping_never_changes_the_order_of_outcomes(
    one: float,
    other: float,
    manner: list[tuple[float, float]],
    another: list[tuple[float, float]],
    count: int,
) -> None:
    """Nor where one has parts, and weights, that the other lacks."""
    low, high = sorted((shaped(one, manner, count), shaped(other, another, count)), key=_outcome)
    if _outcome(low) < _outcome(high):
        assert _value(low) < _value(high)
    if _outcome(low) == 0:
        assert _value(low) == 0
    assert 0 <= _value(low) <= 1 + 1e-12
    if low.solved and not high.solved:
        pytest.fail("solved work has the better outcome")


@given(values, parts, steps, st.integers(0, 2), values)
def test_of_equal_outcomes_the_better_manner_never_earns_less(
    outcome: float, manner: list[tuple[float, float]], count: int, at: int, value: float
) -> None:
    better = [(max(v, value), w) if i == at else (v, w) for i, (v, w) in enumerate(manner)]
    assert _value(shaped(outcome, manner, count)) <= _value(shaped(outcome, better, count))


@given(values, parts, steps)
def test_the_value_is_the_outcome_and_what_each_part_earned(
    outcome: float, manner: list[tuple[float, float]], count: int
) -> None:
    score = shaped(outcome, manner, count)
    bare = shaped(outcome, [(0.0, weight) for _, weight in manner], count)
    earned = sum(score.earned(part) for part in score.parts)
    assert _value(score) == pytest.approx(_value(bare) + earned)
    assert score.solved == bare.solved == (outcome >= 1 - 1e-9)


@given(steps, st.data())
def test_an_outcome_is_rounded_down_to_a_step(count: int, data: st.DataObject) -> None:
    step = data.draw(st.integers(0, count))
    assert Score.of(ScorePart("o", step / count), steps=count).outcome == step / count
    between = min(1.0, (step + 0.9) / count)
    assert Score.of(ScorePart("o", between), steps=count).outcome == step / count


def _outcome(score: Score) -> float:
    assert score.outcome is not None
    return score.outcome


def _value(score: Score) -> float:
    assert score.value is not None
    return score.value
