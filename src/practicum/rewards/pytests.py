"""Hidden pytest files against a candidate's files, in a fresh box, by positive evidence only.

A test has passed when its id was reported as passed by a run that came to its end, and that says of
every sentinel of the file that it failed. A candidate's conftest, plugins and configuration are not
loaded, nor what it names like a module of the standard library; its own tests are not run. None of
that is held against it.

The candidate's code shares a process with the tests that call it. What makes all tests pass shows
in `sentinels`. What reads the tests while they run, tells sentinels from tests and lies about the
tests alone does not show. Where a call and a JSON value will do, prefer `cases.run_calls`: there
nothing can be forged.
"""

import base64
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from practicum.core import File, GraderError, Limits, SandboxError
from practicum.rewards.compare import shown
from practicum.rewards.parts import Check
from practicum.rewards.sentinels import with_sentinels
from practicum.sandbox.contract import Boxes

Expected = Literal["passed", "xfailed"]

SHOWN = 3
"""How many of the sentinels that passed are named as evidence."""

_DRIVER = Path(__file__).with_name("pytest_driver.py")
_REPORT_BYTES = 1 << 22
_START_SECONDS = 5.0
_SENTINEL = re.compile(r"_[a-z]+_\d+$")  # what `sentinels` adds to the name of the test it copies


class Verdict(msgspec.Struct, frozen=True):
    """A check for each expected test, in order, and evidence of forgery (empty if none)."""

    checks: tuple[Check, ...]
    tampered: str = ""


class _Ran(msgspec.Struct):
    """What came of one test file: (outcome, reason) by id, and why there is none of other ids."""

    outcomes: dict[str, tuple[str, str]]
    why: str


async def run_tests(
    boxes: Boxes,
    files: Sequence[File],
    tests: Sequence[File],
    expected: Sequence[str] | Mapping[str, Expected],
    limits: Limits,
    *,
    roots: Sequence[str] = ("",),
) -> Verdict:
    """Run `tests` against `files`, each test file in a process of its own.

    `expected` holds test ids relative to the folder of the tests, `test_a.py::test_b[x y]`, as
    pytest prints them or with non-ASCII text as it is; a mapping says which of them should fail as
    marked. Beside test files, `tests` may hold their own conftest, pytest.ini, data and helpers (in
    folders with an `__init__.py`, or a candidate's folder of the same name hides them). They lie in
    a folder apart; the working directory is the candidate's, and its modules are imported from
    `roots` in it, last of all places.

    All tests together have `limits.command_seconds`, and all sentinels as much again. A file may
    use an equal share of what is left. Raises GraderError when the box failed, and for tests that
    are no Python.
    """
    nonce = secrets.token_hex(16)
    laid, sentinels = _armed(tests, nonce)
    plan = {
        "files": {path: base64.b64encode(data).decode() for path, data in laid.items()},
        "run": list(sentinels),
        "last": sentinels,
        "roots": list(roots),
        "seconds": 2 * limits.command_seconds,
    }
    text = json.dumps(plan)
    limits = msgspec.structs.replace(limits, output_bytes=_REPORT_BYTES)
    try:
        async with await boxes.open(files, limits) as box:
            result = await box.run(
                ["python3", "-I", "-c", _DRIVER.read_text()],
                stdin=f"{len(text)}\n{text}{nonce}\n".encode(),
                seconds=2 * limits.command_seconds + _START_SECONDS,
            )
    except SandboxError as error:
        raise GraderError(
            f"the box for grading failed: {error}; grade the episode again"
        ) from error
    ran = _reported(result.stdout, nonce)
    forged = _forged(ran, sentinels)
    for path, file in ran.items():
        file.outcomes = {
            _printed(name, path): o for name, o in file.outcomes.items()
        } | file.outcomes
    wanted = expected if isinstance(expected, Mapping) else dict.fromkeys(expected, "passed")
    if forged:
        count = sum(len(names) for names in sentinels.values())
        why = f"of {count} tests that nobody can pass, these were reported as passed: "
        why += ", ".join(forged[:SHOWN]) + (" and others" if forged[SHOWN:] else "")
        return Verdict(tuple(Check(name, False, "forged") for name in wanted), why)
    return Verdict(tuple(_judged(name, word, ran) for name, word in wanted.items()))


def _is_test(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith("_test.py") or (name.startswith("test_") and name.endswith(".py"))


def _armed(tests: Sequence[File], nonce: str) -> tuple[dict[str, bytes], dict[str, list[str]]]:
    """The files of the tests as they are laid, and for each test file the names of its sentinels.

    Names are as in ids, without the path: `test_a`, `TestIt::test_a`.
    """
    laid: dict[str, bytes] = {}
    sentinels: dict[str, list[str]] = {}
    for file in tests:
        laid[file.path] = file.data
        if _is_test(file.path):
            try:
                source, names = with_sentinels(
                    file.data.decode("utf-8-sig"), f"{nonce} {file.path}"
                )
            except (SyntaxError, ValueError) as error:
                raise GraderError(
                    f"the hidden tests {file.path} are no Python: {error}; repair the task"
                ) from error
            laid[file.path], sentinels[file.path] = source.encode(), names
    return laid, sentinels


def _reported(stdout: bytes, nonce: str) -> dict[str, _Ran]:
    """What came of each file, of the one line that has the nonce; nothing if there is none."""
    for line in stdout.decode("utf-8", "replace").splitlines():
        try:
            report: Any = json.loads(line)
        except ValueError:
            continue
        if isinstance(report, dict) and report.get("nonce") == nonce:
            return {path: _Ran(*found) for path, found in report["found"].items()}
    return {}


def _forged(ran: Mapping[str, _Ran], sentinels: Mapping[str, Sequence[str]]) -> list[str]:
    """Ids of the sentinels that passed. Where one was left out, the file has no outcome."""
    forged: list[str] = []
    for path, file in ran.items():
        names = {name: _bare(name, path) for name in file.outcomes}
        own, seen = set(sentinels[path]), set(names.values())
        forged += [
            name
            for name, (word, _) in file.outcomes.items()
            if names[name] in own and word in ("passed", "xpassed")
        ]
        copied = {name: _SENTINEL.sub("", name) for name in own}
        if any(n not in seen and (o in seen or o == "test") for n, o in copied.items()):
            reason = "not all tests were reported" if seen else file.why
            file.outcomes, file.why = {}, reason
    return forged


def _bare(name: str, path: str) -> str:
    """A test id without its path and its parameters."""
    return name[len(path) + len("::") :].partition("[")[0]


def _judged(name: str, expected: str, ran: Mapping[str, _Ran]) -> Check:
    """The check of one expected test."""
    file = next((file for path, file in ran.items() if name.startswith(f"{path}::")), None)
    why = file.why if file else "the run did not come to its end"
    outcome, reason = (file.outcomes if file else {}).get(name, ("not reported", why))
    evidence = f"{outcome}: {shown(reason)}" if reason else outcome
    return Check(name, outcome == expected, "" if outcome == expected else evidence)


def _printed(name: str, path: str) -> str:
    """A test id as pytest prints it: its parameters without what is not printable ASCII."""
    plain, bracket, parameters = name[len(path) :].partition("[")
    return path + plain + bracket + parameters.encode("unicode_escape").decode()
