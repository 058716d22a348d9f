"""What a reward model thinks, as a part of a score: it shapes a reward, and never decides it."""

import math

from practicum.core import Score, ScorePart

NAME = "reward_model"
MOST = 0.2  # weight, in a step of the outcome
STEPS = 100  # of an outcome whose grader declares none


def judged(score: Score, reward: float | None, *, model: str, weight: float) -> Score:
    """The score with a part for `reward`, any real number: its sigmoid.

    `model` is the digest of the reward model; `weight` is in a step of the outcome. With weight 0
    the part is a metric, else a process part. A reward of None (there was nothing to read) is the
    least there is; one that is no finite number leaves a process part unscored, and so the score.
    Raises ValueError for a weight outside 0..`MOST`.
    """
    if not 0 <= weight <= MOST:
        raise ValueError(f"the weight of a reward model lies within 0..{MOST}, not {weight}")
    if score.outcome is None:
        return score
    said = 0.0 if reward is None else _sigmoid(reward)
    evidence = f"reward model {model}: {'nothing to read' if reward is None else f'{reward:.4g}'}"
    part = ScorePart(NAME, said, weight, "process" if weight else "metric", evidence)
    return Score.of(*score.parts, part, tampered=score.tampered, steps=score.steps or STEPS)


def _sigmoid(x: float) -> float | None:
    return 0.5 * (1 + math.tanh(x / 2)) if math.isfinite(x) else None
