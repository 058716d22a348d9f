import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.core import Artifact, File, Score, ScorePart, Submission, Task
from practicum.evaluate.near_misses import _json_edits, near_misses
from practicum.evaluate.panel import Case, fault, panel

TASK = Task("d", 1, 1, "Sort in.txt into out.txt.", files=(File("in.txt", b"b\na\n"),))
START = Submission({"in.txt": Artifact(b"b\na\n")})
GOLD = Submission({"in.txt": Artifact(b"b\na\n"), "out.txt": Artifact(b"a\nb\n")})
OTHER = Submission({"res.txt": Artifact(b"x\ny\n")})


def test_gold_comes_first_and_nothing_repeats_it() -> None:
    cases = panel(TASK, START, GOLD, [OTHER, GOLD], program=False)
    assert cases[0] == Case("gold", GOLD, "full")
    assert all(case.submission.artifacts != GOLD.artifacts for case in cases[1:])
    names = " ".join(case.name for case in cases)
    for name in ("nothing done", "echo", "candidate list", "junk", "another task, put in", "links"):
        assert name in names


def test_near_misses_differ_from_gold_in_one_place() -> None:
    found = dict(near_misses(START, GOLD, False))
    assert found["gold without out.txt"].artifacts == START.artifacts
    assert "out.txt" in found["gold, but in.txt is deleted"].artifacts
    assert "in.txt" not in found["gold, but in.txt is deleted"].artifacts
    assert found["gold, out.txt without its last line"].artifacts["out.txt"].data == b"a\n"
    assert all(s.artifacts != GOLD.artifacts for s in found.values())


def test_the_text_of_programs_is_left_alone() -> None:
    for case in panel(TASK, START, GOLD, [OTHER], program=True)[1:]:
        out = case.submission.artifacts.get("out.txt")
        assert out is None or out.kind != "file" or out.truncated or b"a\nb" not in out.data


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        ),
        max_leaves=6,
    )
)
def test_every_json_edit_is_another_value(value: object) -> None:
    for edited in _json_edits(value):
        assert json.dumps(edited, sort_keys=True) != json.dumps(value, sort_keys=True)


@pytest.mark.parametrize(
    ("at_most", "value", "tests", "wrong"),
    [
        ("full", 1.0, 1.0, False),
        ("full", 0.9, 1.0, True),
        ("full", 1.0, 0.5, True),
        ("unsolved", 0.9, 1.0, False),
        ("unsolved", 1.0, 1.0, True),
        ("floor", 0.1, 1.0, False),
        ("floor", 0.2, 1.0, True),
        ("floor", None, 1.0, True),
    ],
)
def test_a_score_is_judged_by_what_it_is_for(
    at_most: str, value: float | None, tests: float, wrong: bool
) -> None:
    score = Score.of(ScorePart("x", value), ScorePart("tests_passed", tests, 0, "metric"))
    case = Case("c", START, at_most)  # type: ignore[arg-type]
    assert bool(fault(case, score, 0.1)) is wrong


def test_tampering_is_no_fault_but_for_gold() -> None:
    score = Score.of(ScorePart("x", 1.0), tampered="overwrote the tests")
    assert not fault(Case("c", START, "floor"), score, 0.0)
    assert fault(Case("gold", GOLD, "full"), score, 0.0)
