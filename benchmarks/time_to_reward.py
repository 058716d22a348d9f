"""Time to a success rate on held-out tasks, by RL here and in TRL's GRPOTrainer.

Both start from the same model, which a few demonstrations have taught the form of an answer. A task
is one turn: a prompt, a tool call, which is run in a box, and the domain's grader. The reward is
what the grader says. Same tasks in the same order, completions, learning rate, optimiser and loss
(token-mean, clipped, advantages less the mean of their group). Every few steps each side stops its
clock and answers the held-out tasks with its own sampler: what counts is the time in training
(sampling, grading, learning) until an evaluation is at the target. The last line is one JSON
object; a side that does not reach the target has no time, and then there is no ratio.

    python benchmarks/time_to_reward.py [--quick]
"""

import asyncio
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from sides import MODEL, Cost, Meter, Plan, main, rounds, use_threads

TIMES = ("wall_seconds", "cpu_seconds")
DOMAIN, LEVEL, TARGET = "sort_lines", 1, 0.7
COMPLETIONS, TOKENS = 8, 48  # answers to each task, tokens of an answer
SAME = {"learning_rate": 3e-5, "dtype": "bfloat16", "demonstrations": 16, "epochs": 2, "every": 3}
FULL = {"steps": 15, "prompts": 8, "held_out": 96, **SAME}
QUICK = {"steps": 6, "prompts": 2, "held_out": 32, **SAME}  # too little to reach the target
PEER: dict[str, Any] = {"per_device_train_batch_size": 8}


def prepare(sizes: Plan) -> Plan:
    """Choose tasks, and warm the model up on gold solutions of others."""
    use_threads()
    from practicum.engines.trainer import LocalTrainer, TrainerSettings
    from practicum.learn.aggregate import aggregated
    from practicum.learn.losses import clip
    from practicum.learn.samples import demonstration
    from practicum.models.reference import resolve
    from practicum.recipe.demonstrations import demonstrate
    from practicum.recipe.tasks import DEMONSTRATIONS, EVALUATION, spread

    used: set[str] = set()

    def choose(count: int, base: int) -> list[int]:
        tasks = spread([DOMAIN], [LEVEL], count, base=base, seed=1, avoid=used)
        used.update(task.key for task in tasks)
        return [task.seed for task in tasks]

    folder = resolve(MODEL).path
    held_out = choose(sizes["held_out"], EVALUATION)
    shown = choose(sizes["demonstrations"], DEMONSTRATIONS)
    practised = choose(sizes["prompts"] * sizes["steps"], 0)
    world = World(folder)
    playing = demonstrate(
        [single_turn(seed) for seed in shown],
        world.renderer,
        world.boxes,
        "warm-up",
        at_once=4,
        on_done=lambda _: None,
    )
    samples = [demonstration(episode) for episode in world.runner.run(playing)]
    trainer = LocalTrainer(folder, TrainerSettings())
    for _ in range(sizes["epochs"]):
        for start in range(0, len(samples), 8):
            trainer.forward_backward(aggregated(samples[start : start + 8]), clip())
            trainer.step(1e-4)
    warm = tempfile.mkdtemp()
    trainer.export(Path(warm))
    world.close()
    world.renderer.tokenizer.save_pretrained(warm)
    return sizes | {"model": warm, "held_out": held_out, "practised": practised}


def single_turn(seed: int) -> Any:
    """A task of the domain that is answered with one call of the shell."""
    import msgspec

    from practicum.core import Limits
    from practicum.domains import get_domain
    from practicum.domains.terminal import CLOSING

    task = get_domain(DOMAIN).make(seed, LEVEL)
    return msgspec.structs.replace(
        task,
        prompt=task.prompt.removesuffix(f" {CLOSING}"),
        tools=("shell",),
        limits=Limits(turns=1, tokens=TOKENS),
    )


