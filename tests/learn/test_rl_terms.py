"""What an RL step can hold besides the policy loss: a critic, a reference, demonstrations."""

import math
import random
from collections.abc import Set
from pathlib import Path

import msgspec
import pytest
import torch
from practising import FP32, Dying, Killed, Practice, Silent
from pydantic import ValidationError

from practicum.core import EngineError, Group, Outcome, Sample
from practicum.engines.sampler import LocalSampler
from practicum.engines.trainer import LocalTrainer, TrainerSettings
from practicum.learn.aggregate import aggregated
from practicum.learn.credit import own
from practicum.learn.distil import DistilSettings
from practicum.learn.flight import audit_streams
from practicum.learn.objective import LossSettings
from practicum.learn.rl import RLSettings, rl
from practicum.learn.stage import Stage
from practicum.store import Run

pytestmark = pytest.mark.usefixtures("no_denormals")
BASE = {"type": "rl", "steps": 4, "groups": 2, "group_size": 4, "learning_rate": 1e-3}
PLAIN = RLSettings(**BASE, checkpoint_every=2)
CRITIC = RLSettings(**BASE, checkpoint_every=2, advantage="gae", critic={"trace": 0.9})
KL = RLSettings(**BASE, checkpoint_every=2, loss={"kl": 0.1, "kl_estimate": "k3+"})
MIXED = RLSettings(
    **BASE, checkpoint_every=2, mix={"demonstrations": 6, "each_step": 3, "weight": 0.2}
)
ALL = RLSettings(
    **BASE,
    checkpoint_every=2,
    advantage="gae",
    loss={"policy": "gspo", "kl": 0.1, "corrections": ["veto"]},
    mix={"each_step": 2},
)


def demonstrations(count: int = 6) -> list[Sample]:
    rng = random.Random(11)
    samples = []
    for number in range(count):
        tokens = tuple(rng.randrange(3, 60) for _ in range(6 + number))
        own = (0.0, *[1.0] * (len(tokens) - 1))
        nothing = (0.0,) * len(tokens)
        samples.append(Sample(tokens, nothing, own, nothing, nothing, episode=f"shown-{number}"))
    return samples


def practised(
    folder: Path,
    model: Path,
    settings: RLSettings,
    progress: Silent | None = None,
    *,
    reference: Path | None = None,
) -> tuple[LocalTrainer, Practice, Run]:
    run = Run.open(folder) if folder.exists() else Run.create(folder, "")
    trainer = LocalTrainer(model, FP32, value_head=settings.critic is not None)
    sampler = LocalSampler(model, stop_ids=[2], dtype="float32")
    practice = Practice(sampler)
    with run:
        rl(
            Stage("rl", run, trainer, progress or Silent()),
            settings,
            sampler,
            [("a", 1), ("b", 1)],
            practice,
            reference=LocalTrainer(reference or model, FP32) if settings.loss.kl else None,
            demonstrations=demonstrations() if settings.mix else (),
        )
    return trainer, practice, run


def batches(run: Run) -> list[list[Sample]]:
    return [run.read_batch("rl", step) for step in run.batch_steps("rl")]


def test_a_critic_learns_to_foretell_what_comes(tiny: Path, tmp_path: Path) -> None:
    settings = CRITIC.model_copy(update={"steps": 14, "learning_rate": 2e-3})
    trainer, _, run = practised(tmp_path / "run", tiny, settings)
    lines = run.metrics("rl")
    assert lines[0]["value"] == 0.0  # a new head
    errors = [line["value_loss"] for line in lines]
    assert sum(errors[-4:]) < 0.5 * sum(errors[:4])
    assert all(len(batch) == 6 for batch in batches(run))  # of equal rewards, too
    for batch in batches(run)[1:3]:
        for sample in batch:
            values, returns = ([s[t] for t in own(sample)] for s in (sample.values, sample.returns))
            assert any(values)
            assert returns[-1] == pytest.approx(
                next(e.reward for e in episodes(run) if e.id == sample.episode), abs=1e-6
            )
    assert trainer.value_head is not None
    assert trainer.value_head.any()
    assert "explained_variance" in lines[-1]


def episodes(run: Run) -> list:
    return [e for step in run.episode_steps("rl") for e in run.read_episodes("rl", step)]


def test_the_values_of_a_batch_are_those_before_its_step(tiny: Path, tmp_path: Path) -> None:
    _, _, run = practised(tmp_path / "run", tiny, CRITIC.model_copy(update={"steps": 3}))
    shorter, _, _ = practised(tmp_path / "shorter", tiny, CRITIC.model_copy(update={"steps": 2}))
    batch = run.read_batch("rl", 2)
    for found, wanted in zip(shorter.values(batch), batch, strict=True):
        assert found.values == pytest.approx(wanted.values, abs=1e-6)


