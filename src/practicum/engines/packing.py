"""Samples to micro-batches without padding; what samples begin with alike is there once.

A pack holds the nodes of its samples' prefix trees one after the other. Each token sees the nodes
above its own, and its own node up to itself: what it would see if its sample were alone.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from practicum.core import Sample
from practicum.engines.contract import Tokens
from practicum.engines.packed_attention import Tile, packed_attention
from practicum.engines.prefix_tree import LEAST_SHARED, Node, common, trees
from practicum.engines.routing import unpacked_routes

MULTIPLE = 32  # of tokens and of rows in a pack
ROWS = 8  # samples padded to a common length for attention


def micro_batches(samples: Sequence[Sample], budget: int) -> list[list[Sample]]:
    """The samples in micro-batches of at most `budget` packed tokens.

    Those that begin alike are neighbours, and are parted into as few pieces as the budget allows,
    of about one size. The pieces are put together, longest first. A sample that is longer than the
    budget stands alone, and so does a unit, which is never parted.
    """
    pieces: list[tuple[int, list[Sample]]] = []
    for run in _runs(samples):
        pieces += _parted(run, budget)
    batches: list[list[Sample]] = []
    sizes: list[int] = []
    for size, piece in sorted(pieces, key=lambda p: -p[0]):
        for i, there in enumerate(sizes):
            if there + size <= budget:
                batches[i] += piece
                sizes[i] += size
                break
        else:
            batches.append(piece)
            sizes.append(size)
    return batches


Unit = tuple[np.ndarray, list[Sample]]
"""Samples that stay together, and the tokens of the first of them."""


def _runs(samples: Sequence[Sample]) -> list[list[Unit]]:
    """Units in sorted order; those of a run begin alike."""
    units: dict[tuple[str, int], list[Sample]] = {}
    for number, sample in enumerate(samples):
        units.setdefault((sample.unit, -1 if sample.unit else number), []).append(sample)
    ordered = [sorted(unit, key=lambda s: s.tokens) for unit in units.values()]
    runs: list[list[Unit]] = []
    for unit in sorted(ordered, key=lambda unit: unit[0].tokens):
        tokens = np.array(unit[0].tokens)
        if runs and common(runs[-1][-1][0], tokens) >= LEAST_SHARED:
            runs[-1].append((tokens, unit))
        else:
            runs.append([(tokens, unit)])
    return runs


def _parted(run: Sequence[Unit], budget: int) -> list[tuple[int, list[Sample]]]:
    """The units of a run in pieces of at most `budget` packed tokens, with their sizes."""
    alone = [packed_tokens(unit) for _, unit in run]
    shared = [common(a, b) for (a, _), (b, _) in pairwise(run)]
    least = min(shared, default=0)
    rests = sum(alone) - sum(shared) - least
    even = -(-rests // max(1, -(-rests // max(1, budget - least))))
    pieces: list[tuple[int, list[Sample]]] = []
    for i, (_, unit) in enumerate(run):
        more = alone[i] - shared[i - 1] if i else 0
        size, piece = pieces[-1] if pieces else (0, [])
        if pieces and size + more <= budget and size - least + more / 2 <= even:
            pieces[-1] = (size + more, [*piece, *unit])
        else:
            pieces.append((alone[i], list(unit)))
    return pieces


def packed_tokens(samples: Sequence[Sample]) -> int:
    """Number of tokens of one pack of these samples."""
    return sum(node.size for tree in trees(samples) for node in tree.walk())


class Packed:
    """One micro-batch as tensors, and the attention plan of its layout.

    The N weighted tokens of the samples have the streams; `row[i]` is where among the U rows the
    log-probability of the i-th is computed: that of `target` [U] behind packed position `source`.
    Samples that share a weighted token share its row. Tokens and rows that nobody asks for fill
    both up to a multiple of `MULTIPLE`: a CPU keeps code and tables for every shape it has met.
    """

    def __init__(self, samples: Sequence[Sample], device: str = "cpu") -> None:
        ids: list[np.ndarray] = []
        positions: list[np.ndarray] = []
        self._tiles: list[Tile] = []
        self._nodes: list[Node] = []  # in the order in which they lie
        self.places: list[tuple[Sample, int]] = []  # of each weighted token
        streams: list[tuple[float, ...]] = []
        rows: dict[tuple[int, int, float], int] = {}
        row: list[int] = []
        units: dict[tuple[int, str], int] = {}
        sequences = length = 0
        for tree in trees(samples):
            starts: dict[Node, int] = {}
            for node in tree.walk():
                starts[node] = length
                self._nodes.append(node)
                ids.append(node.tokens[node.start : node.stop])
                positions.append(np.arange(node.start, node.stop))
                length += node.size
                for sample in node.samples:
                    unit = (0 if sample.unit else sequences, sample.unit)
                    where = _where(node, starts)
                    # Greedy samples (temperature 0) are scored at temperature 1.
                    temperature = sample.temperature or 1.0
                    for t in _weighted(sample):
                        key = (int(where[t - 1]), sample.tokens[t], temperature)
                        row.append(rows.setdefault(key, len(rows)))
                        self.places.append((sample, t))
                        streams.append(
                            (
                                sequences,
                                units.setdefault(unit, len(units)),
                                sample.rl_weight[t],
                                sample.ce_weight[t],
                                sample.advantage[t],
                                sample.logprobs[t],
                                sample.reference[t] if sample.reference else math.nan,
                                sample.values[t] if sample.values else math.nan,
                                sample.returns[t] if sample.returns else math.nan,
                            )
                        )
                    sequences += 1
            self._tiles += _tiles(tree, starts, torch.device(device))

        def stream(values: Sequence[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        filling = np.zeros(-length % MULTIPLE, int)
        self.length = length + len(filling)
        self.ids, self.positions = (
            torch.from_numpy(np.concatenate([*parts, filling]))[None].to(device)
            for parts in (ids, positions)
        )
        asked = [*rows, *[(0, 0, 1.0)] * (-len(rows) % MULTIPLE)]
        sources, targets, temperatures = zip(*asked, strict=True) if asked else ((), (), ())
        self.source, self.target = (stream(x, torch.long) for x in (sources, targets))
        self.temperature = stream(temperatures)
        self.row = stream(row, torch.long)
        columns = list(zip(*streams, strict=True)) or [()] * 9
        self.sequence, self.unit = (stream(column, torch.long) for column in columns[:2])
        self.rl_weight, self.ce_weight, self.advantage, self.logprobs, *optional = (
            stream(column) for column in columns[2:]
        )
        self.reference, self.values, self.returns = map(self._whole, optional)

    def _whole(self, values: torch.Tensor) -> torch.Tensor | None:
        """A stream that every RL token has, or None."""
        missing = bool(values[self.rl_weight > 0].isnan().any())
        return None if missing else values.nan_to_num()

    def tokens(self, logprobs: torch.Tensor, value: torch.Tensor | None = None) -> Tokens:
        """What a loss is told of them."""
        return Tokens(
            logprobs,
            self.logprobs,
            self.advantage,
            self.sequence,
            self.rl_weight,
            self.reference,
            self.unit,
            value,
            self.values,
            self.returns,
        )

    def routes(self, layers: int, k: int) -> torch.Tensor | None:
        """The experts of each token [M, layers, k] where its sample has them, else -1."""
        if not any(node.through.routes for node in self._nodes):
            return None
        made = np.full((self.length, layers, k), -1)
        at = 0
        for node in self._nodes:
            known = unpacked_routes(node.through.routes, layers, k)[node.start : node.stop]
            made[at : at + len(known)] = known
            at += node.size
        return torch.from_numpy(made).to(self.ids.device)

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Each node by itself, behind those above it. See `engines.attention.Plan`."""
        return packed_attention(q, k, v, self._tiles, scale)


