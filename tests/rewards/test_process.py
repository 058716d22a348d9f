"""Process parts: each by hand, and what they may never do."""

from collections.abc import Mapping
from typing import ClassVar

import pytest

from practicum.core import Event, File, Limits, Score, ScorePart, Submission, Task
from practicum.domains.terminal import Terminal
from practicum.rewards.process import processed

TASK = Task(
    "d",
    1,
    1,
    "",
    tools=("shell", "edit_file", "task_state", "submit"),
    files=(File("a.py", b"x"), File("test_a.py", b"y")),
    limits=Limits(turns=5),
)


def shell(turn: int, command: str, exit_code: int = 0) -> Event:
    return Event(turn, "call", "shell", {"command": command}, True, exit_code)


def found(name: str, *events: Event) -> tuple[float, tuple[int, ...]] | None:
    score = processed(Score.of(ScorePart("o", 1.0)), TASK, Submission(events=events), {})
    parts = [part for part in score.parts if part.name == name]
    return (round(parts[0].value or 0.0, 3), parts[0].turns) if parts else None


SUBMIT = Event(9, "call", "submit")
TEST, FIX = "python3 -m pytest -q", "sed -i 's/x/z/' a.py"


@pytest.mark.parametrize(
    ("name", "events", "expected"),
    [
        ("submitted", [shell(0, "ls"), SUBMIT], (1.0, (9,))),
        ("submitted", [shell(0, "ls"), Event(1, "invalid", "submit", ok=False)], (0.0, ())),
        ("read_first", [shell(0, "ls")], None),
        ("read_first", [shell(0, "cat a.py"), shell(1, FIX)], (1.0, (0,))),
        ("read_first", [shell(0, FIX)], (0.0, ())),
        ("read_first", [shell(0, "cat ./a.py"), shell(1, f"{FIX}; rm test_a.py")], (0.5, ())),
        (
            "read_first",
            [Event(0, "call", "edit_file", {"path": "a.py", "old": "x", "new": "z"})],
            (1.0, ()),
        ),
        ("located_first", [shell(0, TEST, 1), shell(1, FIX)], (1.0, (0,))),
        ("located_first", [shell(0, TEST, 0), shell(1, FIX)], (0.0, ())),
        ("located_first", [shell(0, "grep -n x a.py"), shell(1, FIX)], (1.0, (0,))),
        ("located_first", [shell(0, TEST, 1)], None),
        ("not_repeated", [shell(0, "ls"), shell(1, "ls")], (0.5, ())),
        ("not_repeated", [shell(0, TEST, 1), shell(1, FIX), shell(2, TEST)], (1.0, ())),
        ("valid", [shell(0, "ls"), Event(1, "invalid", ok=False)], (0.5, ())),
        ("verified", [shell(0, FIX), shell(1, TEST)], (1.0, (1,))),
        ("verified", [shell(0, FIX), shell(1, "cat a.py")], (1.0, (1,))),
        ("verified", [shell(0, TEST, 1), shell(1, FIX)], (0.0, ())),
        ("verified", [shell(0, f"{FIX} && {TEST}")], (1.0, (0,))),
        ("verified", [shell(0, "cat a.py")], None),
        ("corrected", [shell(0, "cat b.py", 1), shell(2, "cat a.py")], (1.0, (2,))),
        ("corrected", [shell(0, "cat b.py", 1), shell(1, "cat b.py", 1)], (0.0, ())),
        ("corrected", [shell(0, "ls")], None),
        ("state_kept", [shell(0, "ls")], (0.0, ())),
        ("state_kept", [Event(0, "call", "task_state", {"pending": ["look"]})], (0.5, (0,))),
        ("state_kept", [Event(2, "call", "task_state", {"done": ["look"]})], (1.0, (2,))),
        ("unspent", [shell(1, "ls")], (0.75, ())),
        ("unspent", [shell(4, "ls")], (0.0, ())),
    ],
)
def test_a_part_by_hand(
    name: str, events: list[Event], expected: tuple[float, tuple[int, ...]] | None
) -> None:
    assert found(name, *events) == expected


JUNK = ["cat 'a", "<<", "<<E\nE", "((", "> >", "\0", "a" * 9000, "$(", ""]


@pytest.mark.parametrize("junk", JUNK)
def test_no_command_makes_a_part_fail(junk: str) -> None:
    score = processed(Score.of(ScorePart("o", 1.0)), TASK, Submission(events=(shell(0, junk),)), {})
    assert score.value == 1.0
    assert found("valid", shell(0, junk)) == (1.0, ())


def test_a_document_in_a_command_is_no_command() -> None:
    write = "cat > b.py <<'END'\nrm a.py; cat test_a.py\nit's\nEND\npytest"
    assert found("read_first", shell(0, write)) is None
    assert found("verified", shell(0, write)) == (1.0, (0,))


def test_weights_are_in_steps_of_the_outcome() -> None:
    bare = Score.of(ScorePart("o", 0.5), steps=2)
    score = processed(bare, TASK, Submission(events=(shell(0, "ls"), SUBMIT)), {"submitted": 0.25})
    assert score.value == pytest.approx((0.5 + 0.125) / 1.125)
    cut = processed(bare, TASK, Submission(events=(shell(0, "ls"),)), {"submitted": 0.25})
    assert cut.value == pytest.approx(0.5 / 1.125)


def test_what_cannot_be_is_refused() -> None:
    score = Score.of(ScorePart("o", 1.0), steps=1)
    with pytest.raises(ValueError, match="no process parts \\['manner'\\]; there are submitted"):

        class Odd(Terminal):
            shaping: ClassVar[Mapping[str, float]] = {"manner": 0.1}

    events = Submission(events=(shell(0, FIX), SUBMIT))
    with pytest.raises(ValueError, match="must be less than"):
        processed(score, TASK, events, {"submitted": 0.3, "verified": 0.2})
    with pytest.raises(ValueError, match="declared steps"):
        processed(Score.of(ScorePart("o", 1.0)), TASK, events, {"submitted": 0.1})


def test_what_is_unscored_or_tampered_with_stays_so() -> None:
    blank = Score.of(ScorePart("correct", None), steps=1)
    assert processed(blank, TASK, Submission(), {"submitted": 0.1}).value is None
    forged = Score.of(ScorePart("correct", 1.0), tampered="wrote to the grader's folder", steps=1)
    assert processed(forged, TASK, Submission(), {"submitted": 0.1}).tampered
