"""From checks to a score: credit only for what is better than doing nothing.

A grader makes one `Check` for each thing that can be right or wrong. `checked` turns them into a
score with two parts: the outcome, which subtracts what an untouched workspace (or a lucky
constant) passes, and the metric `tests_passed`, the plain share of checks that passed.
"""

from collections.abc import Sequence

import msgspec

from practicum.core import Score, ScorePart


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at. `evidence` says what was expected and what was found."""

    name: str
    passed: bool
    evidence: str = ""


def above(passed: int, total: int, baseline: int) -> float:
    """Share in 0..1 of what lies above the baseline: `(passed - baseline) / (total - baseline)`."""
    if total <= baseline:
        raise ValueError(f"{total} checks leave nothing above a baseline of {baseline}")
    return min(1.0, max(0.0, (passed - baseline) / (total - baseline)))


def checked(
    checks: Sequence[Check],
    baseline: int = 0,
    *,
    shown: Sequence[Check] = (),
    tampered: str = "",
) -> Score:
    """A score of these checks, of which a non-solver passes at most `baseline`.

    Checks that hold from the start ("other files unchanged") belong to the baseline: keeping them
    earns nothing, breaking one costs as much as one wanted change earns. What the agent could see
    (`shown`, such as the tests in its workspace) counts in `tests_passed` and earns nothing.
    """
    passed = sum(check.passed for check in checks)
    failed = [f"{c.name}: {c.evidence or 'wrong'}" for c in checks if not c.passed]
    evidence = f"{passed} of {len(checks)} checks passed"
    if baseline:
        evidence += f" ({baseline} of them are worth nothing by themselves)"
    if failed:
        evidence += "; " + "; ".join(failed[:3])
        evidence += f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
    every = [*checks, *shown]
    share = sum(check.passed for check in every) / len(every)
    return Score.of(
        ScorePart("correct", above(passed, len(checks), baseline), evidence=evidence),
        ScorePart("tests_passed", share, weight=0.0, kind="metric"),
        tampered=tampered,
    )