class World:
    """What is the same for both sides: tokens of prompts, boxes, graders."""

    def __init__(self, folder: Path) -> None:
        from practicum.models.render import Renderer
        from practicum.sandbox.choose import open_boxes
        from practicum.tools import get_tool

        self.renderer = Renderer.for_folder(folder)
        self.schemas = [get_tool("shell").schema]
        self.runner = asyncio.Runner()
        self.boxes = open_boxes()

    def close(self) -> None:
        """Give all boxes back."""
        self.runner.run(self.boxes.close())
        self.runner.close()

    def prompt(self, task: Any) -> str:
        """As text, for who wants no tokens."""
        from practicum.core import Message

        ids = self.renderer.start([Message.of("user", task.prompt)], self.schemas)
        text = self.renderer.codec.decode(ids)
        if self.renderer.tokenizer(text)["input_ids"] != ids:
            raise SystemExit(f"a prompt does not survive its tokenizer: {text!r}")
        return text

    def play(self, tasks: Sequence[Any], policy: Any, key: str) -> list[Any]:
        """An episode of each task: one turn of the policy, run and graded in boxes."""
        from practicum.core import EFFECTS
        from practicum.domains import get_domain
        from practicum.rollout import Job, play_many

        jobs = [Job(task, f"{key}-{index}") for index, task in enumerate(tasks)]
        episodes = self.runner.run(play_many(jobs, get_domain, policy, self.boxes))
        if failed := [e for e in episodes if not EFFECTS[e.outcome].scored]:
            raise SystemExit(f"the comparison is void: {failed[0].outcome} {failed[0].error}")
        return episodes


def ours(plan: Plan, meter: Meter) -> None:
    """Practicum's sampler and trainer."""
    use_threads()
    from practicum.core import Group
    from practicum.engines.policy import SamplerPolicy
    from practicum.engines.sampler import LocalSampler
    from practicum.engines.trainer import LocalTrainer, TrainerSettings
    from practicum.learn.aggregate import aggregated
    from practicum.learn.losses import clip
    from practicum.learn.samples import practice

    folder = Path(plan["model"])
    world = World(folder)
    stop_ids = world.renderer.stop_ids
    trainer = LocalTrainer(folder, TrainerSettings(dtype=plan["dtype"]))
    sampler = LocalSampler(folder, stop_ids=stop_ids, dtype=plan["dtype"])
    sampler.load(trainer.publish())
    policy = SamplerPolicy("ours", sampler, world.renderer)
    held_out = [single_turn(seed) for seed in plan["held_out"]]
    practised = [single_turn(seed) for seed in plan["practised"]]

    def evaluate(step: int) -> None:
        meter.pause()
        episodes = world.play(held_out, policy, f"held-out-{step}")
        meter.end(step=step, success=sum(e.solved for e in episodes) / len(episodes))
        meter.begin()

    meter.begin()
    evaluate(0)
    for step in range(plan["steps"]):
        tasks = practised[step * plan["prompts"] : (step + 1) * plan["prompts"]]
        each = [task for task in tasks for _ in range(COMPLETIONS)]
        episodes = world.play(each, policy, f"step-{step}")
        batch = []
        for start in range(0, len(episodes), COMPLETIONS):
            group = episodes[start : start + COMPLETIONS]
            batch += practice(Group(group[0].task, group))
        if batch:  # else nothing is to be learned: every group is all solved or all failed
            trainer.forward_backward(aggregated(batch), clip())
            trainer.step(plan["learning_rate"])
            sampler.load(trainer.publish())
        if (step + 1) % plan["every"] == 0:
            evaluate(step + 1)


class Said:
    """A policy that answers with tokens that were sampled elsewhere, each episode by its key."""

    name = "peer"

    def __init__(self, world: World, answers: dict[str, list[int]]) -> None:
        self.world, self.answers = world, answers

    async def begin(self, key: str) -> None:
        """Nothing to prepare."""

    async def end(self, key: str) -> None:
        """Nothing to give back."""

    async def respond(self, messages: Any, tools: Any, *, key: str, **_: Any) -> Any:
        """The tokens as a message, as Practicum reads its own."""
        from practicum.core import Stop, Turn

        ids, renderer = self.answers[key], self.world.renderer
        stop = Stop.END if ids[-1] in renderer.stop_ids else Stop.LENGTH
        return Turn(renderer.parse(ids, stop, tools), stop)


