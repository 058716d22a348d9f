"""Evaluation on its own: a model plays a recipe's held-out tasks exactly as a run of it would."""

import asyncio
import os
from pathlib import Path

import torch

from practicum.core import Episode
from practicum.domains import get_domain
from practicum.engines.policy import SamplerPolicy
from practicum.engines.sampler import LocalSampler
from practicum.engines.trainer import read_weights
from practicum.learn.stage import Progress
from practicum.models.render import Renderer
from practicum.recipe.run import EVALUATION_CHUNK, device_of
from practicum.recipe.settings import Recipe
from practicum.recipe.tasks import EVALUATION, spread
from practicum.rollout import Job, play_many
from practicum.sandbox.bubblewrap import BubblewrapBoxes
from practicum.sandbox.contract import Boxes


def evaluate(
    recipe: Recipe, folder: Path, progress: Progress, *, name: str, boxes: Boxes | None = None
) -> list[Episode]:
    """The episodes of the model in `folder` on the held-out tasks of `recipe`, in their order.

    With the same recipe they are the same tasks and the same noise as in a run, so that episodes
    of two models pair. `name` is what progress is told under.
    """
    torch.set_flush_denormal(True)
    torch.set_num_threads(recipe.threads or os.cpu_count() or 1)
    domains, settings = recipe.domains, recipe.evaluation
    tasks = spread(
        [*domains.train, *domains.held_out],
        domains.levels,
        settings.tasks,
        base=EVALUATION,
        seed=recipe.seed,
    )
    jobs = [Job(t, f"eval-{t.key}-{index}") for t in tasks for index in range(settings.repeats)]
    policy = _policy(recipe, folder, name)
    progress.stage(f"evaluate {name}", len(jobs))
    with asyncio.Runner() as runner:
        made = boxes or BubblewrapBoxes(max_running=recipe.boxes.max_running)
        try:
            return _play(jobs, policy, made, runner, progress, f"evaluate {name}")
        finally:
            if boxes is None:
                runner.run(made.close())


def _policy(recipe: Recipe, folder: Path, name: str) -> SamplerPolicy:
    """The model in `folder`, sampling as the recipe says."""
    renderer = Renderer.for_folder(folder)
    sampler = LocalSampler(
        folder,
        stop_ids=renderer.stop_ids,
        dtype=recipe.sampler.dtype,
        device=device_of(recipe.device),
        max_rows=recipe.sampler.max_rows,
    )
    sampler.load(read_weights(folder))
    return SamplerPolicy(
        name,
        sampler,
        renderer,
        temperature=recipe.evaluation.temperature,
        seed=recipe.seed,
        window=sampler.model.config.get_text_config().max_position_embeddings,
    )


def _play(
    jobs: list[Job],
    policy: SamplerPolicy,
    boxes: Boxes,
    runner: asyncio.Runner,
    progress: Progress,
    label: str,
) -> list[Episode]:
    """Play the jobs in chunks, telling how many are done and solved."""
    episodes: list[Episode] = []
    count = solved = 0

    def done(episode: Episode) -> None:
        nonlocal count, solved
        count, solved = count + 1, solved + episode.solved
        progress.step(label, count, {"success": solved / count})

    for lo in range(0, len(jobs), EVALUATION_CHUNK):
        chunk = jobs[lo : lo + EVALUATION_CHUNK]
        episodes += runner.run(play_many(chunk, get_domain, policy, boxes, on_done=done))
    return episodes
