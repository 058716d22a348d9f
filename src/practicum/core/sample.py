"""What a trainer eats: token sequences with per-token streams. It knows nothing of algorithms."""

from collections.abc import Sequence

import msgspec

from practicum.core.episode import Episode


class Sample(msgspec.Struct, frozen=True):
    """One token sequence of length T with streams of length T.

    Streams are aligned to the token they speak of: `logprobs[t]` is of `tokens[t]` given all
    before it. The first token of a sequence never carries weight (nothing predicts it).
    """

    tokens: tuple[int, ...]
    rl_weight: tuple[float, ...]  # above 0 where the policy sampled it and RL trains it
    ce_weight: tuple[float, ...]  # of its cross-entropy: demonstrations
    advantage: tuple[float, ...]
    logprobs: tuple[float, ...]  # the sampler's; 0 where it did not sample
    reference: tuple[float, ...] = ()  # log-probabilities of a frozen model; empty without one
    values: tuple[float, ...] = ()  # what was expected to come when it was sampled; with a critic
    returns: tuple[float, ...] = ()  # what came, the target of the values; with a critic
    routes: bytes = b""  # experts of the first tokens; see `engines.routing`
    temperature: float = 1.0
    group: str = ""
    unit: str = ""  # samples with the same (but not empty) are trained in one micro-batch
    episode: str = ""

    def __post_init__(self) -> None:
        lengths = {
            len(s)
            for s in (self.tokens, self.rl_weight, self.ce_weight, self.advantage, self.logprobs)
        }
        lengths |= {len(s) for s in (self.reference, self.values, self.returns) if s}
        if len(lengths) != 1:
            raise ValueError(f"streams of different lengths: {sorted(lengths)}")
        if self.tokens and (self.rl_weight[0] or self.ce_weight[0]):
            raise ValueError("the first token of a sequence cannot carry weight")


class Group(msgspec.Struct, frozen=True):
    """The episodes of one task that share a baseline."""

    task: str
    episodes: Sequence[Episode]
