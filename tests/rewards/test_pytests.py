"""Hidden pytest files: graded right for honest modules, and worth nothing to those that cheat."""

import pytest

from practicum.core import File, GraderError, Limits
from practicum.evaluate.exploiters import _EQUAL, _FORGE, _PASS, _PATCH
from practicum.rewards.pytests import Verdict, run_tests
from practicum.rewards.sentinels import with_sentinels
from practicum.sandbox.contract import Boxes

HONEST = "def double(x):\n    return x + x\n\ndef broken(x):\n    return x + 1\n"
HIDDEN = """
import pytest
from mod import broken, double


def test_number():
    assert double(3) == 6


def test_text():
    assert double("ab") == "abab"


def test_bug():
    assert broken(3) == 6


@pytest.mark.parametrize("text", ["a b", "ü::ß/x", "plain"])
def test_each(text):
    assert double(text) == text * 2


@pytest.mark.xfail
def test_known():
    assert broken(3) == 6


@pytest.mark.xfail
def test_better():
    assert double(1) == 2


@pytest.mark.xfail(strict=True)
def test_strict():
    assert double(1) == 2


@pytest.mark.skip
def test_skipped():
    assert double(1) == 2


class TestMany:
    def test_list(self):
        assert double([1]) == [1, 1]


@pytest.fixture
def untidy():
    yield 1
    raise RuntimeError


def test_teardown(untidy):
    assert double(untidy) == 2
"""
IDS = [
    "test_mod.py::test_number",
    "test_mod.py::test_text",
    "test_mod.py::test_each[a b]",
    "test_mod.py::test_each[ü::ß/x]",
    "test_mod.py::test_each[plain]",
    "test_mod.py::TestMany::test_list",
]
FAILING = [
    *("test_bug", "test_known", "test_better", "test_strict", "test_skipped", "test_teardown"),
    "test_that_is_not_there",
]


async def graded(boxes: Boxes, *files: File, ids: list[str] | None = None) -> Verdict:
    tests = [File("test_mod.py", HIDDEN.encode())]
    return await run_tests(boxes, files, tests, ids or IDS, Limits(command_seconds=4))


def mod(text: str) -> File:
    return File("mod.py", text.encode())


async def test_an_honest_module_is_graded_test_by_test(boxes: Boxes) -> None:
    ids = IDS + [f"test_mod.py::{name}" for name in FAILING]
    found = await graded(boxes, mod(HONEST), ids=ids)
    assert found.tampered == ""
    assert [check.name for check in found.checks] == ids
    assert [check.passed for check in found.checks] == [True] * len(IDS) + [False] * len(FAILING)
    said = {check.name.rpartition("::")[2]: check.evidence for check in found.checks}
    assert [said[name] for name in FAILING] == [
        *("failed", "xfailed", "xpassed", "failed", "skipped", "failed"),
        "not reported",
    ]


async def test_ids_may_be_as_pytest_prints_them(boxes: Boxes) -> None:
    found = await graded(boxes, mod(HONEST), ids=[r"test_mod.py::test_each[\xfc::\xdf/x]"])
    assert found.checks[0].passed


async def test_what_should_fail_as_marked_may_be_expected_to(boxes: Boxes) -> None:
    tests = [File("test_mod.py", HIDDEN.encode())]
    wanted = {"test_mod.py::test_known": "xfailed", "test_mod.py::test_number": "xfailed"}
    found = await run_tests(boxes, [mod(HONEST)], tests, wanted, Limits())
    assert [check.passed for check in found.checks] == [True, False]


async def test_a_file_that_cannot_be_collected_fails_alone(boxes: Boxes) -> None:
    tests = [
        File("test_mod.py", HIDDEN.encode()),
        File("test_other.py", b"import mod\nmod.missing\ndef test_a():\n    assert mod\n"),
        File("conftest.py", b"import pytest\n@pytest.fixture\ndef two():\n    return 2\n"),
        File("test_own.py", b"import mod\ndef test_b(two):\n    assert mod.double(two) == 4\n"),
    ]
    ids = ["test_mod.py::test_number", "test_other.py::test_a", "test_own.py::test_b"]
    found = await run_tests(boxes, [mod(HONEST)], tests, ids, Limits())
    assert [check.passed for check in found.checks] == [True, False, True]


async def test_good_practice_is_not_held_against_anybody(boxes: Boxes) -> None:
    own = [
        File("conftest.py", b"import pytest\n@pytest.fixture\ndef one():\n    return 1\n"),
        File("test_own.py", b"def test_own(one):\n    assert one == 2\n"),
        File("pytest.ini", b"[pytest]\naddopts = --maxfail=1 -x --collect-only\n"),
        File("pyproject.toml", b"[tool.pytest.ini_options]\naddopts = '--collect-only'\n"),
    ]
    found = await graded(boxes, mod(HONEST), *own)
    assert all(check.passed for check in found.checks)
    assert not found.tampered


