"""fp32 master weights in one block: whole, or as what bf16 arithmetic uses of them and the rest.

A bf16 number is the upper half of an fp32 number, rounded. With the lower halves beside the rounded
weights the masters are there to the last bit: 4 bytes a parameter instead of 6.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import torch

CHUNK = 1 << 19  # parameters that are whole at once

Change = Callable[[slice, torch.Tensor], None]
"""(which parameters, their values in fp32) -> nothing: it changes the values in place."""


class Masters(Protocol):
    """N parameters."""

    def rounded(self, dtype: torch.dtype) -> torch.Tensor:
        """All of them [N] for the arithmetic. What this once gave never changes, but in fp32."""
        ...

    def part(self, start: int, stop: int) -> torch.Tensor:
        """Some of them in fp32; not to be written to."""
        ...

    def update(self, change: Change) -> None:
        """Let `change` change all of them, some at a time."""
        ...

    def fill(self, block: torch.Tensor) -> None:
        """Let them be those of `block` [N]."""
        ...

    def __len__(self) -> int: ...


class Whole:
    """One fp32 block."""

    def __init__(self, block: torch.Tensor) -> None:
        self.block = block

    def rounded(self, dtype: torch.dtype) -> torch.Tensor:
        """See `Masters`."""
        return self.block.to(dtype)

    def part(self, start: int, stop: int) -> torch.Tensor:
        """See `Masters`."""
        return self.block[start:stop]

    def update(self, change: Change) -> None:
        """See `Masters`; all at once."""
        change(slice(0, len(self.block)), self.block)

    def fill(self, block: torch.Tensor) -> None:
        """See `Masters`."""
        self.block.copy_(block)

    def __len__(self) -> int:
        return len(self.block)


class Halves:
    """The rounded numbers in bf16, and how far the others are from them, in 16 bits.

    The distance is counted in steps of fp32 and lies within +-2^15. A distance of 2^15, a number
    half-way that was rounded down, is kept as -2^15 and noted.
    """

    def __init__(self, block: torch.Tensor) -> None:
        self._off = torch.empty_like(block, dtype=torch.int16)
        self._halfway: dict[int, torch.Tensor] = {}  # by chunk
        self.fill(block)

    def rounded(self, dtype: torch.dtype) -> torch.Tensor:
        """See `Masters`."""
        assert dtype == torch.bfloat16
        return self._near

    def part(self, start: int, stop: int) -> torch.Tensor:
        """See `Masters`."""
        first, last = start // CHUNK, max(start, stop - 1) // CHUNK
        found = [self._whole(chunk) for chunk in range(first, last + 1)]
        joined = found[0] if len(found) == 1 else torch.cat(found)
        return joined[start - first * CHUNK : stop - first * CHUNK]

    def update(self, change: Change) -> None:
        """See `Masters`."""

        def changed(at: slice) -> torch.Tensor:
            values = self._whole(at.start // CHUNK)
            change(at, values)
            return values

        self._put(changed)

    def fill(self, block: torch.Tensor) -> None:
        """See `Masters`."""
        self._put(lambda at: block[at])

    def __len__(self) -> int:
        return len(self._near)

    def _put(self, values_at: Callable[[slice], torch.Tensor]) -> None:
        """Keep the values of each chunk; the rounded ones in new memory."""
        near = torch.empty_like(self._off, dtype=torch.bfloat16)
        for start in range(0, len(near), CHUNK):
            at = slice(start, min(start + CHUNK, len(near)))
            values = values_at(at)
            near[at] = values
            off = values.view(torch.int32) - near[at].float().view(torch.int32)
            self._off[at] = off
            self._halfway[start // CHUNK] = (off == 1 << 15).nonzero()[:, 0]
        self._near = near

    def _whole(self, chunk: int) -> torch.Tensor:
        at = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
        bits = self._near[at].float().view(torch.int32)
        bits += self._off[at]
        bits[self._halfway[chunk]] += 1 << 16
        return bits.view(torch.float32)


class Named(Mapping[str, torch.Tensor]):
    """Master weights by name, in fp32 and made when they are asked for; not to be written to."""

    def __init__(
        self,
        shapes: Mapping[str, torch.Size],
        masters: Masters,
        others: Mapping[str, torch.Tensor],
    ) -> None:
        self._masters, self._others = masters, others
        self._places: dict[str, tuple[int, torch.Size]] = {}
        at = 0
        for name, shape in shapes.items():
            self._places[name] = (at, shape)
            at += shape.numel()

    def __getitem__(self, name: str) -> torch.Tensor:
        if name in self._others:
            return self._others[name]
        at, shape = self._places[name]
        return self._masters.part(at, at + shape.numel()).view(shape)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._places, *self._others])

    def __len__(self) -> int:
        return len(self._places) + len(self._others)
