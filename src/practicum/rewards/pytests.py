"""Hidden pytest files against a candidate's files, in a fresh box, by positive evidence only.

A test has passed when its id was reported as passed by a run that came to its end, and that says of
every sentinel of the file that it failed. A candidate's conftest, plugins and configuration are not
loaded, nor what it names like a module of the standard library; its own tests are not run. None of
that is held against it.

The candidate's code shares a process with the tests that call it. What it could do to that process
to have its way with all of them shows in `sentinels`. Where a call and a JSON value will do, prefer
`cases.run_calls`: there nothing can be forged.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from practicum.core import File, GraderError, Limits, SandboxError
from practicum.rewards.parts import Check
from practicum.rewards.sentinels import with_sentinels
from practicum.sandbox.contract import Boxes

Expected = Literal["passed", "xfailed"]

_DRIVER = Path(__file__).with_name("pytest_driver.py")


class Verdict(msgspec.Struct, frozen=True):
    """A check for each expected test, in order, and evidence of forgery (empty if none)."""

    checks: tuple[Check, ...]
    tampered: str = ""


async def run_tests(
    boxes: Boxes,
    files: Sequence[File],
    tests: Sequence[File],
    expected: Sequence[str] | Mapping[str, Expected],
    limits: Limits,
) -> Verdict:
    """Run `tests` (with their own conftest, if they have one) against `files`.

    `expected` holds test ids relative to the folder of the tests, `test_a.py::test_b[x y]`, as
    pytest prints them or with non-ASCII text as it is; a mapping says which of them should fail as
    marked. All test files together have `limits.command_seconds`. Raises GraderError when the box
    failed, and for tests that are no Python.
    """
    nonce = secrets.token_hex(16)
    folder = f".tests-{secrets.token_hex(4)}"
    laid, sentinels = _armed(tests, nonce, folder)
    paths = [f.path for f in tests if _is_test(f.path)]
    plan = {
        "files": paths,
        "folder": folder,
        "seconds": limits.command_seconds / max(1, len(paths)),
    }
    try:
        async with await boxes.open([*files, *laid], limits) as box:
            result = await box.run(
                ["python3", "-I", "-c", _DRIVER.read_text()],
                stdin=f"{json.dumps(plan)}\n{nonce}\n".encode(),
                seconds=limits.command_seconds + 2,
            )
    except SandboxError as error:
        raise GraderError(
            f"the box for grading failed: {error}; grade the episode again"
        ) from error
    found = _reported(result.stdout, nonce)
    silent = {name.partition("::")[0] for name in sentinels if found.get(name) is None}
    found = {name: word for name, word in found.items() if name.partition("::")[0] not in silent}
    passed = sorted(name for name in sentinels if found.get(name) in ("passed", "xpassed"))
    if passed:
        why = (
            f"{len(passed)} of {len(sentinels)} tests that nobody can pass were reported as passed"
        )
        return Verdict(tuple(Check(name, False, "forged") for name in expected), why)
    wanted = expected if isinstance(expected, Mapping) else dict.fromkeys(expected, "passed")
    return Verdict(tuple(_judged(name, word, found) for name, word in wanted.items()))


def _is_test(path: str) -> bool:
    return path.rpartition("/")[2].startswith("test_") and path.endswith(".py")


def _armed(tests: Sequence[File], nonce: str, folder: str) -> tuple[list[File], list[str]]:
    """The files of the tests as they are laid, and the ids of all sentinels in them."""
    laid, ids = [], []
    for file in tests:
        data = file.data
        if _is_test(file.path):
            try:
                source, names = with_sentinels(data.decode(), f"{nonce} {file.path}")
            except (SyntaxError, UnicodeDecodeError) as error:
                raise GraderError(f"the hidden tests {file.path} are no Python: {error}") from error
            data = source.encode()
            ids += [f"{file.path}::{name}" for name in names]
        laid.append(File(f"{folder}/{file.path}", data))
    return laid, ids


def _reported(stdout: bytes, nonce: str) -> dict[str, str]:
    """Outcomes by id, of the one line that has the nonce; nothing if there is no such line."""
    for line in stdout.decode("utf-8", "replace").splitlines():
        try:
            report: Any = json.loads(line)
        except ValueError:
            continue
        if isinstance(report, dict) and report.get("nonce") == nonce:
            merged: dict[str, str] = {}
            for path, outcomes in report["found"].items():
                merged |= {n: str(o) for n, o in outcomes.items() if n.startswith(f"{path}::")}
            return merged | {_escaped(name): word for name, word in merged.items()}
    return {}


def _escaped(name: str) -> str:
    """A test id as pytest prints it."""
    return name.encode("unicode_escape").decode() if not name.isascii() else name


def _judged(name: str, expected: str, found: Mapping[str, str]) -> Check:
    outcome = found.get(name, "not reported")
    return Check(name, outcome == expected, "" if outcome == expected else outcome)
