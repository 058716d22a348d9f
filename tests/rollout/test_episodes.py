"""What an episode does in between: order, time, boxes, the record, and what it never shows."""

import asyncio

import msgspec
import pytest
from playing import played, say
from practice_domain import TwoLines

from practicum.core import Limits, Message, Outcome, SandboxError, ToolCall, Turn
from practicum.domains import get_domain
from practicum.rollout import Job, ScriptPolicy, needs_box, play, play_many
from practicum.sandbox.contract import Boxes

SUBMIT = say("submit")


class NoBoxes:
    """A place where no box can be had."""

    async def open(self, *_: object, **__: object) -> None:
        raise SandboxError("this place has no boxes")

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("name", ["order_words", "small_sums"])
async def test_text_only_tasks_never_open_a_box(name: str) -> None:
    domain, nowhere = get_domain(name), NoBoxes()
    for level in (1, 2, 3):
        task = domain.make(5, level)
        assert not needs_box(task)
        policy = ScriptPolicy("gold", domain.solve(task))
        assert (await play(task, domain, policy, nowhere, key="k")).solved
    boxed = get_domain("sort_lines").make(1, 1)
    assert needs_box(boxed)
    policy = ScriptPolicy("gold", get_domain("sort_lines").solve(boxed))
    episode = await play(boxed, get_domain("sort_lines"), policy, nowhere, key="k")
    assert episode.outcome is Outcome.INFRA_FAILED


async def test_a_box_tool_makes_a_task_need_a_box() -> None:
    text = TwoLines(text_only=True).make(0, 1)
    assert not needs_box(text)
    assert needs_box(msgspec.structs.replace(text, tools=("submit", "shell")))
    assert needs_box(msgspec.structs.replace(text, artifacts=("out.txt",)))


@pytest.mark.parametrize("name", ["sort_lines", "csv_columns", "shell_script", "word_counts"])
async def test_gold_is_nowhere_in_the_agents_box(boxes, name: str) -> None:
    """Everything that the agent can reach and write is shown; the truth must not be in it."""
    domain = get_domain(name)
    task = domain.make(31, 2)
    wide = msgspec.structs.replace(
        task, limits=msgspec.structs.replace(task.limits, observation_chars=1 << 20)
    )
    look = say(
        "shell",
        command="env; find /workspace /tmp /dev/shm /home /root -type f "
        "-printf '%p\\n' -exec cat {} + 2>/dev/null",
    )
    episode = await play(wide, domain, ScriptPolicy("spy", [look, SUBMIT]), boxes, key="k")
    seen = episode.events[0].observation
    source = next(file for file in task.files if file.kind == "file")
    assert source.data.decode() in seen  # so the look does show what is there
    for step in task.truth["gold"]:
        assert step not in seen
    assert task.key not in seen
    if "expected" in task.truth:
        assert task.truth["expected"] not in seen


async def test_reads_of_one_turn_run_together(boxes) -> None:
    reads = Message.of("assistant", "", *[ToolCall("read_file", {"path": "in.txt"})] * 3)
    boxes.watched = True
    episode = await played(boxes, reads, SUBMIT)
    assert boxes.most_inside == 3
    assert [e.observation for e in episode.events[:3]] == ["two\none\n"] * 3


async def test_other_calls_of_one_turn_run_in_their_order(boxes) -> None:
    lines = [ToolCall("shell", {"command": f"sleep {0.2 / n}; echo {n} >> log"}) for n in (1, 2, 3)]
    read = ToolCall("read_file", {"path": "log"})
    boxes.watched = True
    episode = await played(boxes, Message.of("assistant", "", *lines, read, lines[0], read), SUBMIT)
    assert boxes.most_inside == 1
    assert [r.text for r in episode.turns[0].results[3:6:2]] == ["1\n2\n3\n", "1\n2\n3\n1\n"]


async def test_one_bad_call_does_not_stop_its_neighbours(boxes) -> None:
    message = Message.of(
        "assistant",
        "",
        ToolCall("shell", {"command": "echo a"}),
        ToolCall("shell", {}, error="the call was cut off"),
        ToolCall("fly", {}),
        ToolCall("shell", {"commnad": "echo b"}),
        ToolCall("shell", {"command": "echo c"}),
    )
    episode = await played(boxes, message, SUBMIT)
    texts = [r.text for r in episode.turns[0].results]
    assert (texts[0], texts[1], texts[4]) == ("a", "the call was cut off", "c")
    assert "no tool 'fly'" in texts[2]
    assert "missing argument 'command'" in texts[3]
    kinds = [(e.kind, e.ok) for e in episode.events[:5]]
    invalid = ("invalid", False)
    assert kinds == [("call", True), invalid, invalid, ("call", False), ("call", True)]


