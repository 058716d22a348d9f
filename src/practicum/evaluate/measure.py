"""What a set of episodes shows, and what changed between two sets played on the same tasks.

Our own failures are never counted as failures of the model: they are left out of every mean and
reported as the unscored share. Repeated attempts at a task are one cluster.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

import msgspec

from practicum.core import EFFECTS, Episode
from practicum.evaluate.statistics import (
    Difference,
    Estimate,
    clustered_mean,
    paired_difference,
    rate,
)

TRAINED = "trained_domains"
HELD_OUT = "held_out_domains"


class Measures(msgspec.Struct, frozen=True):
    """One set of episodes in numbers. An estimate is None when no episode was scored."""

    episodes: int
    tasks: int
    outcomes: dict[str, int]
    unscored: Estimate  # share of episodes that our own failures took
    success: Estimate | None
    tests_passed: Estimate | None  # mean of the metric `tests_passed`, else of the score
    steps: Estimate | None  # turns an episode
    invalid_calls: Estimate | None  # calls an episode that could not be run
    sampled_tokens: Estimate | None  # tokens an episode


class Changes(msgspec.Struct, frozen=True):
    """Paired differences, after minus before, over pairs that are scored on both sides."""

    pairs: int
    unpaired: int  # attempts of either side without a scored partner
    success: Difference | None
    tests_passed: Difference | None
    steps: Difference | None
    invalid_calls: Difference | None
    sampled_tokens: Difference | None


class Measurement(msgspec.Struct, frozen=True):
    """Measures overall, by domain, and by split (trained and held-out domains)."""

    overall: Measures
    domains: dict[str, Measures]
    splits: dict[str, Measures]


class Comparison(msgspec.Struct, frozen=True):
    """Changes overall, by domain, and by split (trained and held-out domains)."""

    overall: Changes
    domains: dict[str, Changes]
    splits: dict[str, Changes]


def summarise(episodes: Sequence[Episode], *, trained: Collection[str] = ()) -> Measurement:
    """Measure episodes. `trained` names the domains trained on; without it there are no splits."""
    return Measurement(
        overall=_measures(episodes),
        domains={name: _measures(part) for name, part in _by_domain(episodes).items()},
        splits={name: _measures(part) for name, part in _by_split(episodes, trained).items()},
    )


def compare(
    before: Sequence[Episode], after: Sequence[Episode], *, trained: Collection[str] = ()
) -> Comparison:
    """Compare attempts pairwise: the k-th at a task before with the k-th at it after."""
    domains = [_by_domain(before), _by_domain(after)]
    splits = [_by_split(before, trained), _by_split(after, trained)]
    return Comparison(
        overall=_changes(before, after),
        domains={name: _changes(*(d.get(name, []) for d in domains)) for name in _names(domains)},
        splits={name: _changes(*(s.get(name, []) for s in splits)) for name in _names(splits)},
    )


def is_scored(episode: Episode) -> bool:
    """Whether it counts in an evaluation: its outcome does, and it has a reward."""
    return EFFECTS[episode.outcome].scored and episode.reward is not None


def tests_passed(episode: Episode) -> float:
    """The metric `tests_passed` of a scored episode, else its score; 0 at the floor."""
    if not EFFECTS[episode.outcome].at_floor and episode.score:
        for part in episode.score.parts:
            if part.name == "tests_passed" and part.value is not None:
                return part.value
    return episode.reward or 0.0


def steps(episode: Episode) -> float:
    """Number of turns."""
    return float(len(episode.turns))


def invalid_calls(episode: Episode) -> float:
    """Number of turns without a usable call and of calls that could not be run."""
    return float(sum(event.kind == "invalid" for event in episode.events))


def sampled_tokens(episode: Episode) -> float:
    """Number of tokens the policy produced."""
    return float(episode.sampled_tokens)


def _measures(episodes: Sequence[Episode]) -> Measures:
    scored = [e for e in episodes if is_scored(e)]
    tasks = [e.task for e in scored]

    def mean(value: Callable[[Episode], float], *, share: bool = False) -> Estimate | None:
        bounds = (0.0, 1.0) if share else None
        values = [value(e) for e in scored]
        return clustered_mean(values, tasks, bounds=bounds) if scored else None

    return Measures(
        episodes=len(episodes),
        tasks=len({e.task for e in episodes}),
        outcomes=dict(sorted(Counter(e.outcome.value for e in episodes).items())),
        unscored=rate([not is_scored(e) for e in episodes], [e.task for e in episodes]),
        success=rate([e.solved for e in scored], tasks) if scored else None,
        tests_passed=mean(tests_passed, share=True),
        steps=mean(steps),
        invalid_calls=mean(invalid_calls),
        sampled_tokens=mean(sampled_tokens),
    )


def _changes(before: Sequence[Episode], after: Sequence[Episode]) -> Changes:
    old, new = _attempts(before), _attempts(after)
    keys = [k for k in old if k in new and is_scored(old[k]) and is_scored(new[k])]

    def change(value: Callable[[Episode], float], *, share: bool = False) -> Difference | None:
        if not keys:
            return None
        values_old, values_new = ([value(side[k]) for k in keys] for side in (old, new))
        bounds = (0.0, 1.0) if share else None
        return paired_difference(values_old, values_new, [task for task, _ in keys], bounds=bounds)

    return Changes(
        pairs=len(keys),
        unpaired=len(before) + len(after) - 2 * len(keys),
        success=change(lambda e: float(e.solved), share=True),
        tests_passed=change(tests_passed, share=True),
        steps=change(steps),
        invalid_calls=change(invalid_calls),
        sampled_tokens=change(sampled_tokens),
    )


def _attempts(episodes: Iterable[Episode]) -> dict[tuple[str, int], Episode]:
    """Episodes by task and number of the attempt at it (in the order of their ids)."""
    seen: Counter[Hashable] = Counter()
    found = {}
    for episode in sorted(episodes, key=lambda e: (e.task, len(e.id), e.id)):
        found[episode.task, seen[episode.task]] = episode
        seen[episode.task] += 1
    return found


def _by_domain(episodes: Iterable[Episode]) -> dict[str, list[Episode]]:
    found: dict[str, list[Episode]] = {}
    for episode in episodes:
        found.setdefault(episode.domain, []).append(episode)
    return dict(sorted(found.items()))


def _by_split(episodes: Iterable[Episode], trained: Collection[str]) -> dict[str, list[Episode]]:
    if not trained:
        return {}
    found: dict[str, list[Episode]] = {TRAINED: [], HELD_OUT: []}
    for episode in episodes:
        found[TRAINED if episode.domain in trained else HELD_OUT].append(episode)
    return {name: part for name, part in found.items() if part}


def _names(parts: Iterable[dict[str, list[Episode]]]) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in part))