def test_the_reference_is_a_frozen_model(tiny: Path, sharp: Path, tmp_path: Path) -> None:
    _, _, run = practised(tmp_path / "run", tiny, KL)
    frozen = LocalTrainer(tiny, FP32)
    for batch in batches(run):
        for found, wanted in zip(batch, frozen.score(batch), strict=True):
            assert found.reference == pytest.approx(wanted.reference, abs=1e-5)
    lines = run.metrics("rl")
    assert lines[0]["kl_reference"] == pytest.approx(0, abs=1e-8)
    assert lines[-1]["kl_reference"] > 1e-6
    _, _, other = practised(tmp_path / "other", tiny, KL, reference=sharp)
    assert other.metrics("rl")[0]["kl_reference"] > 0.1


def test_a_penalty_holds_the_policy_back(tiny: Path, tmp_path: Path) -> None:
    def drifted(coefficient: float) -> float:
        loss = LossSettings(kl=coefficient)
        settings = KL.model_copy(update={"loss": loss, "steps": 8})
        _, _, run = practised(tmp_path / f"run{coefficient}", tiny, settings)
        return run.metrics("rl")[-1]["kl_reference"]

    assert drifted(20.0) < 0.5 * drifted(1e-6)


def test_a_mixed_batch_holds_demonstrations_with_their_own_count(
    tiny: Path, tmp_path: Path
) -> None:
    _, _, run = practised(tmp_path / "run", tiny, MIXED)
    drawn = []
    for batch in batches(run):
        shown = [s for s in batch if any(s.ce_weight)]
        assert len(shown) == 3
        assert not any(any(s.rl_weight) for s in shown)
        drawn.append([s.episode for s in shown])
        weighted = MIXED.loss.weighted(batch, MIXED.mix.weight if MIXED.mix else 1.0)
        assert sum(sum(s.ce_weight) for s in weighted) == pytest.approx(0.2)
        rl_total = sum(sum(s.rl_weight) for s in weighted)
        assert rl_total == pytest.approx(1.0 if len(batch) > 3 else 0.0)
    assert len({tuple(one) for one in drawn}) > 1
    assert all(line["nll"] > 0 for line in run.metrics("rl"))


def test_terms_add_up_whatever_the_layout(tiny: Path, tmp_path: Path) -> None:
    """The gradient of a mixed batch is that of its kinds added, in any order and any packing."""
    _, _, run = practised(tmp_path / "run", tiny, ALL)
    batch = max(batches(run), key=len)
    batch = [  # as if more had happened between sampling and training
        msgspec.structs.replace(
            s,
            reference=tuple(r - 0.1 * (t % 3) for t, r in enumerate(s.reference)),
            values=tuple(0.3 * w for w in s.rl_weight) if s.values else (),
        )
        for s in batch
    ]
    loss, mix = ALL.make(), 0.1

    def gradient(weighted: list[Sample], budget: int) -> dict[str, torch.Tensor]:
        settings = TrainerSettings(dtype="float32", micro_batch_tokens=budget)
        trainer = LocalTrainer(tiny, settings, value_head=True)
        trainer.forward_backward(weighted, loss)
        return {name: g.clone() for name, g in trainer.gradient.items()}

    def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
        off = sum(float((one[n] - other[n]).square().sum()) for n in one)
        return math.sqrt(off / sum(float(g.square().sum()) for g in other.values()))

    whole = gradient(ALL.loss.weighted(batch, mix), 100_000)
    rng = random.Random(3)
    for budget in (1, 30):
        mixed = ALL.loss.weighted(rng.sample(batch, len(batch)), mix)
        assert apart(gradient(mixed, budget), whole) < 1e-5
    sampled = [s for s in batch if any(s.rl_weight)]
    shown = [s for s in batch if any(s.ce_weight)]
    assert sampled
    assert shown
    alone = [gradient(ALL.loss.weighted(kind, mix), 100_000) for kind in (sampled, shown)]
    assert apart({n: alone[0][n] + alone[1][n] for n in whole}, whole) < 1e-5
    plain = gradient(ALL.loss.weighted(shown), 100_000)
    assert apart({n: mix * g for n, g in plain.items()}, alone[1]) < 1e-5


