"""Keys and values while sampling: a group's prompt is held and read once, each row adds its own.

`Wave` is a batch of rows in flight. A row attends to its prefix (shared by its group) and to its
suffix (its own); both parts are computed apart and merged by their log-sum-exp.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from practicum.engines.attention import attend_with_lse, merge


@dataclass
class Prefixes:
    """Keys and values of P distinct prompts, padded at the right: [layers, 2, P, Hkv, T, D]."""

    kv: torch.Tensor
    lengths: torch.Tensor  # [P]

    def select(self, index: torch.Tensor) -> "Prefixes":
        """The prompts at `index`; a view when that is all of them in order."""
        if torch.equal(index, torch.arange(self.lengths.shape[0])):
            return self
        return Prefixes(self.kv.index_select(2, index.to(self.kv.device)), self.lengths[index])

    @staticmethod
    def join(parts: Sequence["Prefixes"]) -> "Prefixes":
        """Several sets as one."""
        if len(parts) == 1:
            return parts[0]
        width = max(part.kv.shape[4] for part in parts)
        padded = [torch.nn.functional.pad(p.kv, (0, 0, 0, width - p.kv.shape[4])) for p in parts]
        return Prefixes(torch.cat(padded, 2), torch.cat([p.lengths for p in parts]))


def _mask(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill_(~allowed, float("-inf"))


class Wave:
    """R rows in flight: prefixes, the prefix of each row, and a slab of suffixes."""

    GROW = 64  # positions by which a slab grows

    def __init__(
        self,
        model: Any,
        rows: int,
        prefixes: Prefixes | None = None,
        owner: Sequence[int] = (),
        width: int = 0,
    ) -> None:
        config = model.config.get_text_config()
        self.model = model
        self.dtype, self.device = model.dtype, model.device
        self.kv_heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        self.head_dim = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        self.prefixes = prefixes
        self.owner = torch.tensor(owner, dtype=torch.long)  # [R] index of each row's prefix
        self.lengths = torch.zeros(rows, dtype=torch.long)  # [R] suffix lengths
        self.slab = torch.zeros(
            (config.num_hidden_layers, 2, rows, self.kv_heads, width, self.head_dim),
            dtype=self.dtype,
            device=self.device,
        )

    def reserve(self, width: int) -> None:
        """Make room for suffixes of `width` positions."""
        have = self.slab.shape[4]
        if width > have:
            more = -(-(width - have) // self.GROW) * self.GROW
            self.slab = torch.nn.functional.pad(self.slab, (0, 0, 0, more))

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these rows only, in this order."""
        self.slab = self.slab.index_select(2, rows.to(self.device))
        self.lengths, self.owner = self.lengths[rows], self.owner[rows]
        if self.prefixes is not None:
            used, self.owner = torch.unique(self.owner, return_inverse=True)
            self.prefixes = self.prefixes.select(used)

    def forward(self, ids: torch.Tensor, counts: torch.Tensor, lo: int = 0) -> torch.Tensor:
        """Feed rows lo..lo+n their next tokens; the hidden state of each last one, [n, hidden].

        ids [n, C] padded at the right, counts [n] >= 1.
        """
        n, width = ids.shape
        rows = slice(lo, lo + n)
        before = self.lengths[rows]
        self.reserve(int(before.max()) + width)
        plan = _Step(self, rows, width)
        offset = (
            before if self.prefixes is None else before + self.prefixes.lengths[self.owner[rows]]
        )
        positions = offset[:, None] + torch.arange(width)
        hidden = self.model.get_decoder()(
            input_ids=ids.to(self.device),
            position_ids=positions.to(self.device),
            use_cache=False,
            plan=plan,
        ).last_hidden_state
        self.lengths[rows] = before + counts
        return hidden[torch.arange(n), counts - 1]


class _Step:
    """The plan of one forward pass over some rows of a wave."""

    def __init__(self, wave: Wave, rows: slice, width: int) -> None:
        self.wave, self.rows, self.width = wave, rows, width
        device = wave.device
        before = wave.lengths[rows]
        n = before.shape[0]
        self.reach = int(before.max()) + width
        self.at = (before[:, None] + torch.arange(width)).to(device)  # [n, C] where new keys go
        self.index = torch.arange(rows.start, rows.stop, device=device)[:, None]
        sees = torch.arange(self.reach) <= before[:, None, None] + torch.arange(width)[:, None]
        self.mask = _mask(sees, wave.dtype).to(device)[:, None]  # [n, 1, C, reach]
        self.grid: torch.Tensor | None = None
        if wave.prefixes is not None:
            owner = wave.owner[rows]
            p = wave.prefixes.lengths.shape[0]
            counts = torch.bincount(owner, minlength=p)
            order = torch.argsort(owner, stable=True)
            starts = torch.cumsum(counts, 0) - counts
            slot = torch.empty(n, dtype=torch.long)
            slot[order] = torch.arange(n) - starts[owner[order]]
            self.columns = int(counts.max())
            grid = torch.zeros((p, self.columns), dtype=torch.long)
            grid[owner, slot] = torch.arange(n)
            self.grid = grid.view(-1).to(device)
            self.back = (owner * self.columns + slot).to(device)
            longest = wave.prefixes.kv.shape[4]
            sees = torch.arange(longest) < wave.prefixes.lengths[:, None]
            self.prefix_mask = _mask(sees, wave.dtype).to(device)[:, None, None]  # [P, 1, 1, T]

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Own suffix and shared prefix, merged. See `Plan`."""
        wave = self.wave
        n, heads, width, dim = q.shape
        kv_heads = wave.kv_heads
        share = heads // kv_heads  # query heads that read one key head, folded into the queries
        keys, values = wave.slab[layer]
        keys[self.index, :, self.at] = k.transpose(1, 2)
        values[self.index, :, self.at] = v.transpose(1, 2)
        queries = q.reshape(n, kv_heads, share * width, dim)
        mask = self.mask
        if share > 1 and width > 1:
            mask = mask[:, :, None].expand(-1, -1, share, -1, -1).flatten(2, 3)
        elif share > 1:
            mask = mask.expand(-1, -1, share, -1)
        out, lse = attend_with_lse(
            queries,
            keys[self.rows, :, : self.reach],
            values[self.rows, :, : self.reach],
            mask,
            scale,
        )
        if self.grid is not None and wave.prefixes is not None:
            p = wave.prefixes.lengths.shape[0]
            rows_q = self.columns * share * width
            grouped = queries[self.grid].view(p, self.columns, kv_heads, share * width, dim)
            grouped = grouped.transpose(1, 2).reshape(p, kv_heads, rows_q, dim)
            prefix_k, prefix_v = wave.prefixes.kv[layer]
            far, far_lse = attend_with_lse(
                grouped, prefix_k, prefix_v, self.prefix_mask.expand(-1, -1, rows_q, -1), scale
            )
            far = far.reshape(p, kv_heads, self.columns, share * width, dim).transpose(1, 2)
            far_lse = far_lse.reshape(p, kv_heads, self.columns, share * width).transpose(1, 2)
            out = merge(
                out,
                lse,
                far.flatten(0, 1)[self.back],
                far_lse.flatten(0, 1)[self.back],
            )
        return out.reshape(n, heads, width, dim).transpose(1, 2)
