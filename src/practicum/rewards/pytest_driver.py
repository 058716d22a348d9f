"""Runs hidden pytest files in a grading box; sent there as text, never imported by Practicum.

The parent imports nothing of the candidate's. Each test file runs in a child of its own, which
answers on a pipe, with a token of its own; what it says counts only when it comes to its end. The
parent answers on stdout, with a nonce that it reads after the last child is gone.
"""

import ctypes
import json
import os
import select
import signal
import sys
import time
from typing import Any

PR_SET_DUMPABLE = 4  # off: no process of the same user may look into this one


def child(path: str, plan: dict[str, Any], say: Any) -> None:
    """Run one test file and say what came of each test."""
    sys.path[:0] = [place for place in os.environ.get("PYTHONPATH", "").split(":") if place]
    import _pytest.runner  # noqa: F401  before any module of the candidate
    import pytest

    sys.path.append(os.getcwd())
    outcomes: dict[str, str] = {}

    class Plugin:
        @staticmethod
        def pytest_runtest_logreport(report: Any) -> None:
            if report.when == "call" or report.outcome != "passed":
                expected = hasattr(report, "wasxfail")
                word = {"skipped": "xfailed", "passed": "xpassed"} if expected else {}
                outcomes[report.nodeid] = (
                    word.get(report.outcome, report.outcome)
                    if report.when != "teardown"
                    else "failed"
                )

        @staticmethod
        def pytest_sessionfinish() -> None:
            say(outcomes)

    options = [
        *("-q", "--no-header", "--import-mode=importlib", f"--rootdir={plan['folder']}"),
        *("-c", "/dev/null", f"--confcutdir={plan['folder']}", "-p", "no:cacheprovider"),
        *("-o", "disable_test_id_escaping_and_forfeit_all_rights_to_community_support=true"),
    ]
    pytest.main([*options, path], plugins=[Plugin()])


def run(path: str, plan: dict[str, Any], seconds: float) -> dict[str, str]:
    """What the tests of one file came to; nothing if its process did not end well and in time."""
    reader, writer = os.pipe()
    token = os.urandom(16).hex()
    process = os.fork()
    if not process:
        os.setsid()
        os.close(reader)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        write, dumps = os.write, json.dumps

        def say(outcomes: dict[str, str]) -> None:
            write(writer, dumps([token, outcomes]).encode() + b"\n")

        try:
            child(path, plan, say)
        finally:
            os._exit(0)
    os.close(writer)
    said, end = b"", time.monotonic() + seconds
    while b"\n" not in said and len(said) < 1 << 22:
        ready, _, _ = select.select([reader], [], [], max(0.0, end - time.monotonic()))
        more = os.read(reader, 1 << 16) if ready else b""
        if not more:
            break
        said += more
    os.close(reader)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    try:
        found, outcomes = json.loads(said)
        return dict(outcomes) if found == token else {}
    except (ValueError, TypeError):
        return {}


def main() -> None:
    """Read the plan, run, read the nonce, report."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    plan = json.loads(sys.stdin.readline())
    plan["folder"] = os.path.abspath(plan["folder"])
    found: dict[str, dict[str, str]] = {}
    for path in plan["files"]:
        found[path] = run(os.path.join(plan["folder"], path), plan, plan["seconds"])
    print(json.dumps({"nonce": sys.stdin.readline().strip(), "found": found}))


if __name__ == "__main__":
    main()