def _weighted(sample: Sample) -> list[int]:
    """Positions of the tokens that carry weight."""
    pairs = zip(sample.rl_weight, sample.ce_weight, strict=True)
    return [t for t, (rl, ce) in enumerate(pairs) if rl or ce]


def _where(node: Node, starts: dict[Node, int]) -> np.ndarray:
    """The packed position of each token of a sample that ends in `node`."""
    path = [*node.path(), node]
    return np.concatenate([starts[n] + np.arange(n.size) for n in path])


def _tiles(tree: Node, starts: dict[Node, int], device: torch.device) -> list[Tile]:
    """Every node of a tree with tokens in one tile; leaves of about one length share theirs."""
    tiles: list[Tile] = []
    for node in tree.walk():
        above = _slices([*node.path(), node], starts)
        leaves = sorted((n for n in node.children if not n.children), key=lambda n: -n.size)
        while leaves:
            longest = leaves[0].size
            some = [leaf for leaf in leaves[:ROWS] if 2 * leaf.size >= longest]
            leaves = leaves[len(some) :]
            tiles.append(Tile.of([(starts[n], n.size) for n in some], above))
        if node is tree or node.children:
            tiles.append(Tile.of([(starts[node], node.size)], _slices(node.path(), starts)))
    return [tile.to(device) for tile in tiles]


def _slices(path: Sequence[Node], starts: dict[Node, int]) -> tuple[slice, ...]:
    """Where the nodes of a path lie; neighbours in the pack are one slice."""
    made: list[slice] = []
    for node in path:
        start, stop = starts[node], starts[node] + node.size
        if made and made[-1].stop == start:
            made[-1] = slice(made[-1].start, stop)
        else:
            made.append(slice(start, stop))
    return tuple(made)
