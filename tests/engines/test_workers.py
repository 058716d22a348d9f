"""A recipe leads from one process, and the others do as it does, errors included."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from batches import LOSS, batch_of

from practicum.engines.trainer import LocalTrainer, TrainerSettings, read_weights
from practicum.learn.aggregate import aggregated


@pytest.mark.slow
def test_the_leaders_trainer_is_one_trainer(sharp: Path, tmp_path: Path) -> None:
    worker = Path(__file__).with_name("led_worker.py")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*run, str(worker), str(sharp), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads((tmp_path / "said.json").read_text())
    single = LocalTrainer(sharp, TrainerSettings(dtype="float32", eps=1e-4))
    metrics = single.forward_backward(aggregated(batch_of()), LOSS)
    for key, value in metrics.items():
        assert said["metrics"][key] == pytest.approx(value, abs=1e-5), key
    for theirs, ours in zip(
        said["scores"],
        LocalTrainer(sharp, TrainerSettings(dtype="float32")).score(batch_of()),
        strict=True,
    ):
        assert theirs == pytest.approx(ours.reference, abs=1e-4)  # of the one that did not train
    assert said["asked"] == [said["step"]["grad_norm"]]  # once, and by the leader
    assert said["digest"] == read_weights(tmp_path / "model").digest
    assert "longer than the" in said["too long"]
    assert "failed in processes" in said["nowhere"]
    assert said["held"] == [0]  # the other one has left all processes
    assert said["again"]["loss"] != said["metrics"]["loss"]  # and work goes on after errors
