"""What a reward model says reaches the scores, and what a teacher did not solve is not learnt."""

import shutil
from pathlib import Path

import pytest
import torch

from practicum.core import (
    Episode,
    Group,
    Message,
    Outcome,
    RecipeError,
    Score,
    ScorePart,
    TokenRecord,
    Turn,
)
from practicum.engines.trainer import LocalTrainer, TrainerSettings
from practicum.engines.value_head import write_value_head
from practicum.learn.sft import SFTSettings
from practicum.recipe.demonstrations import learnt
from practicum.recipe.judge import Judge

FP32 = TrainerSettings(dtype="float32")


def episode(name: str, reward: float | None, outcome: Outcome = Outcome.COMPLETED) -> Episode:
    ids = tuple(20 + (len(name) + i) % 7 for i in range(3))
    record = TokenRecord((5, 6, 7), ids, (-1.0,) * 3, "d", 0.7)
    return Episode(
        id=name,
        task="task",
        domain="d",
        level=1,
        policy="p",
        prompt=(Message.of("user", "go"),),
        turns=(Turn(Message.of("assistant"), record=record),),
        events=(),
        outcome=outcome,
        score=None if reward is None else Score.of(ScorePart("o", reward)),
    )


def judge_of(tiny: Path, folder: Path, head: torch.Tensor, weight: float = 0.2) -> Judge:
    shutil.copytree(tiny, folder)
    write_value_head(folder, head)
    return Judge(LocalTrainer(folder, FP32, value_head=True), "digest", weight, 2)


GROUPS = [
    Group("task", [episode("a", 1.0), episode("bb", 0.5), episode("ccc", 0.0)]),
    Group(
        "task",
        [
            episode("dddd", None, Outcome.INFRA_FAILED),
            episode("eeeee", 1.0, Outcome.TAMPERED),
            episode("ffffff", 1.0, Outcome.TRUNCATED),
        ],
    ),
]


def test_every_scored_episode_gets_a_part_and_keeps_its_place(tiny: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    judge = judge_of(tiny, tmp_path / "model", torch.randn(1, 64))
    found = judge(GROUPS)
    assert [[e.id for e in g.episodes] for g in found] == [
        [e.id for e in g.episodes] for g in GROUPS
    ]
    values = []
    for group, before in zip(found, GROUPS, strict=True):
        for new, old in zip(group.episodes, before.episodes, strict=True):
            assert new.outcome == old.outcome
            assert new.solved == old.solved
            if old.score is None:
                assert new == old
                continue
            assert new.score is not None
            assert new.score.parts[:-1] == old.score.parts
            assert new.score.parts[-1].evidence.startswith("reward model digest: ")
            values.append(new.reward)
    assert values[2] == 0.0  # what failed
    assert values[3] == 0.0  # what was tampered with
    assert values[0] > values[1] > 0
    assert 0.8 < values[0] < 1.0
    assert judge(GROUPS) == found


def test_a_reward_model_that_says_no_number_is_our_own_failure(tiny: Path, tmp_path: Path) -> None:
    judge = judge_of(tiny, tmp_path / "model", torch.full((1, 64), float("nan")))
    first, second = judge(GROUPS)
    assert [e.outcome for e in first.episodes] == [Outcome.GRADER_FAILED] * 3
    assert all(e.reward is None and "says nan" in e.error for e in first.episodes)
    assert second.episodes[0] == GROUPS[1].episodes[0]
    measured = judge_of(tiny, tmp_path / "other", torch.full((1, 64), float("nan")), weight=0.0)
    rewards = [e.reward for g in measured(GROUPS) for e in g.episodes]
    assert rewards == [e.reward for g in GROUPS for e in g.episodes]


def taught(**changes: object) -> SFTSettings:
    return SFTSettings(type="sft", teacher="rl", **changes)  # type: ignore[arg-type]


def test_only_what_was_solved_is_learnt_unless_all_of_it_shall_be() -> None:
    episodes = [
        episode("a", 1.0),
        episode("b", 0.5),
        episode("c", 1.0, Outcome.TAMPERED),
        episode("d", None, Outcome.INFRA_FAILED),
        episode("e", 1.0, Outcome.TRUNCATED),
    ]
    found = learnt(episodes, taught(), "training")
    assert [s.episode for s in found] == ["a", "e"]
    for sample in found:
        assert sample.ce_weight == (0, 0, 0, 1, 1, 1)
        assert not any(sample.rl_weight)
        assert sample.temperature == 1.0  # whatever the teacher sampled at
    everything = learnt(episodes, taught(solved_only=False), "training")
    assert [s.episode for s in everything] == ["a", "b", "e"]


@pytest.mark.parametrize("what", ["training", "validation"])
def test_a_teacher_that_solved_nothing_is_said_so(what: str) -> None:
    episodes = [episode("a", 0.5), episode("b", 0.0)]
    said = f"'rl' solved none of its 2 attempts at the {what} tasks"
    with pytest.raises(RecipeError, match=said):
        learnt(episodes, taught(), what)
    with pytest.raises(RecipeError, match="none of its 0 attempts"):
        learnt([], taught(solved_only=False), what)
