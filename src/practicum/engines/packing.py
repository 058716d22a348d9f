"""Samples to micro-batches without padding; what samples share is laid out and computed once.

A group is [prefix][rest of sample 1][rest of sample 2]...: each rest sees the prefix and itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import torch

from practicum.core import Sample
from practicum.engines.contract import Tokens
from practicum.engines.packed_attention import Tile, packed_attention

ROWS = 8  # samples padded to a common length for attention
LEAST_SHARED = 16  # tokens; sharing fewer is not worth the bookkeeping


def share_prefixes(samples: Sequence[Sample]) -> list[Sample]:
    """The samples with `prefix` set to what neighbours in sorted order have in common.

    For samples of different tasks (demonstrations): those that begin with the same system prompt
    share it. The order of the samples is kept.
    """
    order = sorted(range(len(samples)), key=lambda i: samples[i].tokens)
    made = list(samples)
    cluster: list[int] = []
    shared = 0

    def close() -> None:
        for i in cluster:
            made[i] = msgspec.structs.replace(samples[i], prefix=shared if len(cluster) > 1 else 0)

    for i in order:
        own = samples[i]
        if cluster:
            common = _common(samples[cluster[0]].tokens, own.tokens, min(shared, _unweighted(own)))
            if common >= max(LEAST_SHARED, shared // 2):
                cluster.append(i)
                shared = common
                continue
            close()
        cluster, shared = [i], _unweighted(own)
    close()
    return made


def _unweighted(sample: Sample) -> int:
    """Number of tokens before the first that carries weight."""
    pairs = zip(sample.rl_weight, sample.ce_weight, strict=True)
    return next((t for t, (rl, ce) in enumerate(pairs) if rl or ce), len(sample.tokens))


def _common(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    return next(
        (t for t in range(min(limit, len(a), len(b))) if a[t] != b[t]), min(limit, len(a), len(b))
    )


@dataclass
class Bundle:
    """Samples with a common prefix of `prefix` tokens, which carry no weight."""

    prefix: int
    samples: list[Sample] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Number of packed tokens."""
        return self.prefix + sum(len(s.tokens) - self.prefix for s in self.samples)