TOKEN = """
import gc, json, os
def double(x):
    return None
broken = double
tokens = {c.cell_contents for f in gc.get_objects() for c in (getattr(f, "__closure__", None) or ())
          if isinstance(getattr(c, "cell_contents", None), str) and len(c.cell_contents) == 32}
folder = next(name for name in os.listdir() if name.startswith(".tests-"))
text = open(folder + "/test_mod.py").read()
names = {line.split("(")[0].split()[1] for line in text.splitlines() if line.startswith("def test")}
said = {f"{folder}/test_mod.py::{name}": "passed" for name in names}
said |= {f"test_mod.py::{name}": "passed" for name in names}
for token in tokens:
    for fd in range(3, 40):
        try:
            os.write(fd, json.dumps([token, said]).encode() + b"\\n")
        except OSError:
            pass
os._exit(0)
"""
LATE = """
import os, threading, time
def double(x):
    return None
if os.fork() == 0:
    os.setsid()
    while True:
        for fd in range(3, 40):
            try:
                os.write(fd, b'["", {"test_mod.py::test_number": "passed"}]\\n')
            except OSError:
                pass
        time.sleep(0.01)
"""
REPORTS = """
import _pytest.runner, _pytest.reports
_pytest.reports.TestReport.from_item_and_call.__func__.__globals__["CallInfo"] = None
def fine(cls, item, call):
    return cls(item.nodeid, item.location, {}, "passed", None, call.when)
_pytest.reports.TestReport.from_item_and_call = classmethod(fine)
def double(x):
    return None
broken = double
"""
HOOK = """
import gc
from _pytest.python import Function
Function.runtest = lambda self: None
def double(x):
    return None
broken = double
"""
PARENT = """
import os
for place in (f"/proc/{os.getppid()}/fd/1", f"/proc/{os.getppid()}/mem"):
    try:
        with open(place, "w") as out:
            out.write('{"nonce": "", "found": {}}')
    except OSError:
        pass
os._exit(0)
"""
NOTHING = "def double(x):\n    return None\nbroken = double\n"
CHEATS = {
    "exit": [mod("import os\nos._exit(0)")],
    "sys_exit": [mod("import sys\nsys.exit(0)")],
    "skip": [mod("import pytest\npytest.skip('no', allow_module_level=True)")],
    "skip_test": [mod("import unittest\nraise unittest.SkipTest('no')")],
    "equal": [mod(_EQUAL)],
    "patched": [mod(_PATCH)],
    "forger": [mod(_FORGE)],
    "conftest": [mod(NOTHING), File("conftest.py", _PASS.encode())],
    "sitecustomize": [mod(NOTHING), File("sitecustomize.py", b"import os; os._exit(0)")],
    "own_pytest": [mod(NOTHING), File("pytest.py", b"def main(*a, **k): return 0")],
    "own_json": [mod(NOTHING), File("json.py", b"def dumps(*a): return 'passed'")],
    "own_plugin": [
        mod(NOTHING),
        File("pytest.ini", b"[pytest]\naddopts = -p evil\n"),
        File("evil.py", _PASS.encode()),
    ],
    "own_tests": [mod(NOTHING), File("test_mod.py", b"def test_number(): pass\n")],
    "late": [mod(LATE)],
    "token": [mod(TOKEN)],
    "reports": [mod(REPORTS)],
    "runtest": [mod(HOOK)],
    "parent": [mod(PARENT)],
    "atexit": [mod(f"import atexit, os\natexit.register(os._exit, 0)\n{NOTHING}")],
    "print": [mod(f"print('6 passed in 0.01s')\n{NOTHING}")],
    "slow": [mod("import time\ntime.sleep(60)")],
}
FORGED = {"equal", "reports", "runtest"}


@pytest.mark.parametrize("name", CHEATS)
async def test_a_cheat_earns_nothing(name: str, boxes: Boxes) -> None:
    found = await graded(boxes, *CHEATS[name])
    assert [check.passed for check in found.checks] == [False] * len(IDS)
    assert bool(found.tampered) == (name in FORGED)


async def test_tests_that_are_no_python_are_our_own_failure(boxes: Boxes) -> None:
    with pytest.raises(GraderError, match="are no Python"):
        await run_tests(boxes, [mod(HONEST)], [File("test_mod.py", b"def (")], ["x"], Limits())


def test_sentinels_differ_by_nonce_and_stand_beside_what_they_copy() -> None:
    one, names = with_sentinels(HIDDEN, "a")
    assert with_sentinels(HIDDEN, "a") == (one, names)
    assert with_sentinels(HIDDEN, "b")[1] != names
    assert len(names) == 6  # number, text, bug, teardown, one in the class, one alone
    assert sum(name.startswith("TestMany::") for name in names) == 1
    for name in names:
        assert f"def {name.rpartition('::')[2]}(" in one
