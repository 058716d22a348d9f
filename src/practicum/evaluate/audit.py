"""The audit: what a domain must prove before anybody trains on it. Its tasks can be solved, only
solving them pays, and the same seed gives the same task and verdict every time.

It reports everything that it found, not only the first fault. A passed audit is remembered under
the hash of the domain's source (`provenance`), so that any change asks for a new one.
"""

import asyncio
import os
import time
import tracemalloc
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

import msgspec
from rich.table import Table

from practicum.core import Task
from practicum.domains.domain import Boxes, Domain
from practicum.evaluate.exhibits import Exhibit, exhibits
from practicum.evaluate.panel import fault
from practicum.evaluate.provenance import source_hash
from practicum.evaluate.regenerate import generated, generated_elsewhere
from practicum.models.reference import cache_folder

MAKE_SECONDS = 0.5  # to generate one task
MAKE_MB = 64  # of Python memory, to generate one task
GRADE_SECONDS = 30.0  # to grade one gold solution, boxes included
ORDER_SEEDS = range(12)  # that difficulty is judged by: generated, not played
AUDIT_SEEDS = (910_001, 910_002, 910_003)  # far from those that training and evaluation use
_SHOWN = 3
_LEGEND = (
    "How many cases were tried, or ✗ and how many failed. gold: full marks; floor: non-solvers "
    "earn nothing; raises: the grader never does; twice: same verdict; canary: nothing earns on an "
    "impossible variant; bytes: same tasks again; leaks: no gold shown; order: levels get no "
    "easier; budget: time and memory"
)


class Check(msgspec.Struct, frozen=True):
    """One demand, on how much it was tried, and every way in which it failed."""

    name: str
    cases: int
    failures: tuple[str, ...] = ()


class AuditReport(msgspec.Struct, frozen=True):
    """What the audit of one domain found."""

    domain: str
    source: str  # hash of what was audited
    checks: tuple[Check, ...]
    tasks: int
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return not any(check.failures for check in self.checks)


async def audit(
    domain: Domain,
    boxes: Boxes,
    *,
    seeds: Sequence[int] = AUDIT_SEEDS,
    levels: Sequence[int] | None = None,
) -> AuditReport:
    """Audit one domain and remember the result. Our own failures (a box that dies) raise."""
    start = time.perf_counter()
    levels = levels or range(1, domain.levels + 1)
    shown = await exhibits(domain, boxes, seeds=seeds, levels=levels)
    tasks = [exhibit.task for exhibit in shown]
    checks = (
        _gold(shown),
        *(await _grading(domain, boxes, shown)),
        await _impossible(domain, boxes, shown),
        await _regenerated(domain, seeds, levels),
        _no_gold_shown(domain, tasks),
        _ordered(domain, levels),
        _budgets(domain, shown),
    )
    report = AuditReport(
        domain=domain.name,
        source=source_hash(domain),
        checks=checks,
        tasks=len(tasks),
        seconds=round(time.perf_counter() - start, 2),
    )
    _remember(report)
    return report


def is_audited(domain: Domain) -> bool:
    """Whether the domain, exactly as its source is now, has passed an audit on this machine."""
    report = last_report(domain)
    return report is not None and report.passed


def last_report(domain: Domain) -> AuditReport | None:
    """The remembered audit of the domain as its source is now, if there is one."""
    try:
        data = _place(domain.name, source_hash(domain)).read_bytes()
        return msgspec.json.decode(data, type=AuditReport)
    except (OSError, msgspec.DecodeError):
        return None


