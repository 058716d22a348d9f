"""The headline of a summary in two tables: what each model reached, and what changed."""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from rich.markup import escape
from rich.table import Table

_SPLITS = {
    "trained_domains": "trained domains",
    "held_out_domains": "held-out domains",
}
_NAMES = {"base": "Base", "sft": "SFT", "rl": "RL"}


def headline(summary: dict[str, Any]) -> Iterator[Table]:
    """Tables of a summary (`evaluate.summary`): rates, then paired differences if there are any."""
    names: list[str] = summary["evals"]
    splits = [(title, summary[key]) for key, title in _SPLITS.items() if key in summary]
    parts = [("all tasks", summary), *(splits if len(splits) > 1 else [])]
    yield _rates(names, parts)
    if len(names) > 1:
        yield _differences(names, parts)


def _rates(names: list[str], parts: list[tuple[str, dict[str, Any]]]) -> Table:
    table = Table(caption="Success with its 95 % interval; the other columns are means an episode.")
    table.add_column("")
    for column in (
        "success",
        "tests passed",
        "turns",
        "invalid calls",
        "tokens",
        "unscored",
        "tasks",
    ):
        table.add_column(column, justify="right")
    for title, part in parts:
        table.add_section()
        table.add_row(f"[bold]{title}[/bold]")
        for name in names:
            if name in part:
                table.add_row(f"  {label(name)}", *_measures(part[name]))
    return table


def _measures(m: dict[str, Any]) -> list[str]:
    return [
        f"{percent(m['success'])} {_interval(m['ci_low'], m['ci_high'])}".strip(),
        percent(m["tests_passed"]),
        *(_number(m[key]) for key in ("steps", "invalid_calls", "sampled_tokens")),
        percent(m["unscored"]),
        str(m["tasks"]),
    ]


def _differences(names: list[str], parts: list[tuple[str, dict[str, Any]]]) -> Table:
    table = Table(
        caption="Paired differences of success in percentage points, 95 % intervals by task."
    )
    table.add_column("")
    for title, _ in parts:
        table.add_column(title, justify="right")
    table.add_column("better / worse", justify="right")
    table.add_column("verdict")
    whole = parts[0][1]
    for before, after in combinations(names, 2):
        key = f"{after}_minus_{before}"
        cells = [_difference(part, key) for _, part in parts]
        moved = f"{whole[f'{key}_improved']} / {whole[f'{key}_regressed']}" if key in whole else "–"
        verdict = f"{label(after)} {_verdict(whole, key)} {label(before)}"
        table.add_row(f"{label(after)} − {label(before)}", *cells, moved, verdict)
    return table


def _difference(part: dict[str, Any], key: str) -> str:
    if part.get(key) is None:
        return "–"
    return (
        f"{_points(part[key])} {_interval(part[f'{key}_ci_low'], part[f'{key}_ci_high'], '+.1f')}"
    )


def _verdict(summary: dict[str, Any], key: str) -> str:
    low, high = summary.get(f"{key}_ci_low"), summary.get(f"{key}_ci_high")
    if low is None or high is None:
        return "cannot be compared with"
    if low > 0:
        return "[green]beats[/green]"
    return "[red]is worse than[/red]" if high < 0 else "is not told apart from"


def label(name: str) -> str:
    """How an evaluation is called in print."""
    return _NAMES.get(name, escape(name))


def percent(value: float | None) -> str:
    """A share such as 42.5 %."""
    return "–" if value is None else f"{100 * value:.1f} %"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "−")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _interval(low: float | None, high: float | None, form: str = ".1f") -> str:
    if low is None or high is None:
        return ""
    return f"({100 * low:{form}} … {100 * high:{form}})".replace("-", "−")
