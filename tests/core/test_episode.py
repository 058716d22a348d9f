"""What an episode is worth to training and evaluation, and what its fingerprint ignores."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.core import (
    Artifact,
    Episode,
    Event,
    Message,
    Outcome,
    Score,
    ScorePart,
    Stop,
    Submission,
    TokenRecord,
    ToolCall,
    Turn,
)

OURS = [Outcome.INFRA_FAILED, Outcome.GRADER_FAILED]
COUNTED = [Outcome.COMPLETED, Outcome.TRUNCATED, Outcome.MALFORMED]


def episode(outcome: Outcome = Outcome.COMPLETED, value: float | None = 1.0) -> Episode:
    record = TokenRecord(context=(1, 2), ids=(3, 4, 5), logprobs=(-0.5, -1.0, -0.1), digest="d")
    calls = (ToolCall("shell", {"command": "ls"}), ToolCall("submit", {}))
    shown = (Message.of("tool", "a.txt", name="shell"), Message.of("tool", "done", name="submit"))
    return Episode(
        id="e1",
        task="0123456789abcdef",
        domain="sort_lines",
        level=1,
        policy="sampler",
        prompt=(Message.of("system", "work"), Message.of("user", "sort it")),
        turns=(
            Turn(Message("assistant", calls=calls), Stop.END, record, shown),
            Turn(Message.of("assistant", "unsure"), Stop.LENGTH, record),
        ),
        events=(
            Event(0, "call", "shell", {"command": "ls"}, True, 0, "a.txt", seconds=0.25),
            Event(1, "invalid", ok=False, observation="no call"),
        ),
        outcome=outcome,
        score=Score.of(ScorePart("answer", value), ScorePart("speed", None, 0.0, "metric")),
        seconds={"sample": 1.5},
    )


@pytest.mark.parametrize("outcome", COUNTED)
@given(value=st.floats(0, 1))
def test_the_reward_of_a_counted_episode_is_its_score(outcome: Outcome, value: float) -> None:
    assert episode(outcome, value).reward == value
    assert episode(outcome, value).solved == (value >= 1 - 1e-9)


@pytest.mark.parametrize("outcome", OURS)
@pytest.mark.parametrize("value", [0.0, 1.0, None])
def test_our_failures_have_no_reward_and_are_not_solved(
    outcome: Outcome, value: float | None
) -> None:
    assert episode(outcome, value).reward is None
    assert not episode(outcome, value).solved


@pytest.mark.parametrize("value", [0.5, 1.0, None])
def test_tampering_is_worth_the_floor_whatever_the_parts_say(value: float | None) -> None:
    assert episode(Outcome.TAMPERED, value).reward == 0.0
    assert not episode(Outcome.TAMPERED, value).solved


def test_without_a_score_there_is_no_reward() -> None:
    unscored = msgspec.structs.replace(episode(), score=None)
    assert unscored.reward is None
    assert not unscored.solved


def test_sampled_tokens_are_those_of_recorded_turns() -> None:
    first, second = episode().turns
    scripted = msgspec.structs.replace(second, record=None)
    assert episode().sampled_tokens == 6
    assert msgspec.structs.replace(episode(), turns=(first, scripted)).sampled_tokens == 3


def test_an_episode_survives_json_and_msgpack_unchanged() -> None:
    whole = episode()
    assert msgspec.json.decode(msgspec.json.encode(whole), type=Episode) == whole
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(whole), type=Episode) == whole


def test_the_fingerprint_ignores_measured_times_and_nothing_else() -> None:
    whole = episode()
    timed = msgspec.structs.replace(
        whole,
        seconds={"sample": 9.0, "box": 1.0},
        events=tuple(msgspec.structs.replace(e, seconds=e.seconds + 1) for e in whole.events),
    )
    assert timed.fingerprint == whole.fingerprint
    changes = {
        "id": "e2",
        "task": "f" * 16,
        "policy": "gold",
        "turns": whole.turns[:1],
        "events": whole.events[:1],
        "outcome": Outcome.TRUNCATED,
        "score": None,
        "answer": "42",
        "error": "lost",
        "attempts": 2,
    }
    for field, value in changes.items():
        changed = msgspec.structs.replace(whole, **{field: value})
        assert changed.fingerprint != whole.fingerprint, field


def test_submission_text_is_only_of_whole_regular_files() -> None:
    submission = Submission(
        {
            "a.txt": Artifact(b"gr\xc3\xbc\xff"),
            "cut": Artifact(b"begin", truncated=True),
            "link": Artifact(b"a.txt", kind="symlink"),
            "dir": Artifact(b"", kind="dir"),
        }
    )
    assert submission.text("a.txt") == "grü\N{REPLACEMENT CHARACTER}"
    assert [submission.text(path) for path in ("cut", "link", "dir", "missing")] == [None] * 4
    assert msgspec.json.decode(msgspec.json.encode(submission), type=Submission) == submission
