"""Ways that part at a turn share what came before it, and nothing after."""

from collections.abc import AsyncIterator

import pytest
from playing import say
from practice_domain import TwoLines

from practicum.core import Limits, Message, Outcome, SandboxError, Turn
from practicum.rollout import Job, branch
from practicum.sandbox import BACKENDS, Boxes
from practicum.sandbox.local import LocalBoxes
from practicum.sandbox.native import PROGRAM

SUBMIT = say("submit")
BEGIN = (
    say("shell", command="mkdir d; cd d; head -n 1 ../in.txt > ../out.txt; echo x > /tmp/t"),
    say("task_state", goal="sort", done=["one line"]),
)


@pytest.fixture(params=list(BACKENDS))
async def boxes(request: pytest.FixtureRequest) -> AsyncIterator[LocalBoxes]:
    if request.param == "native" and not PROGRAM.exists():
        pytest.skip("the native box was not built here")
    made = BACKENDS[request.param](max_running=4)
    yield made
    left = set(made._open)
    await made.close()
    assert not left


class Parting:
    """A policy with one beginning and, by the last word of the key, different ends."""

    name = "parting"

    def __init__(self, *ends: tuple[Message, ...]) -> None:
        self.ends = ends
        self.begun: list[str] = []
        self.ended: list[str] = []

    async def begin(self, key: str) -> None:
        self.begun.append(key)

    async def end(self, key: str) -> None:
        self.ended.append(key)

    async def respond(self, messages, tools, *, history=(), key="", max_tokens=256) -> Turn:
        way = self.ends[int(key.partition("/")[2])] if "/" in key else ()
        said = (*BEGIN, *way)
        return Turn(said[len(history)] if len(history) < len(said) else SUBMIT)


def domain() -> TwoLines:
    return TwoLines(limits=Limits(turns=5))


async def test_each_way_goes_on_from_the_same_files_folder_and_record(boxes: Boxes) -> None:
    policy = Parting(
        (say("shell", command="pwd; cat /tmp/t; echo one >> ../out.txt"), SUBMIT),
        (say("shell", command="rm ../out.txt; ls .."), SUBMIT),
        (SUBMIT,),
    )
    task = domain().make(0, 1)
    ways = await branch(Job(task, "k"), domain(), policy, boxes, after=2, count=3)
    assert [way.id for way in ways] == ["k/0", "k/1", "k/2"]
    assert [way.score.value for way in ways if way.score] == [1.0, 0.0, 0.5]
    assert all(way.outcome is Outcome.COMPLETED for way in ways)
    assert all(way.turns[:2] == ways[0].turns[:2] for way in ways)
    first = ways[0].turns[2].results[0].text
    assert "/workspace/d" in first
    assert "x" in first
    assert "one line" in first  # the task state is shown again
    assert [len(way.events) for way in ways] == [4, 4, 3]
    assert policy.begun == ["k", "k/0", "k/1", "k/2"]
    assert sorted(policy.ended) == sorted(policy.begun)


async def test_what_ends_before_the_parting_is_one_episode(boxes: Boxes) -> None:
    class Short(Parting):
        async def respond(self, messages, tools, *, history=(), key="", max_tokens=256) -> Turn:
            return Turn(BEGIN[0] if not history else SUBMIT)

    for after in (2, 3):
        (episode,) = await branch(
            Job(domain().make(0, 1), "k"), domain(), Short(), boxes, after=after, count=3
        )
        assert (episode.id, episode.outcome) == ("k", Outcome.COMPLETED)
        assert episode.score is not None
        assert episode.score.value == 0.5


async def test_a_text_only_task_parts_without_a_box(boxes: Boxes) -> None:
    task = TwoLines(text_only=True, limits=Limits(turns=4)).make(0, 1)

    class Texts(Parting):
        async def respond(self, messages, tools, *, history=(), key="", max_tokens=256) -> Turn:
            return Turn(say("task_state", goal=key) if len(history) < 2 else SUBMIT)

    ways = await branch(Job(task, "k"), TwoLines(text_only=True), Texts(), boxes, after=1, count=2)
    goals = [way.turns[1].message.calls[0].arguments["goal"] for way in ways]
    assert goals == ["k/0", "k/1"]
    assert [way.turns[0].message.calls[0].arguments["goal"] for way in ways] == ["k", "k"]


async def test_a_box_that_fails_is_our_failure(
    boxes: LocalBoxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise SandboxError("the host is full")

    monkeypatch.setattr("practicum.sandbox.local.LocalBox.fork", full)
    (episode,) = await branch(
        Job(domain().make(0, 1), "k"), domain(), Parting((SUBMIT,)), boxes, after=1, count=1
    )
    assert episode.outcome is Outcome.INFRA_FAILED
    assert "full" in episode.error


@pytest.mark.parametrize(("after", "count"), [(0, 1), (5, 1), (2, 0)])
async def test_a_parting_that_cannot_be_is_refused(boxes: Boxes, after: int, count: int) -> None:
    with pytest.raises(ValueError, match="after must be 1 to 4"):
        await branch(
            Job(domain().make(0, 1), "k"), domain(), Parting(), boxes, after=after, count=count
        )
