"""What an audit looks at: tasks with the gold solution and the attacks played on them for real.

Scripts go through the same rollout as a model's episodes. The submission that reaches the grader is
kept, so that it can be graded again, changed, and put before mutants of the grader.
"""

import asyncio
import copy
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from practicum.core import (
    Episode,
    Message,
    Outcome,
    SandboxError,
    Score,
    Submission,
    Task,
    ToolCall,
)
from practicum.domains.domain import Boxes, Domain, Script
from practicum.evaluate.panel import Case, panel
from practicum.rollout import ScriptPolicy, play


class Exhibit(msgspec.Struct, frozen=True):
    """One task and all that was submitted to it."""

    task: Task
    gold: Episode
    attacks: dict[str, Episode]
    cases: tuple[Case, ...]  # the panel and the attacks; empty when gold could not be played
    program: bool  # grading opens a box: artifacts are programs
    grade_seconds: float  # of the gold solution


async def exhibits(
    domain: Domain, boxes: Boxes, *, seeds: Sequence[int], levels: Sequence[int]
) -> list[Exhibit]:
    """One exhibit for every seed and level, in order. Raises SandboxError when a box failed."""
    tasks = [domain.make(seed, level) for level in levels for seed in seeds]
    played = await asyncio.gather(*(_play_all(domain, task, boxes) for task in tasks))
    golds = [p["gold"].submission for p in played]
    return [
        _exhibit(task, mine, [g for g in golds if g and g is not mine["gold"].submission])
        for task, mine in zip(tasks, played, strict=True)
    ]


class Played(msgspec.Struct):
    """An episode of a script and what reached the grader."""

    episode: Episode | None = None
    submission: Submission | None = None
    opened: int = 0  # boxes that grading opened
    seconds: float = 0.0  # that grading took


async def _play_all(domain: Domain, task: Task, boxes: Boxes) -> dict[str, Played]:
    """Gold, doing nothing, and the domain's attacks, each in an episode of its own."""
    nothing = Message.of("assistant", "", *([ToolCall("submit")] if "submit" in task.tools else []))
    scripts: dict[str, Script] = {"gold": domain.solve(task), "nothing": [nothing]}
    scripts |= {f"attack {name}": script for name, script in domain.attacks(task).items()}
    results = await asyncio.gather(
        *(_play(domain, task, boxes, name, script) for name, script in scripts.items())
    )
    return dict(zip(scripts, results, strict=True))


async def _play(domain: Domain, task: Task, boxes: Boxes, name: str, script: Script) -> Played:
    played = Played()
    key = f"audit/{task.key}/{name}"
    witness = _witness(domain, played)
    episode = await play(task, witness, ScriptPolicy(name, script), boxes, key=key)
    if episode.outcome is Outcome.INFRA_FAILED:
        raise SandboxError(f"{name} could not be played, so nothing is proven: {episode.error}")
    played.episode = episode
    return played


def _witness(domain: Domain, played: Played) -> Domain:
    """The domain itself, but what it is asked to grade is noted in `played`."""

    async def grade(self: Domain, task: Task, submission: Submission, boxes: Boxes) -> Score:
        clock = asyncio.get_running_loop().time
        start, counted = clock(), _Counted(boxes)
        try:
            return await domain.grade(task, submission, counted)
        finally:
            played.submission, played.opened = submission, counted.opened
            played.seconds = clock() - start

    witness = copy.copy(domain)
    witness.__class__ = type(domain.name, (type(domain),), {"grade": grade})
    return witness


def _exhibit(task: Task, played: Mapping[str, Played], others: list[Submission]) -> Exhibit:
    gold, nothing = played["gold"], played["nothing"]
    assert gold.episode is not None
    attacks = {n: p for n, p in played.items() if n.startswith("attack ")}
    cases: list[Case] = []
    if gold.submission and nothing.submission:
        cases = panel(
            task, nothing.submission, gold.submission, others[:2], program=gold.opened > 0
        )
        cases += [Case(n, p.submission, "floor") for n, p in attacks.items() if p.submission]
        parts = gold.episode.score.parts if gold.episode.score else ()
        if any(part.name == "submitted" and part.weight for part in parts):
            events = tuple(e for e in gold.submission.events if e.tool != "submit")
            cut_off = msgspec.structs.replace(gold.submission, events=events)
            cases.append(Case("gold, but never submitted", cut_off, "less"))
    return Exhibit(
        task=task,
        gold=gold.episode,
        attacks={n: p.episode for n, p in attacks.items() if p.episode},
        cases=tuple(cases),
        program=gold.opened > 0,
        grade_seconds=gold.seconds,
    )


class _Counted:
    """Boxes that count how many were opened."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes
        self.opened = 0

    async def open(self, *args: Any, **kwargs: Any) -> Any:
        """Count and pass on."""
        self.opened += 1
        return await self._boxes.open(*args, **kwargs)

    async def restore(self, *args: Any) -> Any:
        """Count and pass on."""
        self.opened += 1
        return await self._boxes.restore(*args)

    async def close(self) -> None:
        """Pass on."""
        await self._boxes.close()
