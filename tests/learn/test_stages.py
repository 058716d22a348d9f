"""The stages on a real trainer: early stopping, resuming, and the check that data is on-policy."""

import random
import shutil
from collections.abc import Set
from pathlib import Path

import msgspec
import pytest
from practising import FP32, Dying, Killed, Practice, Silent
from safetensors.torch import load_file, save_file

from practicum.core import EngineError, Group, Sample, StoreError
from practicum.engines.sampler import LocalSampler
from practicum.engines.trainer import LocalTrainer
from practicum.learn.preference import PreferenceSettings, preference
from practicum.learn.rl import RLSettings, rl
from practicum.learn.sft import SFTSettings, sft
from practicum.learn.stage import Progress, Stage, same_weights, warmup
from practicum.store import Run, checkpoint

pytestmark = pytest.mark.usefixtures("no_denormals")


def demonstrations(seed: int, count: int) -> list[Sample]:
    """Random tokens: the more of the training set is learnt by heart, the worse the others get."""
    rng = random.Random(seed)
    samples = []
    for _ in range(count):
        tokens = tuple(rng.randrange(3, 60) for _ in range(12))
        own = (0.0, *[1.0] * 11)
        samples.append(Sample(tokens, (0.0,) * 12, own, (0.0,) * 12, (0.0,) * 12))
    return samples


def taught(
    folder: Path, model: Path, settings: SFTSettings, progress: Progress | None = None
) -> tuple[LocalTrainer, list[dict]]:
    """An SFT stage in a run folder of its own (gone on with if it exists), and its epochs."""
    run = Run.open(folder) if folder.exists() else Run.create(folder, "")
    trainer = LocalTrainer(model, FP32)
    with run:
        stage = Stage("sft", run, trainer, progress or Silent())
        sft(stage, settings, demonstrations(0, 8), demonstrations(1, 8))
    return trainer, [line for line in run.metrics("sft") if "val_nll" in line]


def settings(**changes: float) -> SFTSettings:
    values = {"batch_size": 4, "learning_rate": 3e-3, "max_epochs": 30, "min_improvement": 0.0}
    return SFTSettings(type="sft", **{**values, **changes})


def test_sft_ends_with_the_weights_of_the_best_epoch(tiny: Path, tmp_path: Path) -> None:
    trainer, epochs = taught(tmp_path / "run", tiny, settings())
    losses = [line["val_nll"] for line in epochs]
    assert 2 < len(losses) < 30
    assert losses[-1] > losses[-2] == min(losses)  # it stopped because it got worse
    assert trainer.evaluate(demonstrations(1, 8))["nll"] == min(losses)


def test_sft_stops_when_the_loss_hardly_falls(tiny: Path, tmp_path: Path) -> None:
    _, epochs = taught(tmp_path / "run", tiny, settings(min_improvement=0.5))
    losses = [line["val_nll"] for line in epochs]
    assert len(losses) == 2
    assert losses[1] < losses[0]


def test_sft_never_passes_its_last_epoch(tiny: Path, tmp_path: Path) -> None:
    trainer, epochs = taught(tmp_path / "run", tiny, settings(max_epochs=2))
    assert [line["epoch"] for line in epochs] == [1, 2]
    assert trainer.steps == 4


@pytest.mark.parametrize("after", [1, 5])
def test_sft_goes_on_after_a_death_to_the_same_weights(
    tiny: Path, tmp_path: Path, after: int
) -> None:
    whole, epochs = taught(tmp_path / "whole", tiny, settings(max_epochs=4))

    with pytest.raises(Killed):
        taught(tmp_path / "broken", tiny, settings(max_epochs=4), Dying(after))
    again, epochs_again = taught(tmp_path / "broken", tiny, settings(max_epochs=4))
    assert again.publish().digest == whole.publish().digest
    told = [[e["step"], e["val_nll"]] for e in epochs]
    assert [[e["step"], e["val_nll"]] for e in epochs_again] == told
    # asked once more, a finished stage only loads what it made
    third, _ = taught(tmp_path / "broken", tiny, settings(max_epochs=4))
    assert third.publish().digest == whole.publish().digest


