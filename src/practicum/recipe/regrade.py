"""Today's graders on what a run kept: who would be paid otherwise, and whose weights that touches.

Nothing is played again. A submission is graded only against the very task that it was made for; an
episode whose task today's domain does not make is named with the reason.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from statistics import fmean
from typing import Literal, get_args

import msgspec

from practicum.core import (
    Artifact,
    Episode,
    Group,
    Kept,
    Outcome,
    RecipeError,
    Score,
    StoreError,
    Submission,
    Task,
    content_hash,
)
from practicum.domains import get_domain
from practicum.domains.provenance import grader_version
from practicum.learn.watch import Watch, WatchSettings
from practicum.rewards import reward_model
from practicum.rollout import grade
from practicum.sandbox.contract import Boxes
from practicum.store import Run, checkpoint

EPSILON = 1e-9
"""Rewards that differ by less are the same."""

Change = Literal["unscored", "tampered", "scored", "cleared", "higher", "lower", "same"]
"""What became of a verdict. In this order the first that fits: it has no score any more, it is
tampered now, it has a score at last, it is not tampered any more, its reward rose, or fell."""


class Verdict(msgspec.Struct, frozen=True):
    """What one grader made of an episode."""

    grader: str
    outcome: Outcome
    reward: float | None
    solved: bool
    evidence: tuple[str, ...]


class Changed(msgspec.Struct, frozen=True):
    """An episode that today's grader judges otherwise."""

    place: str
    episode: str
    domain: str
    level: int
    seed: int
    change: Change
    before: Verdict
    now: Verdict


class Left(msgspec.Struct, frozen=True):
    """An episode that could not be graded again, and why."""

    place: str
    episode: str
    domain: str
    why: str


class DomainRow(msgspec.Struct, frozen=True):
    """One domain: how many episodes had which change, who graded them, what they earned."""

    domain: str
    episodes: int  # graded again
    left: int  # that could not be
    counts: dict[Change, int]
    newly_solved: int
    no_longer_solved: int
    before: tuple[str, ...]  # versions of the grader
    now: str  # empty: the domain is gone
    reward_before: float | None  # means over what was graded again and has a score
    reward_now: float | None


class Paid(msgspec.Struct, frozen=True):
    """A checkpoint that other versions than today's paid for."""

    checkpoint: str
    graders: dict[str, tuple[str, ...]]  # domain -> those versions


class Regrade(msgspec.Struct, frozen=True):
    """What came of it."""

    run: str
    stage: str  # empty: all
    domains: tuple[DomainRow, ...]
    changed: tuple[Changed, ...]
    left: tuple[Left, ...]
    checkpoints: tuple[Paid, ...]

    @property
    def differs(self) -> bool:
        """Whether any verdict changed, or could not be had."""
        return bool(self.changed or self.left)


def places(run: Run, stage: str = "") -> list[tuple[str, Callable[[], list[Episode]]]]:
    """Where a run, or one stage with its demonstrations and evaluation, has episodes.

    Each with what reads it. Raises StoreError for a stage that has none.
    """
    names, evals = run.episode_stages(), run.evals()
    if stage:
        known = dict.fromkeys([*evals, *names])
        names = [name for name in names if name in (stage, f"{stage}-demonstrations")]
        evals = [name for name in evals if name == stage]
        if not names and not evals:
            raise StoreError(
                f"{run.folder} has no episodes of a stage {stage!r}; "
                f"there are: {', '.join(known) or 'none yet'}"
            )
    found: list[tuple[str, Callable[[], list[Episode]]]] = []
    for name in names:
        for step in run.episode_steps(name):
            found.append((f"{name} step {step}", partial(run.read_episodes, name, step)))
    found += [(f"evaluation {name}", partial(run.read_eval, name)) for name in evals]
    return found


