"""Comparison of data that a candidate left behind. Nothing here runs, imports or evaluates it.

Every function takes any bytes or text and returns a `Check`; none raises on junk.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from practicum.core import Artifact, Submission
from practicum.rewards.parts import Check

_SHOWN = 60


def shown(value: object) -> str:
    """`value` as one short readable line."""
    text = value if isinstance(value, str) else repr(value)
    text = text.replace("\n", "\\n")
    return f"'{text}'" if len(text) <= _SHOWN else f"'{text[:_SHOWN]}...'"


def tidy(text: str, *, squeeze: bool = False) -> list[str]:
    """The lines of a text without trailing blanks and trailing empty lines.

    With `squeeze`, runs of blanks count as one and leading ones as none (`uniq -c`, `wc`).
    """
    lines = text.replace("\r\n", "\n").split("\n")
    lines = [" ".join(line.split()) if squeeze else line.rstrip() for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def difference(expected: list[str], found: list[str]) -> str:
    """The first differing line of two lists of lines; empty when they are equal."""
    for number, (want, got) in enumerate(zip(expected, found, strict=False), start=1):
        if want != got:
            return f"line {number}: expected {shown(want)}, found {shown(got)}"
    if len(expected) != len(found):
        return f"expected {len(expected)} lines, found {len(found)}"
    return ""


def missing(artifact: Artifact | None) -> str:
    """Why an artifact has no usable content; empty when it is a whole regular file."""
    if artifact is None:
        return "there is no such file"
    if artifact.kind != "file":
        return f"expected a regular file, found a {artifact.kind}"
    return "the file is too large" if artifact.truncated else ""


def same_text(
    name: str, expected: str, found: str, *, squeeze: bool = False, any_order: bool = False
) -> Check:
    """Whether two texts have the same lines, in the same order unless `any_order`."""
    want, got = tidy(expected, squeeze=squeeze), tidy(found, squeeze=squeeze)
    if any_order:
        want, got = sorted(want), sorted(got)
    evidence = difference(want, got)
    return Check(name, not evidence, evidence)


def text_file(
    submission: Submission,
    path: str,
    expected: str,
    *,
    squeeze: bool = False,
    any_order: bool = False,
) -> Check:
    """Whether the file at `path` holds the expected lines."""
    fault = missing(submission.artifacts.get(path))
    if fault:
        return Check(path, False, fault)
    found = submission.text(path) or ""
    return same_text(path, expected, found, squeeze=squeeze, any_order=any_order)


def same_value(expected: Any, found: Any) -> bool:
    """Equality of JSON values: true is not 1, numbers agree within 1e-9, order of keys is free."""
    if isinstance(expected, bool) or isinstance(found, bool):
        return expected is found
    if isinstance(expected, int | float) and isinstance(found, int | float):
        try:
            return expected == found or math.isclose(expected, found, rel_tol=1e-9)
        except OverflowError:
            return False
    if type(expected) is not type(found):
        return False
    if isinstance(expected, list):
        return len(expected) == len(found) and all(map(same_value, expected, found))
    if isinstance(expected, dict):
        return expected.keys() == found.keys() and all(
            same_value(value, found[key]) for key, value in expected.items()
        )
    return bool(expected == found)


def json_file(submission: Submission, path: str, expected: Any) -> Check:
    """Whether the file at `path` holds JSON equal to `expected`."""
    fault = missing(submission.artifacts.get(path))
    if fault:
        return Check(path, False, fault)
    try:
        found = json.loads(submission.text(path) or "")
        equal = same_value(expected, found)
    except (ValueError, RecursionError) as error:
        return Check(path, False, f"not JSON: {error}")
    return Check(path, equal, "" if equal else f"expected {shown(expected)}, found {shown(found)}")


def path_state(artifacts: Mapping[str, Artifact], path: str, kind: str, value: str = "") -> Check:
    """Whether `path` is as it should be.

    `kind` is `absent`, `text` (a file with these lines), `mode` (octal permissions), `dir`, or
    `link` (a symlink to `value`).
    """
    found = artifacts.get(path)
    if kind == "absent":
        return Check(path, found is None, "should not exist")
    if found is None:
        return Check(path, False, "does not exist")
    if kind == "mode":
        mode = f"{found.mode & 0o7777:o}"
        return Check(path, mode == value, f"expected mode {value}, found {mode}")
    if kind == "dir":
        return Check(path, found.kind == "dir", f"expected a directory, found a {found.kind}")
    if kind == "link":
        target = found.data.decode("utf-8", "replace")
        right = found.kind == "symlink" and target.rstrip("/") == value.rstrip("/")
        return Check(
            path, right, f"expected a link to {value}, found a {found.kind} {shown(target)}"
        )
    fault = missing(found)
    if fault:
        return Check(path, False, fault)
    return same_text(path, value, found.data.decode("utf-8", "replace"))
