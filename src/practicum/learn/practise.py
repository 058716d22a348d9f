"""Practice: play, make samples of what was played, take one step; and so on, the same after a kill.

Each step's batch is journalled before it is trained on. After a kill the stage loads its newest
checkpoint, trains the journalled batches again in order, and goes on: the same episodes, each once.
"""

import time
from collections.abc import Callable, Sequence, Set
from functools import partial
from statistics import fmean

from pydantic import BaseModel, ConfigDict, Field

from practicum.core import EngineError, Episode, Group, Outcome, Sample
from practicum.engines.contract import Sampler, TokenLoss, Weights
from practicum.learn.credit import explained
from practicum.learn.curriculum import Cell, Curriculum
from practicum.learn.flight import Finding, Flight, FlightSettings
from practicum.learn.objective import LossSettings
from practicum.learn.stage import Stage, same_weights, warmup
from practicum.learn.watch import Watch, WatchSettings


class PractiseSettings(BaseModel):
    """Settings of every stage that practises step by step."""

    model_config = ConfigDict(extra="forbid")
    name: str
    start: str = ""  # "base" or the stage whose weights it starts from; empty: the one before
    steps: int = Field(40, ge=1)
    groups: int = Field(8, ge=1)  # tasks a step
    group_size: int = Field(8, ge=1)  # episodes a task
    learning_rate: float = Field(5e-6, gt=0)
    warmup_steps: int = Field(2, ge=0)
    loss: LossSettings = Field(default_factory=LossSettings)
    temperature: float = Field(1.0, gt=0)
    flight: FlightSettings = Field(default_factory=FlightSettings)
    watch: WatchSettings = Field(default_factory=WatchSettings)
    checkpoint_every: int = Field(10, ge=1)

    @property
    def most_steps(self) -> int:
        """Steps of the stage."""
        return self.steps


Practise = Callable[[int, Sequence[tuple[Cell, int]], Set[int]], list[Group]]
"""(step, cells with task seeds, places of canaries) -> the groups that were played."""

Make = Callable[[int, Sequence[Group]], list[Sample]]
"""(step, its groups) -> what is trained on."""


def practise_and_learn(
    stage: Stage,
    settings: PractiseSettings,
    sampler: Sampler,
    cells: Sequence[Cell],
    practise: Practise,
    make: Make,
    loss: TokenLoss,
    *,
    cross_entropy: float = 1.0,
    seed: int = 0,
) -> None:
    """Train for `settings.steps` steps on what `make` makes of the tasks that `practise` plays.

    Each batch is trained on once, with the weights it was sampled with, so its log-probabilities
    are those the trainer computes, but for rounding. Where they are not, and where another check
    of `learn.flight` says stop, EngineError ends the run before a step is taken. What is practised
    is watched for graders that are gamed (`learn.watch`).
    """
    stage.progress.stage(stage.name, settings.steps)
    done, meta = stage.resume()
    curriculum = Curriculum(cells, seed=seed)
    curriculum.restore(meta.get("curriculum", []))
    flight = Flight(settings.flight, meta.get("flight"))
    watch = Watch(settings.watch, meta.get("watch"))
    journalled = set(stage.run.batch_steps(stage.name))
    factor = warmup(settings.warmup_steps)
    weights = stage.trainer.publish()
    for step in range(done, settings.steps):
        started = time.perf_counter()
        if step in journalled:
            groups = _grouped(stage.run.read_episodes(stage.name, step))
            findings = watch.see(groups)
            batch = stage.run.read_batch(stage.name, step)
        else:
            picks = curriculum.pick(step, settings.groups, watch.left(cells))
            sampler.load(weights)
            canaries = watch.canaries(step, picks, seed)
            groups = watch.flagged(practise(step, picks, canaries))
            findings = watch.see(groups)
            batch = make(step, watch.trusted(groups))
            stage.run.write_episodes(stage.name, step, [e for g in groups for e in g.episodes])
            stage.run.write_batch(stage.name, step, batch)
        _check_on_policy(groups, weights)
        _heed(stage, step, findings)
        played = time.perf_counter()
        for group in watch.trusted(groups):
            stage.paid(group.episodes)
            rewards = [e.reward for e in group.episodes if e.reward is not None]
            first = group.episodes[0]
            curriculum.update((first.domain, first.level), rewards)
        values = _describe([g for g in groups if not g.episodes[0].canary]) | explained(batch)
        _heed(stage, step, flight.batch(batch))
        if batch:
            values |= stage.trainer.forward_backward(
                settings.loss.weighted(batch, cross_entropy), loss
            )
            _heed(stage, step, flight.step(values))
            spikes: list[Finding] = []
            rate = settings.learning_rate * factor(step) * flight.scale
            values |= stage.trainer.step(rate, partial(_accept, flight, spikes))
            _heed(stage, step, spikes)
            weights = stage.trainer.publish()
        ended = time.perf_counter()
        values |= {
            "seconds": ended - started,
            "seconds_practise": played - started,
            "seconds_train": ended - played,
        }
        stage.metric(step, values)
        if (step + 1) % settings.checkpoint_every == 0 or step + 1 == settings.steps:
            meta = {"curriculum": curriculum.state(), "flight": flight.state()}
            meta |= {"watch": watch.state(), "digest": weights.digest}
            stage.save(step + 1, meta)


