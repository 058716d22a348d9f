"""Demonstrations: tasks solved in boxes, with the tokens that a model samples.

Gold solutions have the tokens that sampling the same text would give; a teacher's are its own.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from practicum.core import EFFECTS, Episode, RecipeError, Sample, Task
from practicum.domains import get_domain
from practicum.engines.policy import SamplerPolicy, records
from practicum.learn.samples import demonstration, is_trained
from practicum.learn.sft import SFTSettings
from practicum.models.render import Renderer
from practicum.rollout import Job, Keep, ScriptPolicy, play, play_many
from practicum.sandbox.contract import Boxes
from practicum.tools import get_tool


async def demonstrate(
    tasks: Sequence[Task],
    renderer: Renderer,
    boxes: Boxes,
    name: str,
    *,
    at_once: int,
    on_done: Callable[[int], None],
    keep: Keep | None = None,
) -> list[Episode]:
    """One gold episode a task, in order; at most `at_once` are played together.

    Raises RecipeError for a gold solution that does not solve its task.
    """
    limit = asyncio.Semaphore(at_once)
    done = 0

    async def one(index: int, task: Task) -> Episode:
        nonlocal done
        async with limit:
            domain = get_domain(task.domain)
            policy = ScriptPolicy("gold", domain.solve(task))
            key = f"{name}-{index}-{task.key}"
            episode = await play(task, domain, policy, boxes, key=key, keep=keep)
        if not episode.solved:
            raise RecipeError(
                f"the gold solution of {task.domain} (seed {task.seed}, level {task.level}) does "
                f"not solve it: {episode.outcome} {episode.error}. Audit the domain again"
            )
        done += 1
        on_done(done)
        schemas = [get_tool(tool).schema for tool in task.tools]
        turns = records(episode.turns, episode.prompt, schemas, renderer)
        return msgspec.structs.replace(episode, turns=tuple(turns))

    return await asyncio.gather(*(one(index, task) for index, task in enumerate(tasks)))


async def show(
    tasks: Sequence[Task],
    teacher: SamplerPolicy,
    boxes: Boxes,
    name: str,
    *,
    attempts: int,
    on_done: Callable[[int], None],
    keep: Keep | None = None,
) -> list[Episode]:
    """A teacher's attempts at each task, task after task, solved or not."""
    done = 0

    def count(_: Episode) -> None:
        nonlocal done
        done += 1
        on_done(done)

    jobs = [
        Job(task, f"{name}-{index}-{task.key}-{attempt}")
        for index, task in enumerate(tasks)
        for attempt in range(attempts)
    ]
    return await play_many(jobs, get_domain, teacher, boxes, on_done=count, keep=keep)


def learnt(episodes: Sequence[Episode], settings: SFTSettings, what: str) -> list[Sample]:
    """What a stage learns of its teacher's episodes. Raises RecipeError when that is nothing."""
    samples = [
        demonstration(episode)
        for episode in episodes
        if EFFECTS[episode.outcome].reusable
        and is_trained(episode)
        and (episode.solved or not settings.solved_only)
    ]
    if not samples:
        raise RecipeError(
            f"{settings.name}: the teacher {settings.teacher!r} solved none of its {len(episodes)} "
            f"attempts at the {what} tasks, so there is nothing to learn from it: take a better "
            "teacher, easier levels, more attempts, or solved_only = false"
        )
    return samples
