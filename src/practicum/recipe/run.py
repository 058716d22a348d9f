"""A run: base -> evaluation -> stage -> evaluation -> ... -> summary, resumable anywhere.

Every stage reads the model folder that the one before it wrote (the first: the base model), trains,
and writes its own. What is done is in the run folder; `--resume` does only what is not.
"""

import asyncio
import gc
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from practicum.core import Group, RecipeError, Sample, Task, content_hash
from practicum.domains import get_domain
from practicum.engines.policy import SamplerPolicy
from practicum.engines.trainer import LocalTrainer, read_weights
from practicum.evaluate.audit import is_audited
from practicum.evaluate.summary import build_summary
from practicum.learn.curriculum import Cell, Curriculum
from practicum.learn.distil import DistilSettings, distilled
from practicum.learn.preference import PreferenceSettings, preference
from practicum.learn.rl import RLSettings, rl
from practicum.learn.samples import demonstration
from practicum.learn.sft import SFTSettings, sft
from practicum.learn.stage import Progress, Stage
from practicum.models.reference import ModelFolder, resolve
from practicum.models.render import Renderer
from practicum.recipe.demonstrations import demonstrate
from practicum.recipe.evaluate import (
    device_of,
    held_out_tasks,
    make_policy,
    make_sampler,
    play_held_out,
    set_up_torch,
)
from practicum.recipe.settings import Recipe, StageSettings
from practicum.recipe.tasks import DEMONSTRATIONS, MILLION, VALIDATION, spread
from practicum.rollout import Job, play_many
from practicum.sandbox.choose import open_boxes
from practicum.sandbox.contract import Boxes
from practicum.store import Run, checkpoint


def train(
    recipe: Recipe, run: Run, progress: Progress, *, boxes: Boxes | None = None
) -> dict[str, object]:
    """Run all that is not done yet; returns the summary, which is also in the run folder."""
    _refuse_unaudited(recipe)
    set_up_torch(recipe)
    with asyncio.Runner() as runner:
        made = boxes or open_boxes(**recipe.boxes.model_dump())
        try:
            return _Run(recipe, run, progress, made, runner).go()
        finally:
            if boxes is None:
                runner.run(made.close())


def _refuse_unaudited(recipe: Recipe) -> None:
    names = [*recipe.domains.train, *recipe.domains.held_out]
    missing = [name for name in names if not is_audited(get_domain(name))]
    if missing:
        raise RecipeError(
            f"not audited, or changed since: {', '.join(missing)}. A domain is trained on only "
            f"after it passed; run: practicum audit {' '.join(missing)}"
        )


