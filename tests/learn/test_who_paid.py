"""Checkpoints say which versions of which graders paid for their weights, over stages and kills."""

from collections.abc import Sequence, Set
from pathlib import Path

import msgspec
import pytest
from practising import FP32, Dying, Killed, Practice, Silent

from practicum.core import Group, Outcome
from practicum.engines.sampler import LocalSampler
from practicum.engines.trainer import LocalTrainer
from practicum.learn.curriculum import Cell
from practicum.learn.rl import RLSettings, rl
from practicum.learn.stage import Stage
from practicum.store import Run, checkpoint

pytestmark = pytest.mark.usefixtures("no_denormals")
SETTINGS = RLSettings(type="rl", steps=3, groups=2, group_size=4, checkpoint_every=1)
CELLS = [("a", 1)]


def practised(folder: Path, model: Path, version: str, progress: Silent) -> Stage:
    """A stage whose episodes a grader of this version pays for, but for those that failed."""
    trainer = LocalTrainer(model, FP32)
    sampler = LocalSampler(model, stop_ids=[2], dtype="float32")
    practice = Practice(sampler)

    def practise(step: int, picks: Sequence[tuple[Cell, int]], canaries: Set[int]) -> list[Group]:
        return [
            Group(
                group.task,
                [
                    msgspec.structs.replace(
                        e, grader="lost" if e.outcome is Outcome.INFRA_FAILED else version
                    )
                    for e in group.episodes
                ],
            )
            for group in practice(step, list(picks))
        ]

    run = Run.open(folder) if folder.exists() else Run.create(folder, "")
    with run:
        stage = Stage("rl", run, trainer, progress)
        rl(stage, SETTINGS, sampler, CELLS, practise)
    return stage


def paid(folder: Path, step: int) -> dict[str, list[str]]:
    return checkpoint.meta(folder / "checkpoints" / f"rl-{step:06d}")["graders"]


def test_a_stage_that_goes_on_with_another_grader_names_both(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Killed):  # after the metrics of step 1: its batch is there, no checkpoint
        practised(folder, tiny, "v2", Dying(1))
    assert paid(folder, 1) == {"a": ["v2"]}
    stage = practised(folder, tiny, "v1", Silent())
    assert paid(folder, 2) == {"a": ["v2"]}  # the journalled batch, as it was paid for then
    assert paid(folder, 3) == {"a": ["v1", "v2"]}
    assert stage.payers == {"a": ["v1", "v2"]}
    assert practised(folder, tiny, "v3", Silent()).payers == stage.payers  # all steps were done


def test_a_stage_inherits_what_was_paid_for_before(tiny: Path, tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", "") as run:
        stage = Stage("rl", run, LocalTrainer(tiny, FP32), Silent())
        stage.inherit({"graders": {"b": ["v7"], "a": ["v0"]}})
        stage.inherit({"digest": "of a model that nobody paid for"})
        stage.inherit({"graders": {"a": ["v3"]}})
        stage.save(1, {})
    assert paid(tmp_path / "run", 1) == {"a": ["v0", "v3"], "b": ["v7"]}
    assert checkpoint.meta(tiny) == checkpoint.meta(tmp_path / "nowhere") == {}
