"""Boxes made ahead, so that whoever opens one need not wait until it is made.

The pool learns what is wanted: the first box of some sizes is made when it is asked for, and from
then on up to `size` of them are ready. They are made in quiet moments, not while boxes are being
taken. One that is taken belongs to who took it, and never comes back. All of them end with this
process, however it ends, because every box does.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from practicum.core import Limits, SandboxError
from practicum.sandbox.command import unbroken

if TYPE_CHECKING:
    from practicum.sandbox.local import LocalBox

QUIET_SECONDS = 0.1  # without a request, before more are made
SPARE_MEMORY = 0.1  # of the machine's, which the pool leaves free
_Sizes = tuple[int, int, float, int, tuple[str, ...]]


class Pool:
    """At most `size` boxes in all, made by `make`; the sizes asked for last have precedence."""

    def __init__(self, make: Callable[[Limits], Awaitable["LocalBox"]], size: int) -> None:
        self.size = size
        self._make = make
        self._ready: dict[_Sizes, list[LocalBox]] = {}
        self._dead: set[LocalBox] = set()  # that died while they waited, to be closed
        self._filling: asyncio.Task[None] | None = None
        self._wanted: tuple[_Sizes, Limits]
        self._asked = 0.0  # when the last was asked for

    def __len__(self) -> int:
        return sum(map(len, self._ready.values()))

    def take(self, limits: Limits) -> "LocalBox | None":
        """A box of these sizes if one is ready, and more of them soon."""
        if not self.size:
            return None
        sizes = (
            limits.memory_mb,
            limits.processes,
            limits.cpus,
            limits.workspace_mb,
            limits.network,
        )
        ready = self._ready.pop(sizes, [])
        self._ready[sizes] = ready  # last in the order
        taken = None
        while ready and taken is None:
            box = ready.pop(0)
            if box.alive:
                box.limits = limits
                taken = box
            else:
                self._dead.add(box)
        self._wanted, self._asked = (sizes, limits), time.monotonic()
        if self._filling is None or self._filling.done():
            self._filling = asyncio.create_task(self._fill())
        return taken

    async def _fill(self) -> None:
        """Make boxes of the sizes asked for last, in place of others, until there are enough."""
        while _memory_left():
            while self._dead:
                await unbroken(self._dead.pop().close())
            quiet = time.monotonic() - self._asked
            if quiet < QUIET_SECONDS:
                await asyncio.sleep(QUIET_SECONDS - quiet)
                continue
            sizes, limits = self._wanted
            if len(self._ready[sizes]) >= self.size:
                return
            if len(self) >= self.size:
                others = next(boxes for key, boxes in self._ready.items() if boxes and key != sizes)
                await unbroken(others.pop(0).close())
            try:
                box = await self._make(limits)
            except (SandboxError, OSError):
                return  # whoever opens a box next is told
            self._ready[sizes].append(box)

    async def close(self) -> None:
        """Make no more; those that are ready are closed with all other boxes."""
        self.size = 0
        if self._filling:
            self._filling.cancel()
            await asyncio.wait([self._filling])
        ready, self._ready = self._ready, {}
        for boxes in ready.values():
            for box in boxes:
                await unbroken(box.close())


def _memory_left() -> bool:
    words = Path("/proc/meminfo").read_text().split()
    total, available = (int(words[words.index(f"Mem{n}:") + 1]) for n in ("Total", "Available"))
    return available > total * SPARE_MEMORY
