"""Geometry of a small line chart: numbers in, coordinates and tick labels out; no markup."""

import math
from collections.abc import Sequence

import msgspec

WIDTH, HEIGHT = 340, 170
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 10, 24  # room for labels, in the same units


class Tick(msgspec.Struct, frozen=True):
    """A labelled position on an axis."""

    at: float
    label: str


class Chart(msgspec.Struct, frozen=True):
    """One metric of one stage over its steps."""

    title: str
    metric: str
    line: str  # SVG points "x,y x,y ..."
    trend: str  # the same for the moving average; empty when there are few points
    dots: tuple[tuple[float, float], ...]  # drawn only when there are few
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    points: str  # JSON [[x, y, step, "value"], ...] for reading values off the chart
    last: str  # the last value, as text


def line_chart(title: str, metric: str, steps: Sequence[float], values: Sequence[float]) -> Chart:
    """Lay out one series; `steps` ascend, `values` are finite, both have the same length (>= 1)."""
    x_low, x_high = min(steps), max(steps)
    y_ticks = nice_ticks(min(values), max(values))
    y_low, y_high = min(y_ticks[0], *values), max(y_ticks[-1], *values)

    def x(step: float) -> float:
        share = (step - x_low) / (x_high - x_low) if x_high > x_low else 0.5
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        share = (value - y_low) / (y_high - y_low) if y_high > y_low else 0.5
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)

    places = [(x(s), y(v)) for s, v in zip(steps, values, strict=True)]
    smooth = moving_average(values) if len(values) >= 12 else []
    trend = [(x(s), y(v)) for s, v in zip(steps, smooth, strict=False)]
    x_ticks = [s for s in nice_ticks(x_low, x_high) if x_low <= s <= x_high] or [x_low]
    read_off = [
        [px, py, step, number(value)]
        for (px, py), step, value in zip(places, steps, values, strict=True)
    ]
    return Chart(
        title=title,
        metric=metric,
        line=_points(places),
        trend=_points(trend),
        dots=tuple(places) if len(places) < 12 else (),
        x_ticks=tuple(Tick(x(s), number(s)) for s in x_ticks if s == int(s)),
        y_ticks=tuple(Tick(y(v), number(v)) for v in y_ticks),
        points=msgspec.json.encode(read_off).decode(),
        last=number(float(f"{values[-1]:.3g}")),
    )


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` round numbers from at most `low` to at least `high`."""
    if high - low < 1e-12 * max(1.0, abs(high)):
        margin = abs(high) * 0.1 or 1.0
        low, high = low - margin, high + margin
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def moving_average(values: Sequence[float], window: int = 9) -> list[float]:
    """Centred moving average; at the ends the window is what there is of it."""
    half = window // 2
    parts = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [sum(part) / len(part) for part in parts]


def number(value: float) -> str:
    """A number with as many digits as a reader needs."""
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    if abs(value) >= 1e6 or abs(value) < 1e-3:
        return f"{value:.2g}"
    return f"{value:.4g}"


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in places)