def _grouped(episodes: Sequence[Episode]) -> list[Group]:
    """Episodes of one step back in their groups: those of one task, one after the other."""
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.id.rpartition("-")[0], []).append(episode)
    return [Group(members[0].task, members) for members in groups.values()]


def _check_on_policy(groups: Sequence[Group], weights: Weights) -> None:
    """Every trained token was sampled with the weights that the trainer holds now."""
    for group in groups:
        for episode in group.episodes:
            for turn in episode.turns:
                if turn.record is not None:
                    same_weights(turn.record.digest, weights.digest, episode.id)


def _accept(flight: Flight, found: list[Finding], norm: float) -> bool:
    """Whether a gradient of this norm is applied; what speaks against it goes to `found`."""
    finding = flight.gradient(norm)
    if finding:
        found.append(finding)
    return finding is None


def _heed(stage: Stage, step: int, findings: Sequence[Finding]) -> None:
    """Say what was found, and do what it asks for. Raises EngineError to stop."""
    for finding in findings:
        place = f"{stage.name} step {step}"
        stage.run.log(
            "finding",
            stage=stage.name,
            step=step,
            check=finding.check,
            action=finding.action,
            detail=finding.detail,
        )
        if finding.action == "stop":
            raise EngineError(f"{place}: {finding.detail}")
        done = {"tell": "", "skip": "; the step was not taken", "revert": ""}[finding.action]
        if finding.action == "revert":
            at = stage.revert()
            done = "; the step was not taken"
            done += f", and the weights are those after step {at} again" if at is not None else ""
        stage.progress.note(f"{place}: {finding.detail}{done}")


def _describe(groups: Sequence[Group]) -> dict[str, float]:
    """What the episodes of a step look like in numbers."""
    episodes = [e for g in groups for e in g.episodes]
    rewards = [e.reward for e in episodes if e.reward is not None]
    varied = [len({e.reward for e in g.episodes if e.reward is not None}) > 1 for g in groups]
    tokens = [e.sampled_tokens for e in episodes]
    return {
        "reward": fmean(rewards) if rewards else float("nan"),
        "success": fmean(e.solved for e in episodes),
        "tampered": fmean(e.outcome is Outcome.TAMPERED for e in episodes),
        "varied_groups": fmean(varied),
        "sampled_tokens": fmean(tokens),
        "tokens": float(sum(tokens)),
        "turns": fmean(len(e.turns) for e in episodes),
        "invalid_calls": fmean(sum(v.kind == "invalid" for v in e.events) for e in episodes),
        "unscored": fmean(e.reward is None for e in episodes),
    }
