"""A reward model's opinion is a part of a score that never outranks an outcome."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.core import Event, Score, ScorePart, Submission
from practicum.rewards.process import submitted
from practicum.rewards.reward_model import MOST, NAME, judged

opinions = st.none() | st.floats(-50, 50)
weights = st.floats(0.001, MOST)
shares = st.integers(0, 7).map(lambda passed: passed / 7)


def part(score: Score) -> ScorePart:
    (found,) = [p for p in score.parts if p.name == NAME]
    return found


def test_an_opinion_by_hand() -> None:
    solved = judged(Score.of(ScorePart("correct", 1.0)), 0.0, model="d1", weight=0.25)
    assert part(solved).value == 0.5
    assert part(solved).kind == "process"
    assert part(solved).evidence == "reward model d1: 0"
    assert solved.value == pytest.approx((1 + 0.25 * 0.5) / 1.25)
    assert solved.solved
    half = judged(Score.of(ScorePart("correct", 0.5)), math.log(3), model="d1", weight=0.2)
    assert half.value == pytest.approx((0.5 + 0.2 * 0.75 * 0.5) / 1.2)
    nearly = judged(Score.of(ScorePart("correct", 0.9)), 40.0, model="d1", weight=0.2)
    assert nearly.value == pytest.approx((0.9 + 0.2 * 0.1) / 1.2)  # at most what it lacks
    assert not nearly.solved


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


@given(shares, shares, st.floats(0.1, 9), st.floats(0.1, 9), opinions, weights)
def test_failing_earns_nothing_and_scores_stay_within_their_bounds(
    a: float, b: float, weight_a: float, weight_b: float, said: float | None, weight: float
) -> None:
    score = Score.of(ScorePart("a", a, weight_a), ScorePart("b", b, weight_b))
    found = judged(score, said, model="m", weight=weight)
    assert score.value is not None
    assert found.value is not None
    assert found.solved == score.solved
    assert 0 <= found.value <= 1
    if score.value == 0:
        assert found.value == 0
    assert found.value <= score.value + 1e-12


@given(shares, st.floats(-20, 20), st.floats(-20, 20), weights)
def test_of_equal_outcomes_the_better_liked_never_earns_less(
    outcome: float, one: float, other: float, weight: float
) -> None:
    low, high = (
        judged(Score.of(ScorePart("o", outcome)), said, model="m", weight=weight).value
        for said in sorted((one, other))
    )
    assert low is not None
    assert high is not None
    assert low <= high


@given(st.booleans(), st.booleans(), opinions, opinions, weights)
def test_it_stands_beside_another_process_part(
    first: bool, second: bool, liked: float | None, disliked: float | None, weight: float
) -> None:
    """Whether an episode was submitted is shaped first; unsolved work stays below solved work."""
    cut = Submission(events=(Event(0, "call", "shell"),))
    handed_in = Submission(events=(Event(0, "call", "submit"),))
    failed = submitted(Score.of(ScorePart("o", 0.5)), handed_in if first else cut)
    solved = submitted(Score.of(ScorePart("o", 1.0)), handed_in if second else cut)
    low = judged(failed, liked, model="m", weight=weight).value
    high = judged(solved, disliked, model="m", weight=weight).value
    assert low is not None
    assert high is not None
    assert low < high


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
