"""Stages that learn from comparisons of single answers and of pairs, on a real trainer."""

import math
from pathlib import Path

import pytest
import torch
from practising import FP32, Dying, Killed, Practice, Silent
from pydantic import ValidationError

from practicum.core import EngineError, Group, Outcome, Sample
from practicum.engines.sampler import LocalSampler
from practicum.engines.trainer import LocalTrainer, TrainerSettings
from practicum.learn.comparisons import Play, flat
from practicum.learn.preference import PreferenceSettings, divergence, preference
from practicum.learn.reward_model import RewardModelSettings, accuracy, reward_model, rewards
from practicum.learn.stage import Stage
from practicum.store import Run

pytestmark = pytest.mark.usefixtures("no_denormals")
KTO = PreferenceSettings(
    type="preference",
    loss="kto",
    batch_size=6,
    epochs=4,
    learning_rate=3e-3,
    checkpoint_every=3,
)
JUDGE = RewardModelSettings(
    type="reward-model",
    batch_size=3,
    epochs=8,
    learning_rate=3e-3,
    checkpoint_every=3,
    validation=0.2,
)
PICKS = [(("a", 1), seed) for seed in range(8)]


def trained(
    folder: Path,
    model: Path,
    settings: PreferenceSettings | RewardModelSettings,
    progress: Silent | None = None,
) -> tuple[LocalTrainer, Practice, Run]:
    run = Run.open(folder) if folder.exists() else Run.create(folder, "")
    judges = isinstance(settings, RewardModelSettings)
    trainer = LocalTrainer(model, FP32, value_head=judges)
    sampler = LocalSampler(model, stop_ids=[2], dtype="float32")
    sampler.load(trainer.publish())
    practice = Practice(sampler)

    def play() -> list[Group]:
        return practice(0, PICKS)

    with run:
        learn(Stage(settings.name, run, trainer, progress or Silent()), settings, play)
    return trainer, practice, run


def learn(stage: Stage, settings: PreferenceSettings | RewardModelSettings, play: Play) -> None:
    if isinstance(settings, RewardModelSettings):
        reward_model(stage, settings, play, 2)
    else:
        preference(stage, settings, play)


def summed(sample: Sample) -> float:
    return math.fsum(sample.reference)


@pytest.mark.parametrize("good", ["mean", "success"])
def test_good_answers_become_likelier_than_bad_ones(tiny: Path, tmp_path: Path, good: str) -> None:
    settings = KTO.model_copy(update={"good": good})
    trainer, _, run = trained(tmp_path / "run", tiny, settings)
    samples = run.read_batch("preference", 0)
    answers, others = samples[::2], samples[1::2]
    rewards_of = {e.id: e for e in run.read_episodes("preference", 0)}
    groups: dict[str, list[float]] = {}
    for e in rewards_of.values():
        if e.reward is not None:
            groups.setdefault(e.id.rpartition("-")[0], []).append(e.reward)
    for answer, other in zip(answers, others, strict=True):
        e = rewards_of[answer.episode]
        mean = sum(groups[e.id.rpartition("-")[0]]) / 3
        better = e.solved if good == "success" else (e.reward or 0) > mean
        assert (answer.advantage[-1] > 0) == better
        start = next(t for t, w in enumerate(answer.rl_weight) if w)
        assert answer.tokens[:start] == other.tokens[:start]  # its prompt, with another's answer
        assert f"{answer.episode} answered by " in other.episode
    now = trainer.score(answers)
    gains = [
        (summed(after) - summed(before)) * before.advantage[-1]
        for before, after in zip(answers, now, strict=True)
    ]
    assert sum(gain > 0 for gain in gains) > 0.8 * len(gains)
    lines = run.metrics("preference")
    assert lines[0]["baseline"] == pytest.approx(0, abs=1e-5)  # the policy is its own reference
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[0]["loss"] == pytest.approx(0.5, abs=1e-4)


@pytest.mark.parametrize("budget", [1, 100_000])
def test_the_baseline_of_kto_is_the_mean_log_ratio_of_mismatched_answers(
    tiny: Path, sharp: Path, tmp_path: Path, budget: int
) -> None:
    _, _, run = trained(tmp_path / "run", tiny, KTO.model_copy(update={"epochs": 1}))
    others = run.read_batch("preference", 0)[1::2]
    other_model = LocalTrainer(sharp, TrainerSettings(dtype="float32", micro_batch_tokens=budget))
    ratios = [
        summed(now) - summed(before)
        for now, before in zip(other_model.score(others), others, strict=True)
    ]
    mean = sum(ratios) / len(ratios)
    assert mean < 0
    assert divergence(other_model, others) == 0.0  # a KL is not below 0
    swapped = other_model.score(others)
    back = LocalTrainer(tiny, TrainerSettings(dtype="float32", micro_batch_tokens=budget))
    assert divergence(back, swapped) == pytest.approx(-mean, rel=1e-4)


