"""Sampled episodes: batches follow from what was said, and what is said is read with care."""

import asyncio
import random
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from practicum.core import (
    EngineError,
    Episode,
    File,
    Limits,
    Message,
    Outcome,
    Sample,
    Score,
    ScorePart,
    Stop,
    Submission,
    Task,
    ToolCall,
    Turn,
)
from practicum.domains.domain import Domain, Script
from practicum.domains.terminal import script
from practicum.engines.contract import Completion, Follow, Prompt
from practicum.engines.policy import SamplerPolicy, records
from practicum.engines.sampler import LocalSampler
from practicum.engines.trainer import LocalTrainer, TrainerSettings, read_weights
from practicum.learn.aggregate import aggregated
from practicum.learn.losses import clip
from practicum.models.render import Renderer
from practicum.rollout import Job, play, play_many
from practicum.sandbox.bubblewrap import BubblewrapBoxes
from practicum.tools import get_tool

COMMANDS = ("ls", "cat a.txt", "echo 1 > b.txt", "wc -l a.txt")
LIMITS = Limits(turns=3, tokens=90)


class Look(Domain):
    """Anything may be done; the score is whether b.txt is there."""

    name = "look"
    family = "test"

    def make(self, seed: int, level: int) -> Task:
        return Task(
            self.name,
            seed,
            level,
            "Look at the file.",
            tools=("shell", "submit"),
            files=(File("a.txt", f"{seed}\n".encode()),),
            artifacts=("b.txt",),
            limits=LIMITS,
        )

    async def grade(self, task: Task, submission: Submission, boxes: Any) -> Score:
        return Score.of(ScorePart("there", float("b.txt" in submission.artifacts)))

    def solve(self, task: Task) -> Script:
        return script("echo 1 > b.txt")


def demonstrations(renderer: Renderer) -> list[Sample]:
    """Each command, then another one, as the model would say them."""
    from practicum.learn.samples import demonstration

    task = Look().make(0, 1)
    schemas = [get_tool(name).schema for name in task.tools]
    prompt = (Message.of("user", task.prompt),)
    samples = []
    for i, command in enumerate(COMMANDS):
        turns = [
            Turn(
                Message.of("assistant", "", ToolCall("shell", {"command": said})),
                results=(Message.of("tool", "(no output)", name="shell"),),
            )
            for said in (command, COMMANDS[i - 1])
        ]
        turns.append(Turn(Message.of("assistant", "", ToolCall("submit"))))
        told = tuple(records(turns, prompt, schemas, renderer))
        samples.append(
            demonstration(
                Episode(str(i), task.key, "look", 1, "gold", prompt, told, (), Outcome.COMPLETED)
            )
        )
    return samples


