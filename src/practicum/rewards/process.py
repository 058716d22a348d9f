"""Process parts: how the work was done, read from the events. They shape a reward, never success.

What a process part adds is multiplied by the outcome, so that no manner of failing earns anything
and solved work always ranks above unsolved work.
"""

from practicum.core import Score, ScorePart, Submission

SUBMITTED = "submitted"
WEIGHT = 0.25  # beside an outcome of weight 1: solved, but not submitted, earns 0.8


def submitted(score: Score, submission: Submission) -> Score:
    """The score with a part for having called `submit`, instead of being cut off by a limit."""
    if score.value is None:
        return score
    said = any(event.tool == "submit" and event.ok for event in submission.events)
    part = ScorePart(
        SUBMITTED,
        score.value if said else 0.0,
        weight=WEIGHT,
        kind="process",
        evidence="submit was called" if said else "a limit ended the episode before submit",
    )
    return Score.of(*score.parts, part, tampered=score.tampered)
