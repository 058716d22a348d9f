"""What came of a run, as one JSON object made from the evaluations on its disk and nothing else.

    {"evals": ["base", "sft", "rl"],
     "base": {"success", "ci_low", "ci_high", "n", "tasks", "unscored", "tests_passed", "steps",
              "invalid_calls", "sampled_tokens", "outcomes"},  ... and so for every evaluation
     "rl_minus_sft", "rl_minus_sft_ci_low", "rl_minus_sft_ci_high", "rl_minus_sft_improved",
     "rl_minus_sft_regressed", "rl_minus_sft_minimum_detectable",  ... and so for every later pair
     "trained_domains": {the same keys}, "held_out_domains": {the same keys},
     "domains": {name: {the same keys}}}

Success rates and their paired differences; intervals are 95 %, clustered by task. Which domains
were trained on is read from the journal's last line {"kind": "domains", "trained": [names]};
without one there are no splits.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from typing import Any

from practicum.core import Episode
from practicum.evaluate.measure import (
    HELD_OUT,
    TRAINED,
    Changes,
    Comparison,
    Measurement,
    Measures,
    compare,
    summarise,
)
from practicum.store import Run


def build_summary(run: Run) -> dict[str, Any]:
    """The summary of every evaluation that the run folder holds; keys in the module's docstring."""
    return summarise_all({name: run.read_eval(name) for name in run.evals()}, trained_domains(run))


def summarise_all(
    evals: Mapping[str, Sequence[Episode]], trained: Collection[str] = ()
) -> dict[str, Any]:
    """The summary of evaluations by name, the oldest first; keys in the module's docstring."""
    evals = {name: episodes for name, episodes in evals.items() if episodes}
    measured = {name: summarise(e, trained=trained) for name, e in evals.items()}
    compared = {
        (a, b): compare(evals[a], evals[b], trained=trained) for a, b in combinations(evals, 2)
    }
    summary: dict[str, Any] = {"evals": list(evals)}
    summary |= _block(measured, compared, lambda m: m.overall)
    for split in (TRAINED, HELD_OUT):
        if any(split in m.splits for m in measured.values()):
            summary[split] = _block(measured, compared, _split(split))
    names = sorted({name for m in measured.values() for name in m.domains})
    summary["domains"] = {name: _block(measured, compared, _domain(name)) for name in names}
    return summary


def trained_domains(run: Run) -> list[str]:
    """The domains that the run trains on, as its journal says; empty if it does not."""
    lines = run.journal("domains")
    return sorted(lines[-1]["trained"]) if lines else []


def _block(
    measured: Mapping[str, Measurement],
    compared: Mapping[tuple[str, str], Comparison],
    part: Callable[[Any], Any],
) -> dict[str, Any]:
    """Measures and differences of one part (all, a split, a domain), flat."""
    block: dict[str, Any] = {}
    for name, measurement in measured.items():
        if (measures := part(measurement)) is not None:
            block[name] = _measures(measures)
    for (before, after), comparison in compared.items():
        if (changes := part(comparison)) is not None:
            block |= _changes(f"{after}_minus_{before}", changes)
    return block


def _split(name: str) -> Callable[[Any], Any]:
    return lambda m: m.splits.get(name)


def _domain(name: str) -> Callable[[Any], Any]:
    return lambda m: m.domains.get(name)


def _measures(measures: Measures) -> dict[str, Any]:
    success = measures.success
    means = {
        name: estimate.mean if (estimate := getattr(measures, name)) else None
        for name in ("tests_passed", "steps", "invalid_calls", "sampled_tokens")
    }
    return {
        "success": success.mean if success else None,
        "ci_low": success.low if success else None,
        "ci_high": success.high if success else None,
        "n": success.n if success else 0,
        "tasks": measures.tasks,
        "unscored": measures.unscored.mean,
        **means,
        "outcomes": measures.outcomes,
    }


def _changes(name: str, changes: Changes) -> dict[str, Any]:
    d = changes.success
    if d is None:
        return {}
    return {
        name: d.mean,
        f"{name}_ci_low": d.low,
        f"{name}_ci_high": d.high,
        f"{name}_improved": d.improved,
        f"{name}_regressed": d.regressed,
        f"{name}_minimum_detectable": d.minimum_detectable,
    }
