"""A run: base -> evaluation -> stage -> evaluation -> ... -> summary, resumable anywhere.

Every stage reads the model folder that the one before it wrote (the first: the base model), trains,
and writes its own. What is done is in the run folder; `--resume` does only what is not.
"""

import asyncio
import gc
import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from practicum.core import Episode, Group, RecipeError, Task, content_hash
from practicum.domains import get_domain
from practicum.engines.policy import SamplerPolicy, records
from practicum.engines.sampler import LocalSampler
from practicum.engines.trainer import LocalTrainer, read_weights
from practicum.evaluate.audit import is_audited
from practicum.evaluate.summary import build_summary
from practicum.learn.curriculum import Cell
from practicum.learn.rl import RLSettings, rl
from practicum.learn.samples import demonstration
from practicum.learn.sft import SFTSettings, sft
from practicum.learn.stage import Progress, Stage
from practicum.models.reference import ModelFolder, resolve
from practicum.models.render import Renderer
from practicum.recipe.settings import Recipe
from practicum.recipe.tasks import DEMONSTRATIONS, EVALUATION, MILLION, VALIDATION, spread
from practicum.rollout import Job, ScriptPolicy, play, play_many
from practicum.sandbox.bubblewrap import BubblewrapBoxes
from practicum.sandbox.contract import Boxes
from practicum.store import Run, checkpoint
from practicum.tools import get_tool

EVALUATION_CHUNK = 128  # episodes that are played together in an evaluation


def train(
    recipe: Recipe, run: Run, progress: Progress, *, boxes: Boxes | None = None
) -> dict[str, object]:
    """Run all that is not done yet; returns the summary, which is also in the run folder."""
    _refuse_unaudited(recipe)
    torch.set_flush_denormal(True)
    torch.set_num_threads(recipe.threads or os.cpu_count() or 1)
    with asyncio.Runner() as runner:
        made = boxes or BubblewrapBoxes(max_running=recipe.boxes.max_running)
        try:
            return _Run(recipe, run, progress, made, runner).go()
        finally:
            if boxes is None:
                runner.run(made.close())


