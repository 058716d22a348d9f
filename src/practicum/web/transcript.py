"""Which episodes a report shows, and how each is made readable: chosen the same way every time.

Text comes from models and tools and may be hostile: control and direction characters are made
visible, sizes are capped, and the template escapes all of it.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import msgspec

from practicum.core import Episode, Message
from practicum.evaluate.measure import is_scored

CAP = 3000  # characters of one text
EACH = 6  # successes and failures of one evaluation, each
TURNS = 20

_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(32), 0x7F) if chr(code) not in "\n\t"}
_VISIBLE |= {
    code: f"\\u{code:04x}"
    for code in (*range(0x80, 0xA0), 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


class Said(msgspec.Struct, frozen=True):
    """One block of a transcript."""

    kind: str  # system, user, assistant, call, observation, invalid
    title: str
    text: str


class Part(msgspec.Struct, frozen=True):
    """One part of the score."""

    name: str
    value: float | None
    weight: float
    kind: str
    evidence: str


class Transcript(msgspec.Struct, frozen=True):
    """An episode, ready to be read."""

    anchor: str
    task: str
    domain: str
    level: int
    verdict: str  # solved, failed, unscored
    outcome: str
    reward: float | None
    steps: int
    tokens: int
    attempts: int
    said: tuple[Said, ...]
    parts: tuple[Part, ...]
    answer: str
    error: str
    tampered: str


def chosen(episodes: Sequence[Episode], each: int = EACH) -> list[Episode]:
    """The first failures and the first successes, spread over domains, then what was unscored.

    One episode of every domain in turn, by domain, task and id; at most `each` of both kinds and
    two unscored ones.
    """
    ordered = sorted(episodes, key=lambda e: (e.domain, e.task, e.id))
    failures = [e for e in ordered if is_scored(e) and not e.solved]
    successes = [e for e in ordered if e.solved]
    unscored = [e for e in ordered if not is_scored(e)]
    return [*_spread(failures)[:each], *_spread(successes)[:each], *_spread(unscored)[:2]]


def transcript(name: str, episode: Episode) -> Transcript:
    """Prepare one episode of the evaluation `name`."""
    said = [_message(m) for m in episode.prompt]
    for number, turn in enumerate(episode.turns[:TURNS], start=1):
        said += _turn(number, turn.message, turn.results)
    if len(episode.turns) > TURNS:
        said.append(Said("observation", f"{len(episode.turns) - TURNS} more turns not shown", ""))
    score = episode.score
    return Transcript(
        anchor=f"{name}-{episode.task}-{episode.id}",
        task=episode.task,
        domain=episode.domain,
        level=episode.level,
        verdict=verdict(episode),
        outcome=episode.outcome.value,
        reward=episode.reward,
        steps=len(episode.turns),
        tokens=episode.sampled_tokens,
        attempts=episode.attempts,
        said=tuple(said),
        parts=tuple(Part(p.name, p.value, p.weight, p.kind, shown(p.evidence)) for p in score.parts)
        if score
        else (),
        answer=shown(episode.answer),
        error=shown(episode.error),
        tampered=shown(score.tampered) if score else "",
    )


def verdict(episode: Episode) -> str:
    """In one word: solved, failed or unscored."""
    if not is_scored(episode):
        return "unscored"
    return "solved" if episode.solved else "failed"


def shown(text: str, cap: int = CAP) -> str:
    """Text that can do no harm and is not endless: control characters visible, the middle cut."""
    if len(text) > cap:
        cut = len(text) - cap
        text = f"{text[: cap // 2]}\n[... {cut} characters not shown ...]\n{text[-cap // 2 :]}"
    return text.translate(_VISIBLE)


def _turn(number: int, message: Message, results: Sequence[Message]) -> list[Said]:
    said = []
    if message.text.strip():
        said.append(Said("assistant", f"turn {number}", shown(message.text)))
    for call, answer in zip_longest(message.calls, results[: len(message.calls)]):
        if call.error:
            said.append(
                Said("invalid", f"{call.name or 'call'} could not be run", shown(call.error))
            )
        else:
            said.append(Said("call", shown(call.name, 80), shown(_arguments(call.arguments))))
        if answer and answer.text != call.error:
            said.append(_message(answer))
    said += [_message(m) for m in results[len(message.calls) :]]
    return said or [Said("assistant", f"turn {number}", "(empty)")]


def _message(message: Message) -> Said:
    kind = "observation" if message.role == "tool" else message.role
    return Said(kind, kind, shown(message.text))


def _arguments(arguments: dict[str, Any]) -> str:
    """A lone text argument as it is; several as `name: value`, long texts below their name."""
    if len(arguments) == 1 and isinstance(only := next(iter(arguments.values())), str):
        return only
    lines = []
    for name, value in arguments.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        lines.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    return "\n".join(lines)


def _spread(episodes: Sequence[Episode]) -> list[Episode]:
    """The first of every domain, then the second of every domain, and so on."""
    ranks: dict[str, int] = {}
    keyed = []
    for episode in episodes:
        rank = ranks.setdefault(episode.domain, 0)
        ranks[episode.domain] += 1
        keyed.append((rank, episode))
    return [episode for _, episode in sorted(keyed, key=lambda pair: pair[0])]
