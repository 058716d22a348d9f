"""Attention over a pack: each sample sees what it shares with others and itself, nothing else.

One autograd function over the whole pack, with plain matrix products: on CPUs they are faster than
the fused kernel's backward pass. The attention weights are made again there, some queries at a
time, as FlashAttention does (arXiv 2205.14135): memory grows with the length, not its square.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

QUERIES = 512  # positions of one block


@dataclass
class Tile:
    """n pieces padded to S tokens, behind a prefix that they share: P tokens in some slices.

    `index` [n, S] holds packed positions (padding repeats one), `valid` [n, S] marks tokens. Where
    a process has some of the queries only, `queries` [n, S] says where these lie among its own.
    """

    index: torch.Tensor
    valid: torch.Tensor
    prefix: tuple[slice, ...] = ()
    queries: torch.Tensor | None = None
    whole: "_Block | None" = None  # its only block, the same in every layer

    @staticmethod
    def of(pieces: Sequence[tuple[int, int]], prefix: tuple[slice, ...] = ()) -> "Tile":
        """Pieces given by where they start and how long they are."""
        starts, sizes = (torch.tensor(x)[:, None] for x in zip(*pieces, strict=True))
        column = torch.arange(int(sizes.max()))
        valid = column < sizes
        return Tile(torch.where(valid, starts + column, starts), valid, prefix)

    @property
    def behind(self) -> int:
        """P, the number of tokens of the prefix."""
        return sum(part.stop - part.start for part in self.prefix)

    def to(self, device: torch.device) -> "Tile":
        """The tile on another device."""
        queries = None if self.queries is None else self.queries.to(device)
        return Tile(self.index.to(device), self.valid.to(device), self.prefix, queries)

    @property
    def rows(self) -> torch.Tensor:
        """Where the queries lie, [n, S]."""
        return self.index if self.queries is None else self.queries


def packed_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tiles: list[Tile], scale: float
) -> torch.Tensor:
    """q [1, H, M, D], k and v [1, Hkv, N, D] -> [1, M, H, D]; 0 for queries in no tile."""
    q, k = q.to(v.dtype), k.to(v.dtype)  # under autocast the rotation leaves them in fp32
    return _PackedAttention.apply(q, k, v, tiles, scale)  # type: ignore[return-value]


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        tiles: list[Tile],
        scale: float,
    ) -> torch.Tensor:
        heads, length, dim = q.shape[1:]
        out = q.new_zeros((length, heads, dim))
        for tile in tiles:
            queries, keys, values = _gather(q, k, v, tile)
            result = torch.empty_like(queries)
            for block in _blocks(queries, tile):
                weights = _weights(queries, keys, block, scale)
                torch.bmm(weights, values[:, : block.seen], out=result[:, block.rows])
            out[tile.rows[tile.valid]] = _ungroup(result, tile, heads)[tile.valid]
        ctx.save_for_backward(q, k, v)
        ctx.tiles, ctx.scale = tiles, scale
        return out[None]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        q, k, v = ctx.saved_tensors
        heads, kv_heads = q.shape[1], k.shape[1]
        grad = grads[0][0].to(q.dtype)  # [M, H, D]
        d_q, d_k, d_v = (torch.zeros_like(x[0]) for x in (q, k, v))
        for tile in ctx.tiles:
            queries, keys, values = _gather(q, k, v, tile)
            d_out = _group(grad.transpose(0, 1)[None], tile.rows, kv_heads)
            rows_valid = tile.valid.repeat_interleave(heads // kv_heads, 1)
            d_out *= rows_valid.repeat_interleave(kv_heads, 0)[..., None]
            d_queries = torch.empty_like(queries)
            d_keys, d_values = torch.zeros_like(keys), torch.zeros_like(values)
            for block in _blocks(queries, tile):
                weights = _weights(queries, keys, block, ctx.scale)
                d_rows, seen = d_out[:, block.rows], slice(0, block.seen)
                d_values[:, seen] += weights.transpose(1, 2) @ d_rows
                d_weights = d_rows @ values[:, seen].transpose(1, 2)
                d_scores = torch._softmax_backward_data(d_weights, weights, -1, weights.dtype)
                d_scores *= ctx.scale
                torch.bmm(d_scores, keys[:, seen], out=d_queries[:, block.rows])
                d_keys[:, seen] += d_scores.transpose(1, 2) @ queries[:, block.rows]
            at = tile.index[tile.valid]
            d_q[:, tile.rows[tile.valid]] = _ungroup(d_queries, tile, heads)[tile.valid].transpose(
                0, 1
            )
            own = tile.behind
            for total, part in ((d_k, d_keys), (d_v, d_values)):
                part = part.unflatten(0, (-1, kv_heads)).transpose(0, 1)  # [Hkv, n, P + S, D]
                total[:, at] += part[:, :, own:][:, tile.valid]
                if own:
                    before = part[:, :, :own].sum(1)
                    sizes = [piece.stop - piece.start for piece in tile.prefix]
                    for piece, more in zip(tile.prefix, before.split(sizes, 1), strict=True):
                        total[:, piece] += more
        return d_q[None], d_k[None], d_v[None], None, None


@dataclass
class _Block:
    """Some positions of a tile: the rows of its queries, and the keys that they can see."""

    rows: slice
    seen: int
    mask: torch.Tensor  # additive, [rows, seen]


def _blocks(queries: torch.Tensor, tile: Tile) -> Iterator[_Block]:
    """A tile's queries a block at a time: all at once if there are few, else QUERIES positions."""
    width = tile.index.shape[1]
    if width > QUERIES:
        for start in range(0, width, QUERIES):
            yield _block(queries, tile, start, min(start + QUERIES, width))
    else:
        tile.whole = tile.whole or _block(queries, tile, 0, width)
        yield tile.whole


