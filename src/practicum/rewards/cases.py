"""Runs candidate code on inputs it has not seen, in a fresh box, and compares outputs on the host.

The box holds the candidate's declared files and the inputs, never an expected output. So nothing
that the code does in there (exit early, rewrite a report, print "passed", shadow a module, define
`__eq__`) can earn anything but by printing what is expected. Exit statuses are evidence, never a
verdict, and a case without output is a failed one.
"""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from practicum.core import File, GraderError, Limits, SandboxError, Submission
from practicum.rewards.compare import difference, parse_json, same_value, shown, tidy
from practicum.rewards.parts import Check
from practicum.sandbox.contract import Boxes, Result, Sandbox

CASE_SECONDS = 5.0
"""Run time of one case. After the first case that runs into it, the others are not tried."""

LUCK = 1
"""How many cases a constant output may pass when all expected outputs differ."""


class Case(msgspec.Struct, frozen=True):
    """One run of a program: its command, its standard input and the output it should print."""

    argv: tuple[str, ...]
    expected: str
    stdin: str = ""


class Call(msgspec.Struct, frozen=True):
    """One call of a function in a file, with JSON arguments and the JSON value it should return."""

    path: str
    function: str
    arguments: list[Any]
    expected: Any

    @property
    def name(self) -> str:
        """The call as one would write it."""
        return f"{self.function}({', '.join(repr(value) for value in self.arguments)})"


def sources(submission: Submission, paths: Sequence[str]) -> list[File]:
    """The regular files among `paths` as they were extracted; links and cut files are left out."""
    found = [(path, submission.artifacts.get(path)) for path in paths]
    return [
        File(path, artifact.data, artifact.mode | 0o400)
        for path, artifact in found
        if artifact is not None and artifact.kind == "file" and not artifact.truncated
    ]


async def run_cases(
    boxes: Boxes,
    files: Sequence[File],
    cases: Sequence[Case],
    limits: Limits,
    *,
    build: Sequence[str] = (),
) -> list[Check]:
    """One check for each case, run one after another in one fresh box after `build`.

    Raises GraderError when the box failed.
    """
    checks: list[Check] = []
    try:
        async with await boxes.open(files, limits) as box:
            built = await box.run(build, seconds=limits.command_seconds) if build else None
            late = False
            for number, case in enumerate(cases, start=1):
                name = f"case {number}"
                if late:
                    checks.append(Check(name, False, "not run after a case that took too long"))
                    continue
                result = await box.run(case.argv, stdin=case.stdin.encode(), seconds=CASE_SECONDS)
                late = result.timed_out
                checks.append(_judge(name, case, result, built))
    except SandboxError as error:
        raise GraderError(
            f"the box for grading failed: {error}; grade the episode again"
        ) from error
    return checks


def _judge(name: str, case: Case, result: Result, built: Result | None) -> Check:
    """The check of one finished run; its evidence ends with what was last said on stderr."""
    if result.timed_out:
        return Check(name, False, f"took more than {CASE_SECONDS:g} seconds")
    found = tidy(result.stdout.decode("utf-8", "replace"), squeeze=True)
    evidence = difference(tidy(case.expected, squeeze=True), found)
    said = (built.stderr if built else b"") + result.stderr
    last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return Check(name, not evidence, f"{evidence} (said {shown(last)})")


_DRIVER = """
import importlib.util, json, sys
dumps, calls, report = json.dumps, json.load(sys.stdin), open(sys.argv[1], "w")
modules = {}
for path, function, arguments in calls:
    try:
        if path not in modules:
            spec = importlib.util.spec_from_file_location("candidate", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            modules[path] = module
        line = dumps({"value": getattr(modules[path], function)(*arguments)})
    except BaseException as error:
        line = dumps({"error": type(error).__name__ + ": " + str(error)[:200]})
    print(line, file=report, flush=True)
"""

_IMPORTED = ("importlib.util", "json")
_REPORT = "report.jsonl"


async def run_calls(
    boxes: Boxes, files: Sequence[File], calls: Sequence[Call], limits: Limits
) -> list[Check]:
    """One check for each call of a Python function, all in one fresh box.

    The interpreter runs isolated, so `conftest.py`, `sitecustomize.py` or a file named like a
    module of the standard library has no effect. Raises GraderError when the box failed.
    """
    plan = json.dumps([[call.path, call.function, call.arguments] for call in calls])
    command = ["-I", "-c", _DRIVER, _REPORT]
    try:
        async with await boxes.open(files, limits, preload=_IMPORTED) as box:
            result = await box.python(command, stdin=plan.encode(), seconds=CASE_SECONDS)
            lines = await _report_lines(box)
    except SandboxError as error:
        raise GraderError(
            f"the box for grading failed: {error}; grade the episode again"
        ) from error
    fallback = f"took more than {CASE_SECONDS:g} seconds" if result.timed_out else "no result"
    return [
        _returned(call, lines[at] if at < len(lines) else None, fallback)
        for at, call in enumerate(calls)
    ]


async def _report_lines(box: Sandbox) -> list[Any]:
    """What the driver reported, one value a call; None for a line that is not JSON."""
    report = Submission(await box.read([_REPORT])).text(_REPORT) or ""
    lines: list[Any] = []
    for line in report.split("\n"):
        try:
            lines.append(parse_json(line))
        except ValueError:
            lines.append(None)
    return lines


def _returned(call: Call, line: Any, fallback: str) -> Check:
    """The check of one call from its line in the report."""
    if not isinstance(line, dict) or "value" not in line:
        error = line.get("error", fallback) if isinstance(line, dict) else fallback
        return Check(call.name, False, shown(error))
    evidence = f"expected {shown(call.expected)}, found {shown(line['value'])}"
    return Check(call.name, same_value(call.expected, line["value"]), evidence)
