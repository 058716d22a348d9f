import ast
import sys
import textwrap
from typing import get_args

import flawed
import pytest

from practicum.core import Submission
from practicum.domains import get_domain
from practicum.evaluate.mutants import (
    MutationReport,
    Survivor,
    _telling,
    grading_functions,
    mutants,
)
from practicum.evaluate.mutation import edits
from practicum.evaluate.panel import AtMost, Case
from practicum.sandbox import BubblewrapBoxes


def edited(source: str) -> dict[str, str]:
    """What every edit does to the one function in `source`, and that each is taken back."""
    tree = ast.parse(textwrap.dedent(source))
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    before, found = ast.unparse(tree), {}
    for edit in edits(function):
        old = edit.apply()
        found[edit.what] = ast.unparse(ast.fix_missing_locations(tree))
        compile(tree, "mutant", "exec")
        edit.undo(old)
        assert ast.unparse(tree) == before
    return found


def test_edits_are_the_slips_they_say() -> None:
    found = edited(
        """
        def right(a, b) -> bool:
            "Whether they agree."
            if not a and b < 3:
                return False
            return a == "x" or max(a, b) + 1 in [v for v in b if v]
        """
    )
    assert "if not a and b <= 3:" in found["Lt becomes LtE"]
    assert "if not (not a and b < 3):" in found["not (not a and b < 3)"]
    assert "if not a:" in found["drop `b < 3`"]
    assert "if not a or b < 3:" in found["And becomes Or"]
    assert "if a and b < 3:" in found["drop `not` of a"]
    assert "pass" in found["drop what follows `if not a and b < 3`"]
    assert "return True" in found["False becomes True"]
    assert "min(a, b)" in found["max becomes min"]
    assert "- 1" in found["Add becomes Sub"]
    assert "'x!'" in found["'x' becomes 'x!'"]
    assert "for v in b]" in found["drop `if v`"]
    assert "return True\n    'Whether" in found["return True at once"]
    assert "not in" in found["In becomes NotIn"]


def test_every_function_that_grading_reaches_is_found() -> None:
    found = grading_functions(get_domain("json_data"))
    names = {name for _, name in found}
    assert {"same_value", "json_file", "checked", "above"} <= names
    assert not any(name.endswith((".make", ".solve", ".attacks")) for name in names)
    programs = {name for _, name in grading_functions(get_domain("shell_script"))}
    assert "run_cases" in programs


async def test_mutants_of_a_sound_grader_die_and_nothing_stays_behind(
    boxes: BubblewrapBoxes,
) -> None:
    before = {name: id(module) for name, module in sys.modules.items()}
    report = await mutants([flawed.Sound()], boxes, seeds=(1, 2), levels=(1,))
    assert report.total == 2
    assert report.survivors == ()
    assert report.passed
    after = {name: id(module) for name, module in sys.modules.items()}
    assert {n: i for n, i in after.items() if n in before} == before
    from flawed import Sound

    assert Sound is flawed.Sound


async def test_what_the_panel_cannot_see_survives_with_its_line(boxes: BubblewrapBoxes) -> None:
    report = await mutants([flawed.Blind()], boxes, seeds=(1, 2), levels=(1,))
    assert any(s.function == "grade" and "999" in s.what and s.line > 0 for s in report.survivors)
    assert report.share < 1


async def test_a_mutant_that_never_ends_dies(
    boxes: BubblewrapBoxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("practicum.evaluate.mutants.STUCK_SECONDS", 0.3)
    report = await mutants([flawed.Looping()], boxes, seeds=(1,), levels=(1,))
    assert report.killed >= 1
    assert not any("-1" in s.what or "Sub" in s.what for s in report.survivors)


def test_wording_is_counted_apart() -> None:
    survivors = (
        Survivor("m", 1, "f", "x", "unnoticed"),
        Survivor("m", 2, "f", "y", "only evidence"),
    )
    report = MutationReport(11, 9, survivors)
    assert (report.wording, report.share, report.passed) == (1, 0.9, True)
    assert MutationReport(0, 0, ()).share == 1


async def test_shared_functions_are_mutated_once(boxes: BubblewrapBoxes) -> None:
    seen: list[tuple[int, int]] = []
    domains = [get_domain("small_sums"), get_domain("order_words")]
    both = await mutants(
        domains, boxes, seeds=(1,), levels=(1,), progress=lambda *p: seen.append(p)
    )
    alone = await mutants(domains[:1], boxes, seeds=(1,), levels=(1,))
    assert both.total == alone.total
    assert seen[-1] == (both.total, both.total)
    assert both.killed >= alone.killed


def test_every_kind_of_case_has_its_place_among_the_few_that_are_tried() -> None:
    kinds = get_args(AtMost)
    cases = [Case(kind, Submission({}), kind) for kind in kinds]
    assert [case.name for case in _telling(cases)] == ["full", "less", "unsolved", "floor"]
    assert set(kinds) == {"full", "less", "unsolved", "floor"}