def _block(queries: torch.Tensor, tile: Tile, start: int, stop: int) -> _Block:
    share = queries.shape[1] // tile.index.shape[1]
    prefix = tile.behind
    row = torch.arange(start, stop, device=queries.device)
    hidden = torch.arange(prefix + stop, device=queries.device) - prefix > row[:, None]
    mask = queries.new_zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
    if share > 1:
        mask = mask.repeat_interleave(share, 0)
    return _Block(slice(start * share, stop * share), prefix + stop, mask)


def _weights(
    queries: torch.Tensor, keys: torch.Tensor, block: _Block, scale: float
) -> torch.Tensor:
    """Softmax weights of a block of queries, [n * Hkv, rows, seen]."""
    rows, seen = queries[:, block.rows], keys[:, : block.seen].transpose(1, 2)
    mask = block.mask.expand(rows.shape[0], -1, -1)
    return torch.softmax(torch.baddbmm(mask, rows, seen, alpha=scale), -1)


def _group(x: torch.Tensor, rows: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """x [1, H, M, D] at `rows` [n, S] -> [n * Hkv, S * share, D]: heads of a key together."""
    picked = x[0][:, rows].unflatten(0, (kv_heads, -1))  # [Hkv, share, n, S, D]
    return picked.permute(2, 0, 3, 1, 4).flatten(0, 1).flatten(1, 2).contiguous()


def _ungroup(x: torch.Tensor, tile: Tile, heads: int) -> torch.Tensor:
    """[n * Hkv, S * share, D] -> [n, S, H, D]."""
    n, width = tile.index.shape
    kv_heads = x.shape[0] // n
    split = x.view(n, kv_heads, width, heads // kv_heads, x.shape[-1])
    return split.transpose(1, 2).flatten(2, 3)


def _gather(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tile: Tile
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries [n * Hkv, S * share, D]; keys and values [n * Hkv, P + S, D]."""
    n = tile.index.shape[0]
    keys, values = (
        torch.cat(
            [
                *(x[:, :, part].expand(n, -1, -1, -1) for part in tile.prefix),
                x[0][:, tile.index].transpose(0, 1),
            ],
            2,
        ).flatten(0, 1)
        for x in (k, v)
    )
    return _group(q, tile.rows, k.shape[1]), keys, values
