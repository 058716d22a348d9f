"""What the watch makes of practice: episodes by hand, as this is a pure state machine."""

import msgspec
import pytest

from practicum.core import (
    EngineError,
    Episode,
    Event,
    Group,
    Message,
    Outcome,
    Score,
    ScorePart,
    TokenRecord,
    Turn,
)
from practicum.learn.watch import Watch, WatchSettings

NEVER = WatchSettings(canaries=0.0)
PICKS = [((name, 1), seed) for seed, name in enumerate(("a", "b", "a", "b", "a", "b"))]


def episode(
    domain: str,
    number: int,
    said: str,
    reward: float,
    *,
    canary: bool = False,
    outcome: Outcome = Outcome.COMPLETED,
    tokens: int = 20,
    visible: float | None = None,
) -> Episode:
    parts = [ScorePart("correct", reward)]
    if visible is not None:
        parts.append(ScorePart("visible_passed", visible, 0.0, "metric"))
    record = TokenRecord((1,), (2,) * tokens, (0.0,) * tokens, "d")
    return Episode(
        id=f"{domain}-{number}",
        task=f"task-{domain}-{number}",
        domain=domain,
        level=1,
        policy="rl",
        prompt=(Message.of("user", "go"),),
        turns=(Turn(Message.of("assistant", said), record=record),),
        events=(Event(0, "call", "shell", {"command": said}),),
        outcome=outcome,
        score=Score.of(*parts),
        error="canary: an impossible task earned 1" if outcome is Outcome.TAMPERED else "",
        canary=canary,
    )


def alone(*episodes: Episode) -> list[Group]:
    return [Group(e.task, [e]) for e in episodes]


def exploited(number: int, said: str = "echo ok", domain: str = "a") -> Episode:
    return episode(domain, number, said, 1.0, canary=True, outcome=Outcome.TAMPERED)


def test_an_exploited_canary_puts_its_domain_in_quarantine() -> None:
    watch = Watch(NEVER)
    honest = episode("b", 1, "sort x", 0.0, canary=True)
    groups = alone(exploited(0), honest, episode("a", 2, "sort y", 1.0), episode("b", 3, "z", 1.0))
    (found,) = watch.see(groups)
    assert (found.check, found.action) == ("canary", "tell")
    assert "a: 1 of 1 attempts exploited a canary" in found.detail
    assert set(watch.quarantined) == {"a"}
    assert [g.episodes[0].id for g in watch.trusted(groups)] == ["b-3"]
    assert watch.left([("a", 1), ("b", 1), ("b", 2)]) == [("b", 1), ("b", 2)]
    assert watch.see(groups) == []


def test_whatever_says_what_the_exploit_says_is_tampered_too() -> None:
    watch = Watch(NEVER)
    same = episode("a", 1, "echo ok", 1.0)
    other_words, failed = episode("a", 2, "sort x", 1.0), episode("a", 3, "echo ok", 0.0)
    other_domain = episode("b", 4, "echo ok", 1.0)
    groups = watch.flagged(alone(exploited(0), same, other_words, failed, other_domain))
    after = [g.episodes[0] for g in groups]
    assert [e.outcome is Outcome.TAMPERED for e in after] == [True, True, False, False, False]
    assert after[1].reward == 0
    assert after[1].score is not None
    assert "the same calls exploited a canary" in after[1].score.tampered
    assert [g.episodes[0] for g in watch.flagged(groups)] == after


def baited(number: int) -> Episode:
    return msgspec.structs.replace(exploited(number), error="bait: out holds what only it says")


def test_a_stray_bait_makes_suspect_and_a_habit_is_the_proof() -> None:
    failed = [episode("a", n, f"sort {chr(97 + n)}", 0.0, canary=True) for n in range(3)]
    watch = Watch(NEVER)
    (found,) = watch.see([Group("t", [baited(9), *failed])])
    assert found.check == "bait"
    assert watch.suspects == {"a": 3}
    assert not watch.quarantined
    (found,) = watch.see([Group("t", [baited(9), baited(8), *failed[:2]])])
    assert found.check == "canary"
    assert set(watch.quarantined) == {"a"}


def test_a_tripwire_on_a_canary_says_nothing_of_the_grader() -> None:
    forged = msgspec.structs.replace(exploited(0), error="conftest.py rewrites reports")
    watch = Watch(NEVER)
    assert watch.see(alone(forged)) == []
    assert not watch.quarantined


def test_no_domain_left_stops_the_run() -> None:
    watch = Watch(NEVER)
    watch.see(alone(exploited(0)))
    with pytest.raises(EngineError, match="every domain is in quarantine"):
        watch.left([("a", 1)])