async def regrade(
    run: Run,
    boxes: Boxes,
    *,
    stage: str = "",
    at_once: int = 8,
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> Regrade:
    """Grade again what `run` kept, at most `at_once` submissions together.

    `on_done` is told of how many places, and of how many there are. Raises StoreError when nothing
    was kept, or a part of it is missing or corrupt.
    """
    pairs: list[tuple[str, Episode, Episode]] = []
    left: list[Left] = []
    limit = asyncio.Semaphore(at_once)
    todo = places(run, stage)
    for done, (place, read) in enumerate(todo, 1):
        episodes = [episode for episode in read() if episode.grader]
        found = await asyncio.gather(*(_again(run, e, boxes, limit) for e in episodes))
        both = zip(episodes, found, strict=True)
        now = _flagged([old if isinstance(new, str) else new for old, new in both])
        for old, new, flagged in zip(episodes, found, now, strict=True):
            if isinstance(new, str):
                left.append(Left(place, old.id, old.domain, new))
            else:
                pairs.append((place, old, flagged))
        on_done(done, len(todo))
    if not pairs and all(item.why == NOT_KEPT for item in left):
        raise StoreError(
            f"{run.folder} has kept no submissions{f' of {stage!r}' if stage else ''}, so there is "
            "nothing to grade again: a run keeps them with keep_submissions = true in its recipe "
            "(the default); start it anew in another folder"
        )
    return Regrade(
        str(run.folder),
        stage,
        tuple(_rows(pairs, left)),
        tuple(_changed(pairs)),
        tuple(left),
        tuple(_checkpoints(run)),
    )


def save(run: Run, result: Regrade) -> str:
    """Write the result into the run's `regrades/`; its path. Equal graders write the same file."""
    versions = {row.domain: row.now for row in result.domains}
    name = f"{result.stage or 'all'}-{content_hash(versions)}"
    text = msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"
    return str(run.write_regrade(name, text))


# One episode

NOT_KEPT = "its submission was not kept"


async def _again(
    run: Run, episode: Episode, boxes: Boxes, limit: asyncio.Semaphore
) -> Episode | str:
    """The episode with today's verdict, or why there is none."""
    if episode.artifacts is None:
        return NOT_KEPT
    async with limit:
        task = _remade(episode)
        if isinstance(task, str):
            return task
        domain = get_domain(episode.domain)
        artifacts = {path: _read(run, kept) for path, kept in episode.artifacts.items()}
        submission = Submission(artifacts, episode.answer, episode.events)
        score, verdict, error = await grade(task, domain, submission, boxes)
    new = msgspec.structs.replace(
        episode,
        score=score,
        outcome=verdict or _ending(episode),
        error=error if verdict else "" if episode.outcome in _VERDICTS else episode.error,
        grader=grader_version(domain),
    )
    return _with_said(new, episode)


def _remade(episode: Episode) -> Task | str:
    """The task of an episode, as today's domain makes it, or why it makes no such task."""
    what = f"level {episode.level}, seed {episode.seed}"
    try:
        domain = get_domain(episode.domain)
        task: Task | None = domain.make(episode.seed, episode.level)
        if task and episode.canary:
            task = domain.impossible(task)
    except RecipeError as error:
        return f"its domain is gone: {error}"
    except Exception as error:  # a bug in one domain must not hide what the others say
        return f"today's domain fails to make its task: {type(error).__name__}: {error}"
    if task is None or task.key != episode.task:
        key = task.key if task else "no such variant"
        return f"today's domain makes another task of it ({what}: {key}, then {episode.task})"
    return task


def _read(run: Run, kept: Kept) -> Artifact:
    return Artifact(run.kept(kept.digest), kept.mode, kept.kind, kept.truncated)


_VERDICTS = frozenset({Outcome.TAMPERED, Outcome.GRADER_FAILED})  # that grading itself decides


def _ending(episode: Episode) -> Outcome:
    """How an episode ended before its grader had a say: by a submission, or without one."""
    if episode.outcome not in _VERDICTS:
        return episode.outcome
    submitted = any(event.tool == "submit" and event.ok for event in episode.events)
    return Outcome.COMPLETED if submitted else Outcome.TRUNCATED


def _with_said(new: Episode, before: Episode) -> Episode:
    """The episode with what a reward model said of it then, which is no grader's to say."""
    parts: Sequence = before.score.parts if before.score else ()
    said = next((part for part in parts if part.name == reward_model.NAME), None)
    if said is None or new.score is None or new.score.outcome is None:
        return new
    steps = new.score.steps or reward_model.STEPS
    score = Score.of(*new.score.parts, said, tampered=new.score.tampered, steps=steps)
    if score.value is None:
        return msgspec.structs.replace(
            new, score=score, outcome=Outcome.GRADER_FAILED, error=before.error
        )
    return msgspec.structs.replace(new, score=score)


def _flagged(episodes: Sequence[Episode]) -> list[Episode]:
    """The episodes of one step, with what the watch of practice makes of their verdicts."""
    groups = [Group(episode.task, [episode]) for episode in episodes]
    flagged = Watch(WatchSettings()).flagged(groups)
    return [episode for group in flagged for episode in group.episodes]


# All of them


def _changed(pairs: Iterable[tuple[str, Episode, Episode]]) -> Iterator[Changed]:
    for place, before, now in pairs:
        change = _change(before, now)
        if change != "same":
            yield Changed(
                place,
                now.id,
                now.domain,
                now.level,
                now.seed,
                change,
                _verdict(before),
                _verdict(now),
            )


def _change(before: Episode, now: Episode) -> Change:
    if now.reward is None:
        return "same" if before.reward is None else "unscored"
    was, is_now = (e.outcome is Outcome.TAMPERED for e in (before, now))
    if is_now and not was:
        return "tampered"
    if before.reward is None:
        return "scored"
    if was and not is_now:
        return "cleared"
    rise = now.reward - before.reward
    if abs(rise) > EPSILON:
        return "higher" if rise > 0 else "lower"
    if before.solved != now.solved:
        return "higher" if now.solved else "lower"
    return "same"


def _verdict(episode: Episode) -> Verdict:
    parts = episode.score.parts if episode.score else ()
    said = [
        f"{part.name} {'unscored' if part.value is None else f'{part.value:.3g}'}"
        f"{': ' if part.evidence else ''}{part.evidence}"
        for part in parts
        if part.kind != "metric"
    ]
    return Verdict(
        episode.grader,
        episode.outcome,
        episode.reward,
        episode.solved,
        (*([episode.error] if episode.error else []), *said),
    )


def _rows(
    pairs: Sequence[tuple[str, Episode, Episode]], left: Sequence[Left]
) -> Iterator[DomainRow]:
    names = {now.domain for _, _, now in pairs} | {item.domain for item in left}
    for name in sorted(names):
        mine = [(before, now) for _, before, now in pairs if now.domain == name]
        changes = [_change(before, now) for before, now in mine]
        yield DomainRow(
            domain=name,
            episodes=len(mine),
            left=sum(item.domain == name for item in left),
            counts={change: changes.count(change) for change in get_args(Change)},
            newly_solved=sum(now.solved and not before.solved for before, now in mine),
            no_longer_solved=sum(before.solved and not now.solved for before, now in mine),
            before=tuple(sorted({before.grader for before, _ in mine})),
            now=_today(name),
            reward_before=_mean(before.reward for before, _ in mine),
            reward_now=_mean(now.reward for _, now in mine),
        )


def _mean(rewards: Iterable[float | None]) -> float | None:
    scored = [reward for reward in rewards if reward is not None]
    return fmean(scored) if scored else None


def _today(domain: str) -> str:
    try:
        return grader_version(get_domain(domain))
    except RecipeError:
        return ""


def _checkpoints(run: Run) -> Iterator[Paid]:
    """Checkpoints and models of the run that a version other than today's paid for."""
    for parent in (run.checkpoints, run.folder / "models"):
        for folder in checkpoint.complete(parent):
            graders = checkpoint.meta(folder).get("graders", {})
            others = {
                domain: tuple(v for v in versions if v != _today(domain))
                for domain, versions in graders.items()
            }
            if found := {domain: versions for domain, versions in others.items() if versions}:
                yield Paid(str(folder.relative_to(run.folder)), found)