@pytest.mark.parametrize("settings", [CRITIC, KL, MIXED, ALL], ids=["critic", "kl", "mixed", "all"])
@pytest.mark.parametrize("after", [0, 2])
def test_every_kind_goes_on_to_the_same_weights(
    tiny: Path, tmp_path: Path, settings: RLSettings, after: int
) -> None:
    whole, _, unbroken = practised(tmp_path / "whole", tiny, settings)
    with pytest.raises(Killed):
        practised(tmp_path / "broken", tiny, settings, Dying(after))
    again, practice, run = practised(tmp_path / "broken", tiny, settings)
    assert practice.steps == list(range(after + 1, 4))
    assert again.publish().digest == whole.publish().digest
    assert batches(run) == batches(unbroken)
    if whole.value_head is not None:
        assert again.value_head is not None
        assert torch.equal(again.value_head, whole.value_head)


def test_demonstrations_alone_are_a_step_and_no_comparison(tiny: Path, tmp_path: Path) -> None:
    """Where no group has anything to compare, the demonstrations are still learnt."""

    class Failing(Practice):
        def __call__(self, step: int, picks: list, canaries: Set[int] = frozenset()) -> list[Group]:
            return [
                Group(
                    g.task,
                    [msgspec.structs.replace(e, outcome=Outcome.INFRA_FAILED) for e in g.episodes],
                )
                for g in super().__call__(step, picks)
            ]

    trainer = LocalTrainer(tiny, FP32)
    sampler = LocalSampler(tiny, stop_ids=[2], dtype="float32")
    notes: list[str] = []

    class Noting(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    settings = MIXED.model_copy(
        update={"flight": PLAIN.flight.model_copy(update={"flat_steps": 3})}
    )
    with Run.create(tmp_path / "run", "") as run:
        stage = Stage("rl", run, trainer, Noting())
        rl(stage, settings, sampler, [("a", 1)], Failing(sampler), demonstrations=demonstrations())
    assert trainer.steps == 4
    assert [line["rl_tokens"] for line in run.metrics("rl")] == [0.0] * 4
    assert run.metrics("rl")[-1]["nll"] < run.metrics("rl")[0]["nll"]
    assert any("nothing is learnt" in note for note in notes)


def test_a_return_that_is_no_number_stops_the_run(tiny: Path, tmp_path: Path) -> None:
    (one, *_) = demonstrations()
    assert audit_streams(one) is None
    for name in ("reference", "values", "returns"):
        spoilt = msgspec.structs.replace(one, **{name: (math.nan,) * len(one.tokens)})
        finding = audit_streams(spoilt)
        assert finding is not None
        assert finding.action == "stop"

    class Spoilt(LocalTrainer):
        def values(self, batch):  # type: ignore[no-untyped-def]
            return [
                msgspec.structs.replace(s, values=(math.inf,) * len(s.tokens))
                for s in super().values(batch)
            ]

    trainer = Spoilt(tiny, FP32, value_head=True)
    sampler = LocalSampler(tiny, stop_ids=[2], dtype="float32")
    with Run.create(tmp_path / "run", "") as run, pytest.raises(EngineError, match="not finite"):
        rl(Stage("rl", run, trainer, Silent()), CRITIC, sampler, [("a", 1)], Practice(sampler))
    assert trainer.steps == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"group_size": 1}, "group_size must be 2 or more"),
        ({"discount": 0.9}, "discount has no effect on advantage 'mean-centred'"),
        ({"critic": {}}, "a critic has no effect"),
        ({"loss": {"kl": 0.1, "kl_estimate": "k1"}}, "no gradient as a loss"),
        ({"loss": {"reference": "sft"}}, "no effect without kl"),
        ({"reward_weight": 0.3}, "reward_weight"),
        ({"mix": {"weight": 0}}, "weight"),
        ({"advantage": "gaea"}, "advantage"),
    ],
)
def test_settings_that_do_nothing_are_refused(changes: dict, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RLSettings(**{**BASE, **changes})


def test_gae_brings_a_critic_and_needs_no_group() -> None:
    found = RLSettings(**{**BASE, "advantage": "gae", "group_size": 1, "discount": 0.99})
    assert found.critic is not None
    assert RLSettings(**{**BASE, "advantage": "reinforce++", "group_size": 1}).critic is None


def test_distillation_has_no_advantages_to_choose_from() -> None:
    with pytest.raises(ValidationError, match="advantage"):
        DistilSettings(type="distil", teacher="t", advantage="grpo")  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="teacher is the reference"):
        DistilSettings(type="distil", teacher="t", loss=LossSettings(kl=0.1))


def test_cross_entropy_is_weighed_beside_rl() -> None:
    shown = demonstrations(2)
    for weight in (1.0, 0.25):
        found = aggregated(shown, cross_entropy=weight)
        assert sum(sum(s.ce_weight) for s in found) == pytest.approx(weight)
