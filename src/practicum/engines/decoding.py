"""One stream of sampling: a wave of rows that join it, say their turn, and leave it.

When rows join is counted in steps, not in seconds: a row whose turn has ended is waited for a fixed
number of steps later. So batches follow from what was said, never from how fast a box was, and the
tools of one row run while the others are decoded.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch.nn.functional import pad

from practicum.core import Stop
from practicum.engines.contract import Prompt
from practicum.engines.decoder import Decoder
from practicum.engines.kv import Prefix, Wave
from practicum.engines.routing import Routes
from practicum.engines.speculation import Lookup

PREFILL_TOKENS = 4096  # padded tokens of one forward pass over prompts
PERIOD = 8  # steps between two points at which rows join: each join costs a forward pass
LEAD = 4  # steps that a row's tools have at least before the other rows wait for it

Item = TypeVar("Item")

Draw = Callable[[torch.Tensor, Sequence[tuple[str, int]]], tuple[list[int], list[float]]]
"""(hidden states [N, hidden], noise key and position of each) -> tokens, log-probabilities."""


@dataclass(eq=False)
class Row:
    """A conversation: the turn in progress, and the keys it holds from one turn to the next."""

    index: int
    prompt: Prompt
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prefix: Prefix | None = None
    suffix: torch.Tensor | None = None
    held: tuple[int, ...] = ()  # the tokens whose keys are in prefix and suffix
    routes: list[torch.Tensor] = field(default_factory=list)  # experts of all tokens that were fed
    due: int = 0  # step at which `next` is waited for
    next: Future[Prompt | None] | None = None
    lookup: Lookup | None = None

    def begin(self, prompt: Prompt) -> None:
        """Start a turn, with what is held if that is a true beginning of the prompt."""
        self.prompt, self.ids, self.logprobs, self.lookup = prompt, [], [], None
        n = len(self.held)
        if not 0 < n < len(prompt.ids) or prompt.ids[:n] != self.held:
            self.prefix, self.suffix, self.held, self.routes = None, None, (), []

    def take(
        self, drawn: Iterable[tuple[int, float]], guess: Sequence[int], stop_ids: Collection[int]
    ) -> Stop | None:
        """Say what was drawn at the place where the row is and behind each token of the guess.

        What was drawn counts up to the first token that is not the one guessed.
        """
        for at, (token, logprob) in enumerate(drawn):
            self.ids.append(token)
            self.logprobs.append(logprob)
            if token in stop_ids:
                return Stop.END
            if len(self.ids) >= self.prompt.max_tokens:
                return Stop.LENGTH
            if at < len(guess) and token != guess[at]:
                break
        return None

    def guess(self, most: int) -> list[int]:
        """What the row may say next, at most so many tokens, and fewer than it may still say."""
        if not most:
            return []
        if self.lookup is None:
            self.lookup = Lookup(self.prompt.ids, most)
        known = len(self.lookup.tokens) - len(self.prompt.ids)
        self.lookup.add(self.ids[known:])
        return self.lookup.guess(self.prompt.max_tokens - len(self.ids) - 1)


class Decoding:
    """The rows of one stream until all of them are over.

    `finish(row, stop)` tells of each turn that has ended; what it returns is the row's `next`, or
    None when the row is over. `check()` may raise, which gives everything up.
    """

    def __init__(
        self,
        decoder: Decoder,
        rows: Iterable[Row],
        draw: Draw,
        finish: Callable[[Row, Stop], Future[Prompt | None] | None],
        check: Callable[[], None],
        *,
        max_rows: int,
        stop_ids: Collection[int],
        routes: Routes | None = None,
        speculate: int = 0,
    ) -> None:
        self.routes, self.speculate = routes, speculate
        self.decoder, self.draw, self.finish, self.check = decoder, draw, finish, check
        self.max_rows, self.stop_ids = max_rows, stop_ids
        self.waiting = deque(rows)  # have not begun
        self.seats: list[Row | None] = []  # rows of the wave; None: its turn is over, it may go
        self.parked: list[Row] = []  # between two turns
        self.known: dict[tuple[int, ...], Prefix] = {}  # of prompts that rows still begin with
        self.wave = Wave(decoder, routes=routes)
        self.guesses: list[list[int]] = []  # of each seat: fed, but not yet drawn
        # [seats, C, hidden], from which the next tokens are drawn: after the last and each guess
        self.hidden = torch.empty((0, 1, decoder.width), dtype=decoder.dtype, device=decoder.device)
        self.step = 0

    @torch.no_grad()
    def run(self) -> None:
        """Decode until no row is left."""
        while self.waiting or self.parked or any(self.seats):
            self.check()
            if not any(self.seats):  # nothing happens before the next row can join
                self.step = _point(self.step)
                if not self.waiting:
                    self.step = max(self.step, min(row.due for row in self.parked))
            if self.step % PERIOD == 0:
                self._admit()
            if any(self.seats):
                self._say()

    def _admit(self) -> None:
        """Let rows join as there is room: first those that go on, then those that begin."""
        room = self.max_rows - sum(row is not None for row in self.seats)
        joining: list[Row] = []
        parked: list[Row] = []
        for row in self.parked:
            if row.due > self.step or len(joining) == room:
                parked.append(row)
                continue
            prompt = self._next(row)
            if prompt is not None:
                row.begin(prompt)
                joining.append(row)
        self.parked = parked
        while self.waiting and len(joining) < room:
            joining.append(self.waiting.popleft())
        if joining:
            self._join(joining)

    def _next(self, row: Row) -> Prompt | None:
        """What the row asks for, however long that takes."""
        assert row.next is not None
        while True:
            try:
                return row.next.result(timeout=0.2)
            except TimeoutError:
                self.check()

    def _say(self) -> None:
        """Draw what every row says, and feed it together with a guess of what comes next."""
        wrong = []  # of what each seat was fed
        stops: dict[int, Stop] = {}
        for seat, drawn in enumerate(self._drawn()):
            row, guess = self.seats[seat], self.guesses[seat]
            if row is None:
                wrong.append(0)
                continue
            before = len(row.ids)
            stop = row.take(drawn, guess, self.stop_ids)
            said = len(row.ids) - before
            wrong.append(len(guess) + 1 - said)
            if stop is not None:
                stops[seat] = stop
            if guess and row.lookup:
                row.lookup.learn(said - 1)
                if row.routes:
                    row.routes[-1] = row.routes[-1][:said]
        self.wave.forget(wrong)
        self.step += 1
        for seat, stop in stops.items():
            self._end(seat, stop)
        taken = [seat for seat, row in enumerate(self.seats) if row]
        free = len(self.seats) - len(taken)
        if not taken or free >= max(2, len(self.seats) // 8):
            self.wave.keep(taken)
            self.seats = [self.seats[seat] for seat in taken]
        self.guesses = [row.guess(self.speculate) if row else [] for row in self.seats]
        if not taken:
            self.hidden = self.hidden[:0]
            return
        feed = [
            [row.ids[-1] if row else 0, *guess]
            for row, guess in zip(self.seats, self.guesses, strict=True)
        ]
        self.hidden = _feed(self.wave, feed)
        if self.wave.noted is not None:
            for row, fed, noted in zip(self.seats, feed, self.wave.noted, strict=True):
                if row:
                    row.routes.append(noted[: len(fed)])

    def _drawn(self) -> list[list[tuple[int, float]]]:
        """The token and log-probability after what each seat was fed, and after each guess."""
        places = [
            (seat, at) for seat, guess in enumerate(self.guesses) for at in range(len(guess) + 1)
        ]
        noise = []
        for seat, at in places:
            row = self.seats[seat]
            noise.append((row.prompt.noise, len(row.ids) + at) if row else ("", 0))
        seats, ats = zip(*places, strict=True)
        drawn = zip(*self.draw(self.hidden[list(seats), list(ats)], noise), strict=True)
        return [[next(drawn) for _ in range(len(guess) + 1)] for guess in self.guesses]

    def _end(self, seat: int, stop: Stop) -> None:
        """A turn is over: the row waits for its next one, with all keys but its last token's."""
        row, self.seats[seat] = self.seats[seat], None
        assert row is not None
        row.next = self.finish(row, stop)
        if row.next is not None:
            row.prefix, row.suffix = self.wave.prefixes[seat], self.wave.suffix(seat)
            row.held = (*row.prompt.ids, *row.ids[:-1])
            row.due = _point(self.step + LEAD)
            self.parked.append(row)

    def _join(self, rows: list[Row]) -> None:
        """Compute what is new in the rows' prompts and append them to the wave."""
        fresh = [row for row in rows if row.prefix is None]
        if fresh:
            self._share(fresh)
            wave = Wave(self.decoder, [(row.prefix, None) for row in fresh])
            self._append(fresh, wave, torch.stack([row.prefix.last for row in fresh if row.prefix]))
        going_on = [row for row in rows if row.held]
        for chunk in _chunks(going_on, lambda row: len(row.prompt.ids) - len(row.held)):
            wave = Wave(self.decoder, [(row.prefix, row.suffix) for row in chunk], self.routes)
            new = [row.prompt.ids[len(row.held) :] for row in chunk]
            hidden = _last(_feed(wave, new), new)
            if wave.noted is not None:
                for row, noted in zip(chunk, wave.noted, strict=True):
                    row.routes.append(noted[: len(row.prompt.ids) - len(row.held)])
            self._append(chunk, wave, hidden)

    def _append(self, rows: list[Row], wave: Wave, hidden: torch.Tensor) -> None:
        """Put rows into the wave, on free seats while there are any."""
        free = [seat for seat, row in enumerate(self.seats) if row is None][: len(rows)]
        self.wave.join(wave, free)
        n = len(free)
        hidden = pad(hidden[:, None], (0, 0, 0, self.hidden.shape[1] - 1))
        self.hidden[free] = hidden[:n]
        self.hidden = torch.cat([self.hidden, hidden[n:]])
        for seat in free:
            self.guesses[seat] = []
        self.guesses += [[] for _ in rows[n:]]
        for seat, row in zip(free, rows, strict=False):
            self.seats[seat] = row
        self.seats += rows[n:]
        for row in rows:
            row.suffix = None  # it lives in the wave now

    def _share(self, rows: list[Row]) -> None:
        """Give rows that begin their prefix; equal prompts are computed once."""
        there = (row.prefix for row in (*self.seats, *self.parked) if row)
        known = self.known | {prefix.ids: prefix for prefix in there if prefix}
        new = [ids for ids in dict.fromkeys(row.prompt.ids for row in rows) if ids not in known]
        for chunk in _chunks(new, len):
            wave = Wave(self.decoder, [(None, None)] * len(chunk), self.routes)
            last = _last(_feed(wave, chunk), chunk)
            for at, ids in enumerate(chunk):
                noted = None if wave.noted is None else wave.noted[at, : len(ids)]
                known[ids] = Prefix(ids, wave.suffix(at), last[at], noted)
        for row in rows:
            row.prefix = known[row.prompt.ids]
            row.routes = [] if row.prefix.routes is None else [row.prefix.routes]
        later = {row.prompt.ids for row in self.waiting}
        self.known = {ids: prefix for ids, prefix in known.items() if ids in later}


def _point(step: int) -> int:
    """The first step, from `step` on, at which rows join."""
    return -(-step // PERIOD) * PERIOD


def _feed(wave: Wave, news: Sequence[Sequence[int]]) -> torch.Tensor:
    """Feed each row its new tokens; their hidden states, [R, C, hidden]."""
    ids = torch.zeros((len(news), max(map(len, news))), dtype=torch.long)
    for at, new in enumerate(news):
        ids[at, : len(new)] = torch.tensor(new)
    return wave.forward(ids, torch.tensor([len(new) for new in news]))


def _last(hidden: torch.Tensor, news: Sequence[Sequence[int]]) -> torch.Tensor:
    """The hidden states of the last of each row's new tokens, [R, hidden]."""
    return hidden[list(range(len(news))), [len(new) - 1 for new in news]]


def _chunks(items: Sequence[Item], width: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Neighbours whose widths, padded to the widest, fit one forward pass."""
    chunk: list[Item] = []
    widest = 0
    for item in items:
        wider = max(widest, width(item))
        if chunk and wider * (len(chunk) + 1) > PREFILL_TOKENS:
            yield chunk
            chunk, wider = [], width(item)
        chunk.append(item)
        widest = wider
    if chunk:
        yield chunk
