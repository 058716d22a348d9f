"""Every row of the outcome table, reached by episodes in real boxes."""

from collections.abc import Sequence

import pytest
from playing import played, say
from practice_domain import TwoLines, share

from practicum.core import (
    EngineError,
    GraderError,
    Limits,
    Message,
    Outcome,
    Score,
    ScorePart,
    Submission,
    ToolCall,
    Turn,
)
from practicum.engines.contract import ContextFull
from practicum.rollout import ScriptPolicy
from practicum.rollout.grade import ATTEMPTS as GRADINGS
from practicum.rollout.play import ATTEMPTS as PLAYS

WRITE_ONE = say("shell", command="echo one > out.txt")
SOLVE = say("shell", command="sort in.txt > out.txt")
SUBMIT = say("submit")


async def test_submitting_completes(boxes) -> None:
    episode = await played(boxes, SOLVE, SUBMIT)
    assert (episode.outcome, episode.reward, episode.solved) == (Outcome.COMPLETED, 1.0, True)
    assert (episode.attempts, episode.error) == (1, "")
    assert [(e.turn, e.tool, e.ok) for e in episode.events] == [
        (0, "shell", True),
        (1, "submit", True),
    ]


async def test_what_comes_after_the_submission_is_not_run(boxes) -> None:
    both = Message.of(
        "assistant", "", ToolCall("submit"), ToolCall("shell", {"command": "echo one > out.txt"})
    )
    episode = await played(boxes, both)
    assert (episode.outcome, episode.reward) == (Outcome.COMPLETED, 0.0)
    assert [e.tool for e in episode.events] == ["submit"]


async def test_used_up_turns_truncate_and_keep_partial_credit(boxes) -> None:
    episode = await played(boxes, WRITE_ONE, *[say("shell", command="true")] * 9)
    assert (episode.outcome, episode.reward) == (Outcome.TRUNCATED, 0.5)
    assert len(episode.turns) == Limits().turns
    assert "turns" in episode.error


async def test_used_up_seconds_truncate(boxes) -> None:
    domain = TwoLines(limits=Limits(seconds=0.4, turns=5))
    slow = say("shell", command="echo one > out.txt; sleep 0.6")
    episode = await played(boxes, slow, SOLVE, SUBMIT, domain=domain)
    assert (episode.outcome, episode.reward) == (Outcome.TRUNCATED, 0.5)
    assert len(episode.turns) == 1
    assert "seconds" in episode.error


async def test_a_full_context_truncates(boxes) -> None:
    class Full(ScriptPolicy):
        async def respond(self, messages, tools, *, history=(), key="", max_tokens=256) -> Turn:
            if history:
                raise ContextFull("no room")
            return await super().respond(messages, tools, history=history)

    episode = await played(boxes, policy=Full("full", [WRITE_ONE]))
    assert (episode.outcome, episode.reward, episode.error) == (Outcome.TRUNCATED, 0.5, "no room")


@pytest.mark.parametrize(
    "bad",
    [
        Message.of("assistant", "I would rather talk."),
        Message.of("assistant", "", ToolCall("shell", {}, error="not valid")),
        say("no_such_tool"),
    ],
)
async def test_three_turns_in_a_row_without_a_usable_call_are_malformed(boxes, bad) -> None:
    domain = TwoLines(limits=Limits(turns=9))
    episode = await played(boxes, WRITE_ONE, bad, bad, bad, SOLVE, domain=domain)
    assert (episode.outcome, episode.reward) == (Outcome.MALFORMED, 0.5)
    assert [e.kind for e in episode.events] == ["call", "invalid", "invalid", "invalid"]
    assert all(turn.results for turn in episode.turns)


async def test_a_usable_call_in_between_is_a_new_start(boxes) -> None:
    talk = Message.of("assistant", "Hm.")
    domain = TwoLines(limits=Limits(turns=9))
    episode = await played(boxes, talk, talk, SOLVE, talk, talk, SUBMIT, domain=domain)
    assert (episode.outcome, episode.reward) == (Outcome.COMPLETED, 1.0)


async def test_a_box_that_cannot_be_had_is_tried_again(boxes) -> None:
    boxes.failures = PLAYS - 1
    episode = await played(boxes, SOLVE, SUBMIT)
    assert (episode.outcome, episode.reward, episode.attempts) == (Outcome.COMPLETED, 1.0, PLAYS)


async def test_our_own_failure_ends_bounded_and_without_a_reward(boxes) -> None:
    boxes.failures = 1000
    episode = await played(boxes, SOLVE, SUBMIT)
    assert episode.outcome is Outcome.INFRA_FAILED
    assert (episode.reward, episode.score, episode.attempts) == (None, None, PLAYS)
    assert "no box to be had" in episode.error
    assert boxes.failures == 1000 - PLAYS


async def test_an_engine_that_fails_is_ours_too(boxes) -> None:
    class Broken(ScriptPolicy):
        async def respond(self, messages, tools, **rest) -> Turn:
            raise EngineError("out of memory")

    episode = await played(boxes, policy=Broken("broken", []))
    assert (episode.outcome, episode.reward) == (Outcome.INFRA_FAILED, None)
    assert episode.attempts == PLAYS


def fails(submission: Submission) -> Score:
    raise GraderError("the grading box died: grade again")


def breaks(submission: Submission) -> Score:
    raise ZeroDivisionError("a bug")


def blank(submission: Submission) -> Score:
    return Score.of(ScorePart("lines", 1.0), ScorePart("judge", None))


@pytest.mark.parametrize("wrong", [fails, breaks, blank])
async def test_grading_that_fails_is_done_again_not_the_episode(boxes, wrong) -> None:
    domain = TwoLines(wrong, share)
    episode = await played(boxes, SOLVE, SUBMIT, domain=domain)
    assert (episode.outcome, episode.reward, episode.attempts) == (Outcome.COMPLETED, 1.0, 1)
    assert domain.gradings == 2
    assert boxes.opened == 1


@pytest.mark.parametrize(
    ("wrong", "why"), [(fails, "grading box"), (breaks, "a bug"), (blank, "judge")]
)
async def test_grading_that_goes_on_failing_gives_no_reward(boxes, wrong, why: str) -> None:
    domain = TwoLines(wrong)
    episode = await played(boxes, SOLVE, SUBMIT, domain=domain)
    assert (episode.outcome, episode.reward) == (Outcome.GRADER_FAILED, None)
    assert not episode.solved
    assert why in episode.error
    assert domain.gradings == GRADINGS


async def test_tampering_is_at_the_floor_whatever_the_parts_say(boxes) -> None:
    def caught(submission: Submission) -> Score:
        return Score.of(ScorePart("lines", 1.0), tampered="wrote into the report")

    episode = await played(boxes, SOLVE, SUBMIT, domain=TwoLines(caught))
    assert (episode.outcome, episode.reward, episode.solved) == (Outcome.TAMPERED, 0.0, False)
    assert episode.error == "wrote into the report"


async def test_a_bug_in_a_policy_ends_the_run_but_leaves_no_box(boxes) -> None:
    class Buggy(ScriptPolicy):
        ended: Sequence[str] = ()

        async def respond(self, messages, tools, *, history=(), **rest) -> Turn:
            if history:
                raise KeyError("a bug")
            return Turn(WRITE_ONE)

        async def end(self, key: str) -> None:
            self.ended = (*self.ended, key)

    policy = Buggy("buggy", [])
    with pytest.raises(BaseExceptionGroup):
        await played(boxes, policy=policy)
    assert policy.ended == ("key",)
    assert not boxes.alive
