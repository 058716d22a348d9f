"""Several ways on from one moment of an episode: the same turns and box, then each its own."""

import asyncio
import copy

import msgspec

from practicum.core import EngineError, Episode, Outcome, SandboxError
from practicum.domains.domain import Domain
from practicum.engines.contract import Policy
from practicum.rollout.play import Job, Play
from practicum.sandbox.contract import Boxes, Sandbox


async def branch(
    job: Job, domain: Domain, policy: Policy, boxes: Boxes, *, after: int, count: int
) -> list[Episode]:
    """Play a job for `after` turns, then go on in `count` ways, named KEY/0, KEY/1 and so on.

    The episodes hold the turns that they share. There is but one, named KEY, when it ended before
    that, and when a box or the engine failed.
    """
    if not 0 < after < job.task.limits.turns or count < 1:
        raise ValueError(f"after must be 1 to {job.task.limits.turns - 1}, and count at least 1")
    trunk = Play(job, domain, policy, boxes)
    await policy.begin(job.key)
    try:
        try:
            outcome, error = await trunk.converse(after)
        finally:
            await policy.end(job.key)
        if len(trunk.turns) < after or outcome is not Outcome.TRUNCATED:
            return [await trunk.conclude(outcome, error)]
        forks: list[Sandbox | None] = [None] * count
        if trunk.box is not None:
            forks = [*await trunk.box.fork(count)]
    except (SandboxError, EngineError) as failure:
        return [trunk.episode(Outcome.INFRA_FAILED, None, f"{type(failure).__name__}: {failure}")]
    finally:
        if trunk.box is not None:
            await trunk.box.close()
    assert trunk.context is not None
    ways = []
    for number, box in enumerate(forks):
        way = Play(
            msgspec.structs.replace(job, key=f"{job.key}/{number}"),
            domain,
            policy,
            boxes,
            turns=list(trunk.turns),
            events=list(trunk.events),
            bad_turns=trunk.bad_turns,
            times=dict(trunk.times),
        )
        way.context = copy.copy(trunk.context)
        way.context.box, way.context.state = box, copy.deepcopy(trunk.context.state)
        ways.append(way)
        await policy.begin(way.job.key)

    async def go_on(way: Play) -> Episode:
        try:
            return await way.run()
        finally:
            await policy.end(way.job.key)

    return list(await asyncio.gather(*map(go_on, ways)))
