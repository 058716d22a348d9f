"""Over several processes a trainer computes what it computes in one, whichever way it is shared."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from batches import LOSS, batch_of, distance, long_batch
from plain_model import plain_model
from safetensors.torch import load_file

from practicum.core import EngineError, StoreError
from practicum.engines.parallel import Layout, ParallelSettings
from practicum.engines.trainer import LocalTrainer, LoRASettings, TrainerSettings, read_weights
from practicum.learn.aggregate import aggregated

SMOOTH = {"dtype": "float32", "eps": 1e-4}  # Adam's first steps are else those of a sign
FP32 = TrainerSettings(**SMOOTH)
CASES: dict[str, dict[str, Any]] = {
    "shard": {"parallel": {"shard": 2}},
    "replicate": {"parallel": {"replicate": 2}},
    "tensor": {"parallel": {"tensor": 2}},
    "tensor, from a checkpoint of shard": {"parallel": {"tensor": 2}, "after": "shard"},
    "context": {"parallel": {"shard": 2, "context": 2}},
    "context, long": {"parallel": {"shard": 2, "context": 2}, "long": True},
    "small micro-batches": {
        "parallel": {"shard": 2},
        "trainer": {"micro_batch_tokens": 40, "activations": "recompute"},
    },
    "experts": {"parallel": {"shard": 2, "expert": 2}, "mixture": True},
    "experts, shared as matrices": {"parallel": {"tensor": 2}, "mixture": True},
}
BF16 = {"dtype": "bfloat16", "activations": "recompute"}
ROUNDED: dict[str, dict[str, Any]] = {
    "shard, bf16": {"parallel": {"shard": 2}, "trainer": BF16},
    "tensor, bf16": {"parallel": {"tensor": 2}, "trainer": BF16},
}
FOUR: dict[str, dict[str, Any]] = {
    "shard and tensor, from a checkpoint of shard": {
        "parallel": {"shard": 2, "tensor": 2},
        "after": "shard",
    },
    "all but tensor": {
        "parallel": {"shard": 2, "replicate": 2, "context": 2, "expert": 2},
        "mixture": True,
    },
}


@pytest.fixture(scope="module")
def played(sharp: Path, mixture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each case, in which its processes left what they computed."""
    root = tmp_path_factory.mktemp("sharded")
    for count, cases in ((2, CASES | ROUNDED), (4, FOUR)):
        plans = []
        for name, case in cases.items():
            (root / name).mkdir()
            plan = case | {"out": str(root / name)}
            plan["trainer"] = SMOOTH | case.get("trainer", {})
            plan["model"] = str(mixture if case.get("mixture") else sharp)
            if "after" in case:
                plan["load"] = str(root / case["after"] / "checkpoint")
            plans.append(plan)
        (root / "plans.json").write_text(json.dumps(plans))
        worker = Path(__file__).with_name("sharded_worker.py")
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        done = subprocess.run(
            [*run, "--nproc-per-node", str(count), str(worker), str(root / "plans.json")],
            capture_output=True,
            text=True,
            timeout=300,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stdout[-500:] + done.stderr[-4000:]
    return root


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, *FOUR])
def test_loss_gradient_and_step_are_those_of_one_process(
    played: Path, name: str, sharp: Path, mixture: Path
) -> None:
    case = CASES.get(name) or FOUR[name]
    folder = mixture if case.get("mixture") else sharp
    said = json.loads((played / name / "said.json").read_text())
    single = LocalTrainer(folder, FP32)
    if "after" in case:
        single.load(played / case["after"] / "checkpoint")
    assert said["before"] == single.publish().digest
    batch = long_batch() if case.get("long") else batch_of()
    metrics = single.forward_backward(aggregated(batch), LOSS)
    assert said["metrics"].keys() == metrics.keys()
    for key, value in metrics.items():
        assert said["metrics"][key] == pytest.approx(value, abs=1e-5), key
    gradients = load_file(played / name / "gradients.safetensors")
    assert gradients.keys() == single.gradient.keys()
    for key, gradient in single.gradient.items():
        torch.testing.assert_close(gradients[key], gradient, rtol=0, atol=1e-5)
    for theirs, ours in zip(said["scores"], single.score(batch), strict=True):
        assert theirs == pytest.approx(ours.reference, abs=1e-4)
    norm = single.step(1e-3)["grad_norm"]
    assert said["step"] == {"grad_norm": pytest.approx(norm, rel=1e-4), "skipped": 0.0, "lr": 1e-3}
    single.forward_backward(aggregated(batch_of(1)), LOSS)
    single.step(1e-3)
    later = read_weights(played / name / "later").tensors
    for key, tensor in single.masters.items():
        torch.testing.assert_close(later[key], tensor, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUNDED)
def test_bf16_arithmetic_stays_near_the_fp32_gradient(played: Path, name: str, sharp: Path) -> None:
    single = LocalTrainer(sharp, FP32)
    single.forward_backward(aggregated(batch_of()), LOSS)
    gradients = load_file(played / name / "gradients.safetensors")
    assert all(gradient.dtype == torch.float32 for gradient in gradients.values())
    assert distance(gradients, single.gradient) < 0.2
    moved = read_weights(played / name / "model").tensors
    assert all(tensor.dtype == torch.float32 for tensor in moved.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shard", "tensor", "experts"])
def test_a_checkpoint_and_an_export_are_whole(
    played: Path, name: str, sharp: Path, mixture: Path
) -> None:
    """Any number of processes goes on from the one, and transformers loads the other."""
    folder = mixture if CASES[name].get("mixture") else sharp
    said = json.loads((played / name / "said.json").read_text())
    single = LocalTrainer(folder, FP32)
    single.load(played / name / "checkpoint")
    assert single.steps == 1
    assert single.publish().digest == said["after"] == read_weights(played / name / "model").digest
    state = dict(plain_model(played / name / "model").named_parameters())
    assert all(torch.equal(state[n], t) for n, t in single.masters.items())
    other = LocalTrainer(folder, TrainerSettings(dtype="float32", lora=LoRASettings()))
    with pytest.raises(StoreError, match="another LoRA setting"):
        other.load(played / name / "checkpoint")


def test_processes_that_are_not_there_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(EngineError, match="torchrun --standalone --nproc-per-node 4"):
        Layout(ParallelSettings(shard=2, tensor=2), "cpu")
    with pytest.raises(ValueError, match="context must divide"):
        ParallelSettings(shard=2, context=3)