class _Run:
    """One run while it goes on."""

    def __init__(
        self, recipe: Recipe, run: Run, progress: Progress, boxes: Boxes, runner: asyncio.Runner
    ) -> None:
        self.recipe, self.run, self.progress = recipe, run, progress
        self.boxes, self.runner = boxes, runner
        self.device = device_of(recipe.device)

    def go(self) -> dict[str, object]:
        """Everything, in order."""
        recipe, domains = self.recipe, self.recipe.domains
        started = time.time()
        base = resolve(recipe.model)
        self.progress.note(f"base model: {base.description}")
        self.run.log("start", model=base.description, seed=recipe.seed)
        self.run.log("domains", trained=domains.train, held_out=domains.held_out)
        self.renderer = Renderer.for_folder(base.path)
        self.held_out = held_out_tasks(recipe)
        self.sampler = make_sampler(recipe, base.path, self.renderer)
        self._evaluate("base", base.path)
        folder = base.path
        for settings in recipe.stages:
            folder = self._stage(settings, folder)
            gc.collect()  # the stage's trainer, before the next one is made
            self._evaluate(settings.name, folder)
        return self._finish(base, time.time() - started)

    # Stages

    def _stage(self, settings: StageSettings, source: Path) -> Path:
        """Train one stage from the model in `source`; the folder of the model it makes."""
        target = self.run.folder / "models" / settings.name
        if target.exists():
            checkpoint.load(target)
            return target
        trainer = LocalTrainer(source, self.recipe.trainer, device=self.device)
        stage = Stage(settings.name, self.run, trainer, self.progress)
        domains = self.recipe.domains
        cells = [(name, level) for name in domains.train for level in domains.levels]
        if isinstance(settings, SFTSettings):
            sft(stage, settings, *self._demonstrations(settings))
        elif isinstance(settings, PreferenceSettings):

            def play() -> list[Group]:
                self.sampler.load(trainer.publish())
                picks = Curriculum(cells, seed=self.recipe.seed).pick(MILLION, settings.tasks)
                return self._practise(settings, 0, picks)

            preference(stage, settings, play, seed=self.recipe.seed)
        else:
            samples = None
            if isinstance(settings, DistilSettings):
                teacher = self._teacher(settings.teacher)
                samples = partial(distilled, teacher=teacher, coefficient=settings.coefficient)
            rl(
                stage,
                settings,
                self.sampler,
                cells,
                lambda step, picks: self._practise(settings, step, picks),
                samples=samples,
                seed=self.recipe.seed,
            )
        digest = trainer.publish().digest

        def write(folder: Path) -> None:
            trainer.export(folder)
            self.renderer.tokenizer.save_pretrained(folder)

        checkpoint.save(target, write, {"stage": settings.name, "digest": digest})
        self.run.log("stage", name=settings.name, digest=digest)
        self.progress.note(f"{settings.name}: weights {digest}")
        return target

    def _teacher(self, name: str) -> LocalTrainer:
        """The model of a stage of this run, or another one with the same tokens."""
        folder = self.run.folder / "models" / name
        if not folder.exists():
            folder = resolve(name).path
        if Renderer.for_folder(folder).tokenizer.get_vocab() != self.renderer.tokenizer.get_vocab():
            raise RecipeError(
                f"the teacher {name!r} has other tokens than the student, so their log-"
                "probabilities cannot be compared: choose one of the same family"
            )
        self.progress.note(f"teacher: {name}")
        settings = self.recipe.trainer.model_copy(update={"lora": None})
        return LocalTrainer(folder, settings, device=self.device)

    def _practise(
        self,
        settings: RLSettings | PreferenceSettings,
        step: int,
        picks: Sequence[tuple[Cell, int]],
    ) -> list[Group]:
        """Play the groups of one step with the sampler's weights."""
        avoid = {task.key for task in self.held_out}
        jobs: list[Job] = []
        for slot, ((name, level), seed) in enumerate(picks):
            task = get_domain(name).make(seed, level)
            while task.key in avoid:
                seed = (seed + 1) % MILLION
                task = get_domain(name).make(seed, level)
            for index in range(settings.group_size):
                jobs.append(Job(task, f"{settings.name}-{step}-{slot}-{task.key}-{index}"))
        policy = self._policy(settings.name, settings.temperature)
        episodes = self.runner.run(play_many(jobs, get_domain, policy, self.boxes))
        size = settings.group_size
        return [
            Group(episodes[i].task, episodes[i : i + size]) for i in range(0, len(episodes), size)
        ]

    def _policy(self, name: str, temperature: float) -> SamplerPolicy:
        return make_policy(self.recipe, self.sampler, self.renderer, name, temperature)

    def _demonstrations(self, settings: SFTSettings) -> tuple[list[Sample], list[Sample]]:
        """Samples to train on, and samples to validate on."""
        name = f"{settings.name}-demonstrations"
        counts = (settings.demonstrations, settings.validation)
        if not self.run.episode_steps(name):
            self.progress.stage(name, sum(counts))
            domains, used = self.recipe.domains, {task.key for task in self.held_out}
            tasks: list[Task] = []
            for base, count in zip((DEMONSTRATIONS, VALIDATION), counts, strict=True):
                more = spread(
                    domains.train,
                    domains.levels,
                    count,
                    base=base,
                    seed=self.recipe.seed,
                    avoid=used,
                )
                used |= {task.key for task in more}
                tasks += more
            playing = demonstrate(
                tasks,
                self.renderer,
                self.boxes,
                name,
                at_once=2 * self.recipe.boxes.max_running,
                on_done=lambda done: self.progress.step(name, done, {}),
            )
            self.run.write_episodes(name, 0, self.runner.run(playing))
        samples = [demonstration(episode) for episode in self.run.read_episodes(name, 0)]
        return samples[: counts[0]], samples[counts[0] :]

    def _evaluate(self, name: str, folder: Path) -> None:
        """Play the held-out tasks with the model in `folder`, unless that is done."""
        if name in self.run.evals():
            return
        self.sampler.load(read_weights(folder))
        policy = self._policy(name, self.recipe.evaluation.temperature)
        episodes = play_held_out(
            self.recipe, self.held_out, policy, self.boxes, self.runner, self.progress
        )
        self.run.write_eval(name, episodes)
        solved = sum(episode.solved for episode in episodes)
        self.progress.note(f"evaluate {name}: {solved}/{len(episodes)} solved")

    # The end

    def _finish(self, base: ModelFolder, seconds: float) -> dict[str, object]:
        summary = build_summary(self.run)
        last = self.run.journal("stage")
        summary |= {
            "name": self.recipe.name,
            "recipe": content_hash(self.run.recipe),
            "model": base.description,
            "digest": last[-1]["digest"] if last else "",
            "seconds": round(seconds, 1),
        }
        self.run.write_summary(summary)
        return summary
