"""The local sampler: batched decoding on torch, the same tokens for the same requests, bit for bit.

Every draw is keyed by (noise key, position), and shapes follow from the requests alone, so that how
fast boxes are, or which thread asks first, changes nothing. Prompts that several requests share are
computed once; what a row has computed is kept until it is released or the weights change.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import linear

from practicum.core import EngineError, Stop
from practicum.engines.attention import load_model
from practicum.engines.contract import Completion, Prompt, Weights
from practicum.engines.head import fast_fp32_matmul
from practicum.engines.kv import Prefixes, Wave
from practicum.engines.memory import release_freed_memory
from practicum.engines.streams import Streams

HEAD_ROWS = 4096  # rows of the head at a time, which oneDNN copies into bf16
PREFILL_TOKENS = 4096  # padded tokens of one forward pass over prompts


@dataclass
class _Row:
    """What is kept of a row between its requests."""

    tokens: tuple[int, ...]  # whose keys are held: the shared prompt, then its own
    prefixes: Prefixes
    owner: int
    suffix: torch.Tensor  # [layers, 2, Hkv, n, D]


def uniform(noise: str, position: int) -> float:
    """A number in [0, 1) that depends on nothing but its key."""
    digest = hashlib.blake2b(f"{noise}|{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


class LocalSampler:
    """A `Sampler` on this machine's CPU or GPU.

    Requests are decoded `max_rows` at a time; on the CPU as many such batches run side by side as
    there are threads, each on one of them.
    """

    def __init__(
        self,
        folder: Path,
        *,
        stop_ids: Iterable[int],
        dtype: str = "bfloat16",
        device: str = "cpu",
        max_rows: int = 32,
        streams: int | None = None,
    ) -> None:
        self.model = load_model(folder, getattr(torch, dtype), device).eval().requires_grad_(False)
        self.digest = ""
        self.stop_ids = frozenset(stop_ids)
        self.max_rows = max_rows
        self.fast = dtype != "float32"
        self.hidden_size = self.model.get_output_embeddings().weight.shape[1]
        self._rows: dict[str, _Row] = {}
        self._streams = Streams(streams or (torch.get_num_threads() if device == "cpu" else 1))

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        """Take new weights, without a copy where they have the sampler's dtype; see `Sampler`."""
        own = dict(self.model.named_parameters())
        sizes = {name: tensor.shape for name, tensor in weights.tensors.items()}
        if odd := {n: p.shape for n, p in own.items()}.items() ^ sizes.items():
            raise EngineError(f"the weights do not fit the sampler's model: {sorted(odd)[:3]} ...")
        self._rows.clear()
        for name, parameter in own.items():
            parameter.data = weights.tensors[name].to(parameter.device, parameter.dtype)
        self.digest = weights.digest

    def release(self, rows: Iterable[str]) -> None:
        """Forget what was kept for these rows."""
        for row in rows:
            self._rows.pop(row, None)

    @torch.no_grad()
    def sample(
        self,
        prompts: Sequence[Prompt],
        *,
        temperature: float = 1.0,
        on_done: Callable[[int, Completion], None] | None = None,
        banned: Sequence[int] = (),
    ) -> list[Completion]:
        """One completion a prompt, in order. `banned` tokens are never drawn. See `Sampler`."""
        if not self.digest:
            raise EngineError("the sampler has no weights yet: call load(trainer.publish()) first")
        done: dict[int, Completion] = {}

        def finish(index: int, completion: Completion) -> None:
            done[index] = completion
            if on_done:
                on_done(index, completion)

        head = self.model.get_output_embeddings().weight.float()

        def decode(base: int) -> None:
            rows = prompts[base : base + self.max_rows]
            self._decode(head, rows, base, temperature, list(banned), finish)

        with fast_fp32_matmul(self.fast):  # one setting of the process, so set around all threads
            self._streams.run(decode, range(0, len(prompts), self.max_rows))
        release_freed_memory()
        return [done[index] for index in range(len(prompts))]

    @torch.no_grad()
    def _decode(
        self,
        head: torch.Tensor,
        prompts: Sequence[Prompt],
        base: int,
        temperature: float,
        banned: list[int],
        finish: Callable[[int, Completion], None],
    ) -> None:
        wave, hidden = self._prefill(prompts)
        live = list(range(len(prompts)))  # wave row -> prompt
        ids: list[list[int]] = [[] for _ in prompts]
        logprobs: list[list[float]] = [[] for _ in prompts]
        over: set[int] = set()
        while True:
            draws = [uniform(prompts[i].noise, len(ids[i])) for i in live]
            tokens, lps = self._draw(hidden, head, temperature, draws, banned)
            for row, i in enumerate(live):
                if i in over:
                    continue
                ids[i].append(tokens[row])
                logprobs[i].append(lps[row])
                ended = tokens[row] in self.stop_ids
                if ended or len(ids[i]) >= prompts[i].max_tokens:
                    over.add(i)
                    self._keep(wave, row, prompts[i], ids[i])
                    stop = Stop.END if ended else Stop.LENGTH
                    completion = Completion(tuple(ids[i]), tuple(logprobs[i]), stop, self.digest)
                    finish(base + i, completion)
            left = [row for row, i in enumerate(live) if i not in over]
            if not left:
                return
            if len(live) - len(left) >= max(2, len(live) // 8):
                wave.keep(torch.tensor(left))
                live = [live[row] for row in left]
                tokens = [tokens[row] for row in left]
            feed = torch.tensor(tokens)[:, None]
            hidden = wave.forward(feed, torch.ones(len(live), dtype=torch.long))

    def _draw(
        self,
        hidden: torch.Tensor,
        head: torch.Tensor,
        temperature: float,
        draws: list[float],
        banned: list[int],
    ) -> tuple[list[int], list[float]]:
        """Tokens by inverse CDF at the given uniform numbers, with their log-probabilities."""
        hidden = hidden.float()
        logits = torch.cat([linear(hidden, block) for block in head.split(HEAD_ROWS)], -1)
        if banned:
            logits[:, banned] = float("-inf")
        if temperature > 0:
            logits /= temperature
        lse = logits.logsumexp(-1, keepdim=True)
        if temperature > 0:
            mass = (logits - lse).exp_().cumsum(-1)
            target = torch.tensor(draws, device=mass.device)[:, None] * mass[:, -1:]
            tokens = torch.searchsorted(mass, target, right=True).clamp_(max=mass.shape[1] - 1)
        else:
            tokens = logits.argmax(-1, keepdim=True)
        chosen = logits.gather(1, tokens) - lse
        return tokens[:, 0].tolist(), chosen[:, 0].tolist()

    def _prefill(self, prompts: Sequence[Prompt]) -> tuple[Wave, torch.Tensor]:
        """A wave whose rows hold all of their prompts but the draw, and each row's hidden state."""
        fresh = [p for p in prompts if not self._extends(p)]
        heads, hidden_of = self._compute_prefixes(list(dict.fromkeys(p.ids for p in fresh)))
        distinct = {ids: i for i, ids in enumerate(dict.fromkeys(p.ids for p in fresh))}
        kept = [(r, self._rows[p.row]) for r, p in enumerate(prompts) if self._extends(p)]
        used: dict[int, tuple[Prefixes, set[int]]] = {}  # the prompts of earlier waves gone on with
        for _, held in kept:
            used.setdefault(id(held.prefixes), (held.prefixes, set()))[1].add(held.owner)
        parts: list[Prefixes] = [heads] if heads else []
        count = len(distinct)
        place: dict[tuple[int, int], int] = {}
        for key, (prefixes, chosen) in used.items():
            parts.append(prefixes.select(torch.tensor(sorted(chosen))))
            place |= {(key, owner): count + at for at, owner in enumerate(sorted(chosen))}
            count += len(chosen)
        rows = dict(kept)
        owners = [
            place[id(rows[r].prefixes), rows[r].owner] if r in rows else distinct[p.ids]
            for r, p in enumerate(prompts)
        ]
        most = max((held.suffix.shape[3] for _, held in kept), default=0)
        wave = Wave(self.model, len(prompts), Prefixes.join(parts), owners, most)
        for row, held in kept:
            length = held.suffix.shape[3]
            wave.slab[:, :, row, :, :length] = held.suffix
            wave.lengths[row] = length
        wave.keep(torch.arange(len(prompts)))
        hidden = torch.empty(
            (len(prompts), self.hidden_size), dtype=self.model.dtype, device=self.model.device
        )
        for row, prompt in enumerate(prompts):
            if row not in rows:
                hidden[row] = hidden_of[distinct[prompt.ids]]
        self._extend(
            wave, [(row, prompts[row].ids[len(held.tokens) :]) for row, held in kept], hidden
        )
        return wave, hidden

    def _extends(self, prompt: Prompt) -> bool:
        """Whether what is kept for the prompt's row is a true beginning of it."""
        held = self._rows.get(prompt.row) if prompt.row else None
        if held is None:
            return False
        n = len(held.tokens)
        return n < len(prompt.ids) and prompt.ids[:n] == held.tokens

    def _compute_prefixes(
        self, prompts: list[tuple[int, ...]]
    ) -> tuple[Prefixes | None, torch.Tensor]:
        hidden = torch.empty((0, self.hidden_size), dtype=self.model.dtype)
        if not prompts:
            return None, hidden
        width = max(map(len, prompts))
        wave = Wave(self.model, len(prompts), width=width)
        rows = list(enumerate(prompts))
        hidden = torch.empty(
            (len(prompts), self.hidden_size), dtype=self.model.dtype, device=self.model.device
        )
        self._extend(wave, rows, hidden)
        return Prefixes(wave.slab, wave.lengths.clone()), hidden

    def _extend(
        self, wave: Wave, news: list[tuple[int, tuple[int, ...]]], hidden: torch.Tensor
    ) -> None:
        """Feed (row, new tokens) to the wave in chunks of bounded size; writes into `hidden`."""
        lo = 0
        while lo < len(news):
            hi, width = lo + 1, len(news[lo][1])
            while hi < len(news) and news[hi][0] == news[hi - 1][0] + 1:
                wider = max(width, len(news[hi][1]))
                if wider * (hi + 1 - lo) > PREFILL_TOKENS:
                    break
                hi, width = hi + 1, wider
            ids = torch.zeros((hi - lo, width), dtype=torch.long)
            for at, (_, new) in enumerate(news[lo:hi]):
                ids[at, : len(new)] = torch.tensor(new)
            counts = torch.tensor([len(new) for _, new in news[lo:hi]])
            first = news[lo][0]
            hidden[first : first + hi - lo] = wave.forward(ids, counts, first)
            lo = hi

    def _keep(self, wave: Wave, row: int, prompt: Prompt, ids: list[int]) -> None:
        """Remember a finished row: all but its last token, which was never fed."""
        if not prompt.row or wave.prefixes is None:
            return
        length = int(wave.lengths[row])
        self._rows[prompt.row] = _Row(
            (*prompt.ids, *ids[:-1]),
            wave.prefixes,
            int(wave.owner[row]),
            wave.slab[:, :, row, :, :length].clone(),
        )
