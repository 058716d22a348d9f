"""A pack over several processes: each has a part of the queries, and gathers the keys and values.

For sequences that no single device holds. A process takes one slice from the front of the pack and
one from its back, so that all of them have as much to attend to (zigzag order, as in the ring
attention of Brandon et al. 2023, arXiv 2311.09431). Keys and values are small where heads share
them, so they are gathered whole (as in Llama 3, arXiv 2407.21783).
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from practicum.core import Sample
from practicum.engines.packed_attention import Tile, packed_attention
from practicum.engines.packing import Packed


class Share(Packed):
    """One process's share of a pack: its own `ids` and `positions`, and the streams of all."""

    def __init__(self, samples: Sequence[Sample], group: Any, device: str = "cpu") -> None:
        super().__init__(samples, device)
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        length = self.ids.shape[1]
        slice_length = -(-length // (2 * size))
        padding = 2 * size * slice_length - length
        self.group = group
        mine = _order(rank, size, slice_length)
        order = torch.cat([_order(r, size, slice_length) for r in range(size)])
        self.unsort = order.argsort().to(device)  # gathered keys -> packed positions
        self._tiles = [
            own for tile in self._tiles for own in _cut(tile, mine, slice_length, device)
        ]
        mine = self.mine = mine.to(device)
        self.padding = padding
        filled = [torch.nn.functional.pad(x, (0, padding)) for x in (self.ids, self.positions)]
        self.ids, self.positions = (x[:, mine] for x in filled)
        place = torch.full((length + padding,), -1, device=device)
        place[mine] = torch.arange(len(mine), device=device)
        self.own = (place[self.source] >= 0).nonzero()[:, 0]  # rows that are computed here
        self.rows = len(self.source)
        self.source = place[self.source][self.own]
        self.target, self.temperature = self.target[self.own], self.temperature[self.own]

    def routes(self, layers: int, k: int) -> torch.Tensor | None:
        """Those of its own tokens."""
        whole = super().routes(layers, k)
        if whole is None:
            return None
        return torch.nn.functional.pad(whole, (0, 0, 0, 0, 0, self.padding), value=-1)[self.mine]

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Own queries, everybody's keys. See `engines.attention.Plan`."""
        keys, values = (_Gathered.apply(x, self.group)[:, :, self.unsort] for x in (k, v))
        return packed_attention(q, keys, values, self._tiles, scale)

    def whole(self, values: torch.Tensor) -> torch.Tensor:
        """The numbers of all rows, from those of each process's own."""
        return _Summed.apply(values.new_zeros(self.rows).index_put((self.own,), values), self.group)


def _order(rank: int, size: int, length: int) -> torch.Tensor:
    """Packed positions of a process: a slice from the front and its mirror from the back."""
    return torch.cat([torch.arange(at * length, (at + 1) * length) for at in _slots(rank, size)])


def _slots(rank: int, size: int) -> tuple[int, int]:
    return rank, 2 * size - 1 - rank


def _cut(tile: Tile, mine: torch.Tensor, length: int, device: str) -> list[Tile]:
    """What of a tile falls into a process's two slices; what lies before it is its prefix."""
    made = []
    for index, valid in zip(tile.index, tile.valid, strict=True):
        start, stop = int(index[0]), int(index[0]) + int(valid.sum())
        for half in (0, 1):
            first = int(mine[half * length])
            begin, end = max(start, first), min(stop, first + length)
            if begin < end:
                before = (slice(start, begin),) if begin > start else ()
                piece = Tile.of([(begin, end - begin)], (*tile.prefix, *before))
                piece.queries = piece.index - first + half * length
                made.append(piece.to(torch.device(device)))
    return made


class _Gathered(torch.autograd.Function):
    """x [1, Hkv, n, D] of each process -> [1, Hkv, size * n, D], in the order of the processes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        size = dist.get_world_size(group)
        parts = x.new_empty((size * x.shape[0], *x.shape[1:]))
        dist.all_gather_into_tensor(parts, x.contiguous(), group=group)
        return torch.cat(parts.chunk(size), 2)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        size = dist.get_world_size(ctx.group)
        parts = torch.cat(grads[0].chunk(size, 2))
        mine = parts.new_empty((parts.shape[0] // size, *parts.shape[1:]))
        dist.reduce_scatter_tensor(mine, parts, group=ctx.group)
        return mine, None


class _Summed(torch.autograd.Function):
    """The sum over the processes, all of which go on with it alike: the gradient is each one's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None
