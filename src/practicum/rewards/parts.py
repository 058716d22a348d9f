"""From checks to a score: credit only for what is better than doing nothing.

A grader makes one `Check` for each thing that can be right or wrong. `checked` turns them into a
score with two parts: the outcome, which subtracts what an untouched workspace (or a lucky
constant) passes, and the metric `tests_passed`, the plain share of checks that passed.
"""

from collections.abc import Sequence

import msgspec

from practicum.core import Score, ScorePart

FAILURES_SHOWN = 3
VISIBLE = "visible_passed"
"""The metric of what the agent could see: its share that passed."""


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at. `evidence` says what was expected and what was found."""

    name: str
    passed: bool
    evidence: str


def above(passed: int, total: int, baseline: int) -> float:
    """Share in 0..1 of what lies above the baseline: `(passed - baseline) / (total - baseline)`.

    Raises ZeroDivisionError when all checks belong to the baseline: such a task has no solution.
    """
    return max(0.0, (passed - baseline) / (total - baseline))


def checked(
    checks: Sequence[Check],
    baseline: int = 0,
    *,
    visible: Sequence[Check] = (),
    tampered: str = "",
) -> Score:
    """A score of these checks, of which a non-solver passes at most `baseline`.

    Checks that hold from the start ("other files unchanged") belong to the baseline: keeping them
    earns nothing, breaking one costs as much as one wanted change earns. What the agent could see
    (`visible`, such as the tests in its workspace) counts in `tests_passed` and earns nothing.
    """
    passed = sum(check.passed for check in checks)
    failed = [f"{check.name}: {check.evidence}" for check in checks if not check.passed]
    summary = f"{passed} of {len(checks)} checks passed, {baseline} of them earn nothing"
    return Score.of(
        ScorePart(
            "correct",
            above(passed, len(checks), baseline),
            evidence="; ".join([summary, *failed[:FAILURES_SHOWN]]),
        ),
        _share("tests_passed", [*checks, *visible]),
        *([_share(VISIBLE, visible)] if visible else []),
        tampered=tampered,
        steps=len(checks) - baseline,
    )


def _share(name: str, checks: Sequence[Check]) -> ScorePart:
    """The metric of how many of these passed."""
    share = sum(check.passed for check in checks) / len(checks)
    return ScorePart(name, share, weight=0.0, kind="metric")
