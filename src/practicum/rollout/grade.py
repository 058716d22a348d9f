"""Grading by extraction: artifacts leave the agent's box as bytes, the box dies, then we judge.

A grader that fails is asked again, then the episode is `grader_failed`: never a score of zero.
"""

import asyncio
import logging

import msgspec

from practicum.core import Artifact, GraderError, Outcome, SandboxError, Score, Submission, Task
from practicum.domains.domain import Domain
from practicum.rewards.canaries import caught
from practicum.sandbox.contract import Boxes, Sandbox

ATTEMPTS = 2
DEADLINE = 120.0  # seconds for one attempt to grade

_logger = logging.getLogger(__name__)
_BOXLESS = frozenset({"submit", "task_state"})


def needs_box(task: Task) -> bool:
    """Whether the task has anything that lives in a box; a text-only task pays for none."""
    return bool(task.files or task.artifacts or set(task.tools) - _BOXLESS)


async def extract(task: Task, box: Sandbox | None) -> dict[str, Artifact]:
    """The declared artifacts of a task, as bytes."""
    if box is None or not task.artifacts:
        return {}
    return await box.read(task.artifacts)


async def grade(
    task: Task, domain: Domain, submission: Submission, boxes: Boxes
) -> tuple[Score | None, Outcome | None, str]:
    """The score; the outcome that the grading itself decides (or None); and why."""
    error = ""
    score: Score | None = None
    for _ in range(ATTEMPTS):
        try:
            async with asyncio.timeout(DEADLINE):
                score = await domain.grade(task, submission, boxes)
        except (GraderError, SandboxError, TimeoutError) as failure:
            error = f"{type(failure).__name__}: {failure}"
            continue
        except Exception as failure:  # a bug in a domain must not end the run
            _logger.exception("the grader of %s raised", domain.name)
            error = f"the grader of {domain.name!r} raised {type(failure).__name__}: {failure}"
            continue
        if evidence := caught(task, submission, score, domain.floor) or score.tampered:
            score = msgspec.structs.replace(score, tampered=evidence)
            return score, Outcome.TAMPERED, evidence
        if score.value is not None:
            return score, None, ""
        blank = [p.name for p in score.parts if p.weight > 0 and p.value is None]
        error = f"unscored parts: {', '.join(blank) or 'all'}"
    return score, Outcome.GRADER_FAILED, error
