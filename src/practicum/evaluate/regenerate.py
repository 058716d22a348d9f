"""Whether a domain makes the same tasks again, here and in a process that hashes differently."""

import asyncio
import json
import os
import sys
from collections.abc import Sequence

from practicum.core import content_hash
from practicum.domains.domain import Domain

SECONDS = 120.0

_ELSEWHERE = """
import importlib, json, sys
from practicum.evaluate.regenerate import generated
module, name, seeds, levels = json.loads(sys.argv[1])
domain = getattr(importlib.import_module(module), name)()
print(json.dumps(generated(domain, seeds, levels)))
"""


def generated(domain: Domain, seeds: Sequence[int], levels: Sequence[int]) -> list[str]:
    """A hash of task, solution and attacks for every level and seed."""
    tasks = [domain.make(seed, level) for level in levels for seed in seeds]
    return [content_hash([t, domain.solve(t), domain.attacks(t)]) for t in tasks]


async def generated_elsewhere(
    domain: Domain, seeds: Sequence[int], levels: Sequence[int]
) -> list[str]:
    """The same from another process with another hash seed. RuntimeError says why it failed."""
    kind = type(domain)
    argument = json.dumps([kind.__module__, kind.__qualname__, list(seeds), list(levels)])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _ELSEWHERE, argument),
        env={
            **os.environ,
            "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1",
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), SECONDS)
    except TimeoutError:
        raise RuntimeError(f"another process needs more than {SECONDS:g} seconds") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        reason = err.decode(errors="replace").strip()[-300:]
        raise RuntimeError(f"cannot be made in another process: {reason}")
    return list(json.loads(out))