def test_the_same_calls_on_many_tasks_are_a_sign_that_canaries_clear() -> None:
    watch = Watch(WatchSettings(canaries=0.0, probes=2))
    for number in range(5):
        assert watch.see(alone(episode("a", number, f"echo {number} > out", 1.0))) == []
    (found,) = watch.see(alone(episode("a", 5, "echo 5 > out", 1.0)))
    assert found.check == "alike"
    assert "6 of 6 tasks" in found.detail
    assert watch.canaries(6, PICKS, 0) == {0, 2}
    (cleared,) = watch.see(alone(*(episode("a", n, "sort x", 0.0, canary=True) for n in (6, 7))))
    assert cleared.check == "cleared"
    assert watch.canaries(7, PICKS, 0) == set()
    assert not watch.quarantined


def test_different_work_on_each_task_is_no_sign() -> None:
    watch = Watch(NEVER)
    for number, name in enumerate("abcdefghij"):
        assert watch.see(alone(episode("a", number, f"sort {name}.txt > out", 1.0))) == []
        assert watch.see(alone(episode("b", number, "echo 1", 0.0))) == []


def steps(watch: Watch, reward: float, tokens: int, count: int, start: int) -> list[str]:
    found = []
    for step in range(start, start + count):
        episodes = [
            episode("a", 100 * step + n, f"sort {step} {chr(97 + n)}", r, tokens=tokens)
            for n, r in enumerate([1.0] * round(10 * reward) + [0.0] * round(10 * (1 - reward)))
        ]
        found += [f.check for f in watch.see(alone(*episodes))]
    return found


def test_a_jump_of_reward_with_much_shorter_work_is_a_sign() -> None:
    watch = Watch(NEVER)
    assert steps(watch, 0.3, 40, 4, 0) == []
    assert steps(watch, 0.9, 10, 1, 4) == ["jump"]
    assert watch.suspects == {"a": 3}


@pytest.mark.parametrize(("reward", "tokens"), [(0.9, 30), (0.5, 10)])
def test_better_work_of_the_usual_kind_is_none(reward: float, tokens: int) -> None:
    watch = Watch(NEVER)
    assert steps(watch, 0.3, 40, 4, 0) == []
    assert steps(watch, reward, tokens, 1, 4) == []


def test_visible_tests_that_pass_without_hidden_ones_are_a_sign() -> None:
    watch = Watch(NEVER)
    seen = [episode("a", n, f"edit {chr(97 + n)}", 0.0, visible=1.0) for n in range(5)]
    assert watch.see(alone(*seen)) == []
    (found,) = watch.see(alone(episode("a", 5, "edit x", 0.0, visible=1.0)))
    assert found.check == "gap"
    fair = Watch(NEVER)
    good = [episode("a", n, f"edit {chr(97 + n)}", float(n % 2), visible=1.0) for n in range(8)]
    half = [episode("a", 10 + n, f"look {chr(97 + n)}", 0.0, visible=0.5) for n in range(8)]
    assert fair.see(alone(*good[1:], *half)) == []


def test_canaries_come_at_the_rate_that_is_asked_for_and_never_alone() -> None:
    watch = Watch(WatchSettings(canaries=0.1))
    picks = PICKS * 4
    chosen = [watch.canaries(step, picks, 3) for step in range(200)]
    share = sum(map(len, chosen)) / (200 * len(picks))
    assert 0.08 < share < 0.12
    assert chosen == [watch.canaries(step, picks, 3) for step in range(200)]
    assert chosen != [watch.canaries(step, picks, 4) for step in range(200)]
    every = Watch(WatchSettings(canaries=0.5))
    assert all(len(every.canaries(step, PICKS[:1], 0)) == 0 for step in range(50))


def test_what_was_seen_survives_a_checkpoint() -> None:
    """A watch that goes on from a state, as JSON, finds what the first would have found."""
    script = [
        alone(*(episode("a", 10 * s + n, f"echo {n} > out", 1.0, visible=1.0) for n in range(2)))
        for s in range(4)
    ]
    script.append(alone(episode("a", 90, "echo 1", 0.0, canary=True), exploited(91, domain="b")))
    for cut in range(len(script)):
        whole, first = Watch(NEVER), Watch(NEVER)
        expected = [whole.see(groups) for groups in script]
        found = [first.see(groups) for groups in script[:cut]]
        state = msgspec.json.decode(msgspec.json.encode(first.state()))
        second = Watch(NEVER, state)
        found += [second.see(groups) for groups in script[cut:]]
        assert found == expected
        assert second.state() == whole.state()
        assert any(expected)
