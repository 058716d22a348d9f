"""The seams of the house: `Policy` answers messages, `Sampler` makes tokens, `Trainer` learns.

Samplers and trainers know tokens and streams, never tasks or rewards. Hosted training APIs offer
the same verbs, so a remote engine is one more file.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from practicum.core import Message, Sample, Stop, Turn

ToolSchemas = Sequence[Mapping[str, Any]]
"""Tools in OpenAI's function shape."""


class ContextFull(Exception):
    """The conversation no longer fits the model's context window: the episode is truncated."""


class Policy(Protocol):
    """Whatever answers: a token sampler, a chat endpoint, a script, a person, a replay."""

    name: str

    async def respond(
        self,
        messages: Sequence[Message],
        tools: ToolSchemas,
        *,
        history: Sequence[Turn] = (),
        key: str = "",
        max_tokens: int = 256,
    ) -> Turn:
        """The next turn. `history` holds the turns so far with their results."""
        ...

    async def begin(self, key: str) -> None:
        """An episode named `key` starts. A batching policy waits for all that have begun."""
        ...

    async def end(self, key: str) -> None:
        """The episode is over; what was kept for it can go."""
        ...


class Prompt(msgspec.Struct, frozen=True):
    """One request to a sampler."""

    ids: tuple[int, ...]
    noise: str  # keys the sampling noise; with the position it fixes every draw
    max_tokens: int = 256


class Completion(msgspec.Struct, frozen=True):
    """What was sampled for one prompt; `ids` hold the end token if there was one."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: Stop
    digest: str
    routes: bytes = b""  # experts of the prompt and of `ids[:-1]`; see `engines.routing`


class Weights(msgspec.Struct, frozen=True):
    """Published weights by name, and the digest of the fp32 masters that they were rounded from.

    They never change: whoever holds them may use them without a copy, and does not write to them.
    """

    digest: str
    tensors: Any  # Mapping[str, torch.Tensor], adapters merged; rounded to the arithmetic's dtype


Follow = Callable[[int, Completion], Future[Prompt | None]]
"""(row, what was sampled for it) -> what the row asks for next, or None when it is over."""


class Sampler(Protocol):
    """Makes tokens from prompts with the weights it was last given."""

    digest: str

    def sample(
        self, prompts: Sequence[Prompt], *, temperature: float = 1.0, follow: Follow | None = None
    ) -> list[Completion]:
        """The last completion of each row; a row begins with its prompt.

        `follow` is called as each completion ends, from any thread, and must not block; without it
        a row is one completion. A later prompt that extends what its row holds is only computed
        from there on. Temperature 0 takes the likeliest token; its log-probabilities are those of
        temperature 1.
        """
        ...

    def stop(self) -> None:
        """Give up what is being sampled: `sample` raises EngineError soon."""
        ...

    def load(self, weights: Weights) -> None:
        """Take new weights."""
        ...


class Tokens(NamedTuple):
    """The N weighted tokens of a micro-batch as tensors [N]; the sequences in it are whole."""

    logprobs: Any  # the trainer's, with gradient
    sampler: Any  # those that they were sampled with
    advantage: Any
    sequence: Any  # int64, which sequence of the micro-batch
    weight: Any  # of RL; 0 for a token that cross-entropy alone trains
    reference: Any = None  # of a frozen model, where the samples carry them
    unit: Any = None  # int64, which unit of the micro-batch
    value: Any = None  # of the value head, with gradient, where the trainer has one
    old_value: Any = None  # the samples' `values`, where they carry them
    returns: Any = None  # where the samples carry them


TokenLoss = Callable[[Tokens], tuple[Any, Mapping[str, Any]]]
"""Tokens -> loss of each [N], metrics. Each metric is a tensor [N] and reported as its mean."""


class Trainer(Protocol):
    """Holds fp32 master weights and an optimiser, blind to algorithms."""

    def forward_backward(self, batch: Sequence[Sample], loss: TokenLoss) -> dict[str, float]:
        """Add the gradient of the sum of `rl_weight` times `loss` and `ce_weight` times -log p.

        The weights are final (see `learn.aggregate`): nothing is divided by any count.
        """
        ...

    def score(self, batch: Sequence[Sample]) -> list[Sample]:
        """The samples with `reference`: the log-probabilities of their weighted tokens now."""
        ...

    def values(self, batch: Sequence[Sample]) -> list[Sample]:
        """The samples with `values`: what the value head says before each weighted token.

        Raises EngineError for a trainer without a value head.
        """
        ...

    def evaluate(self, batch: Sequence[Sample]) -> dict[str, float]:
        """Cross-entropy over `batch` (`nll`, `tokens`) without a gradient."""
        ...

    def step(self, learning_rate: float, accept: Callable[[float], bool] = ...) -> dict[str, float]:
        """Clip, apply and clear the gradient, or drop it (`skipped` 1).

        `accept` is asked with its norm, before it is clipped; by default a finite one is applied.
        """
        ...

    def publish(self) -> Weights:
        """The current weights, named by their digest."""
        ...

    def save(self, folder: Path) -> None:
        """Everything needed to go on, into an existing empty folder."""
        ...

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote."""
        ...
