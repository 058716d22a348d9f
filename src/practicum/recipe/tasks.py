"""Which tasks a run uses for what: practice, demonstrations and evaluation never overlap.

Seeds below one million are for practice, the second million for demonstrations, the third for
their validation, the fourth for evaluation. A task whose key was already used elsewhere is passed
over, so that two seeds that make the same task cannot leak.
"""

import random
from collections.abc import Collection, Sequence

from practicum.core import Task, content_hash
from practicum.domains import get_domain

MILLION = 1_000_000
DEMONSTRATIONS, VALIDATION, EVALUATION = (i * MILLION for i in (1, 2, 3))


def spread(
    domains: Sequence[str],
    levels: Sequence[int],
    count: int,
    *,
    base: int,
    seed: int,
    avoid: Collection[str] = (),
) -> list[Task]:
    """`count` distinct tasks, evenly over domains and levels, with seeds from `base` on."""
    rng = random.Random(content_hash(["spread", base, seed]))
    cells = [(domain, level) for level in levels for domain in domains]
    seen = set(avoid)
    tasks: list[Task] = []
    while len(tasks) < count:
        name, level = cells[len(tasks) % len(cells)]
        for _ in range(100):
            task = get_domain(name).make(base + rng.randrange(MILLION), level)
            if task.key not in seen:
                break
        else:
            raise ValueError(f"domain {name!r} has too few distinct tasks at level {level}")
        seen.add(task.key)
        tasks.append(task)
    return tasks