def test_warm_up_rises_linearly_and_stays() -> None:
    assert [warmup(4)(step) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert warmup(0)(0) == 1.0


def test_digests_that_differ_stop_the_run() -> None:
    same_weights("a", "a", "episode")
    with pytest.raises(StoreError, match=r"sampled with weights a, but the trainer holds b"):
        same_weights("a", "b", "episode")


RL = RLSettings(type="rl", steps=5, groups=2, group_size=4, learning_rate=1e-3, checkpoint_every=2)


def practised(
    folder: Path, model: Path, progress: Silent | None = None, temperature: float = 1.0
) -> tuple[LocalTrainer, Practice, Run]:
    run = Run.open(folder) if folder.exists() else Run.create(folder, "")
    trainer = LocalTrainer(model, FP32)
    sampler = LocalSampler(model, stop_ids=[2], dtype="float32")
    practice = Practice(sampler, temperature)
    with run:
        stage = Stage("rl", run, trainer, progress or Silent())
        rl(stage, RL, sampler, [("a", 1), ("b", 1)], practice)
    return trainer, practice, run


def test_rl_moves_towards_the_reward(tiny: Path, tmp_path: Path) -> None:
    trainer, practice, run = practised(tmp_path / "run", tiny)
    assert practice.steps == [0, 1, 2, 3, 4]
    assert trainer.steps == 5
    lines = run.metrics("rl")
    assert all(line["unscored"] == 0.25 for line in lines)
    assert all(len(run.read_batch("rl", step)) == 6 for step in range(5))
    assert all(line["ratio"] == pytest.approx(1, abs=1e-3) for line in lines)  # on policy
    assert all(line["clipped"] == 0 for line in lines)


@pytest.mark.parametrize("after", [0, 2])
def test_rl_replays_what_was_journalled_and_goes_on(tiny: Path, tmp_path: Path, after: int) -> None:
    whole, _, unbroken = practised(tmp_path / "whole", tiny)

    with pytest.raises(Killed):
        practised(tmp_path / "broken", tiny, Dying(after))
    again, practice, run = practised(tmp_path / "broken", tiny)
    assert practice.steps == list(range(after + 1, 5))  # what was played is not played again
    assert again.publish().digest == whole.publish().digest
    assert [line["step"] for line in run.metrics("rl")] == [0, 1, 2, 3, 4]
    for step in range(5):
        assert run.read_batch("rl", step) == unbroken.read_batch("rl", step)


def test_a_journal_of_other_weights_is_refused(tiny: Path, sharp: Path, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        practised(tmp_path / "run", tiny, Dying(0))
    with pytest.raises(StoreError, match="does not belong to this checkpoint"):
        practised(tmp_path / "run", sharp)


def test_a_sampler_that_computes_something_else_ends_the_run_before_the_step(
    sharp: Path, tmp_path: Path
) -> None:
    """Here it divides its logits by two, which nobody told the trainer."""
    with pytest.raises(EngineError, match=r"rl step 0: sampler and trainer disagree .* not taken"):
        practised(tmp_path / "run", sharp, temperature=2.0)
    run = Run.open(tmp_path / "run")
    assert run.metrics("rl") == []
    assert checkpoint.latest(run.folder / "checkpoints") is None
    practised(tmp_path / "fine", sharp)


def test_a_spoilt_checkpoint_is_never_trained_from(tiny: Path, tmp_path: Path) -> None:
    practised(tmp_path / "run", tiny)
    newest = checkpoint.latest(tmp_path / "run" / "checkpoints")
    assert newest is not None
    path = newest / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="corrupt"):
        practised(tmp_path / "run", tiny)


def test_a_validation_loss_that_is_no_number_ends_the_run_with_advice(
    tiny: Path, tmp_path: Path
) -> None:
    spoilt = shutil.copytree(tiny, tmp_path / "spoilt")
    weights = load_file(spoilt / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, spoilt / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineError, match=r"validation loss of sft is nan .* lower its learning"):
        taught(tmp_path / "run", spoilt, settings())


def test_a_validation_loss_that_stands_still_ends_the_stage(tiny: Path, tmp_path: Path) -> None:
    _, epochs = taught(tmp_path / "run", tiny, settings(learning_rate=1e-30))
    assert len(epochs) == 2


PREFERENCE = PreferenceSettings(
    type="preference", tasks=6, batch_size=2, epochs=4, learning_rate=3e-3, checkpoint_every=3
)


def preferred(
    folder: Path, model: Path, progress: Silent | None = None, **changes: object
) -> tuple[LocalTrainer, Practice, Run]:
    run = Run.open(folder) if folder.exists() else Run.create(folder, "")
    trainer = LocalTrainer(model, FP32)
    sampler = LocalSampler(model, stop_ids=[2], dtype="float32")
    sampler.load(trainer.publish())
    practice = Practice(sampler)
    picks = [(("a", 1), seed) for seed in range(6)]
    settings = PREFERENCE.model_copy(update=changes)
    with run:
        stage = Stage("preference", run, trainer, progress or Silent())
        preference(stage, settings, lambda: practice(0, picks))
    return trainer, practice, run


@pytest.mark.parametrize("loss", ["dpo", "ipo"])
def test_what_is_preferred_becomes_likelier(tiny: Path, tmp_path: Path, loss: str) -> None:
    trainer, _, run = preferred(tmp_path / "run", tiny, loss=loss)
    samples = run.read_batch("preference", 0)
    assert [s.advantage[-1] for s in samples] == [1.0, -1.0] * (len(samples) // 2)
    assert all("-0" not in s.episode[-2:] for s in samples)  # our own failures are in no pair
    rewards = {e.id: e.reward for e in run.read_episodes("preference", 0)}
    now = trainer.score(samples)
    for chosen, rejected in zip(now[::2], now[1::2], strict=True):
        assert rewards[chosen.episode] > rewards[rejected.episode]
    before, after = (
        [sum(c.reference) - sum(r.reference) for c, r in zip(found[::2], found[1::2], strict=True)]
        for found in (samples, now)
    )
    assert sum(a > b for a, b in zip(after, before, strict=True)) > 0.8 * len(after)
    lines = run.metrics("preference")
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["accuracy"] > 0.9


@pytest.mark.parametrize("after", [0, 4])
def test_a_preference_stage_goes_on_with_the_same_pairs(
    tiny: Path, tmp_path: Path, after: int
) -> None:
    whole, played, unbroken = preferred(tmp_path / "whole", tiny)
    assert played.steps == [0]

    with pytest.raises(Killed):
        preferred(tmp_path / "broken", tiny, Dying(after))
    again, practice, run = preferred(tmp_path / "broken", tiny)
    assert practice.steps == []
    assert again.publish().digest == whole.publish().digest
    assert [m["step"] for m in run.metrics("preference")] == [
        m["step"] for m in unbroken.metrics("preference")
    ]


def test_nothing_to_prefer_is_said(tiny: Path, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", "")
    with run, pytest.raises(EngineError, match="nothing to prefer"):
        preference(Stage("preference", run, LocalTrainer(tiny, FP32), Silent()), PREFERENCE, list)


class Spiking(LocalTrainer):
    """A trainer whose gradient is spoilt at some of its steps."""

    at: tuple[int, ...] = ()
    calls = 0

    def step(self, learning_rate: float, accept=None) -> dict[str, float]:
        self.calls += 1
        if self.calls in self.at:
            self.gradient_block.mul_(1e4)
        return super().step(learning_rate, accept)


def spiked(
    folder: Path, model: Path, at: tuple[int, ...], progress: Silent | None = None, done: int = 0
) -> tuple[LocalTrainer, Run, list[str]]:
    run = Run.open(folder) if folder.exists() else Run.create(folder, "")
    trainer = Spiking(model, FP32)
    trainer.at, trainer.calls = at, done
    sampler = LocalSampler(model, stop_ids=[2], dtype="float32")
    notes: list[str] = []

    class Noting(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

        def step(self, name: str, step: int, values: dict[str, float]) -> None:
            if progress:
                progress.step(name, step, values)

    settings = RL.model_copy(update={"steps": 9, "learning_rate": 1e-4})
    with run:
        rl(Stage("rl", run, trainer, Noting()), settings, sampler, [("a", 1)], Practice(sampler))
    return trainer, run, notes


def test_a_spike_goes_back_to_the_last_checkpoint_and_on_more_slowly(
    tiny: Path, tmp_path: Path
) -> None:
    trainer, run, notes = spiked(tmp_path / "run", tiny, (8,))
    lines = run.metrics("rl")
    assert [line["step"] for line in lines] == list(range(9))
    assert [line["skipped"] for line in lines] == [0.0] * 7 + [1.0, 0.0]
    assert lines[8]["lr"] == pytest.approx(lines[6]["lr"] / 2)
    assert any("after step 6 again" in note for note in notes)
    (finding,) = run.journal("finding")
    assert (finding["check"], finding["action"], finding["step"]) == ("spike", "revert", 7)
    digests = [
        {t.record.digest for e in run.read_episodes("rl", step) for t in e.turns if t.record}
        for step in range(9)
    ]
    assert digests[8] == digests[6]  # sampled with the weights of that checkpoint
    assert digests[7] != digests[6]
    assert trainer.steps == 7  # six of the checkpoint, and the last


def test_a_run_that_was_killed_after_a_spike_goes_on_to_the_same_weights(
    tiny: Path, tmp_path: Path
) -> None:
    whole, _, _ = spiked(tmp_path / "whole", tiny, (8,))

    with pytest.raises(Killed):
        spiked(tmp_path / "broken", tiny, (8,), Dying(7))
    again, run, _ = spiked(tmp_path / "broken", tiny, (8,), done=6)  # six are in the checkpoint
    assert again.publish().digest == whole.publish().digest
    assert [line["skipped"] for line in run.metrics("rl")] == [0.0] * 7 + [1.0, 0.0]


def test_a_spike_before_the_first_checkpoint_is_only_not_taken(tiny: Path, tmp_path: Path) -> None:
    late = RL.model_copy(update={"checkpoint_every": 100})
    run = Run.create(tmp_path / "run", "")
    trainer = Spiking(tiny, FP32)
    trainer.at = (7,)
    sampler = LocalSampler(tiny, stop_ids=[2], dtype="float32")
    settings = late.model_copy(update={"steps": 8, "learning_rate": 1e-4})
    with run:
        rl(Stage("rl", run, trainer, Silent()), settings, sampler, [("a", 1)], Practice(sampler))
    assert [line["skipped"] for line in run.metrics("rl")] == [0.0] * 6 + [1.0, 0.0]
    assert trainer.steps == 7


def test_a_spoilt_sample_stops_the_run_before_the_step(tiny: Path, tmp_path: Path) -> None:
    class Spoiling(Practice):
        def __call__(self, step: int, picks: list, canaries: Set[int] = frozenset()) -> list[Group]:
            groups = super().__call__(step, picks)
            if step < 2:
                return groups
            members = list(groups[0].episodes)
            turn = members[1].turns[0]
            assert turn.record is not None
            said = tuple(0.5 for _ in turn.record.logprobs)
            record = msgspec.structs.replace(turn.record, logprobs=said)
            spoilt = msgspec.structs.replace(turn, record=record)
            members[1] = msgspec.structs.replace(members[1], turns=(spoilt,))
            return [Group(groups[0].task, members), *groups[1:]]

    run = Run.create(tmp_path / "run", "")
    trainer = LocalTrainer(tiny, FP32)
    sampler = LocalSampler(tiny, stop_ids=[2], dtype="float32")
    with run, pytest.raises(EngineError, match=r"rl step 2: .*log-probability of it is above 0"):
        rl(Stage("rl", run, trainer, Silent()), RL, sampler, [("a", 1)], Spoiling(sampler))
    assert trainer.steps == 2
