"""The local sampler: batched decoding on torch, the same tokens for the same requests, bit for bit.

Every draw is keyed by (noise key, position), and the shapes of all arithmetic follow from what was
asked and said (see `decoding`), so that which thread or box was faster changes nothing.
"""

import hashlib
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import pad

from practicum.core import EngineError, Stop
from practicum.engines.attention import load_model
from practicum.engines.contract import Completion, Follow, Prompt, Weights
from practicum.engines.decoder import Decoder, decoder_of
from practicum.engines.decoding import Decoding, Draw, Row
from practicum.engines.head import fast_fp32_matmul
from practicum.engines.memory import release_freed_memory
from practicum.engines.rope import RopeSettings
from practicum.engines.routing import Routes, packed_routes
from practicum.engines.streams import Streams

THREAD_BYTES = 2 << 20  # of a weight, to read which takes longer than to wake a thread
BLOCK = 512  # tokens of the vocabulary that are drawn from at a time


def uniform(noise: str, position: int) -> float:
    """A number in [0, 1) that depends on nothing but its key."""
    digest = hashlib.blake2b(f"{noise}|{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


class LocalSampler:
    """A `Sampler` on this machine's CPU or GPU.

    At most `max_rows` rows are decoded together: each step reads all weights once for all of them.
    Of more rows, further such waves run side by side, as many as there are threads for. Up to
    `speculate` tokens are guessed at once (see `speculation`), which changes no token.
    """

    def __init__(
        self,
        folder: Path,
        *,
        stop_ids: Iterable[int],
        dtype: str = "bfloat16",
        device: str = "cpu",
        max_rows: int = 64,
        streams: int | None = None,
        rope: RopeSettings | None = None,
        speculate: int = 0,
    ) -> None:
        model = load_model(folder, getattr(torch, dtype), device, rope)
        self.model = model.eval().requires_grad_(False)
        self._routes = Routes(self.model)
        self.digest = ""
        self.stop_ids = frozenset(stop_ids)
        self.max_rows, self.speculate = max_rows, speculate
        self.fast = dtype != "float32"
        self._streams = Streams(streams or (_waves(self.model) if device == "cpu" else 1))
        self._stopped = threading.Event()

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        """Take new weights, without a copy where they have the sampler's dtype; see `Sampler`."""
        own = dict(self.model.named_parameters())
        sizes = {name: tensor.shape for name, tensor in weights.tensors.items()}
        if odd := {n: p.shape for n, p in own.items()}.items() ^ sizes.items():
            raise EngineError(f"the weights do not fit the sampler's model: {sorted(odd)[:3]} ...")
        for name, parameter in own.items():
            parameter.data = weights.tensors[name].to(parameter.device, parameter.dtype)
        self.digest = weights.digest

    def stop(self) -> None:
        """See `Sampler`."""
        self._stopped.set()

    def sample(
        self,
        prompts: Sequence[Prompt],
        *,
        temperature: float = 1.0,
        follow: Follow | None = None,
        banned: Sequence[int] = (),
    ) -> list[Completion]:
        """The last completion of each row. `banned` tokens are never drawn. See `Sampler`."""
        if not self.digest:
            raise EngineError("the sampler has no weights yet: call load(trainer.publish()) first")
        self._stopped.clear()
        try:
            return self._sampled(prompts, temperature, follow, list(banned))
        finally:  # by now nothing of it is in use
            release_freed_memory()

    def _sampled(
        self,
        prompts: Sequence[Prompt],
        temperature: float,
        follow: Follow | None,
        banned: list[int],
    ) -> list[Completion]:
        decoder = decoder_of(self.model)
        draw = _drawing(decoder, temperature, banned)
        last: dict[int, Completion] = {}

        def finish(row: Row, stop: Stop) -> Future[Prompt | None] | None:
            routes = packed_routes(torch.cat(row.routes)) if row.routes else b""
            said = Completion(tuple(row.ids), tuple(row.logprobs), stop, self.digest, routes)
            last[row.index] = said
            return follow(row.index, said) if follow else None

        def decode(indices: Sequence[int]) -> None:
            Decoding(
                decoder,
                [Row(index, prompts[index]) for index in indices],
                draw,
                finish,
                self._check,
                max_rows=self.max_rows,
                stop_ids=self.stop_ids,
                routes=self._routes,
                speculate=self.speculate,
            ).run()

        with fast_fp32_matmul(self.fast):  # one setting of the process, so set around all threads
            waves = min(self._streams.count, -(-len(prompts) // self.max_rows))
            self._streams.run(decode, _deal(prompts, waves))
        return [last[index] for index in range(len(prompts))]

    def _check(self) -> None:
        if self._stopped.is_set():
            raise EngineError("sampling was given up")


def _waves(model: Any) -> int:
    """How many waves to run side by side: threads that each have enough to do in an operation."""
    layers = [m.weight for m in model.get_decoder().modules() if isinstance(m, torch.nn.Linear)]
    widest = max((weight.nbytes for weight in layers), default=0)
    threads = torch.get_num_threads()
    return threads // max(1, min(threads, widest // THREAD_BYTES))


def _drawing(decoder: Decoder, temperature: float, banned: list[int]) -> Draw:
    """What draws tokens by inverse CDF at numbers that their noise gives.

    First a block of the vocabulary is drawn, then a token in it: only that block is summed up.
    """

    def draw(
        hidden: torch.Tensor, noise: Sequence[tuple[str, int]]
    ) -> tuple[list[int], list[float]]:
        logits = decoder.logits(hidden)
        logits[:, banned] = float("-inf")
        if temperature > 0 and temperature != 1:
            logits /= temperature
        masses = logits.softmax(-1)
        if temperature > 0:
            numbers = torch.tensor([[uniform(*key)] for key in noise], device=masses.device)
            blocks = pad(masses, (0, -masses.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
            which, left = _inverse_cdf(blocks.sum(-1), numbers)
            at, _ = _inverse_cdf(blocks[torch.arange(len(noise)), which], left)
            tokens = which * BLOCK + at
        else:
            tokens = logits.argmax(-1)
        return tokens.tolist(), masses.gather(1, tokens[:, None])[:, 0].log().tolist()

    return draw


def _inverse_cdf(masses: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the running sum of `masses` [R, n] passes `numbers` [R, 1], and by how much it did not.

    Returns indices [R], always of a mass above zero, and what was left before them, [R, 1].
    """
    sums = masses.cumsum(-1)
    last = (masses > 0).cumsum(-1).argmax(-1, keepdim=True)  # rounding may leave a number over
    at = torch.searchsorted(sums, numbers, right=True).minimum(last)
    before = sums.gather(1, at) - masses.gather(1, at)
    return at[:, 0], (numbers - before).clamp_(min=0)


def _deal(prompts: Sequence[Prompt], streams: int) -> list[list[int]]:
    """Indices of the prompts for each stream, equally many; equal neighbours stay together."""
    most = -(-len(prompts) // streams)
    hands: list[list[int]] = [[] for _ in range(streams)]
    run: list[int] = []
    for index, prompt in enumerate(prompts):
        if run and (prompt.ids != prompts[run[-1]].ids or len(run) == most):
            min(hands, key=len).extend(run)
            run = []
        run.append(index)
    min(hands, key=len).extend(run)
    return [hand for hand in hands if hand]
