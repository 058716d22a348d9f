"""`practicum regrade`: what a run kept, by today's graders; a table, what changed, and whose
weights were paid for by others."""

import asyncio
import tomllib
from collections import Counter
from pathlib import Path

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from practicum.cli.progress import Watch
from practicum.cli.screen import stderr, stdout
from practicum.core import PracticumError
from practicum.recipe.regrade import Changed, Paid, Regrade, Verdict, regrade, save
from practicum.recipe.settings import BoxSettings
from practicum.sandbox.choose import open_boxes
from practicum.store import Run

_SHOWN = 5  # changed episodes
_LINES = 3  # of evidence
_DIGITS = 8  # of a version
_LEGEND = (
    "Episodes by what became of their reward; + newly and − no longer unscored, tampered, solved. "
    "left: could not be graded again. Grader and mean reward (of what has one): then → now"
)


def run_regrade(folder: Path, stage: str, *, as_json: bool) -> None:
    """Regrade a run, print what changed and keep it in the run's `regrades/`.

    Exits with 0 when nothing changed, 1 when a verdict changed or could not be had, 2 when the run
    cannot be regraded.
    """
    console = stdout()
    try:
        run = Run.view(folder)
        result = _regraded(stderr() if as_json else console, run, stage)
        path = save(run, result)
    except PracticumError as error:
        stderr().print(Text("error: ", style="bold red") + Text(str(error)), soft_wrap=True)
        raise typer.Exit(2) from error
    if as_json:
        found = {"differs": result.differs, **msgspec.to_builtins(result)}
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
    else:
        _show(console, result)
        console.print(Text(f"regrade  {path}"), soft_wrap=True)
    if result.differs:
        raise typer.Exit(1)


def _regraded(console: Console, run: Run, stage: str) -> Regrade:
    settings = BoxSettings.model_validate(tomllib.loads(run.recipe).get("boxes", {}))

    async def all_of_it() -> Regrade:
        boxes = open_boxes(**settings.model_dump())
        try:
            return await regrade(
                run, boxes, stage=stage, at_once=2 * settings.max_running, on_done=tell
            )
        finally:
            await boxes.close()

    def tell(done: int, total: int) -> None:
        if done == 1:
            watch.stage("regrade", total)
        watch.step("regrade", done, {})

    with Watch(console) as watch:
        return asyncio.run(all_of_it())


def _show(console: Console, result: Regrade) -> None:
    console.print(_table(result))
    for item in result.changed[:_SHOWN]:
        _show_changed(console, item)
    if len(result.changed) > _SHOWN:
        console.print(f"and {len(result.changed) - _SHOWN} more that changed: all are in the file")
    reasons = Counter((item.domain, item.why.partition(" (")[0]) for item in result.left)
    for (domain, why), count in sorted(reasons.items()):
        first = next(i for i in result.left if i.domain == domain and i.why.startswith(why))
        text = f"{domain}: {count} not graded again: {first.why}; such as {first.episode}"
        console.print(Text(text, style="yellow"), soft_wrap=True)
    for paid in result.checkpoints:
        console.print(Text(_paid(paid), style="yellow"), soft_wrap=True)
    if not result.differs:
        console.print("nothing changed")


def _table(result: Regrade) -> Table:
    table = Table(caption=_LEGEND)
    table.add_column("domain", no_wrap=True)
    for column in ("episodes", "same", "higher", "lower", "unscored", "tampered", "solved"):
        table.add_column(column, justify="right")
    table.add_column("left", justify="right")
    table.add_column("grader", no_wrap=True)
    table.add_column("reward", no_wrap=True)
    for row in result.domains:
        before = "\n".join(version[:_DIGITS] for version in row.before) or "–"
        counts = row.counts
        table.add_row(
            row.domain,
            str(row.episodes),
            *(str(counts[change]) for change in ("same", "higher", "lower")),
            _moved(counts["unscored"], counts["scored"]),
            _moved(counts["tampered"], counts["cleared"]),
            _moved(row.newly_solved, row.no_longer_solved),
            str(row.left),
            f"{before} → {row.now[:_DIGITS] or 'gone'}",
            f"{_number(row.reward_before)} → {_number(row.reward_now)}",
        )
    return table


def _moved(more: int, less: int) -> str:
    return f"+{more} −{less}" if more or less else "0"


def _show_changed(console: Console, item: Changed) -> None:
    console.print(Text(f"{item.change}: {item.episode} ({item.place})", style="bold"))
    for when, verdict in (("before", item.before), ("now", item.now)):
        console.print(Text(f"  {when:6} {_said(verdict)}"), soft_wrap=True)


def _said(verdict: Verdict) -> str:
    evidence = " | ".join(" ".join(line.split()) for line in verdict.evidence[:_LINES])
    return f"{verdict.outcome} {_number(verdict.reward)}{': ' if evidence else ''}{evidence}"


def _paid(paid: Paid) -> str:
    versions = "; ".join(
        f"{domain} {', '.join(v[:_DIGITS] for v in found)}"
        for domain, found in paid.graders.items()
    )
    return f"{paid.checkpoint} was paid for by other versions than today's: {versions}"


def _number(value: float | None) -> str:
    return "unscored" if value is None else f"{value:.3f}"
