"""What a reward model thinks, as a part of a score: it shapes a reward, and never decides it.

The part is multiplied by the outcome, so that no manner of failing earns anything. What an unsolved
episode gains by it is also less than what it lacks, so that no opinion lifts it above a solved one.
"""

import math

from practicum.core import Score, ScorePart

NAME = "reward_model"
MOST = 0.25  # weight, in those of all outcome parts together


def judged(score: Score, reward: float | None, *, model: str, weight: float) -> Score:
    """The score with a part for `reward`, any real number: its sigmoid, bounded by the outcome.

    `model` is the digest of the reward model; `weight` is in those of all outcome parts together.
    With weight 0 the part is a metric and unbounded; else a process part. A reward of None (there
    was nothing to read) is the least there is; one that is no finite number leaves a process part
    unscored, and so the score. Raises ValueError for a weight outside 0..`MOST`.
    """
    if not 0 <= weight <= MOST:
        raise ValueError(f"the weight of a reward model lies within 0..{MOST}, not {weight}")
    outcomes = [p for p in score.parts if p.weight > 0 and p.kind == "outcome"]
    if score.value is None or not outcomes:
        return score
    said = 0.0 if reward is None else _sigmoid(reward)
    evidence = f"reward model {model}: {'nothing to read' if reward is None else f'{reward:.4g}'}"
    if weight == 0:
        part = ScorePart(NAME, said, 0.0, "metric", evidence)
    else:
        whole = sum(p.weight for p in outcomes)
        part = ScorePart(NAME, _bounded(score, said, whole), weight * whole, "process", evidence)
    return Score.of(*score.parts, part, tampered=score.tampered)


def _bounded(score: Score, said: float | None, whole: float) -> float | None:
    """At most the outcome; for unsolved work at most the share of the outcome that it lacks."""
    if said is None or score.solved:
        return said
    earned = {
        kind: sum(p.weight * (p.value or 0.0) for p in score.parts if p.kind == kind) / whole
        for kind in ("outcome", "process")
    }
    lacks = max(0.0, 1 - sum(earned.values()))
    return min(said * earned["outcome"], lacks)


def _sigmoid(x: float) -> float | None:
    return 0.5 * (1 + math.tanh(x / 2)) if math.isfinite(x) else None