@pytest.fixture(scope="module")
def taught(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model after a few steps on calls: it calls often, and badly now and then."""
    torch.set_flush_denormal(True)
    renderer = Renderer.for_folder(tiny)
    trainer = LocalTrainer(tiny, TrainerSettings(dtype="float32"))
    samples = demonstrations(renderer)
    for step in range(40):
        trainer.forward_backward(aggregated(samples), clip())
        trainer.step(0.01 * min(1.0, (step + 1) / 5))
    folder = tmp_path_factory.mktemp("taught") / "model"
    trainer.export(folder)
    renderer.tokenizer.save_pretrained(folder)
    return folder


class Noted(LocalSampler):
    """Keeps what each row asked, run by run."""

    def sample(
        self, prompts: Sequence[Prompt], *, follow: Follow | None = None, **rest: Any
    ) -> list[Completion]:
        asked = [[prompt] for prompt in prompts]
        self.__dict__.setdefault("asked", []).append(asked)
        assert follow is not None

        def noted(row: int, said: Completion) -> Future[Prompt | None]:
            future = follow(row, said)
            future.add_done_callback(
                lambda done: done.result() and asked[row].append(done.result())
            )
            return future

        return super().sample(prompts, follow=noted, **rest)


def policy_of(folder: Path, **rest: Any) -> SamplerPolicy:
    renderer = Renderer.for_folder(folder)
    sampler = Noted(folder, stop_ids=renderer.stop_ids, dtype="float32")
    sampler.load(read_weights(folder))
    return SamplerPolicy("taught", sampler, renderer, **rest)


async def practised(folder: Path, seed: int | None) -> tuple[list[Episode], list[list[Prompt]]]:
    """Six episodes of two tasks, in boxes with delays of this seed."""
    rng = random.Random(seed)

    async def delay() -> None:
        await asyncio.sleep(rng.choice((0, 0, 0.03, 0.1)))

    boxes = BubblewrapBoxes(max_running=2, delay=None if seed is None else delay)
    policy, domain = policy_of(folder, seed=5), Look()
    jobs = [Job(domain.make(s, 1), f"job-{s}-{i}") for s in (1, 2) for i in range(3)]
    episodes = await play_many(jobs, lambda _: domain, policy, boxes)
    await boxes.close()
    (asked,) = policy.sampler.asked  # type: ignore[attr-defined]
    return episodes, asked


async def test_episodes_follow_from_what_was_said_not_from_how_fast_boxes_are(taught: Path) -> None:
    plain, asked = await practised(taught, None)
    ran = [e for episode in plain for e in episode.events if e.exit_code is not None]
    assert len(ran) >= 4  # the episodes do depend on boxes
    episodes, other = await practised(taught, 1)
    assert [e.fingerprint for e in episodes] == [e.fingerprint for e in plain]
    assert other == asked


async def test_an_episode_is_one_sequence_of_the_tokens_that_were_sampled(taught: Path) -> None:
    episodes, asked = await practised(taught, None)
    for episode, prompts in zip(episodes, asked, strict=True):
        said: list[int] = []
        for turn in episode.turns:
            record = turn.record
            assert record is not None
            said += record.context
            assert prompts.pop(0).ids == tuple(said)
            said += record.ids
            assert len(record.logprobs) == len(record.ids)
        assert episode.sampled_tokens <= LIMITS.tokens
        if episode.sampled_tokens == LIMITS.tokens and episode.outcome is Outcome.TRUNCATED:
            assert "tokens" in episode.error or "turns" in episode.error


async def test_used_up_tokens_truncate(tiny: Path) -> None:
    """The untaught model never ends its turn: the first one takes all the tokens there are."""
    boxes = BubblewrapBoxes(max_running=2)
    episode = await play(Look().make(1, 1), Look(), policy_of(tiny), boxes, key="k")
    await boxes.close()
    assert (episode.outcome, episode.reward) == (Outcome.TRUNCATED, 0.0)
    assert episode.sampled_tokens == LIMITS.tokens
    assert episode.error == f"all {LIMITS.tokens} tokens used"


@pytest.mark.parametrize("room", [0, 7])
async def test_a_full_window_truncates(taught: Path, room: int) -> None:
    task = Look().make(1, 1)
    policy = policy_of(taught)
    schemas = [get_tool(name).schema for name in task.tools]
    prompt = policy.renderer.start([Message.of("user", task.prompt)], schemas)
    policy.window = len(prompt) + room
    boxes = BubblewrapBoxes(max_running=2)
    episode = await play(task, Look(), policy, boxes, key="k")
    await boxes.close()
    assert episode.outcome is Outcome.TRUNCATED
    assert "window" in episode.error
    assert episode.sampled_tokens <= room
    assert len(episode.turns) == (1 if room else 0)


async def test_what_the_sampler_cannot_do_reaches_every_episode_that_waits(tiny: Path) -> None:
    renderer = Renderer.for_folder(tiny)
    policy = SamplerPolicy("empty", LocalSampler(tiny, stop_ids=renderer.stop_ids), renderer)
    for key in "ab":
        await policy.begin(key)
    asking = [policy.respond([Message.of("user", "Hi")], [], key=key) for key in "ab"]
    found = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), 20)
    assert [type(error) for error in found] == [EngineError, EngineError]


async def test_a_batch_waits_for_all_that_began_and_for_none_that_ended(tiny: Path) -> None:
    policy = policy_of(tiny)
    for key in "abc":
        await policy.begin(key)
    hi = [Message.of("user", "Hi")]
    asking = [asyncio.create_task(policy.respond(hi, [], key=key, max_tokens=2)) for key in "ca"]
    await asyncio.sleep(0.2)
    assert not any(task.done() for task in asking)
    await policy.end("b")
    await asyncio.wait_for(asyncio.gather(*asking), 20)
    (rows,) = policy.sampler.asked  # type: ignore[attr-defined]
    began = [prompts[0].noise.split("|")[1] for prompts in rows]
    assert began == ["a", "c"]  # in the order in which they began


class Recited:
    """A sampler that says given texts, token by token as a model would."""

    digest = "recited"

    def __init__(self, renderer: Renderer, *texts: str, cut: bool = False) -> None:
        self.renderer, self.texts, self.cut = renderer, list(texts), cut

    def sample(self, prompts: Sequence[Prompt], *, temperature=1.0, follow=None):
        while True:
            said = self.say()
            if follow(0, said).result(timeout=20) is None:
                return [said]

    def say(self) -> Completion:
        ids = self.renderer.codec.tokenizer.encode(self.texts.pop(0), add_special_tokens=False)
        stop = Stop.LENGTH if self.cut else Stop.END
        ids += [] if self.cut else [self.renderer.end_id]
        return Completion(tuple(ids), (0.0,) * len(ids), stop, self.digest)

    def load(self, weights: Any) -> None: ...
    def stop(self) -> None: ...


TOUCH = "<tool_call>shell\n<command>touch {}</command>\n</tool_call>"
END = "<tool_call>submit\n</tool_call>"


async def recited(tiny: Path, *texts: str, cut: bool = False) -> Episode:
    renderer = Renderer.for_folder(tiny)
    policy = SamplerPolicy("recited", Recited(renderer, *texts, cut=cut), renderer)
    boxes = BubblewrapBoxes(max_running=2)
    task = Look().make(1, 1)
    episode = await play(task, Look(), policy, boxes, key="k")
    await boxes.close()
    return episode


async def test_a_call_inside_reasoning_is_not_run(tiny: Path) -> None:
    episode = await recited(tiny, f"<think>I could {TOUCH.format('b.txt')}</think>\n{END}")
    assert [e.tool for e in episode.events] == ["submit"]
    assert (episode.outcome, episode.reward) == (Outcome.COMPLETED, 0.0)
    open_ended = await recited(tiny, f"<think>hm {TOUCH.format('b.txt')}", END)
    assert [e.kind for e in open_ended.events] == ["invalid", "call"]
    assert open_ended.reward == 0.0


async def test_two_calls_in_one_turn_are_both_run(tiny: Path) -> None:
    episode = await recited(tiny, TOUCH.format("c.txt") + "\n" + TOUCH.format("b.txt"), END)
    assert [(e.turn, e.tool) for e in episode.events] == [(0, "shell"), (0, "shell"), (1, "submit")]
    assert len(episode.turns[0].results) == 2
    assert episode.reward == 1.0


async def test_a_call_that_was_cut_off_is_not_run(tiny: Path) -> None:
    whole = TOUCH.format("b.txt")
    for end in (whole[: whole.index("</command>")], whole[: whole.index("\n</tool_call>")]):
        episode = await recited(tiny, end, end, end, cut=True)
        assert [e.kind for e in episode.events] == ["invalid"] * 3
        assert "cut off by the token limit" in episode.events[0].observation
        assert (episode.outcome, episode.reward) == (Outcome.MALFORMED, 0.0)
