"""Attention over a pack equals plain attention of each piece behind its prefix, gradients too."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from practicum.engines import packed_attention as module
from practicum.engines.packed_attention import Tile, packed_attention

Piece = tuple[int, int, tuple[slice, ...]]
LAYOUTS: dict[str, tuple[list[Tile], list[Piece]]] = {
    "two samples": (
        [Tile.of([(0, 10)]), Tile.of([(10, 7)])],
        [(0, 10, ()), (10, 17, ())],
    ),
    "a shared prefix": (
        [Tile.of([(0, 6)]), Tile.of([(6, 5), (11, 3), (14, 3)], (slice(0, 6),))],
        [
            (0, 6, ()),
            (6, 11, (slice(0, 6),)),
            (11, 14, (slice(0, 6),)),
            (14, 17, (slice(0, 6),)),
        ],
    ),
    "a tree": (  # 0-4 has the branches 4-9 and 9-11; 9-11 the branches 11-13 and 13-17
        [
            Tile.of([(0, 4)]),
            Tile.of([(4, 5)], (slice(0, 4),)),
            Tile.of([(9, 2)], (slice(0, 4),)),
            Tile.of([(13, 4), (11, 2)], (slice(0, 4), slice(9, 11))),
        ],
        [
            (0, 4, ()),
            (4, 9, (slice(0, 4),)),
            (9, 11, (slice(0, 4),)),
            (11, 13, (slice(0, 4), slice(9, 11))),
            (13, 17, (slice(0, 4), slice(9, 11))),
        ],
    ),
}


def plain(q, k, v, samples, scale):
    outs = []
    for start, stop, prefix in samples:
        keys, values = (
            torch.cat([*(x[:, :, part] for part in prefix), x[:, :, start:stop]], 2) for x in (k, v)
        )
        size = stop - start
        own = torch.ones(size, size, dtype=torch.bool).tril()
        before = sum(part.stop - part.start for part in prefix)
        sees = torch.cat([torch.ones(size, before, dtype=torch.bool), own], 1)
        outs.append(
            scaled_dot_product_attention(
                q[:, :, start:stop], keys, values, attn_mask=sees, scale=scale, enable_gqa=True
            )
        )
    return torch.cat(outs, 2).transpose(1, 2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("queries", [512, 4])
def test_it_equals_plain_attention(layout: str, queries: int, monkeypatch) -> None:
    monkeypatch.setattr(module, "QUERIES", queries)
    tiles, samples = LAYOUTS[layout]
    random = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, h, 17, 8, dtype=torch.double, generator=random, requires_grad=True)
        for h in (6, 2, 2)
    )
    grad = torch.randn(1, 17, 6, 8, dtype=torch.double, generator=random)
    mine, theirs = packed_attention(q, k, v, tiles, 0.3), plain(q, k, v, samples, 0.3)
    torch.testing.assert_close(mine, theirs)
    for a, b in zip(
        torch.autograd.grad(mine, (q, k, v), grad),
        torch.autograd.grad(theirs, (q, k, v), grad),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
