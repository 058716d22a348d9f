"""Attention over a pack equals plain attention of each sample behind its prefix, gradients too."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from practicum.core import Sample
from practicum.engines import packed_attention as module
from practicum.engines.packed_attention import Tile, packed_attention
from practicum.engines.packing import share_prefixes

NOTHING = slice(0, 0)
LAYOUTS = {
    "two samples": (
        [Tile.of(0, [10], NOTHING), Tile.of(10, [7], slice(10, 10))],
        [(0, 10, NOTHING), (10, 17, NOTHING)],
    ),
    "a shared prefix": (
        [Tile.of(0, [6], NOTHING), Tile.of(6, [5, 3, 3], slice(0, 6))],
        [(0, 6, NOTHING), (6, 11, slice(0, 6)), (11, 14, slice(0, 6)), (14, 17, slice(0, 6))],
    ),
}


def plain(q, k, v, samples, scale):
    outs = []
    for start, stop, prefix in samples:
        keys, values = (torch.cat([x[:, :, prefix], x[:, :, start:stop]], 2) for x in (k, v))
        size = stop - start
        own = torch.ones(size, size, dtype=torch.bool).tril()
        sees = torch.cat([torch.ones(size, prefix.stop - prefix.start, dtype=torch.bool), own], 1)
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


def demonstration(tokens: list[int], prompt: int) -> Sample:
    zeros = (0.0,) * len(tokens)
    weights = (0.0,) * prompt + (1.0,) * (len(tokens) - prompt)
    return Sample(tuple(tokens), zeros, weights, zeros, zeros)


def test_samples_share_what_they_begin_with_and_nothing_that_is_trained() -> None:
    system = list(range(40))
    samples = [
        demonstration([*system, 50, 1], 41),
        demonstration([*system, 51, 2, 3], 41),
        demonstration([99, *system], 30),
    ]
    shared = share_prefixes(samples)
    assert [sample.prefix for sample in shared] == [40, 40, 0]
    assert [sample.tokens for sample in shared] == [sample.tokens for sample in samples]
