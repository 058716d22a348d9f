"""Progress of a run on a screen: a living line on a terminal, a plain line a step elsewhere.

`Watch` implements `learn.stage.Progress`. What is finished stays on the screen as one line, so that
the scrollback tells the whole story; only the part that is going on is drawn over.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from practicum.cli.screen import is_live

_PERCENT = {"success": "success", "varied_groups": "varied groups", "unscored": "unscored"}
_NUMBERS = {
    "reward": "reward",
    "nll": "loss",
    "loss": "loss",
    "val_nll": "validation loss",
    "entropy": "entropy",
    "kl": "KL",
    "invalid_calls": "invalid calls",
}
_ORDER = [
    "reward",
    "success",
    "nll",
    "loss",
    "val_nll",
    "tokens_per_second",
    "varied_groups",
    "entropy",
    "kl",
    "invalid_calls",
    "unscored",
]
_PAUSE = 2.0  # seconds between plain lines that only count
_SAMPLED = 0.1  # seconds; a shorter "practice" was a replay, and has no rate


@dataclass
class Part:
    """A stage or an evaluation while it goes on: how far it is, and how fast."""

    name: str
    total: int | None
    at_most: bool  # `total` is a bound: it may end before
    started: float
    first: int | None = None  # what was done before this process began
    done: int = 0
    news: dict[str, float] = field(default_factory=dict)  # of the last step
    seen: dict[str, float] = field(default_factory=dict)  # the newest of every kind

    def advance(self, done: int, values: Mapping[str, float]) -> None:
        """`done` steps are over; `values` are the newest numbers."""
        if self.first is None:
            self.first = done - 1
        self.done = max(self.done, done)
        self.news = dict(values)
        tokens = values.get("tokens", values.get("ce_tokens", 0.0))
        seconds = values.get("seconds_practise", values.get("seconds", 0.0))
        if tokens and seconds > _SAMPLED:
            self.news["tokens_per_second"] = tokens / seconds
        self.seen |= self.news

    def left(self, now: float) -> float | None:
        """Seconds to go at the pace so far; None when nothing is known yet."""
        played = self.done - (self.first or 0)
        if self.total is None or played <= 0:
            return None
        return max(0.0, (now - self.started) / played * (self.total - self.done))

    def count(self) -> str:
        """Such as 12/40, or 12 of at most 40."""
        if self.total is None:
            return str(self.done)
        return (
            f"{self.done} of at most {self.total}" if self.at_most else f"{self.done}/{self.total}"
        )


def numbers(values: Mapping[str, float]) -> str:
    """The telling ones among the values of a step, the most telling first."""
    return "  ".join(text for key in _ORDER if (text := _shown(key, values.get(key))))


def _shown(key: str, value: float | None) -> str:
    if value is None or (key == "unscored" and not value):
        return ""
    if key == "tokens_per_second":
        return f"{value:.0f} tokens/s"
    if key in _PERCENT:
        return f"{_PERCENT[key]} {100 * value:.1f} %"
    return f"{_NUMBERS[key]} {value:.3g}"


class Watch:
    """Shows progress on a console. `stages` names the training stages and the most steps of each.

    A step of theirs is the index of one that is done; elsewhere it is the number done.
    """

    def __init__(
        self,
        console: Console,
        *,
        stages: Mapping[str, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console, self.stages, self.clock = console, stages or {}, clock
        self.began = self._told = clock()
        self.part: Part | None = None
        self._live: Live | None = None
        if is_live(console):
            self._live = Live(
                console=console, refresh_per_second=2, transient=True, get_renderable=self._render
            )

    def stage(self, name: str, steps: int | None) -> None:
        """A stage or an evaluation begins."""
        self._finish()
        bound = self.stages.get(name)
        self.part = Part(name, steps or bound, steps is None and bound is not None, self.clock())
        if not self._live:
            self._line(f"{name}: {self.part.total or '?'} steps" + " at most" * self.part.at_most)

    def step(self, name: str, step: int, values: dict[str, float]) -> None:
        """One step of it is done."""
        if self.part is None or self.part.name != name:
            self.stage(name, None)
        part = self.part
        assert part is not None
        trained = name in self.stages
        before = part.done
        part.advance(step + 1 if trained else step, values)
        if not self._live and (trained or self._is_due(part, before)):
            self._line(f"{part.name} {part.count()}", numbers(part.news), self._left(part))

    def note(self, text: str) -> None:
        """Something worth a line."""
        self._line(text)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if error is None:
            self._finish()
        self.part = None
        if self._live:
            self._live.stop()

    def _is_due(self, part: Part, before: int) -> bool:
        """Whether a count is worth a line: every tenth, no two within seconds, and the last."""
        now, every = self.clock(), max(1, (part.total or 1) // 10)
        due = part.done // every > before // every and now - self._told >= _PAUSE
        if due or before < part.done == part.total:
            self._told = now
            return True
        return False

    def _finish(self) -> None:
        """What is over stays on the screen."""
        part, self.part = self.part, None
        if part and self._live:
            self._live.refresh()  # takes the bar away
            spent = f"in {clock_text(self.clock() - part.started)}"
            count = str(part.done) if part.at_most else part.count()
            self._line(f"✓ {part.name} {count}", spent, numbers(part.seen))

    def _line(self, *texts: str) -> None:
        now = clock_text(self.clock() - self.began)
        line = Text(f"[{now}] ", style="dim") + Text("  ".join(t for t in texts if t))
        self.console.print(line, soft_wrap=not self._live)

    def _left(self, part: Part) -> str:
        left = part.left(self.clock())
        if left is None or part.done == part.total:
            return ""
        return f"{'at most ' if part.at_most else ''}{clock_text(left)} left"

    def _render(self) -> RenderableType:
        """The part that is going on, as it is now."""
        part = self.part
        if part is None:
            return Text("")
        now = self.clock()
        row = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=part.total, completed=part.done, width=24, pulse=not part.done)
        times = f"{clock_text(now - part.started)}  {self._left(part)}".rstrip()
        row.add_row(Text(part.name, style="bold"), bar, part.count(), Text(times, style="cyan"))
        return Group(row, Text(f"  {numbers(part.seen)}", style="dim", overflow="ellipsis"))


def clock_text(seconds: float) -> str:
    """Such as 0:07, 12:40 or 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
