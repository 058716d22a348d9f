"""Samples to micro-batches without padding; what samples share is laid out and computed once.

A group is [prefix][rest of sample 1][rest of sample 2]...: each rest sees the prefix and itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.functional import scaled_dot_product_attention

from practicum.core import Sample


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
    """Bundles of at most `budget` packed tokens each (a single longer sample stands alone)."""
    shared: dict[tuple[int, ...], list[Sample]] = {}
    for sample in samples:
        prefix = sample.prefix
        if prefix and any(sample.rl_weight[:prefix]) or any(sample.ce_weight[:prefix]):
            raise ValueError(f"{sample.episode}: a shared prefix cannot carry weight")
        shared.setdefault(sample.tokens[:prefix], []).append(sample)
    made: list[Bundle] = []
    for prefix_tokens, members in shared.items():
        if not prefix_tokens:
            made += [Bundle(0, [sample]) for sample in members]
            continue
        bundle = Bundle(len(prefix_tokens))
        for sample in sorted(members, key=lambda s: len(s.tokens)):
            if bundle.samples and bundle.tokens + len(sample.tokens) - bundle.prefix > budget:
                made.append(bundle)
                bundle = Bundle(len(prefix_tokens))
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
        picked: list[tuple[int, float, float, float, float, float]] = []
        self._layout: list[_Layout] = []
        for bundle in batch:
            start = len(ids)
            if bundle.prefix:
                ids += bundle.samples[0].tokens[: bundle.prefix]
                positions += range(bundle.prefix)
            for sample in bundle.samples:
                rest = len(ids) - bundle.prefix  # packed position of token t is rest + t
                last = start + bundle.prefix - 1
                for t in range(max(bundle.prefix, 1), len(sample.tokens)):
                    if sample.rl_weight[t] or sample.ce_weight[t]:
                        source.append(rest + t - 1 if t > bundle.prefix else last)
                        picked.append(
                            (
                                sample.tokens[t],
                                sample.rl_weight[t],
                                sample.ce_weight[t],
                                sample.advantage[t],
                                sample.logprobs[t],
                                sample.temperature,
                            )
                        )
                ids += sample.tokens[bundle.prefix :]
                positions += range(bundle.prefix, len(sample.tokens))
            self._layout.append(_Layout(start, bundle))
        self.ids = torch.tensor([ids], device=device)
        self.positions = torch.tensor([positions], device=device)
        self.source = torch.tensor(source, dtype=torch.long, device=device)
        columns = list(zip(*picked, strict=True)) or [()] * 6
        self.target = torch.tensor(columns[0], dtype=torch.long, device=device)
        self.rl_weight, self.ce_weight, self.advantage, self.logprobs, temperature = (
            torch.tensor(column, dtype=torch.float32, device=device) for column in columns[1:]
        )
        # Greedy samples (temperature 0) are scored at temperature 1.
        self.temperature = torch.where(temperature > 0, temperature, torch.ones_like(temperature))

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Each bundle by itself. See `engines.attention.Plan`."""
        parts = [layout.attend(q, k, v, scale) for layout in self._layout]
        return torch.cat(parts, dim=2).transpose(1, 2)


class _Layout:
    """Where one bundle lies, and its attention."""

    def __init__(self, start: int, bundle: Bundle) -> None:
        self.prefix = slice(start, start + bundle.prefix)
        self.all = slice(start, start + bundle.tokens)
        self.single = len(bundle.samples) == 1
        if self.single:
            return
        lengths = torch.tensor([len(s.tokens) - bundle.prefix for s in bundle.samples])
        width = int(lengths.max())
        starts = start + bundle.prefix + torch.cumsum(lengths, 0) - lengths
        column = torch.arange(width)
        self.valid = column < lengths[:, None]  # [n, S]
        self.index = torch.where(self.valid, starts[:, None] + column, starts[:, None])
        own = column[None, :] <= column[:, None]  # causal, [S, S]
        sees = torch.cat([torch.ones(width, bundle.prefix, dtype=torch.bool), own], 1)
        self.mask = sees[None, None].expand(len(bundle.samples), 1, -1, -1)

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """q [1, H, N, D], k and v [1, Hkv, N, D] of the whole pack -> [1, H, own tokens, D]."""
        head = self.all if self.single else self.prefix
        near = scaled_dot_product_attention(
            q[:, :, head],
            k[:, :, head],
            v[:, :, head],
            is_causal=True,
            scale=scale,
            enable_gqa=True,
        )
        if self.single:
            return near
        n = self.index.shape[0]
        queries = q[0][:, self.index].transpose(0, 1)  # [n, H, S, D]
        keys, values = (
            torch.cat(
                [x[:, :, self.prefix].expand(n, -1, -1, -1), x[0][:, self.index].transpose(0, 1)], 2
            )
            for x in (k, v)
        )
        out = scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=self.mask.to(q.device),
            scale=scale,
            enable_gqa=True,
        )
        rest = out.transpose(1, 2)[self.valid.to(q.device)]  # [rest tokens, H, D]
        return torch.cat([near, rest.transpose(0, 1)[None]], 2)