def peer(plan: Plan, meter: Meter) -> None:
    """TRL's GRPOTrainer, whose reward function plays its completions in boxes."""
    use_threads()
    import trl
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback

    import trl_side

    world = World(Path(plan["model"]))
    solved: list[bool] = []  # of the evaluation that goes on

    def rewards(completion_ids: list[list[int]], seed: list[int], **_: Any) -> list[float | None]:
        tasks = [single_turn(each) for each in seed]
        answers = {f"peer-{index}": ids for index, ids in enumerate(completion_ids)}
        episodes = world.play(tasks, Said(world, answers), "peer")
        solved.extend(episode.solved for episode in episodes)
        return [episode.reward for episode in episodes]

    def rows(seeds: list[int]) -> Dataset:
        return Dataset.from_list(
            [{"prompt": world.prompt(single_turn(seed)), "seed": seed} for seed in seeds]
        )

    class Turns(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            meter.begin()
            meter.pause()  # an evaluation comes first

        def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            solved.clear()
            if state.global_step % plan["every"] == 0:
                meter.pause()

        def on_evaluate(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            success = sum(solved) / len(plan["held_out"])
            meter.end(step=state.global_step, success=success, version=trl.__version__)
            meter.begin()

    with tempfile.TemporaryDirectory() as folder:
        trl.GRPOTrainer(
            model=trl_side.model(plan["model"]),
            processing_class=AutoTokenizer.from_pretrained(plan["model"]),
            reward_funcs=rewards,
            train_dataset=rows(plan["practised"]),
            eval_dataset=rows(plan["held_out"]),
            callbacks=[Turns()],
            args=trl.GRPOConfig(
                **trl_side.settings(folder, plan),
                **PEER,
                gradient_accumulation_steps=(
                    plan["prompts"] * COMPLETIONS // PEER["per_device_train_batch_size"]
                ),
                num_generations=COMPLETIONS,
                max_completion_length=TOKENS,
                temperature=1.0,
                max_steps=plan["steps"],
                eval_strategy="steps",
                eval_steps=plan["every"],
                eval_on_start=True,
                per_device_eval_batch_size=16,
                num_generations_eval=1,
                loss_type="dapo",
                scale_rewards="none",
                beta=0.0,
                num_iterations=1,
                shuffle_dataset=False,
            ),
        ).train()


def compare(plan: Plan) -> dict[str, Any]:
    """Both sides, evaluation by evaluation, until both have reached the target."""
    curves: dict[str, list[Cost]] = {"ours": [], "peer": []}
    try:
        with closing(rounds(plan, tuple(curves))) as playing:
            for costs in islice(playing, 1 + plan["steps"] // plan["every"]):
                for name, curve in curves.items():
                    before = curve[-1] if curve else dict.fromkeys(TIMES, 0.0)
                    sums = {what: before[what] + costs[name][what] for what in TIMES}
                    curve.append(costs[name] | sums)
                if all(map(reached, curves.values())):
                    break
    finally:
        shutil.rmtree(plan["model"])
    ends = {name: reached(curve) for name, curve in curves.items()}
    last = {name: curve[-1] for name, curve in curves.items()}
    return {
        "name": "time_to_reward",
        "ratio_cpu_seconds": quotient(ends, "cpu_seconds"),
        "ratio_wall": quotient(ends, "wall_seconds"),
        "ratio_wall_per_step": quotient(last, "wall_seconds"),  # of as many steps
        "target": TARGET,
        "reached": {name: end and end["step"] for name, end in ends.items()},
        "curves": {
            name: [[c["step"], round(c["wall_seconds"], 1), round(c["success"], 3)] for c in curve]
            for name, curve in curves.items()
        },
        "peer": "trl.GRPOTrainer",
        "peer_version": curves["peer"][0]["version"],
    }


def reached(curve: Sequence[Cost]) -> Cost | None:
    """The first evaluation at the target or above."""
    return next((cost for cost in curve if cost["success"] >= TARGET), None)


def quotient(ends: Mapping[str, Cost | None], what: str) -> float | None:
    """What the peer spent until the target, divided by what we did; None if a side is not there."""
    peer, ours = ends["peer"], ends["ours"]
    return round(peer[what] / ours[what], 3) if peer and ours else None


if __name__ == "__main__":
    main(__doc__, (FULL, QUICK), prepare, {"ours": ours, "peer": peer}, compare)
