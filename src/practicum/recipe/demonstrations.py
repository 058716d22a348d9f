"""Demonstrations: gold solutions played in boxes, with the tokens that a model would sample."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from practicum.core import Episode, RecipeError, Task
from practicum.domains import get_domain
from practicum.engines.policy import records
from practicum.models.render import Renderer
from practicum.rollout import ScriptPolicy, play
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
            episode = await play(task, domain, policy, boxes, key=f"{name}-{index}-{task.key}")
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
