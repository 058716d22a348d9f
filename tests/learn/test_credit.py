"""Who is given credit for what, by hand; and what has no credit at all."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

import msgspec
import pytest

from practicum.core import (
    Episode,
    Event,
    Group,
    Message,
    Outcome,
    Sample,
    Score,
    ScorePart,
    TokenRecord,
    Turn,
)
from practicum.learn.advantages import whitened
from practicum.learn.credit import (
    IDLE_TURNS,
    Advantage,
    CriticSettings,
    credited,
    explained,
    own,
    turn_rewards,
)
from practicum.learn.samples import ended, marked, mismatched, pair, referenced, sampled


def episode(
    name: str,
    reward: float | None,
    turns: Sequence[int] = (2, 1),
    *,
    outcome: Outcome = Outcome.COMPLETED,
    idle: Sequence[int] = (),
) -> Episode:
    """An episode of turns with so many tokens each; in the `idle` ones no call could be run."""
    records = [
        TokenRecord((1, 2, 3) if i == 0 else (4,), tuple(range(10, 10 + n)), (-0.5,) * n, "d")
        for i, n in enumerate(turns)
    ]
    return Episode(
        id=name,
        task="task",
        domain="d",
        level=1,
        policy="p",
        prompt=(Message.of("user", "Do it."),),
        turns=tuple(Turn(Message.of("assistant"), record=record) for record in records),
        events=tuple(
            Event(i, "invalid" if i in idle else "call", ok=i not in idle)
            for i in range(len(turns))
        ),
        outcome=outcome,
        score=Score.of(ScorePart("part", reward)),
    )


def group(*rewards: float | None, name: str = "g") -> Group:
    return Group("task", [episode(f"{name}-{i}", r) for i, r in enumerate(rewards)])


def credits(samples: Sequence[Sample]) -> list[list[float]]:
    return [[s.advantage[t] for t in own(s)] for s in samples]


FAILED = episode("f", 0.0, outcome=Outcome.INFRA_FAILED)


def test_reinforce_whitens_the_returns_of_all_tokens() -> None:
    groups = [group(1.0, name="a"), group(0.0, 0.5, name="b")]
    samples = credited(groups, "reinforce++", discount=0.5)
    returns = [[0.25, 0.5, 1.0], [0.0, 0.0, 0.0], [0.125, 0.25, 0.5]]
    flat = [r for one in returns for r in one]
    wanted = [[(r - fmean(flat)) / (stdev(flat) + 1e-8) for r in one] for one in returns]
    assert [s.episode for s in samples] == ["a-0", "b-0", "b-1"]
    for found, one in zip(credits(samples), wanted, strict=True):
        assert found == pytest.approx(one)
    assert all(not a for s in samples for t, a in enumerate(s.advantage) if t not in own(s))


def test_reinforce_with_a_baseline_is_centred_in_its_group_first() -> None:
    groups = [group(1.0, 0.0, name="a"), group(0.5, 0.5, name="b")]
    found = credits(credited(groups, "reinforce++-baseline"))
    flat = [0.5] * 3 + [-0.5] * 3 + [0.0] * 6
    assert found[0] == pytest.approx([0.5 / stdev(flat)] * 3)
    assert found[1] == pytest.approx([-0.5 / stdev(flat)] * 3)
    assert found[2] == found[3] == [0.0] * 3


def test_credit_by_turn_is_that_of_the_turns_tokens() -> None:
    episodes = [
        episode("g-0", 1.0, (2, 1)),
        episode("g-1", 0.0, (1, 2, 1), idle=(1,)),
        episode("g-2", None, outcome=Outcome.GRADER_FAILED),
    ]
    found = credited([Group("task", episodes)], "by-turn", discount=0.5)
    cost = IDLE_TURNS / 3
    # returns: 0.5 1 and -cost/2 -cost 0; each against the mean of its turn
    first, second = (0.5 + cost / 2) / 2, (1 + cost) / 2
    assert credits(found)[0] == pytest.approx([first, first, second])
    assert credits(found)[1] == pytest.approx([-first, -second, -second, 0.0])


def test_idle_turns_cost_little_whatever_their_number() -> None:
    assert turn_rewards(episode("e", 0.5, (1, 1))) == [0.0, 0.5]
    for count in (1, 2, 9):
        rewards = turn_rewards(episode("e", 1.0, (1,) * count, idle=range(count)))
        assert rewards is not None
        assert sum(rewards) == pytest.approx(1.0 - IDLE_TURNS)
    assert turn_rewards(FAILED) is None
    assert turn_rewards(episode("e", 1.0, ())) == []


class Foretelling:
    """A trainer whose value head says 0.5 of everything."""

    def values(self, batch: Sequence[Sample]) -> list[Sample]:
        return [
            msgspec.structs.replace(s, values=tuple(0.5 * w for w in s.rl_weight)) for s in batch
        ]


def test_gae_steps_over_observations_and_stamps_the_returns() -> None:
    critic = CriticSettings(trace=0.5, whiten=False)
    samples = credited(
        [group(1.0)],
        "gae",
        discount=0.9,
        critic=critic,
        trainer=Foretelling(),  # type: ignore[arg-type]
    )
    (only,) = samples
    last = 1.0 - 0.5
    second = 0.9 * 0.5 - 0.5 + 0.45 * last
    first = 0.9 * 0.5 - 0.5 + 0.45 * second
    # 1 2 3 are the prompt, then two tokens, an observation, and one token
    assert only.advantage == pytest.approx((0, 0, 0, first, second, 0, last))
    assert only.returns == pytest.approx((0, 0, 0, first + 0.5, second + 0.5, 0, 1.0))
    assert only.values == pytest.approx((0, 0, 0, 0.5, 0.5, 0, 0.5))


def test_gae_whitens_over_the_batch_and_learns_of_equal_rewards() -> None:
    groups = [group(1.0, 0.0, None, name="a"), group(1.0, name="b")]
    trainer: object = Foretelling()
    found = credited(groups, "gae", critic=CriticSettings(), trainer=trainer)  # type: ignore[arg-type]
    flat = [a for one in credits(found) for a in one]
    assert fmean(flat) == pytest.approx(0)
    assert stdev(flat) == pytest.approx(1)
    same = credited([group(0.5, 0.5)], "gae", critic=CriticSettings(), trainer=trainer)  # type: ignore[arg-type]
    assert len(same) == 2  # nothing to compare, but a value to learn
    with pytest.raises(ValueError, match="needs a critic"):
        credited([group(1.0)], "gae")


@pytest.mark.parametrize(
    "how", ["mean-centred", "grpo", "reinforce++", "reinforce++-baseline", "by-turn", "gae"]
)
def test_our_own_failures_have_no_vote_and_no_sample(how: Advantage) -> None:
    def of(*episodes: Episode) -> list[Sample]:
        critic, trainer = CriticSettings(), Foretelling()
        return credited([Group("task", episodes)], how, critic=critic, trainer=trainer)  # type: ignore[arg-type]

    good, bad = episode("g-0", 1.0), episode("g-1", 0.0)
    unscored = episode("g-2", None, outcome=Outcome.GRADER_FAILED)
    lost = episode("g-3", None)  # completed, but a part of its score is missing
    assert of(good, bad, FAILED, unscored, lost) == of(good, bad)
    assert of(FAILED, unscored, lost) == []
    alone = of(good)
    assert how == "gae" or alone == []
    assert of() == []
    assert all(math.isfinite(a) for s in of(good, bad) for a in s.advantage)


@pytest.mark.parametrize("how", ["reinforce++", "reinforce++-baseline", "by-turn"])
def test_where_all_is_equal_nothing_is_trained(how: Advantage) -> None:
    assert credited([group(0.1, 0.1, 0.1), group(0.1, 0.1, name="h")], how) == []


def test_numbers_that_are_equal_whiten_to_exactly_nothing() -> None:
    assert whitened([[0.1] * 3, [0.1] * 7]) == [[0.0] * 3, [0.0] * 7]


def test_what_the_values_explain() -> None:
    def valued(values: tuple[float, ...], returns: tuple[float, ...]) -> Sample:
        base = sampled(episode("e", 1.0, (2,)))
        return msgspec.structs.replace(
            base, values=(0.0, 0.0, 0.0, *values), returns=(0.0, 0.0, 0.0, *returns)
        )

    assert explained([valued((0.2, 0.8), (0.2, 0.8))]) == {"explained_variance": 1.0}
    assert explained([valued((0.5, 0.5), (0.2, 0.8))]) == {"explained_variance": 0.0}
    assert explained([valued((0.8, 0.2), (0.2, 0.8))])["explained_variance"] == pytest.approx(-3)
    assert explained([valued((0.1, 0.2), (0.5, 0.5))]) == {}
    assert explained([sampled(episode("e", 1.0))]) == {}


# Answers


def test_answers_are_good_or_bad_by_their_groups_mean_or_by_success() -> None:
    found = marked(group(1.0, 0.5, 0.0, 0.5))
    assert [(s.episode, s.advantage[-1], s.group) for s in found] == [
        ("g-0", 1.0, "g-0"),
        ("g-2", -1.0, "g-2"),
    ]
    assert all(s.unit == "" and s.temperature == 1.0 for s in found)
    by_success = marked(group(1.0, 0.5, None, 1.0), "success")
    assert [(s.episode, s.advantage[-1]) for s in by_success] == [
        ("g-0", 1.0),
        ("g-1", -1.0),
        ("g-3", 1.0),
    ]
    assert marked(group(0.5, 0.5)) == marked(group(1.0)) == marked(Group("t", [FAILED])) == []


def test_a_prompt_is_answered_by_the_answer_to_another() -> None:
    def answer(name: str, prompt: tuple[int, ...], said: int) -> Sample:
        record = TokenRecord(prompt, (said, said + 1), (-1.0, -2.0), "d")
        base = episode(name, 1.0, ())
        turn = Turn(Message.of("assistant"), record=record)
        return sampled(msgspec.structs.replace(base, turns=(turn,)))

    samples = [answer("a", (1, 2), 10), answer("b", (1, 2), 20), answer("c", (3,), 30)]
    found = mismatched(samples)
    assert [s.tokens for s in found] == [(1, 2, 30, 31), (1, 2, 30, 31), (3, 10, 11)]
    assert found[2].rl_weight == (0, 1, 1)
    assert found[2].logprobs == (0, -1.0, -2.0)
    assert found[0].rl_weight == (0, 0, 1, 1)
    assert mismatched(samples[:2]) == mismatched(samples[:1]) == mismatched([]) == []


def test_a_reward_model_reads_to_the_last_token() -> None:
    best, worst = pair(group(1.0, 0.0))
    for sample, sign in ((best, 1.0), (worst, -1.0)):
        read = ended(sample, 99)
        assert read.tokens == (*sample.tokens, 99)
        assert own(read) == [len(sample.tokens)]
        assert read.advantage[-1] == sign
        assert not any(read.advantage[:-1])
        assert read.unit == sample.unit == "g-0"
    assert ended(sampled(episode("e", 1.0)), 99).advantage[-1] == 0.0


def test_another_model_does_not_follow_the_experts_of_the_sampler() -> None:
    class Noting:
        def score(self, batch: Sequence[Sample]) -> list[Sample]:
            assert not any(sample.routes for sample in batch)
            return [msgspec.structs.replace(s, reference=s.logprobs) for s in batch]

    samples = [
        msgspec.structs.replace(sampled(episode(name, 1.0)), routes=b"1234") for name in "ab"
    ]
    found = referenced(samples, Noting())  # type: ignore[arg-type]
    assert [s.reference for s in found] == [s.logprobs for s in samples]
    assert all(s.routes == b"1234" for s in found)