@pytest.mark.parametrize("settings", [KTO, JUDGE], ids=["kto", "reward model"])
@pytest.mark.parametrize("after", [0, 4])
def test_a_stage_goes_on_with_the_same_answers(
    tiny: Path, tmp_path: Path, settings: PreferenceSettings | RewardModelSettings, after: int
) -> None:
    whole, played, unbroken = trained(tmp_path / "whole", tiny, settings)
    assert played.steps == [0]
    with pytest.raises(Killed):
        trained(tmp_path / "broken", tiny, settings, Dying(after))
    again, practice, run = trained(tmp_path / "broken", tiny, settings)
    third, _, _ = trained(tmp_path / "broken", tiny, settings)  # a finished stage is only loaded
    assert practice.steps == []
    assert again.publish().digest == whole.publish().digest == third.publish().digest
    if whole.value_head is not None:
        assert again.value_head is not None
        assert torch.equal(again.value_head, whole.value_head)
        assert whole.value_head.any()

    def told(run: Run) -> list[dict]:
        timed = ("time", "seconds")
        return [
            {k: v for k, v in line.items() if k not in timed} for line in run.metrics(settings.name)
        ]

    assert told(run) == told(unbroken)


def test_a_reward_model_learns_what_was_better(tiny: Path, tmp_path: Path) -> None:
    trainer, _, run = trained(tmp_path / "run", tiny, JUDGE)
    samples = run.read_batch("reward-model", 0)
    pairs = [samples[i : i + 2] for i in range(0, len(samples), 2)]
    assert len(pairs) > 4
    held_out = -(-len(pairs) // 5)
    lines = run.metrics("reward-model")
    assert lines[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)  # at first it says nothing
    assert lines[-1]["loss"] < 0.3
    assert accuracy(trainer, pairs[:-held_out]) == 1.0
    assert lines[-1]["val_accuracy"] == accuracy(trainer, pairs[-held_out:])
    assert [line for line in lines if "val_accuracy" in line] == lines[-1:]
    assert accuracy(LocalTrainer(tiny, FP32, value_head=True), pairs) == 0.5

    episodes = run.read_episodes("reward-model", 0)
    said = rewards(trainer, episodes, 2)
    assert [s is None for s in said] == [e.outcome is Outcome.INFRA_FAILED for e in episodes]
    by_id = dict(zip((e.id for e in episodes), said, strict=True))
    for better, worse in pairs[:-held_out]:
        high, low = by_id[better.episode], by_id[worse.episode]
        assert high is not None
        assert low is not None
        assert high > low
    assert rewards(trainer, [], 2) == []
    # the exported folder is the same judge
    trainer.export(tmp_path / "model")
    again = LocalTrainer(tmp_path / "model", FP32, value_head=True)
    assert rewards(again, episodes, 2) == said


def test_a_single_pair_is_learnt_and_not_held_out(tiny: Path, tmp_path: Path) -> None:
    _, _, run = trained(tmp_path / "many", tiny, JUDGE.model_copy(update={"epochs": 1}))
    pair = run.read_batch("reward-model", 0)[:2]
    other = Run.create(tmp_path / "one", "")
    other.write_batch("reward-model", 0, pair)
    other.close()
    _, practice, one = trained(tmp_path / "one", tiny, JUDGE)
    assert practice.steps == []
    assert len(one.metrics("reward-model")) == JUDGE.epochs
    assert not any("val_accuracy" in line for line in one.metrics("reward-model"))


@pytest.mark.parametrize("settings", [KTO, JUDGE], ids=["kto", "reward model"])
def test_nothing_to_prefer_is_said(
    tiny: Path, tmp_path: Path, settings: PreferenceSettings | RewardModelSettings
) -> None:
    with Run.create(tmp_path / "run", "") as run:
        trainer = LocalTrainer(tiny, FP32, value_head=True)
        stage = Stage(settings.name, run, trainer, Silent())
        with pytest.raises(EngineError, match="nothing to prefer"):
            learn(stage, settings, list)


def test_kto_with_one_prompt_only_is_said(tiny: Path, tmp_path: Path) -> None:
    trainer = LocalTrainer(tiny, FP32)
    sampler = LocalSampler(tiny, stop_ids=[2], dtype="float32")
    sampler.load(trainer.publish())
    groups = Practice(sampler)(0, PICKS[:1])
    with Run.create(tmp_path / "run", "") as run, pytest.raises(EngineError, match="one prompt"):
        preference(Stage("preference", run, trainer, Silent()), KTO, lambda: groups)


def test_most_steps_count_answers_or_pairs() -> None:
    assert KTO.most_steps == 4 * math.ceil(64 * 4 / 6)
    assert KTO.model_copy(update={"loss": "dpo"}).most_steps == 4 * math.ceil(64 / 6)
    assert flat([]) == []
    with pytest.raises(ValidationError, match="validation"):
        RewardModelSettings(type="reward-model", validation=1.0)