def bundles(samples: Sequence[Sample], budget: int) -> list[Bundle]:
    """Bundles of at most `budget` packed tokens each; a longer sample, or unit, stands alone."""
    shared: dict[tuple[int, ...], list[Sample]] = {}
    places: dict[str, tuple[int, ...]] = {}
    for sample in samples:
        prefix = sample.prefix
        if (prefix and any(sample.rl_weight[:prefix])) or any(sample.ce_weight[:prefix]):
            raise ValueError(f"{sample.episode}: a shared prefix cannot carry weight")
        place = sample.tokens[:prefix]
        if sample.unit and (not prefix or places.setdefault(sample.unit, place) != place):
            raise ValueError(f"{sample.episode}: samples of one unit must share a prefix")
        shared.setdefault(sample.tokens[:prefix], []).append(sample)
    made: list[Bundle] = []
    for prefix_tokens, members in shared.items():
        if not prefix_tokens:
            made += [Bundle(0, [sample]) for sample in members]
            continue
        prefix, members = len(prefix_tokens), sorted(members, key=lambda s: len(s.tokens))
        rests = sum(len(sample.tokens) - prefix for sample in members)
        even = -(-rests // max(1, -(-rests // max(1, budget - prefix))))  # as few, but of one size
        bundle = Bundle(prefix)
        for sample in members:
            rest = len(sample.tokens) - prefix
            full = bundle.tokens + rest > budget or bundle.tokens - prefix + rest / 2 > even
            if bundle.samples and full and not sample.unit:
                made.append(bundle)
                bundle = Bundle(prefix)
            bundle.samples.append(sample)
        made.append(bundle)
    return made


def micro_batches(samples: Sequence[Sample], budget: int) -> list[list[Bundle]]:
    """Bundles put together, longest first, into micro-batches of at most `budget` packed tokens."""
    batches: list[list[Bundle]] = []
    sizes: list[int] = []
    for bundle in sorted(bundles(samples, budget), key=lambda b: -b.tokens):
        for i, size in enumerate(sizes):
            if size + bundle.tokens <= budget:
                batches[i].append(bundle)
                sizes[i] += bundle.tokens
                break
        else:
            batches.append([bundle])
            sizes.append(bundle.tokens)
    return batches


class Packed:
    """One micro-batch as tensors, and the attention plan of its layout.

    `source[i]` is the packed position that predicts `target[i]`; streams are aligned to the latter.
    """

    def __init__(self, batch: Sequence[Bundle], device: str = "cpu") -> None:
        ids: list[int] = []
        positions: list[int] = []
        source: list[int] = []
        picked: list[tuple[int, int, int, float, float, float, float, float, float]] = []
        self.places: list[tuple[Sample, int]] = []  # of each target
        units: dict[tuple[int, str], int] = {}
        sequences = 0
        tiles: list[Tile] = []
        for bundle in batch:
            start = len(ids)
            if bundle.prefix:
                ids += bundle.samples[0].tokens[: bundle.prefix]
                positions += range(bundle.prefix)
            for sample in bundle.samples:
                unit = units.setdefault((0 if sample.unit else sequences, sample.unit), len(units))
                rest = len(ids) - bundle.prefix  # packed position of token t is rest + t
                last = start + bundle.prefix - 1
                for t in range(max(bundle.prefix, 1), len(sample.tokens)):
                    if sample.rl_weight[t] or sample.ce_weight[t]:
                        source.append(rest + t - 1 if t > bundle.prefix else last)
                        self.places.append((sample, t))
                        picked.append(
                            (
                                sample.tokens[t],
                                sequences,
                                unit,
                                sample.rl_weight[t],
                                sample.ce_weight[t],
                                sample.advantage[t],
                                sample.logprobs[t],
                                sample.reference[t] if sample.reference else math.nan,
                                sample.temperature,
                            )
                        )
                sequences += 1
                ids += sample.tokens[bundle.prefix :]
                positions += range(bundle.prefix, len(sample.tokens))
            tiles += _tiles(start, bundle)
        self._tiles = [tile.to(torch.device(device)) for tile in tiles]
        self.ids = torch.tensor([ids], device=device)
        self.positions = torch.tensor([positions], device=device)
        self.source = torch.tensor(source, dtype=torch.long, device=device)
        columns = list(zip(*picked, strict=True)) or [()] * 9
        self.target, self.sequence, self.unit = (
            torch.tensor(column, dtype=torch.long, device=device) for column in columns[:3]
        )
        self.rl_weight, self.ce_weight, self.advantage, self.logprobs, reference, temperature = (
            torch.tensor(column, dtype=torch.float32, device=device) for column in columns[3:]
        )
        missing = bool(reference[self.rl_weight > 0].isnan().any())
        self.reference = None if missing else reference.nan_to_num()
        # Greedy samples (temperature 0) are scored at temperature 1.
        self.temperature = torch.where(temperature > 0, temperature, torch.ones_like(temperature))

    def tokens(self, logprobs: torch.Tensor) -> Tokens:
        """What a loss is told of them."""
        return Tokens(
            logprobs,
            self.logprobs,
            self.advantage,
            self.sequence,
            self.rl_weight,
            self.reference,
            self.unit,
        )

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Each bundle by itself. See `engines.attention.Plan`."""
        return packed_attention(q, k, v, self._tiles, scale)


def _tiles(start: int, bundle: Bundle) -> list[Tile]:
    """The prefix as a sample of its own, then the rests, some at a time, behind it."""
    nothing = slice(start, start)
    if len(bundle.samples) == 1:
        return [Tile.of(start, [bundle.tokens], nothing)]
    rest = start + bundle.prefix
    tiles = [Tile.of(start, [bundle.prefix], nothing)]
    lengths = [len(sample.tokens) - bundle.prefix for sample in bundle.samples]
    for i in range(0, len(lengths), ROWS):
        tiles.append(Tile.of(rest, lengths[i : i + ROWS], slice(start, start + bundle.prefix)))
        rest += sum(lengths[i : i + ROWS])
    return tiles