async def test_a_call_with_an_error_is_never_run(boxes) -> None:
    """The arguments are there, and must not be used."""
    cut = ToolCall("shell", {"command": "touch out.txt"}, error="the call was cut off")
    look = say("list_files")
    episode = await played(boxes, Message.of("assistant", "", cut), look, SUBMIT)
    assert episode.events[1].observation == "in.txt"


async def test_the_task_record_is_shown_back_until_it_is_changed(boxes) -> None:
    note = say("task_state", goal="sort it", pending=["look", "write"])
    ls = say("shell", command="ls")
    change = say("task_state", done=["look"])
    domain = TwoLines(limits=Limits(turns=9))
    episode = await played(boxes, ls, note, ls, change, ls, SUBMIT, domain=domain)
    shown = [turn.results[-1].text for turn in episode.turns]
    assert shown[0] == "in.txt"
    assert shown[1].count("Goal: sort it") == 1
    assert shown[2].startswith("in.txt\n\nGoal: sort it")
    assert "Pending: look; write" in shown[2]
    assert "Done: look" in shown[4]
    assert "Goal: sort it" in shown[4]
    assert "Pending: -" in shown[4]


async def test_a_turn_without_a_call_gets_advice_as_a_user(boxes) -> None:
    episode = await played(boxes, Message.of("assistant", "Hello."), SUBMIT)
    (advice,) = episode.turns[0].results
    assert advice.role == "user"
    assert "shell" in advice.text
    assert "submit" in advice.text


async def test_the_box_is_gone_before_grading(boxes) -> None:
    alive = []

    class Watching(TwoLines):
        async def grade(self, task, submission, boxes):
            alive.append(len(boxes.alive))
            return await super().grade(task, submission, boxes)

    await played(boxes, say("shell", command="sleep 100 & true"), SUBMIT, domain=Watching())
    assert alive == [0]


async def test_a_cancelled_episode_leaves_no_box(boxes) -> None:
    task = asyncio.create_task(played(boxes, say("shell", command="sleep 30")))
    await asyncio.sleep(1.0)
    assert boxes.alive
    task.cancel()
    with pytest.raises((asyncio.CancelledError, BaseExceptionGroup)):
        await task
    assert not boxes.alive


async def test_episodes_come_back_in_the_order_of_their_jobs(boxes) -> None:
    domain = TwoLines()
    jobs = [Job(domain.make(seed, 1), f"key-{seed}") for seed in range(4)]
    done: list[str] = []

    class Slow(ScriptPolicy):
        async def respond(self, messages, tools, *, history=(), key="", max_tokens=256) -> Turn:
            seconds = 0.1 * (4 - int(key[-1]))
            return Turn(SUBMIT if history else say("shell", command=f"sleep {seconds}"))

    episodes = await play_many(
        jobs,
        lambda _: domain,
        Slow("slow", []),
        boxes,
        on_done=lambda e: done.append(e.id),
    )
    assert [e.id for e in episodes] == [job.key for job in jobs]
    assert sorted(done) == [job.key for job in jobs]
    assert done != [job.key for job in jobs]


async def test_two_jobs_of_one_key_are_refused() -> None:
    domain = TwoLines()
    jobs = [Job(domain.make(seed, 1), "same") for seed in (1, 2)]
    nowhere: Boxes = NoBoxes()  # type: ignore[assignment]
    with pytest.raises(ValueError, match="same key"):
        await play_many(jobs, lambda _: domain, ScriptPolicy("s", []), nowhere)


async def test_playing_twice_gives_the_same_fingerprint(boxes) -> None:
    steps = (say("shell", command="sort in.txt > out.txt; cat out.txt"), SUBMIT)
    one, other = await played(boxes, *steps), await played(boxes, *steps)
    different = await played(boxes, say("shell", command="cat in.txt"), SUBMIT)
    assert one.fingerprint == other.fingerprint != different.fingerprint
