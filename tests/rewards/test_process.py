"""Process parts shape a reward and leave success alone."""

import pytest

from practicum.core import Event, Score, ScorePart, Submission
from practicum.rewards.process import submitted

SUBMIT = Submission(events=(Event(0, "call", "shell"), Event(1, "call", "submit")))
CUT_OFF = Submission(events=(Event(0, "call", "shell"), Event(1, "invalid", "submit", ok=False)))


@pytest.mark.parametrize("outcome", [0.0, 0.4, 1.0])
def test_submitting_earns_in_proportion_to_what_was_solved(outcome: float) -> None:
    score = Score.of(ScorePart("correct", outcome))
    assert submitted(score, SUBMIT).value == pytest.approx(outcome)
    assert submitted(score, CUT_OFF).value == pytest.approx(0.8 * outcome)
    for submission in (SUBMIT, CUT_OFF):
        assert submitted(score, submission).solved == (outcome == 1.0)


def test_what_is_unscored_or_tampered_with_stays_so() -> None:
    blank = Score.of(ScorePart("correct", None))
    assert submitted(blank, SUBMIT).value is None
    forged = Score.of(ScorePart("correct", 1.0), tampered="wrote to the grader's folder")
    assert submitted(forged, SUBMIT).tampered
    assert not submitted(forged, SUBMIT).solved
