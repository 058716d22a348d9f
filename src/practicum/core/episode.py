"""One attempt of a policy at a task: its turns, its events, and how it ended."""

from enum import StrEnum
from typing import Any, Literal

import msgspec

from practicum.core.hashing import content_hash
from practicum.core.message import Message
from practicum.core.outcome import EFFECTS, Outcome
from practicum.core.score import Score


class Stop(StrEnum):
    """Why a model message ended."""

    END = "end"  # the model ended its turn
    LENGTH = "length"  # the token limit cut it off


class TokenRecord(msgspec.Struct, frozen=True):
    """Tokens of one turn as they were sampled; nothing is ever re-tokenised.

    The tokens of an episode are `context + ids` of its turns, in order.
    """

    context: tuple[
        int, ...
    ]  # what was appended before sampling: first the prompt, then observations
    ids: tuple[int, ...]  # sampled (or demonstrated) tokens, the end token included
    logprobs: tuple[
        float, ...
    ]  # of `ids` under the sampling distribution; empty for demonstrations
    digest: str  # of the weights that sampled; empty for demonstrations
    temperature: float = 1.0
    routes: bytes = b""  # experts of the tokens fed since the turn before; see `engines.routing`


class Turn(msgspec.Struct, frozen=True):
    """One model message and the results of its calls, in the order of the calls."""

    message: Message
    stop: Stop = Stop.END
    record: TokenRecord | None = None
    results: tuple[Message, ...] = ()


class Event(msgspec.Struct, frozen=True):
    """One thing that happened: a tool call, a turn without a usable call, a request to a host."""

    turn: int
    kind: Literal["call", "invalid", "network"]
    tool: str = ""
    arguments: dict[str, Any] = {}
    ok: bool = True
    exit_code: int | None = None
    observation: str = ""
    seconds: float = 0.0  # run time of the tool; differs between runs, so it is not fingerprinted


class Artifact(msgspec.Struct, frozen=True):
    """A file as it was found in the agent's workspace."""

    data: bytes
    mode: int = 0o644
    kind: Literal["file", "dir", "symlink"] = "file"
    truncated: bool = False  # larger than the cap: `data` is only its beginning


class Kept(msgspec.Struct, frozen=True):
    """An artifact whose bytes lie in the run's store, under their digest."""

    digest: str
    mode: int = 0o644
    kind: Literal["file", "dir", "symlink"] = "file"
    truncated: bool = False


class Submission(msgspec.Struct, frozen=True):
    """All that grading may see: declared artifacts as bytes, the final answer, the events."""

    artifacts: dict[str, Artifact] = {}  # by path relative to the workspace
    answer: str = ""
    events: tuple[Event, ...] = ()

    def text(self, path: str) -> str | None:
        """A regular file's content as UTF-8 text (bad bytes replaced), or None if there is none."""
        found = self.artifacts.get(path)
        if found is None or found.kind != "file" or found.truncated:
            return None
        return found.data.decode("utf-8", "replace")


class Episode(msgspec.Struct, frozen=True):
    """One attempt at a task. Without token records it serves evaluation, never training."""

    id: str
    task: str  # the task's key
    domain: str
    level: int
    policy: str
    prompt: tuple[Message, ...]
    turns: tuple[Turn, ...]
    events: tuple[Event, ...]
    outcome: Outcome
    score: Score | None = None
    answer: str = ""
    error: str = ""
    attempts: int = 1
    canary: bool = False  # the task was an impossible one
    seed: int = 0  # of the task, which domain and level make again
    grader: str = ""  # version of what graded it (`domains.provenance`); empty: nothing did
    artifacts: dict[str, Kept] | None = None  # what grading saw, by path; None: not kept
    seconds: dict[str, float] = {}  # where the time went; not fingerprinted

    @property
    def reward(self) -> float | None:
        """What training sees: None for our own failures, 0 at the floor, else the score's value."""
        effect = EFFECTS[self.outcome]
        if not effect.in_baseline:
            return None
        if effect.at_floor:
            return 0.0
        return self.score.value if self.score else None

    @property
    def solved(self) -> bool:
        """Full marks in an episode that counts."""
        effect = EFFECTS[self.outcome]
        return effect.scored and not effect.at_floor and bool(self.score and self.score.solved)

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens the policy produced."""
        return sum(len(turn.record.ids) for turn in self.turns if turn.record)

    @property
    def fingerprint(self) -> str:
        """Hash of everything but measured times: equal for two runs that did the same.

        Artifacts are left out, too: an archive or a log holds the time at which it was made.
        """
        events = tuple(msgspec.structs.replace(e, seconds=0.0) for e in self.events)
        timeless = msgspec.structs.replace(self, events=events, seconds={}, artifacts=None)
        return content_hash(timeless)