def audit_table(reports: Iterable[AuditReport]) -> Table:
    """One row a domain, one column a check; `faults` says what a cross means."""
    reports = list(reports)
    names = list(dict.fromkeys(c.name for r in reports for c in r.checks))
    table = Table(title="Audit of domains", caption=_LEGEND)
    table.add_column("domain", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    for report in reports:
        found = {check.name: check for check in report.checks}
        cells = [_cell(found.get(name)) for name in names]
        table.add_row(report.domain, *cells, f"{report.seconds:.1f}")
    return table


def faults(report: AuditReport) -> list[str]:
    """The report's faults, one line each, the first few of every check."""
    lines = []
    for check in report.checks:
        lines += [f"{report.domain}: {check.name}: {text}" for text in check.failures[:_SHOWN]]
        if len(check.failures) > _SHOWN:
            lines.append(f"{report.domain}: {check.name}: {len(check.failures) - _SHOWN} more")
    return lines


# The checks


def _gold(shown: Sequence[Exhibit]) -> Check:
    """Gold, played through the real rollout, completes and gets full marks."""
    failures = []
    for exhibit in shown:
        episode = exhibit.gold
        if not exhibit.cases:
            failures.append(f"{_where(exhibit.task)}: not graded ({episode.error})")
        elif not episode.solved or episode.outcome != "completed":
            parts = episode.score.parts if episode.score else ()
            evidence = "; ".join(p.evidence for p in parts if p.evidence)
            failures.append(f"{_where(exhibit.task)}: {episode.outcome}, {evidence or 'no score'}")
    return Check("gold", len(shown), tuple(failures))


async def _grading(domain: Domain, boxes: Boxes, shown: Sequence[Exhibit]) -> list[Check]:
    """Non-solvers stay at the floor, the grader never raises, twice graded is the same."""
    found = await asyncio.gather(*(_graded(domain, boxes, exhibit) for exhibit in shown))
    cases = sum(len(exhibit.cases) for exhibit in shown)
    again = sum(1 if exhibit.program else len(exhibit.cases) for exhibit in shown)
    return [
        Check(name, count, tuple(text for part in found for text in part[name]))
        for name, count in (("floor", cases), ("raises", cases), ("twice", again))
    ]


async def _graded(domain: Domain, boxes: Boxes, exhibit: Exhibit) -> dict[str, list[str]]:
    """Faults of the grader on one exhibit, by check. Programs are run twice for gold only."""
    where = _where(exhibit.task)
    found: dict[str, list[str]] = {"floor": [], "raises": [], "twice": []}
    for case in exhibit.cases:
        try:
            score = await domain.grade(exhibit.task, case.submission, boxes)
            again = score
            if case.at_most == "full" or not exhibit.program:
                again = await domain.grade(exhibit.task, case.submission, boxes)
        except Exception as error:
            found["raises"].append(f"{where}, {case.name}: {type(error).__name__}: {error}")
            continue
        if again != score:
            found["twice"].append(f"{where}, {case.name}: two verdicts on the same")
        if problem := fault(case, score, domain.floor):
            found["floor"].append(f"{where}, {problem}")
    found["raises"] += [
        f"{where}, {name}: {episode.error}"
        for name, episode in exhibit.attacks.items()
        if episode.score is None
    ]
    return found


async def _impossible(domain: Domain, boxes: Boxes, shown: Sequence[Exhibit]) -> Check:
    """The gold of a task earns nothing once its truth is one that no work leads to."""
    cases = [
        (task, next(case.submission for case in exhibit.cases if case.at_most == "full"))
        for exhibit in shown
        if exhibit.cases and (task := domain.impossible(exhibit.task))
    ]
    scores = await asyncio.gather(
        *(domain.grade(task, gold, boxes) for task, gold in cases), return_exceptions=True
    )
    failures = []
    for (task, _), score in zip(cases, scores, strict=True):
        if isinstance(score, BaseException):
            failures.append(f"{_where(task)}: {type(score).__name__}: {score}")
        elif score.value is None or score.value > domain.floor + 1e-9:
            failures.append(f"{_where(task)}: gold scores {score.value} on the impossible variant")
        elif not task.canary:
            failures.append(f"{_where(task)}: make the variant with rewards.canaries.canary")
    return Check("canary", len(cases), tuple(failures))


async def _regenerated(domain: Domain, seeds: Sequence[int], levels: Sequence[int]) -> Check:
    """Generating again gives the same bytes, also in a process that hashes strings differently."""
    here = generated(domain, seeds, levels)
    failures = [] if here == generated(domain, seeds, levels) else ["differs within one process"]
    try:
        if here != await generated_elsewhere(domain, seeds, levels):
            failures.append("differs in another process; look for set order, hash() or a clock")
    except RuntimeError as error:
        failures.append(str(error))
    return Check("bytes", 2 * len(here), tuple(failures))


def _no_gold_shown(domain: Domain, tasks: Sequence[Task]) -> Check:
    """What solves the task is in neither its prompt nor its files, nor is a file named as if so."""
    failures = []
    for task in tasks:
        shown = [("the prompt", task.prompt.encode())]
        shown += [(f.path, f.path.encode() + b"\n" + f.data) for f in task.files]
        steps = [
            [text.encode() for text in texts if len(text) >= 20]
            for message in domain.solve(task)
            for texts in [
                [message.text],
                *([str(v) for v in c.arguments.values()] for c in message.calls),
            ]
        ]
        truth = content_of(task.truth)
        for place, data in shown:
            if any(step and all(text in data for text in step) for step in steps):
                failures.append(f"{_where(task)}: {place} holds a step of the solution")
            if task.truth and truth in data:
                failures.append(f"{_where(task)}: {place} holds the truth")
        names = {Path(f.path).stem.lower() for f in task.files} & _TELLING
        failures += [f"{_where(task)}: a file is named {name!r}" for name in sorted(names)]
    return Check("leaks", len(tasks), tuple(failures))


_TELLING = {"gold", "solution", "truth", "ground_truth", "expected_output", "answer_key"}


def content_of(value: object) -> bytes:
    """The canonical JSON of a value, as a careless domain would write it to a file."""
    return msgspec.json.encode(value, order="deterministic")


def _ordered(domain: Domain, levels: Sequence[int]) -> Check:
    """A level asks for no less than the one below: a longer solution, or a longer question."""
    asked, solved = [], []
    for level in levels:
        tasks = [domain.make(seed, level) for seed in ORDER_SEEDS]
        asked.append(fmean(len(task.prompt) for task in tasks))
        solved.append(fmean(len(content_of(domain.solve(task))) for task in tasks))
    pairs = zip(levels[1:], asked, asked[1:], solved, solved[1:], strict=False)
    failures = [
        f"level {level} asks for less than level {level - 1}: solution {s0:.0f} -> {s1:.0f}, "
        f"question {a0:.0f} -> {a1:.0f} characters"
        for level, a0, a1, s0, s1 in pairs
        if s1 < s0 * 0.98 and a1 < a0 * 0.98
    ]
    if len(levels) > 1 and solved[-1] < solved[0] and asked[-1] < asked[0]:
        failures.append("the last level asks for less than the first")
    return Check("order", len(levels), tuple(failures))


def _budgets(domain: Domain, shown: Sequence[Exhibit]) -> Check:
    """Tasks are cheap to make, fit their own limits, and gold is graded in time."""
    failures = []
    for exhibit in shown:
        task = exhibit.task
        tracemalloc.start()
        start = time.process_time()
        domain.make(task.seed, task.level)
        seconds = time.process_time() - start
        peak = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        size = sum(len(f.data) for f in task.files) / 1e6
        turns = len(domain.solve(task))
        over = {
            f"making it took {seconds:.2f} s": seconds > MAKE_SECONDS,
            f"making it took {peak:.0f} MB": peak > MAKE_MB,
            f"its files have {size:.1f} MB": size > task.limits.workspace_mb / 2,
            f"gold needs {turns} turns of {task.limits.turns}": turns > task.limits.turns,
            f"grading took {exhibit.grade_seconds:.1f} s": exhibit.grade_seconds > GRADE_SECONDS,
        }
        failures += [f"{_where(task)}: {text}" for text, is_over in over.items() if is_over]
    return Check("budget", len(shown), tuple(failures))


# Memory of what passed


def _place(domain: str, source: str) -> Path:
    return cache_folder() / "audits" / f"{domain}-{source}.json"


def _remember(report: AuditReport) -> None:
    """Write the report whole or not at all. A cache that cannot be written only costs time."""
    path = _place(report.domain, report.source)
    temp = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temp.write_bytes(msgspec.json.encode(report))
        os.replace(temp, path)
    except OSError:
        temp.unlink(missing_ok=True)


def _where(task: Task) -> str:
    return f"level {task.level} seed {task.seed}"


def _cell(check: Check | None) -> str:
    if check is None:
        return ""
    failed = len(check.failures)
    return f"[red]✗ {failed}[/red]" if failed else f"[green]{check.cases}[/green]"
