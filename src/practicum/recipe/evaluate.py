"""How a recipe's held-out tasks are played: in a run after each stage, and on their own.

With the same recipe they are the same tasks with the same noise, so that episodes of two models
pair, whichever way they were made.
"""

import asyncio
import os
from pathlib import Path

import torch

from practicum.core import Episode, RecipeError, Task
from practicum.domains import get_domain
from practicum.engines.policy import SamplerPolicy
from practicum.engines.rope import position_limit
from practicum.engines.sampler import LocalSampler
from practicum.engines.trainer import read_weights
from practicum.learn.stage import Progress
from practicum.models.render import Renderer
from practicum.recipe.settings import Recipe
from practicum.recipe.tasks import EVALUATION, spread
from practicum.rollout import Job, Keep, play_many
from practicum.sandbox.choose import open_boxes
from practicum.sandbox.contract import Boxes


def evaluate(
    recipe: Recipe, folder: Path, progress: Progress, *, name: str, boxes: Boxes | None = None
) -> list[Episode]:
    """The episodes of the model in `folder` on the held-out tasks of `recipe`, in their order.

    `name` is what progress is told under.
    """
    set_up_torch(recipe)
    renderer = Renderer.for_folder(folder)
    sampler = make_sampler(recipe, folder, renderer)
    sampler.load(read_weights(folder))
    policy = make_policy(recipe, sampler, renderer, name, recipe.evaluation.temperature)
    with asyncio.Runner() as runner:
        made = boxes or open_boxes(**recipe.boxes.model_dump())
        try:
            return play_held_out(recipe, held_out_tasks(recipe), policy, made, runner, progress)
        finally:
            if boxes is None:
                runner.run(made.close())


def set_up_torch(recipe: Recipe) -> None:
    """Threads as the recipe says; denormal numbers count as zero (they slow Adam down 30-fold)."""
    torch.set_flush_denormal(True)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes that torchrun started
    torch.set_num_threads(recipe.threads or max(1, (os.cpu_count() or 1) // here))


def device_of(name: str) -> str:
    """A torch device name; "auto" is the GPU where there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def make_sampler(recipe: Recipe, folder: Path, renderer: Renderer) -> LocalSampler:
    """A sampler for models of the kind in `folder`, without weights yet."""
    return LocalSampler(
        folder,
        stop_ids=renderer.stop_ids,
        dtype=recipe.sampler.dtype,
        device=device_of(recipe.device),
        max_rows=recipe.sampler.max_rows,
        speculate=recipe.sampler.speculate,
        rope=recipe.rope,
    )


def make_policy(
    recipe: Recipe, sampler: LocalSampler, renderer: Renderer, name: str, temperature: float
) -> SamplerPolicy:
    """A policy over `sampler` with the recipe's seed.

    Raises RecipeError for a window that is longer than the model.
    """
    limit = position_limit(sampler.model.config)
    window = recipe.sampler.window or limit
    if window > limit:
        raise RecipeError(
            f"sampler.window is {window} tokens, but the model has {limit} positions: make it "
            "smaller, or let [rope] scale the model's positions"
        )
    return SamplerPolicy(
        name, sampler, renderer, temperature=temperature, seed=recipe.seed, window=window
    )


def held_out_tasks(recipe: Recipe) -> list[Task]:
    """The tasks that every evaluation plays, and that nothing is trained on."""
    domains = recipe.domains
    return spread(
        [*domains.train, *domains.held_out],
        domains.levels,
        recipe.evaluation.tasks,
        base=EVALUATION,
        seed=recipe.seed,
    )


def play_held_out(
    recipe: Recipe,
    tasks: list[Task],
    policy: SamplerPolicy,
    boxes: Boxes,
    runner: asyncio.Runner,
    progress: Progress,
    keep: Keep | None = None,
) -> list[Episode]:
    """Play the tasks, telling how many are done and solved."""
    repeats = range(recipe.evaluation.repeats)
    jobs = [Job(task, f"eval-{task.key}-{index}") for task in tasks for index in repeats]
    label = f"evaluate {policy.name}"
    progress.stage(label, len(jobs))
    count = solved = 0

    def done(episode: Episode) -> None:
        nonlocal count, solved
        count, solved = count + 1, solved + episode.solved
        progress.step(label, count, {"success": solved / count})

    return runner.run(play_many(jobs, get_domain, policy, boxes, on_done=done, keep=keep))
