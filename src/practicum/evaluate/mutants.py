"""Tests the audit itself: slips are put into the graders, and its panel must notice them.

A mutant is one edit (`mutation`) of one function that a domain's `grade` can reach, in the domain's
module or in `rewards`. It is killed when any domain that uses the function then gives one case of
its panel a score that the audit would refuse, raises, or hangs. Survivors are listed with their
line; those that change nothing but the wording of evidence are counted apart, as no panel could
and should refuse them.
"""

import ast
import importlib
import importlib.util
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import msgspec
from rich.table import Table

from practicum.core import Score
from practicum.domains.domain import Boxes, Domain
from practicum.evaluate.audit import AUDIT_SEEDS
from practicum.evaluate.exhibits import Exhibit, exhibits
from practicum.evaluate.mutation import Edit, edits
from practicum.evaluate.panel import Case, fault

STUCK_SECONDS = 2.0  # in a mutant's own code, without waiting for a box
REQUIRED = 0.9
_NOT_GRADING = {"make", "solve", "attacks", "impossible"}
_NO_OUTCOME = {"acts", "toward"}  # what process parts read, and sub-goals: they have tests instead
_ORDER = ("full", "less", "unsolved", "floor")  # what may be had, by how much it tells
_SCOPE = ("practicum.domains", "practicum.rewards")


class Survivor(msgspec.Struct, frozen=True):
    """A mutant that the panel let pass."""

    module: str
    line: int
    function: str
    what: str
    reason: str  # "unnoticed", or "only evidence": every value stayed the same, its words did not


class MutationReport(msgspec.Struct, frozen=True):
    """How many mutants there were, and which survived."""

    total: int
    killed: int
    survivors: tuple[Survivor, ...]

    @property
    def wording(self) -> int:
        """Mutants that changed only the wording of evidence."""
        return sum(s.reason == "only evidence" for s in self.survivors)

    @property
    def share(self) -> float:
        """Share killed of those that could change a verdict; 1 when there are none."""
        relevant = self.total - self.wording
        return self.killed / relevant if relevant else 1.0

    @property
    def passed(self) -> bool:
        """Whether enough were killed."""
        return self.share >= REQUIRED


class Bench(msgspec.Struct, frozen=True):
    """A domain and what was submitted to it, with what its true grader said."""

    domain: Domain
    exhibits: list[Exhibit]
    scores: list[list[Score]]  # one list an exhibit, one score a case

    @property
    def slow(self) -> bool:
        """Whether grading opens boxes."""
        return any(exhibit.program for exhibit in self.exhibits)


