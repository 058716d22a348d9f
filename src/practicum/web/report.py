"""One self-contained page about a run, made from its folder alone: no network, nothing to install.

All that comes from models, tools and tasks is escaped by the template; a content security policy
admits only the page's own script, by its hash.
"""

import base64
import hashlib
import math
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2

from practicum.core import Outcome
from practicum.evaluate.measure import HELD_OUT, TRAINED
from practicum.evaluate.summary import build_summary, trained_domains
from practicum.store import Run
from practicum.store.files import write_atomic
from practicum.web import chart
from practicum.web.transcript import chosen, shown, transcript, verdict

_TITLES = {
    "reward": "Mean reward",
    "success": "Success rate",
    "loss": "Loss",
    "val_nll": "Validation cross-entropy, nats a token",
    "entropy": "Entropy, nats a token",
    "kl": "KL to the sampler, nats a token",
    "varied_groups": "Share of groups with variance",
    "tampered": "Share of tampered episodes",
    "tokens_per_second": "Sampled tokens a second",
    "clipped": "Share of clipped tokens",
    "ratio": "Importance ratio",
    "grad_norm": "Gradient norm",
    "sampled_tokens": "Sampled tokens an episode",
    "turns": "Turns an episode",
    "invalid_calls": "Invalid calls an episode",
    "unscored": "Share of unscored episodes",
    "lr": "Learning rate",
    "seconds": "Seconds a step",
    "seconds_practise": "Seconds a step, practising",
    "seconds_train": "Seconds a step, training",
}
FLAGGED = 8  # flagged episodes that can be read
_MAIN = 9  # charts of a stage that are open from the start
_NAMES = {"base": "Base", "sft": "SFT", "rl": "RL"}


def write_report(run_folder: Path | str) -> Path:
    """Write `report.html` into the run folder and return its path; the run may still go on."""
    run = Run.view(run_folder)
    path = run.folder / "report.html"
    write_atomic(path, render(run).encode("utf-8", "replace"))
    return path


def render(run: Run) -> str:
    """The page as HTML."""
    script = _environment().get_template("report.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        _environment()
        .get_template("report.html.jinja")
        .render(**_context(run), script=script, script_hash=digest)
    )


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("practicum", "web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": _percent,
        "points": _points,
        "number": lambda v: "–" if v is None else chart.number(float(f"{v:.3g}")),
        "label": _label,
    }
    return environment


def _context(run: Run) -> dict[str, Any]:
    summary = build_summary(run)
    names: list[str] = summary["evals"]
    trained = trained_domains(run)
    domains = summary["domains"]
    return {
        "title": run.folder.resolve().name,
        "summary": summary,
        "names": names,
        "verdicts": [_verdict(summary, a, b) for a, b in pairwise(names)],
        "pairs": [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]],
        "splits": [(s, summary[s]) for s in (TRAINED, HELD_OUT) if s in summary],
        "domain_groups": [
            (title, part)
            for title, part in (
                ("Trained domains" if trained else "", _pick(domains, trained, True)),
                ("Held-out domains, never trained on", _pick(domains, trained, False)),
            )
            if part
        ],
        "stages": _stages(run),
        "findings": _findings(run),
        "flagged": _flagged(run),
        "transcripts": _transcripts(run, names),
        "recipe": run.recipe,
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "chart": chart,
    }


def _pick(domains: dict[str, Any], trained: list[str], wanted: bool) -> list[tuple[str, Any]]:
    """Domains that were trained on (all, if nothing says which), or the others."""
    return [(name, d) for name, d in domains.items() if (not trained or name in trained) == wanted]


def _verdict(summary: dict[str, Any], before: str, after: str) -> dict[str, Any]:
    """What the paired test of two neighbouring evaluations says, in words."""
    key = f"{after}_minus_{before}"
    low, high = summary.get(f"{key}_ci_low"), summary.get(f"{key}_ci_high")
    if low is None or high is None:
        word, kind = "cannot be compared with", "open"
    elif low > 0:
        word, kind = "beats", "better"
    elif high < 0:
        word, kind = "is worse than", "worse"
    else:
        word, kind = "is not told apart from", "open"
    return {"before": before, "after": after, "key": key, "word": word, "kind": kind}


def _stages(run: Run) -> list[dict[str, Any]]:
    """Charts of every numeric metric, by stage, the telling ones first."""
    stages: dict[str, list[dict[str, Any]]] = {}
    for line in run.metrics():
        if line.get("tokens") and line.get("seconds_practise"):
            line["tokens_per_second"] = line["tokens"] / line["seconds_practise"]
        stages.setdefault(line["stage"], []).append(line)
    found = []
    for stage, lines in stages.items():
        keys = {key for line in lines for key, value in line.items() if _finite(value)}
        ordered = [k for k in _TITLES if k in keys]
        ordered += sorted(keys - {"step", "time", *_TITLES})
        charts = [_chart(key, lines) for key in ordered]
        found.append(
            {
                "name": stage,
                "steps": len({line["step"] for line in lines}),
                "minutes": (lines[-1]["time"] - lines[0]["time"]) / 60,
                "main": charts[:_MAIN],
                "rest": charts[_MAIN:],
            }
        )
    return found


def _chart(key: str, lines: list[dict[str, Any]]) -> chart.Chart:
    series = {line["step"]: line[key] for line in lines if _finite(line.get(key))}
    steps = sorted(series)
    title = _TITLES.get(key, key.replace("_", " ").replace("/", " / "))
    return chart.line_chart(title, key, steps, [series[s] for s in steps])


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _transcripts(run: Run, names: list[str]) -> list[dict[str, Any]]:
    """Chosen episodes of every evaluation, each with how the others did on the same task."""
    evals = {name: run.read_eval(name) for name in names}
    fates: dict[str, dict[str, list[str]]] = {}
    for name, episodes in evals.items():
        for episode in episodes:
            fates.setdefault(episode.task, {}).setdefault(name, []).append(verdict(episode))
    return [
        {
            "name": name,
            "total": len(episodes),
            "shown": [(transcript(name, e), fates[e.task]) for e in chosen(episodes)],
        }
        for name, episodes in evals.items()
    ]


def _findings(run: Run) -> list[dict[str, Any]]:
    """What the checks of training found; of a step that was trained twice, once."""
    found = run.journal("finding")
    fields = ("stage", "step", "check", "action", "detail")
    once = {tuple(line[field] for field in fields): None for line in found}
    return [dict(zip(fields, [*values[:-1], shown(values[-1])], strict=True)) for values in once]


def _flagged(run: Run) -> dict[str, Any]:
    """Episodes of training that tampered: how many, and the first few to read."""
    steps = {(line["stage"], line["step"]) for line in run.metrics() if line.get("tampered")}
    proven = (f for f in run.journal("finding") if f["check"] in ("canary", "bait"))
    steps |= {(finding["stage"], finding["step"]) for finding in proven}
    found = [
        transcript(stage, episode)
        for stage, step in sorted(steps)
        for episode in run.read_episodes(stage, step)
        if episode.outcome is Outcome.TAMPERED
    ]
    return {"total": len(found), "shown": found[:FLAGGED]}


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}\u202f%"


def _points(value: float | None) -> str:
    """A difference of rates in percentage points, with its sign."""
    return "–" if value is None else f"{100 * value:+.1f}".replace("-", "\u2212")


def _label(name: str) -> str:
    return _NAMES.get(name, name.replace("_", " "))
