"""What a run plays to learn from: attempts at tasks, demonstrations, and a teacher's own work.

None of its tasks is one of those that evaluations play.
"""

import asyncio
from collections.abc import Sequence, Set
from dataclasses import dataclass

from practicum.core import Episode, Group, Sample, Task
from practicum.domains import get_domain
from practicum.engines.contract import Weights
from practicum.engines.policy import SamplerPolicy
from practicum.engines.sampler import LocalSampler
from practicum.learn.comparisons import ComparisonSettings
from practicum.learn.curriculum import Cell, Curriculum
from practicum.learn.practise import PractiseSettings
from practicum.learn.samples import demonstration
from practicum.learn.sft import SFTSettings
from practicum.learn.stage import Progress
from practicum.models.render import Renderer
from practicum.recipe.demonstrations import demonstrate, learnt, show
from practicum.recipe.evaluate import make_policy
from practicum.recipe.settings import Recipe
from practicum.recipe.tasks import DEMONSTRATIONS, MILLION, VALIDATION, spread
from practicum.rollout import Job, Keep, play_many
from practicum.sandbox.contract import Boxes
from practicum.store import Run


@dataclass
class Player:
    """Plays for one run."""

    recipe: Recipe
    run: Run
    progress: Progress
    boxes: Boxes
    runner: asyncio.Runner
    renderer: Renderer
    sampler: LocalSampler
    held_out: list[Task]

    @property
    def cells(self) -> list[Cell]:
        """What there is to practise."""
        domains = self.recipe.domains
        return [(name, level) for name in domains.train for level in domains.levels]

    @property
    def keep(self) -> Keep | None:
        """Where what is graded is kept, if it is."""
        return self.run.keep if self.recipe.keep_submissions else None

    def policy(self, name: str, temperature: float) -> SamplerPolicy:
        """Whatever weights the run's sampler holds."""
        return make_policy(self.recipe, self.sampler, self.renderer, name, temperature)

    def compare(self, settings: ComparisonSettings, weights: Weights) -> list[Group]:
        """What a model of these weights does for a stage that compares its attempts."""
        self.sampler.load(weights)
        picks = Curriculum(self.cells, seed=self.recipe.seed).pick(MILLION, settings.tasks)
        return self.practise(settings, 0, picks)

    def practise(
        self,
        settings: PractiseSettings | ComparisonSettings,
        step: int,
        picks: Sequence[tuple[Cell, int]],
        canaries: Set[int] = frozenset(),
    ) -> list[Group]:
        """Play the groups of one step with the sampler's weights.

        Those at the places `canaries` are impossible variants, where the domain has them.
        """
        avoid = {task.key for task in self.held_out}
        jobs: list[Job] = []
        for slot, ((name, level), seed) in enumerate(picks):
            task = get_domain(name).make(seed, level)
            while task.key in avoid:
                seed = (seed + 1) % MILLION
                task = get_domain(name).make(seed, level)
            if slot in canaries:
                task = get_domain(name).impossible(task) or task
            for index in range(settings.group_size):
                jobs.append(Job(task, f"{settings.name}-{step}-{slot}-{task.key}-{index}"))
        policy = self.policy(settings.name, settings.temperature)
        playing = play_many(jobs, get_domain, policy, self.boxes, keep=self.keep)
        episodes = self.runner.run(playing)
        size = settings.group_size
        return [
            Group(episodes[i].task, episodes[i : i + size]) for i in range(0, len(episodes), size)
        ]

    def gold(self, stage: str, *counts: int) -> list[list[Sample]]:
        """Gold solutions to train on and, with a second count, to validate on."""
        name = f"{stage}-demonstrations"
        if not self.run.episode_steps(name):
            self.progress.stage(name, sum(counts))
            playing = demonstrate(
                [task for tasks in self._tasks(*counts) for task in tasks],
                self.renderer,
                self.boxes,
                name,
                at_once=2 * self.recipe.boxes.max_running,
                on_done=lambda done: self.progress.step(name, done, {}),
                keep=self.keep,
            )
            self.run.write_episodes(name, 0, self.runner.run(playing))
        samples = iter([demonstration(episode) for episode in self.run.read_episodes(name, 0)])
        return [[next(samples) for _ in range(count)] for count in counts]

    def lessons(
        self, settings: SFTSettings, teacher: LocalSampler
    ) -> tuple[list[Sample], list[Sample]]:
        """What a teacher shows: samples to train on, and samples to validate on."""
        name = f"{settings.name}-demonstrations"
        counts = (settings.demonstrations, settings.validation)
        if not self.run.episode_steps(name):
            self.progress.stage(name, sum(counts) * settings.attempts)
            playing = show(
                [task for tasks in self._tasks(*counts) for task in tasks],
                make_policy(
                    self.recipe, teacher, self.renderer, settings.teacher, settings.temperature
                ),
                self.boxes,
                name,
                attempts=settings.attempts,
                on_done=lambda done: self.progress.step(name, done, {}),
                keep=self.keep,
            )
            self.run.write_episodes(name, 0, self.runner.run(playing))
        episodes: list[Episode] = self.run.read_episodes(name, 0)
        split = settings.demonstrations * settings.attempts
        train = learnt(episodes[:split], settings, "training")
        held_out = learnt(episodes[split:], settings, "validation")
        self.progress.note(
            f"{settings.name}: {len(train)} of {split} attempts of {settings.teacher} to learn from"
        )
        return train, held_out

    def _tasks(self, *counts: int) -> list[list[Task]]:
        """Tasks to be shown, to train on and to validate on; no two are the same."""
        domains, used = self.recipe.domains, {task.key for task in self.held_out}
        made = []
        for base, count in zip((DEMONSTRATIONS, VALIDATION), counts, strict=False):
            tasks = spread(
                domains.train,
                domains.levels,
                count,
                base=base,
                seed=self.recipe.seed,
                avoid=used,
            )
            used |= {task.key for task in tasks}
            made.append(tasks)
        return made