async def mutants(
    domains: Sequence[Domain],
    boxes: Boxes,
    *,
    seeds: Sequence[int] = AUDIT_SEEDS[:2],
    levels: Sequence[int] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> MutationReport:
    """Try every mutant of the graders of `domains`; a shared function is mutated once.

    Not to be run beside anything else that imports domains: modules are exchanged while it runs.
    """
    benches = [await _bench(domain, boxes, seeds, levels) for domain in domains]
    users: dict[tuple[str, str], list[Bench]] = {}
    for bench in sorted(benches, key=lambda b: b.slow):
        for place in grading_functions(bench.domain):
            using = users.setdefault(place, [])
            if not bench.slow or all(other.slow for other in using):
                using.append(bench)  # boxes only for what no cheaper domain uses
    jobs = [
        (module, tree, function, edit, users[module, name])
        for (module, name) in sorted(users)
        for tree, function in [_parsed(module, name)]
        for edit in edits(function)
    ]
    killed, survivors = 0, []
    for done, (module, tree, function, edit, using) in enumerate(jobs):
        reason = await _reason_to_live(module, tree, edit, using, boxes)
        if reason:
            survivors.append(Survivor(module, edit.line, function.name, edit.what, reason))
        killed += not reason
        progress(done + 1, len(jobs))
    return MutationReport(len(jobs), killed, tuple(_explained(survivors)))


def mutants_table(report: MutationReport) -> Table:
    """The survivors, one a row."""
    table = Table(
        title=f"{report.killed} of {report.total - report.wording} mutants killed "
        f"({100 * report.share:.1f} %); {report.wording} more changed only the words of evidence",
    )
    for name in ("module", "line", "function", "edit", "why it lives"):
        table.add_column(name)
    for s in report.survivors:
        table.add_row(s.module, str(s.line), s.function, s.what, s.reason)
    return table


def grading_functions(domain: Domain) -> list[tuple[str, str]]:
    """Module and qualified name of every function that `grade` can reach in domains and rewards."""
    scope = (*_SCOPE, type(domain).__module__)
    found: dict[tuple[str, str], None] = {}
    waiting: list[Any] = [type(domain).grade]
    while waiting:
        function = waiting.pop()
        place = (function.__module__, function.__qualname__)
        if place in found or not function.__module__.startswith(scope):
            continue
        found[place] = None
        for name in _names(function.__code__):
            if name not in _NOT_GRADING | _NO_OUTCOME:
                waiting += _functions(function.__globals__.get(name), scope)
                waiting += _functions(getattr(type(domain), name, None), scope)
                for module in function.__globals__.values():
                    if isinstance(module, ModuleType) and module.__name__.startswith(scope):
                        waiting += _functions(getattr(module, name, None), scope)
    return list(found)


async def _bench(
    domain: Domain, boxes: Boxes, seeds: Sequence[int], levels: Sequence[int] | None
) -> Bench:
    shown = await exhibits(domain, boxes, seeds=seeds, levels=levels or range(1, domain.levels + 1))
    if any(exhibit.program for exhibit in shown):
        shown = [
            msgspec.structs.replace(exhibit, cases=_telling(exhibit.cases))
            for exhibit in shown[:: len(seeds)]
        ]
    scores = [[await domain.grade(e.task, c.submission, boxes) for c in e.cases] for e in shown]
    return Bench(domain, shown, scores)


def _telling(cases: Sequence[Case]) -> tuple[Case, ...]:
    """The few cases that are worth a box each: gold, near misses, attacks, some of the others."""
    attacks = [c for c in cases if c.name.startswith("attack ")]
    others = sorted((c for c in cases if c not in attacks), key=lambda c: _ORDER.index(c.at_most))
    return (*others[:7], *attacks[:5])


async def _reason_to_live(
    module: str, tree: ast.Module, edit: Edit, using: Sequence[Bench], boxes: Boxes
) -> str:
    """Why no case killed the mutant; empty when one did."""
    code = _compiled(module, tree, edit)
    seen: set[str] = set()
    for bench in using:
        with _exchanged(module, code, bench.domain) as load, _watched(code):
            try:
                domain = load()
                for exhibit, scores in zip(bench.exhibits, bench.scores, strict=True):
                    for case, true in zip(exhibit.cases, scores, strict=True):
                        score = await domain.grade(exhibit.task, case.submission, boxes)
                        if fault(case, score, domain.floor):
                            return ""
                        seen |= _differs(score, true)
            except Exception:
                return ""  # raised or stuck: the audit says so
    return "only evidence" if seen == {"words"} else "unnoticed"


def _explained(survivors: Sequence[Survivor]) -> list[Survivor]:
    """Where a whole function could be replaced and only words changed, all of it is only words."""
    words = {
        (s.module, s.function)
        for s in survivors
        if s.what.endswith("at once") and s.reason == "only evidence"
    }
    return [
        msgspec.structs.replace(s, reason="only evidence") if (s.module, s.function) in words else s
        for s in survivors
    ]


def _differs(score: Score, true: Score) -> set[str]:
    """In what two scores differ: values, or only the words of the evidence."""
    if score == true:
        return set()
    values = [[(p.name, p.value, p.weight) for p in s.parts] for s in (score, true)]
    same = values[0] == values[1] and bool(score.tampered) == bool(true.tampered)
    return {"words"} if same else {"values"}


def _compiled(module: str, tree: ast.Module, edit: Edit) -> CodeType:
    old = edit.apply()
    try:
        return compile(ast.fix_missing_locations(tree), f"<mutant of {module}>", "exec")
    finally:
        edit.undo(old)


@contextmanager
def _exchanged(module: str, code: CodeType, domain: Domain) -> Iterator[Callable[[], Domain]]:
    """Give a loader of the domain in which `module` is replaced by the mutant; then put all back.

    Every module of domains and rewards is loaded anew, so that all of them see the mutant.
    """
    home, kind = type(domain).__module__, type(domain).__qualname__
    before = {
        name: m
        for name, m in sys.modules.items()
        if name == home or (name.startswith(_SCOPE) and not hasattr(m, "__path__"))
    }

    def load() -> Domain:
        for name in before:
            del sys.modules[name]
        spec = importlib.util.find_spec(module)
        assert spec is not None
        mutant = importlib.util.module_from_spec(spec)
        sys.modules[module] = mutant
        exec(code, mutant.__dict__)
        return getattr(importlib.import_module(home), kind)()

    try:
        yield load
    finally:
        for name in [n for n in sys.modules if n == home or n.startswith(_SCOPE)]:
            if name not in before and not hasattr(sys.modules[name], "__path__"):
                del sys.modules[name]
        for name, original in before.items():
            sys.modules[name] = original
            package, _, child = name.rpartition(".")
            if package in sys.modules:
                setattr(sys.modules[package], child, original)


@contextmanager
def _watched(code: CodeType) -> Iterator[None]:
    """Raise TimeoutError in a mutant's code that runs on and on. Waiting for a box is no fault."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def wake(number: int, frame: FrameType | None) -> None:
        while frame:
            if frame.f_code.co_filename == code.co_filename:
                raise TimeoutError("a mutant does not end")
            frame = frame.f_back

    before = signal.signal(signal.SIGALRM, wake)
    signal.setitimer(signal.ITIMER_REAL, STUCK_SECONDS, STUCK_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _parsed(
    module: str, qualified: str
) -> tuple[ast.Module, ast.FunctionDef | ast.AsyncFunctionDef]:
    """The tree of a module and, in it, the function of that qualified name."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_bytes())
    node: Any = tree
    for name in qualified.split("."):
        node = next(n for n in node.body if getattr(n, "name", None) == name)
    return tree, node


def _names(code: CodeType) -> set[str]:
    """Every name that a function's code mentions, inner functions included."""
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return set(code.co_names).union(*(_names(c) for c in inner))


def _functions(value: Any, scope: tuple[str, ...]) -> list[FunctionType]:
    """The plain functions behind a name: a function, or all methods of a class in scope."""
    if isinstance(value, FunctionType):
        return [value] if "<" not in value.__qualname__ else []
    if isinstance(value, type) and value.__module__.startswith(scope):
        if issubclass(value, Domain):
            return []
        return [f for member in vars(value).values() for f in _functions(member, scope)]
    if isinstance(value, property):
        return _functions(value.fget, scope)
    if isinstance(value, classmethod | staticmethod):
        return _functions(value.__func__, scope)
    return []
