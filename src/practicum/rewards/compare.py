"""Comparison of data that a candidate left behind. Nothing here runs, imports or evaluates it.

Every function takes any bytes or text and returns a `Check`; none raises on junk.
"""

import json
import reprlib
from itertools import zip_longest
from typing import Any

from practicum.core import Submission
from practicum.rewards.parts import Check

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60


def shown(value: object) -> str:
    """`value` as one short readable line."""
    return _short.repr(value)


def tidy(text: str, *, squeeze: bool) -> list[str]:
    """The lines of a text without trailing blanks and trailing empty lines.

    With `squeeze`, runs of blanks count as one and leading ones as none (`uniq -c`, `wc`).
    """
    lines = text.rstrip().split("\n")
    return [" ".join(line.split()) if squeeze else line.rstrip() for line in lines]


def difference(expected: list[str], found: list[str]) -> str:
    """The first differing line of two lists of lines; empty when they are equal."""
    pairs = enumerate(zip_longest(expected, found), start=1)
    return next(
        (
            f"line {number}: expected {shown(want)}, found {shown(got)}"
            for number, (want, got) in pairs
            if want != got
        ),
        "",
    )


def unusable(submission: Submission, path: str) -> Check:
    """The failed check of a path at which there is no whole regular file."""
    found = submission.artifacts.get(path)
    kind = found.kind if found else "nothing"
    return Check(path, False, f"expected a file of moderate size, found {kind}")


def text_file(
    submission: Submission,
    path: str,
    expected: str,
    *,
    squeeze: bool = False,
    any_order: bool = False,
) -> Check:
    """Whether the file at `path` has the expected lines, in this order unless `any_order`."""
    text = submission.text(path)
    if text is None:
        return unusable(submission, path)
    want, found = tidy(expected, squeeze=squeeze), tidy(text, squeeze=squeeze)
    if any_order:
        want, found = sorted(want), sorted(found)
    evidence = difference(want, found)
    return Check(path, not evidence, evidence)


def _number(digits: str) -> float:
    value = float(digits)
    return int(value) if value.is_integer() else value


def parse_json(text: str) -> Any:
    """The JSON value of a text, with 2.0 read as 2. Raises ValueError for anything else."""
    try:
        return json.loads(text, parse_float=_number)
    except RecursionError as error:
        raise ValueError("too deeply nested") from error


def same_value(expected: Any, found: Any) -> bool:
    """Equality of JSON values: true is not 1, "1" is not 1, the order of keys is free."""
    return json.dumps(expected, sort_keys=True) == json.dumps(found, sort_keys=True)


def json_file(submission: Submission, path: str, expected: Any) -> Check:
    """Whether the file at `path` holds JSON equal to `expected`."""
    text = submission.text(path)
    if text is None:
        return unusable(submission, path)
    try:
        found = parse_json(text)
    except ValueError as error:
        return Check(path, False, f"not JSON: {error}")
    evidence = f"expected {shown(expected)}, found {shown(found)}"
    return Check(path, same_value(expected, found), evidence)


State = tuple[str, str, str]
"""Path, kind and value as `path_state` takes them."""


def path_state(submission: Submission, path: str, kind: str, value: str) -> Check:
    """Whether `path` is as it should be.

    `kind` is `absent` (value unused), `text` (a file with these lines), `mode` (octal
    permissions) or `link` (a symlink to the value).
    """
    if kind == "text":
        return text_file(submission, path, value)
    found = submission.artifacts.get(path)
    if found is None:
        return Check(path, kind == "absent", "does not exist")
    if kind == "link":
        state = f"{found.kind} to {found.data.decode('utf-8', 'replace').rstrip('/')}"
        return Check(path, state == f"symlink to {value}", f"expected a link to {value}")
    mode = f"{found.mode & 0o7777:o}"
    evidence = f"expected {kind} {value}, found mode {mode}"
    return Check(path, kind == "mode" and mode == value, evidence)
