"""A run: base -> evaluation -> stage -> evaluation -> ... -> summary, resumable anywhere.

Every stage reads the model folder that the last policy stage wrote (the first: the base model), or
another one by name, trains, and writes its own. What is done is in the run folder; `--resume` does
only what is not.
"""

import asyncio
import gc
import time
from pathlib import Path

from practicum.core import RecipeError, content_hash
from practicum.domains import get_domain
from practicum.engines.trainer import read_weights
from practicum.engines.workers import Workers
from practicum.evaluate.audit import is_audited
from practicum.evaluate.summary import build_summary
from practicum.learn.reward_model import RewardModelSettings
from practicum.learn.stage import Progress
from practicum.models.reference import ModelFolder, resolve
from practicum.models.render import Renderer
from practicum.recipe.evaluate import (
    device_of,
    held_out_tasks,
    make_sampler,
    play_held_out,
    set_up_torch,
)
from practicum.recipe.player import Player
from practicum.recipe.settings import Recipe
from practicum.recipe.stages import Stages
from practicum.sandbox.choose import open_boxes
from practicum.sandbox.contract import Boxes
from practicum.store import Run


def train(
    recipe: Recipe,
    run: Run,
    progress: Progress,
    *,
    boxes: Boxes | None = None,
    workers: Workers | None = None,
) -> dict[str, object]:
    """Run all that is not done yet; returns the summary, which is also in the run folder.

    `workers` are the processes of a recipe with [parallel], of which this one leads.
    """
    _refuse_unaudited(recipe)
    set_up_torch(recipe)
    with asyncio.Runner() as runner:
        made = boxes or open_boxes(**recipe.boxes.model_dump())
        try:
            return _Run(recipe, run, progress, made, runner, workers).go()
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
        self,
        recipe: Recipe,
        run: Run,
        progress: Progress,
        boxes: Boxes,
        runner: asyncio.Runner,
        workers: Workers | None,
    ) -> None:
        self.recipe, self.run, self.progress = recipe, run, progress
        self.boxes, self.runner, self.workers = boxes, runner, workers

    def go(self) -> dict[str, object]:
        """Everything, in order."""
        recipe, domains = self.recipe, self.recipe.domains
        started = time.time()
        base = resolve(recipe.model)
        self.progress.note(f"base model: {base.description}")
        self.run.log("start", model=base.description, seed=recipe.seed)
        self.run.log("domains", trained=domains.train, held_out=domains.held_out)
        renderer = Renderer.for_folder(base.path)
        self.player = Player(
            recipe,
            self.run,
            self.progress,
            self.boxes,
            self.runner,
            renderer,
            make_sampler(recipe, base.path, renderer),
            held_out_tasks(recipe),
        )
        stages = Stages(self.player, device_of(recipe.device), self.workers)
        self._evaluate("base", base.path)
        made_by = {"base": base.path}
        folder = base.path
        for settings in recipe.stages:
            made = stages.train(settings, made_by[settings.start] if settings.start else folder)
            made_by[settings.name] = made
            gc.collect()  # the stage's trainer, before the next one is made
            if not isinstance(settings, RewardModelSettings):
                folder = made
                self._evaluate(settings.name, folder)
        return self._finish(base, time.time() - started)

    def _evaluate(self, name: str, folder: Path) -> None:
        """Play the held-out tasks with the model in `folder`, unless that is done."""
        if name in self.run.evals():
            return
        player = self.player
        player.sampler.load(read_weights(folder))
        policy = player.policy(name, self.recipe.evaluation.temperature)
        episodes = play_held_out(
            self.recipe,
            player.held_out,
            policy,
            self.boxes,
            self.runner,
            self.progress,
            player.keep,
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