def device_of(name: str) -> str:
    """A torch device name; "auto" is the GPU where there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


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
        self.evaluation_tasks: list[Task] = []

    def go(self) -> dict[str, object]:
        """Everything, in order."""
        recipe, domains = self.recipe, self.recipe.domains
        started = time.time()
        base = resolve(recipe.model)
        self.progress.note(f"base model: {base.description}")
        self.run.log("start", model=base.description, seed=recipe.seed)
        self.run.log("domains", trained=domains.train, held_out=domains.held_out)
        self.renderer = Renderer.for_folder(base.path)
        self.evaluation_tasks = spread(
            [*domains.train, *domains.held_out],
            domains.levels,
            recipe.evaluation.tasks,
            base=EVALUATION,
            seed=recipe.seed,
        )
        self.sampler = LocalSampler(
            base.path,
            stop_ids=self.renderer.stop_ids,
            dtype=recipe.sampler.dtype,
            device=self.device,
            max_rows=recipe.sampler.max_rows,
        )
        self._evaluate("base", base.path)
        folder = base.path
        for settings in recipe.stages:
            folder = self._stage(settings, folder)
            gc.collect()  # the stage's trainer, before the next one is made
            self._evaluate(settings.name, folder)
        return self._finish(base, time.time() - started)

    # Stages

    def _stage(self, settings: SFTSettings | RLSettings, source: Path) -> Path:
        """Train one stage from the model in `source`; the folder of the model it makes."""
        target = self.run.folder / "models" / settings.name
        if target.exists():
            checkpoint.load(target)
            return target
        trainer = LocalTrainer(source, self.recipe.trainer, device=self.device)
        stage = Stage(settings.name, self.run, trainer, self.progress)
        if isinstance(settings, SFTSettings):
            sft(stage, settings, *self._demonstrations(settings))
        else:
            domains = self.recipe.domains
            cells = [(name, level) for name in domains.train for level in domains.levels]
            rl(
                stage,
                settings,
                self.sampler,
                cells,
                lambda step, picks: self._practise(settings, step, picks),
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

    def _practise(
        self, settings: RLSettings, step: int, picks: Sequence[tuple[Cell, int]]
    ) -> list[Group]:
        """Play the groups of one step with the sampler's weights."""
        avoid = {task.key for task in self.evaluation_tasks}
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
        return SamplerPolicy(
            name,
            self.sampler,
            self.renderer,
            temperature=temperature,
            seed=self.recipe.seed,
            window=self.sampler.model.config.get_text_config().max_position_embeddings,
        )

    # Demonstrations

    def _demonstrations(self, settings: SFTSettings) -> tuple[list, list]:
        """Training and validation samples from gold episodes, played in boxes as a model would."""
        name = f"{settings.name}-demonstrations"
        if not self.run.episode_steps(name):
            self.progress.stage(name, settings.demonstrations + settings.validation)
            used = {task.key for task in self.evaluation_tasks}
            episodes: list[Episode] = []
            for base, count in (
                (DEMONSTRATIONS, settings.demonstrations),
                (VALIDATION, settings.validation),
            ):
                domains = self.recipe.domains
                tasks = spread(
                    domains.train,
                    domains.levels,
                    count,
                    base=base,
                    seed=self.recipe.seed,
                    avoid=used,
                )
                used |= {task.key for task in tasks}
                episodes += self.runner.run(self._gold(tasks, name))
            self.run.write_episodes(name, 0, episodes)
        samples = [demonstration(episode) for episode in self.run.read_episodes(name, 0)]
        return samples[: settings.demonstrations], samples[settings.demonstrations :]

    async def _gold(self, tasks: Sequence[Task], name: str) -> list[Episode]:
        done = 0

        async def one(index: int, task: Task) -> Episode:
            nonlocal done
            domain = get_domain(task.domain)
            policy = ScriptPolicy("gold", domain.solve(task))
            key = f"{name}-{index}-{task.key}"
            episode = await play(task, domain, policy, self.boxes, key=key)
            if not episode.solved:
                raise RecipeError(
                    f"the gold solution of {task.domain} (seed {task.seed}, level {task.level}) "
                    f"does not solve it: {episode.outcome} {episode.error}. Audit the domain again"
                )
            schemas = [get_tool(tool).schema for tool in task.tools]
            turns = records(episode.turns, episode.prompt, schemas, self.renderer)
            done += 1
            self.progress.step(name, done, {})
            return msgspec.structs.replace(episode, turns=tuple(turns))

        limit = asyncio.Semaphore(2 * self.recipe.boxes.max_running)

        async def bounded(index: int, task: Task) -> Episode:
            async with limit:
                return await one(index, task)

        return await asyncio.gather(*(bounded(i, task) for i, task in enumerate(tasks)))

    # Evaluation

    def _evaluate(self, name: str, folder: Path) -> None:
        """Play the held-out tasks with the model in `folder`, unless that is done."""
        if name in self.run.evals():
            return
        settings = self.recipe.evaluation
        self.sampler.load(read_weights(folder))
        policy = self._policy(name, settings.temperature)
        jobs = [
            Job(task, f"eval-{task.key}-{index}")
            for task in self.evaluation_tasks
            for index in range(settings.repeats)
        ]
        label = f"evaluate {name}"
        self.progress.stage(label, len(jobs))
        episodes: list[Episode] = []
        solved = count = 0

        def done(episode: Episode) -> None:
            nonlocal solved, count
            solved, count = solved + episode.solved, count + 1
            self.progress.step(label, count, {"success": solved / count})

        for lo in range(0, len(jobs), EVALUATION_CHUNK):
            chunk = jobs[lo : lo + EVALUATION_CHUNK]
            episodes += self.runner.run(
                play_many(chunk, get_domain, policy, self.boxes, on_done=done)
            )
        self.run.write_eval(name, episodes)
        self.progress.note(f"{label}: {solved}/{len(jobs)} solved")

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
