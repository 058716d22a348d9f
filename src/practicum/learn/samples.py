"""Episodes to samples: which tokens are trained, by what, and by how much."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from practicum.core import EFFECTS, Episode, Group, Sample
from practicum.engines.contract import Trainer
from practicum.learn.advantages import ESTIMATORS, Estimator, mean_centred

Mark = Literal["mean", "success"]


def demonstration(episode: Episode) -> Sample:
    """An episode whose own tokens carry cross-entropy weight; observations carry none.

    Cross-entropy is that of temperature 1, whatever the tokens were sampled at.
    """
    sample = _sample(episode, advantage=0.0, rl=0.0, ce=1.0)
    return msgspec.structs.replace(sample, temperature=1.0, routes=b"")


def practice(group: Group, estimator: Estimator = "mean-centred") -> list[Sample]:
    """The trained episodes of a group with their advantages; none when all advantages are 0."""
    advantages = ESTIMATORS[estimator]([episode.reward for episode in group.episodes])
    if not any(advantages):
        return []
    return [
        _sample(episode, advantage=advantage)
        for episode, advantage in zip(group.episodes, advantages, strict=True)
        if advantage is not None and is_trained(episode)
    ]


def sampled(episode: Episode) -> Sample:
    """An episode whose own tokens are trained by RL; advantages are 0 so far."""
    return _sample(episode, advantage=0.0)


def pair(group: Group) -> list[Sample]:
    """The best and the worst trained episode of a group; nothing where their rewards are equal.

    Log-probabilities are those of temperature 1. The first of equals is taken.
    """
    there = [(e, e.reward) for e in group.episodes if e.reward is not None and is_trained(e)]
    if not there:
        return []
    best, highest = max(there, key=lambda item: item[1])
    worst, lowest = min(there, key=lambda item: item[1])
    if highest == lowest:
        return []
    return [
        msgspec.structs.replace(_marked(episode, good), group=best.id, unit=best.id)
        for episode, good in ((best, True), (worst, False))
    ]


def marked(group: Group, by: Mark = "mean") -> list[Sample]:
    """The trained episodes of a group, each good or bad by itself.

    By "mean": above or below the mean reward of the group, and left out at it. By "success": solved
    or not.
    """
    centred = mean_centred([episode.reward for episode in group.episodes])
    made = []
    for episode, advantage in zip(group.episodes, centred, strict=True):
        if advantage is None or not is_trained(episode) or (by == "mean" and not advantage):
            continue
        good = advantage > 0 if by == "mean" else episode.solved
        made.append(msgspec.structs.replace(_marked(episode, good), group=episode.id))
    return made


def mismatched(samples: Sequence[Sample]) -> list[Sample]:
    """For each sample, its prompt with the answer to another: of the next one with another prompt.

    None where all have the same prompt.
    """
    prompts = [s.tokens[: _answer(s)] for s in samples]
    made = []
    for i, prompt in enumerate(prompts):
        others = (samples[(i + k) % len(samples)] for k in range(1, len(samples)))
        other = next((o for o in others if o.tokens[: _answer(o)] != prompt), None)
        if other is None:
            return []
        start, nothing = _answer(other), (0.0,) * len(prompt)
        made.append(
            msgspec.structs.replace(
                other,
                tokens=prompt + other.tokens[start:],
                rl_weight=nothing + other.rl_weight[start:],
                ce_weight=nothing + other.ce_weight[start:],
                advantage=nothing + other.advantage[start:],
                logprobs=nothing + other.logprobs[start:],
                reference=(),
                group=samples[i].group,
                episode=f"{samples[i].episode} answered by {other.episode}",
            )
        )
    return made


def ended(sample: Sample, end: int) -> Sample:
    """The sample with the token `end` behind it, which alone is trained: what a reward model reads.

    The state before that token is the one that has seen all of the sample.
    """
    nothing = (0.0,) * len(sample.tokens)
    return msgspec.structs.replace(
        sample,
        tokens=(*sample.tokens, end),
        rl_weight=(*nothing, 1.0),
        ce_weight=(*nothing, 0.0),
        advantage=(*nothing, next((a for a in sample.advantage if a), 0.0)),
        logprobs=(*nothing, 0.0),
        reference=(),
        routes=b"",
        temperature=1.0,
    )


def is_trained(episode: Episode) -> bool:
    """Whether an episode can be trained on at all: its outcome says so, and there are tokens."""
    return EFFECTS[episode.outcome].trained and episode.sampled_tokens > 0


def _answer(sample: Sample) -> int:
    """Where the first token that carries weight is."""
    return next(t for t, w in enumerate(sample.rl_weight) if w)


def _marked(episode: Episode, good: bool) -> Sample:
    sample = _sample(episode, advantage=1.0 if good else -1.0)
    return msgspec.structs.replace(sample, temperature=1.0, routes=b"")


def referenced(samples: Sequence[Sample], model: Trainer) -> list[Sample]:
    """The samples with the log-probabilities of another model.

    A mixture goes its own way there, and not to the experts that the sampler chose.
    """
    scored = model.score([msgspec.structs.replace(s, routes=b"") for s in samples])
    return [
        msgspec.structs.replace(sample, reference=one.reference)
        for sample, one in zip(samples, scored, strict=True)
    ]


def _sample(episode: Episode, *, advantage: float, rl: float = 1.0, ce: float = 0.0) -> Sample:
    tokens: list[int] = []
    own: list[float] = []
    logprobs: list[float] = []
    records = [turn.record for turn in episode.turns]
    for record in records:
        if record is None:
            raise ValueError(f"{episode.id}: without token records it cannot be trained on")
        tokens += (*record.context, *record.ids)
        own += [0.0] * len(record.context) + [1.0] * len(record.ids)
        logprobs += [0.0] * len(record.context)
        logprobs += record.logprobs or [0.0] * len(record.ids)
    first = records[0]
    assert first is not None
    return Sample(
        tokens=tuple(tokens),
        rl_weight=tuple(rl * x for x in own),
        ce_weight=tuple(ce * x for x in own),
        advantage=tuple(advantage * x for x in own),
        logprobs=tuple(logprobs),
        routes=b"".join(record.routes for record in records if record),
        temperature=first.temperature,
        group=episode.task,
        episode=episode.id,
    )
