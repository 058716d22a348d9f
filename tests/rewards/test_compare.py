import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.core import Artifact, Submission
from practicum.rewards.compare import (
    difference,
    json_file,
    parse_json,
    path_state,
    same_value,
    shown,
    text_file,
    tidy,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def left(data: bytes, **fields) -> Submission:
    return Submission({"out": Artifact(data, **fields)})


def same(expected: str, found: str, **options) -> bool:
    return text_file(left(found.encode()), "out", expected, **options).passed


@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="\n\r"))))
def test_only_trailing_blanks_and_empty_last_lines_are_free(lines):
    text = "\n".join(lines)
    assert same(text, "\n".join(f"{line}  " for line in lines) + "\n\n")
    assert same(text, text.replace("\n", "\r\n"))
    assert not same(text, f"{text}\nmore")
    assert not same(text, f"more\n{text}")


def test_blanks_and_order_are_free_only_where_asked():
    assert not same("3 tiger", "      3 tiger")
    assert same("3 tiger", "      3 tiger", squeeze=True)
    assert not same("a\nb", "b\na")
    assert same("a\nb", "b\na", any_order=True)
    assert not same("a\nb", "a\nb\nb", any_order=True)


@pytest.mark.parametrize(
    ("want", "got", "evidence"),
    [
        (["a"], ["a"], ""),
        (["a", "b"], ["a", "c"], "line 2: expected 'b', found 'c'"),
        (["a", "b"], ["a"], "line 2: expected 'b', found None"),
        (["a"], ["a", ""], "line 2: expected None, found ''"),
    ],
)
def test_the_first_difference_is_told(want, got, evidence):
    assert difference(want, got) == evidence


@pytest.mark.parametrize(
    ("submission", "evidence"),
    [
        (Submission(), "found nothing"),
        (left(b"", kind="dir"), "found dir"),
        (left(b"/etc/passwd", kind="symlink"), "found symlink"),
        (left(b"tiger", truncated=True), "expected a file of moderate size"),
        (left(b"lemon"), "expected 'tiger', found 'lemon'"),
    ],
)
def test_a_file_that_is_not_right_says_why(submission, evidence):
    check = text_file(submission, "out", "tiger")
    assert not check.passed
    assert evidence in check.evidence


@given(JSON)
def test_a_value_equals_itself_read_back(value):
    assert same_value(parse_json(json.dumps(value)), parse_json(json.dumps(value)))


@pytest.mark.parametrize(
    ("one", "two", "equal"),
    [
        (1, True, False),
        (0, False, False),
        (None, False, False),
        (1, 1.001, False),
        ("1", 1, False),
        (float("nan"), 1, False),
        (10**400, 1.5, False),
        ([1, 2], [2, 1], False),
        ([1], [1, 1], False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
    ],
)
def test_json_values_are_compared_by_type_and_value(one, two, equal):
    assert same_value(one, two) is equal
    assert same_value(two, one) is equal


@given(st.binary(max_size=100))
def test_no_bytes_make_a_comparison_raise(data):
    assert not json_file(left(data), "out", {"key": "value"}).passed
    assert not text_file(left(data), "out", "a line that is not there").passed
    assert len(shown(repr(data))) < 80
    tidy(data.decode("latin-1"), squeeze=True)


def test_whole_numbers_are_equal_however_they_are_written():
    assert parse_json("[2.0, 2e1, 2.5]") == [2, 20, 2.5]
    assert json_file(left(b'{"a": 2.0}'), "out", {"a": 2}).passed
    assert not json_file(left(b'{"a": 1e999}'), "out", {"a": 2}).passed


def test_deep_or_endless_json_is_only_wrong():
    assert not json_file(left(b"[" * 100_000), "out", [1]).passed
    assert not json_file(left(b"1" * 5000), "out", 1).passed
    assert "not JSON" in json_file(left(b"{'a': 1}"), "out", {"a": 1}).evidence


@pytest.mark.parametrize(
    ("artifact", "kind", "value", "passed"),
    [
        (None, "absent", "", True),
        (Artifact(b""), "absent", "", False),
        (None, "text", "", False),
        (Artifact(b"a\n"), "text", "a", True),
        (Artifact(b"a\n", kind="symlink"), "text", "a", False),
        (Artifact(b"", 0o640), "mode", "640", True),
        (Artifact(b"", 0o4640), "mode", "640", False),
        (Artifact(b"", kind="dir"), "absent", "", False),
        (Artifact(b"a/b", kind="symlink"), "link", "a/b", True),
        (Artifact(b"a/c", kind="symlink"), "link", "a/b", False),
        (Artifact(b"a/b"), "link", "a/b", False),
    ],
)
def test_the_state_of_a_path(artifact, kind, value, passed):
    submission = Submission({"p": artifact} if artifact else {})
    assert path_state(submission, "p", kind, value).passed is passed
