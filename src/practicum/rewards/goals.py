"""Sub-goals: things on the way to a solution that can be checked, and that earn a part of it.

A task declares them in its truth (`Terminal.task(goals=...)`). Whoever solves the task has full
marks by whatever way; whoever does not has a share for each sub-goal that was reached.
"""

from collections.abc import Mapping, Sequence

import msgspec

from practicum.core import Score, ScorePart
from practicum.rewards.compare import State
from practicum.rewards.parts import Check

Goals = Mapping[str, State]
"""By name, in the order in which they are met on the way."""


def toward(score: Score, goals: Sequence[Check]) -> Score:
    """The score of a task that is solved or not, with partial credit for sub-goals.

    Each sub-goal is a step of the outcome, and so is the rest: with two of them reached of three,
    an unsolved task has 2/4. They are metrics of the score, too, named `goal NAME`. Raises
    ValueError for a score that has partial credit of its own.
    """
    if score.steps > 1:
        raise ValueError("sub-goals give partial credit to a task that is solved or not")
    steps = len(goals) + 1
    reached = 1.0 if score.solved else sum(goal.passed for goal in goals) / steps
    outcome = [
        msgspec.structs.replace(part, value=reached if part.value is not None else None)
        if part.kind == "outcome" and part.weight
        else part
        for part in score.parts
    ]
    metrics = [
        ScorePart(f"goal {goal.name}", float(goal.passed), 0.0, "metric", goal.evidence)
        for goal in goals
    ]
    return Score.of(*outcome, *metrics, tampered=score.tampered, steps=steps)
