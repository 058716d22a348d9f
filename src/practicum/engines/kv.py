"""Keys and values while sampling: a shared prompt is held and read once, each row adds its own.

`Wave` is a batch of rows in flight, which rows join and leave. A row attends to its prefix (shared
by its group) and to its suffix (its own); both parts are computed apart and merged by their
log-sum-exp.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from practicum.engines.attention import attend_with_lse, merge
from practicum.engines.decoder import Decoder
from practicum.engines.routing import Routes


@dataclass(eq=False)
class Prefix:
    """A prompt that rows go on from."""

    ids: tuple[int, ...]
    kv: torch.Tensor  # [layers, 2, Hkv, T, D]
    last: torch.Tensor  # hidden state of its last token, [hidden]
    routes: torch.Tensor | None = None  # its experts, [T, layers, k]


def _mask(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill_(~allowed, float("-inf"))


class Wave:
    """R rows in flight: the prefixes they share, and a slab of suffixes.

    Either all rows have a prefix or none has.
    """

    GROW = 64  # positions by which a slab grows

    def __init__(
        self,
        decoder: Decoder,
        rows: Sequence[tuple[Prefix | None, torch.Tensor | None]] = (),
        routes: Routes | None = None,
    ) -> None:
        """Rows, each with its prefix and its suffix so far, [layers, 2, Hkv, n, D].

        With `routes`, `noted` holds the experts of the tokens that were fed last.
        """
        config = decoder.config
        self.decoder, self.routes = decoder, routes
        self.noted: torch.Tensor | None = None  # [R, C, layers, k]
        self.dtype, self.device = decoder.dtype, decoder.device
        self.kv_heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        self.share = config.num_attention_heads // self.kv_heads  # query heads to one of keys
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        lengths = [0 if suffix is None else suffix.shape[3] for _, suffix in rows]
        self.lengths = torch.tensor(lengths, dtype=torch.long)  # [R] suffix lengths
        self.slab = torch.zeros(  # [layers, 2, R, Hkv, W, D]
            (config.num_hidden_layers, 2, len(rows), self.kv_heads, max(lengths, default=0), dim),
            dtype=self.dtype,
            device=self.device,
        )
        for row, (_, suffix) in enumerate(rows):
            if suffix is not None:
                self.slab[:, :, row, :, : lengths[row]] = suffix
        self.prefixes: list[Prefix | None] = []  # of each row
        self.slots: list[Prefix] = []  # distinct ones; some may have no row any more
        self.shared: torch.Tensor | None = None  # [layers, 2, P, Hkv, T, D], padded at the right
        self.shared_lengths = torch.zeros(0, dtype=torch.long)  # [P]
        self.owner = torch.zeros(0, dtype=torch.long)  # [R] slot of each row's prefix
        self._share([prefix for prefix, _ in rows])

    def join(self, other: "Wave", places: Sequence[int]) -> None:
        """Take the rows of another wave, the first ones at `places`, the others at the end."""
        width = other.slab.shape[4]
        self._reserve(width)
        for row, place in enumerate(places):
            self.slab[:, :, place, :, :width] = other.slab[:, :, row]
        n = len(places)
        more = pad(other.slab[:, :, n:], (0, 0, 0, self.slab.shape[4] - width))
        self.slab = torch.cat([self.slab, more], 2) if more.shape[2] else self.slab
        self.lengths[list(places)] = other.lengths[:n]
        self.lengths = torch.cat([self.lengths, other.lengths[n:]])
        prefixes = [*self.prefixes, *other.prefixes[n:]]
        for place, prefix in zip(places, other.prefixes, strict=False):
            prefixes[place] = prefix
        self._share(prefixes)

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order."""
        index = torch.tensor(rows, dtype=torch.long)
        self.lengths = self.lengths[index]
        widest = int(self.lengths.max()) if rows else 0
        self.slab = self.slab[..., :widest, :].index_select(2, index.to(self.device))
        self._share([self.prefixes[row] for row in rows])

    def suffix(self, row: int) -> torch.Tensor:
        """A copy of what a row has added to its prefix, [layers, 2, Hkv, n, D]."""
        return self.slab[:, :, row, :, : int(self.lengths[row])].clone()

    def _reserve(self, width: int) -> None:
        """Make room for suffixes of `width` positions."""
        have = self.slab.shape[4]
        if width > have:
            more = -(-(width - have) // self.GROW) * self.GROW
            self.slab = pad(self.slab, (0, 0, 0, more))

    def _share(self, prefixes: list[Prefix | None]) -> None:
        """Note each row's prefix, and hold each distinct one in a slot."""
        self.prefixes = prefixes
        wanted = list(dict.fromkeys(prefix for prefix in prefixes if prefix is not None))
        new = [prefix for prefix in wanted if prefix not in self.slots]
        free = [at for at, prefix in enumerate(self.slots) if prefix not in wanted]
        if len(free) > len(self.slots) // 8 + len(new) or not self._put(new, free):
            self.slots = wanted
            self.shared_lengths = torch.tensor([len(prefix.ids) for prefix in wanted])
            longest = max(map(int, self.shared_lengths), default=0)
            kept = [pad(prefix.kv, (0, 0, 0, longest - len(prefix.ids))) for prefix in wanted]
            self.shared = torch.stack(kept, 2) if kept else None
        self.owner = torch.tensor([self.slots.index(prefix) for prefix in prefixes if prefix])

    def _put(self, new: Sequence[Prefix], free: Sequence[int]) -> bool:
        """Write prefixes into free slots, if they fit there."""
        if self.shared is None or len(new) > len(free):
            return not new
        if any(len(prefix.ids) > self.shared.shape[4] for prefix in new):
            return False
        for prefix, slot in zip(new, free, strict=False):
            self.slots[slot] = prefix
            self.shared_lengths[slot] = len(prefix.ids)
            self.shared[:, :, slot, :, : len(prefix.ids)] = prefix.kv
        return True

    def forward(self, ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Feed every row its next tokens; their hidden states, [R, C, hidden].

        ids [R, C] padded at the right, counts [R] >= 1.
        """
        width = ids.shape[1]
        before = self.lengths
        self._reserve(int(before.max()) + width)
        plan = _Step(self, width)
        offset = before if self.shared is None else before + self.shared_lengths[self.owner]
        positions = offset[:, None] + torch.arange(width)
        if self.routes:
            self.routes.note()
        hidden = self.decoder(ids.to(self.device), positions.to(self.device), plan)
        if self.routes:
            self.noted = self.routes.noted().unflatten(0, ids.shape)
        self.lengths = before + counts
        return hidden

    def forget(self, counts: Sequence[int]) -> None:
        """Take back the last tokens of each row, so many of each."""
        self.lengths = self.lengths - torch.tensor(counts)


class _Step:
    """The plan of one forward pass of a wave."""

    def __init__(self, wave: Wave, width: int) -> None:
        self.wave, self.width = wave, width
        device = wave.device
        before = wave.lengths
        n = before.shape[0]
        self.reach = int(before.max()) + width
        self.at = (before[:, None] + torch.arange(width)).to(device)  # [R, C] where new keys go
        self.index = torch.arange(n, device=device)[:, None]
        same = bool((before == before[0]).all())
        self.columns_at = slice(int(before[0]), int(before[0]) + width) if same else None
        sees = torch.arange(self.reach) <= before[:, None, None] + torch.arange(width)[:, None]
        sees = sees.repeat(1, wave.share, 1)  # those query heads are folded into the queries
        self.mask = _mask(sees, wave.dtype).to(device)[:, None]  # [R, 1, share * C, reach]
        if wave.shared is not None:
            owner = wave.owner
            p = wave.shared_lengths.shape[0]
            counts = torch.bincount(owner, minlength=p)
            order = torch.argsort(owner, stable=True)
            starts = torch.cumsum(counts, 0) - counts
            slot = torch.empty(n, dtype=torch.long)
            slot[order] = torch.arange(n) - starts[owner[order]]
            most = int(counts.max())
            self.groups = p, most
            back = owner * most + slot  # where each row is among the groups
            self.regular = n == p * most and bool((back == torch.arange(n)).all())
            grid = torch.zeros(p * most, dtype=torch.long)
            grid[back] = torch.arange(n)
            self.grid, self.back = grid.to(device), back.to(device)
            sees = torch.arange(wave.shared.shape[4]) < wave.shared_lengths[:, None]
            mask = _mask(sees, wave.dtype).to(device)[:, None, None]
            self.prefix_mask = mask.expand(-1, -1, most * wave.share * width, -1)

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Own suffix and shared prefix, merged. See `Plan`."""
        wave = self.wave
        n, heads, width, dim = q.shape
        keys, values = wave.slab[layer]
        if self.columns_at:
            keys[:, :, self.columns_at] = k
            values[:, :, self.columns_at] = v
        else:
            keys[self.index, :, self.at] = k.transpose(1, 2)
            values[self.index, :, self.at] = v.transpose(1, 2)
        queries = q.reshape(n, wave.kv_heads, wave.share * width, dim)
        own, lse = attend_with_lse(
            queries, keys[:, :, : self.reach], values[:, :, : self.reach], self.mask, scale
        )
        if wave.shared is not None:
            own = merge(own, lse, *self._far(wave.shared[layer], queries, scale))
        return own.reshape(n, heads, width, dim).transpose(1, 2)

    def _far(
        self, shared: torch.Tensor, queries: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention to the shared prefixes, [R, Hkv, C, D], and its log-sum-exp.

        The queries of a group are put together, so that its prefix is read once.
        """
        p, most = self.groups
        heads, width, dim = queries.shape[1:]
        if not self.regular:
            queries = queries[self.grid]
        grouped = queries.view(p, most, heads, width, dim).transpose(1, 2).flatten(2, 3)
        out, lse = attend_with_lse(grouped, shared[0], shared[1], self.prefix_mask, scale)
        out = out.view(p, heads, most, width, dim).transpose(1, 2).flatten(0, 1)
        lse = lse.view(p, heads, most, width).transpose(1, 2).flatten(0, 1)
        return (out, lse) if self.regular else (out[self.back], lse[self.back])
