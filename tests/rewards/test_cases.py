"""Code of a candidate earns only by what it prints or returns on inputs it has not seen."""

import pytest

from practicum.core import Artifact, File, GraderError, Limits, SandboxError, Submission
from practicum.rewards import cases
from practicum.rewards.cases import Call, Case, run_calls, run_cases, sources

CALLS = [Call("mod.py", "double", [n], 2 * n) for n in (3, 5, 8)]

ATTACKS = {
    "exits": "import os\nos._exit(0)",
    "raises SystemExit": "raise SystemExit(0)",
    "always equal": "class A(int):\n def __eq__(s, o): return True\ndef double(n): return A()",
    "not JSON": "def double(n): return {1, 2}",
    "prints": "def double(n): print({'value': 2 * n})",
    "forges the report": (
        "import glob, sys\n"
        "for n in range(9): open('report.jsonl', 'a').write('{\"value\": true}\\n')\n"
        "def double(n): return True"
    ),
    "deep": "def double(n):\n x = []\n for _ in range(100000): x = [x]\n return x",
    "not a number": "def double(n): return float('nan')",
    "nothing": "",
    "fails at its end": "def double(n): return 2 * n\n1 / 0",
    "syntax": "def double(n) return",
    "endless": "while True: pass",
}


async def passed(boxes, source: str, *more: File) -> list[bool]:
    checks = await run_calls(boxes, [File("mod.py", source.encode()), *more], CALLS, Limits())
    return [check.passed for check in checks]


async def test_right_functions_pass_whatever_they_print(boxes):
    source = "print('hello')\ndef double(n):\n    print('working')\n    return n * 2"
    assert await passed(boxes, source) == [True, True, True]


@pytest.fixture(autouse=True)
def impatience(monkeypatch):
    monkeypatch.setattr(cases, "CASE_SECONDS", 2.0)


@pytest.mark.parametrize("attack", ATTACKS)
async def test_attacks_on_calls_pass_nothing(boxes, attack):
    assert await passed(boxes, ATTACKS[attack]) == [False, False, False]


async def test_modules_named_like_the_library_shadow_nothing(boxes):
    evil = b"raise SystemExit('shadowed')"
    more = [File(f"{name}.py", evil) for name in ("json", "importlib", "sitecustomize", "conftest")]
    assert await passed(boxes, "def double(n): return n + n", *more) == [True] * 3


async def test_a_wrong_call_says_what_was_expected(boxes):
    files = [File("mod.py", b"def double(n): return n")]
    check = (await run_calls(boxes, files, CALLS[:1], Limits()))[0]
    assert check.name == "double(3)"
    assert check.evidence == "expected 6, found 3"


async def test_programs_are_judged_by_their_output_not_their_status(boxes):
    runs = [Case(("bash", "x.sh", n), n) for n in ("1", "2")]
    honest = [File("x.sh", b'echo "$1"; exit 3')]
    silent = [File("x.sh", b"echo passed >&2; exit 0")]
    assert [c.passed for c in await run_cases(boxes, honest, runs, Limits())] == [True, True]
    checks = await run_cases(boxes, silent, runs, Limits())
    assert not any(c.passed for c in checks)
    assert "passed" in checks[0].evidence


async def test_after_one_endless_case_the_others_are_not_tried(boxes):
    runs = [Case(("bash", "x.sh"), "1")] * 3
    checks = await run_cases(boxes, [File("x.sh", b"sleep 60 & wait")], runs, Limits())
    assert [c.passed for c in checks] == [False] * 3
    assert "took more than" in checks[0].evidence
    assert "not run" in checks[2].evidence


async def test_a_failed_build_is_told(boxes):
    files = [File("Makefile", b"prog:\n\techo broken thing >&2; false\n")]
    checks = await run_cases(boxes, files, [Case(("./prog",), "1")], Limits(), build=("make",))
    assert not checks[0].passed
    assert checks[0].evidence


def test_links_folders_and_cut_files_are_no_sources():
    artifacts = {
        "a": Artifact(b"code", 0o200),
        "b": Artifact(b"/etc/passwd", kind="symlink"),
        "c": Artifact(b"", kind="dir"),
        "d": Artifact(b"cut", truncated=True),
    }
    assert sources(Submission(artifacts), "abcde") == [File("a", b"code", 0o600)]


async def test_a_failing_box_is_never_the_candidates_fault():
    class Broken:
        async def open(self, *_, **__):
            raise SandboxError("no namespaces")

        async def close(self): ...

    with pytest.raises(GraderError, match="no namespaces; grade the episode again"):
        await run_calls(Broken(), [], CALLS, Limits())
    with pytest.raises(GraderError, match="grade the episode again"):
        await run_cases(Broken(), [], [Case(("true",), "")], Limits())
