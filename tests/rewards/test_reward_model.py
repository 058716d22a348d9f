"""A reward model's opinion is a part of a score that never outranks an outcome."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.core import Score, ScorePart
from practicum.rewards.reward_model import MOST, NAME, judged

opinions = st.none() | st.floats(-50, 50)
weights = st.floats(0.001, MOST)


def part(score: Score) -> ScorePart:
    (found,) = [p for p in score.parts if p.name == NAME]
    return found


def test_an_opinion_by_hand() -> None:
    solved = judged(Score.of(ScorePart("correct", 1.0), steps=1), 0.0, model="d1", weight=0.2)
    assert part(solved).value == 0.5
    assert part(solved).kind == "process"
    assert part(solved).evidence == "reward model d1: 0"
    assert solved.value == pytest.approx((1 + 0.2 * 0.5) / 1.2)
    assert solved.solved
    two = Score.of(ScorePart("correct", 0.5), steps=2)
    half = judged(two, math.log(3), model="d1", weight=0.2)
    assert half.value == pytest.approx((0.5 + 0.1 * 0.75) / 1.1)
    free = judged(Score.of(ScorePart("correct", 0.907)), 40.0, model="d1", weight=0.2)
    assert free.value == pytest.approx((0.90 + 0.002) / 1.002)  # in steps of a hundredth


@given(st.floats(0, 0.99), opinions, opinions, weights)
def test_no_opinion_lifts_unsolved_work_above_solved_work(
    outcome: float, liked: float | None, disliked: float | None, weight: float
) -> None:
    failed = judged(Score.of(ScorePart("o", outcome)), liked, model="m", weight=weight)
    solved = judged(Score.of(ScorePart("o", 1.0)), disliked, model="m", weight=weight)
    assert failed.value is not None
    assert solved.value is not None
    assert failed.value < solved.value
    assert solved.solved
    assert not failed.solved


def test_with_weight_zero_it_is_only_measured() -> None:
    score = Score.of(ScorePart("o", 0.25))
    found = judged(score, math.log(3), model="m", weight=0.0)
    assert (part(found).kind, part(found).weight) == ("metric", 0.0)
    assert part(found).value == pytest.approx(0.75)
    assert found.value == score.value


@pytest.mark.parametrize("said", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_leaves_the_score_unscored(said: float) -> None:
    found = judged(Score.of(ScorePart("o", 1.0)), said, model="m", weight=0.1)
    assert part(found).value is None
    assert found.value is None
    measured = judged(Score.of(ScorePart("o", 1.0)), said, model="m", weight=0.0)
    assert part(measured).value is None
    assert measured.value == 1.0


def test_what_is_unscored_or_tampered_with_stays_so() -> None:
    blank = Score.of(ScorePart("o", None))
    assert judged(blank, 1.0, model="m", weight=0.1) == blank
    nothing = Score.of(ScorePart("o", 1.0, weight=0.0, kind="metric"))
    assert judged(nothing, 1.0, model="m", weight=0.1) == nothing
    forged = Score.of(ScorePart("o", 1.0), tampered="wrote to the grader's folder")
    found = judged(forged, 9.0, model="m", weight=0.1)
    assert found.tampered
    assert not found.solved


def test_an_episode_that_says_nothing_has_the_least_there_is() -> None:
    found = judged(Score.of(ScorePart("o", 0.5)), None, model="m", weight=0.1)
    assert part(found).value == 0.0
    assert "nothing to read" in part(found).evidence


@pytest.mark.parametrize("weight", [-0.1, 0.26, math.nan])
def test_a_weight_that_could_outrank_an_outcome_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="lies within"):
        judged(Score.of(ScorePart("o", 1.0)), 0.0, model="m", weight=weight)
