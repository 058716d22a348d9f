"""One of the processes that torchrun starts for test_sharded.py: case after case."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from batches import LOSS, batch_of, long_batch
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from practicum.engines.parallel import Layout, ParallelSettings
from practicum.engines.sharded import ShardedTrainer
from practicum.engines.trainer import TrainerSettings
from practicum.learn.aggregate import aggregated


def play(case: dict[str, Any]) -> None:
    """Train two steps; what was computed goes into the folder `out`."""
    out = Path(case["out"])
    layout = Layout(ParallelSettings(**case["parallel"]), "cpu")
    settings = TrainerSettings(**case["trainer"])
    trainer = ShardedTrainer(Path(case["model"]), settings, layout)
    if "load" in case:
        trainer.load(Path(case["load"]))
    said: dict[str, Any] = {"before": trainer.publish().digest}
    batch = long_batch() if case.get("long") else batch_of()
    said["metrics"] = trainer.forward_backward(aggregated(batch), LOSS)
    gradients = {}
    for name, parameter in trainer.parameters.items():
        grad = parameter.grad
        assert grad is not None
        gradients[name] = (grad.full_tensor() if isinstance(grad, DTensor) else grad).clone()
    said["scores"] = [sample.reference for sample in trainer.score(batch)]
    said["step"] = trainer.step(1e-3)
    if layout.rank == 0:
        (out / "checkpoint").mkdir()
    dist.barrier()
    trainer.save(out / "checkpoint")
    trainer.export(out / "model")
    said["after"] = trainer.publish().digest
    trainer.forward_backward(aggregated(batch_of(1)), LOSS)
    trainer.step(1e-3)
    trainer.export(out / "later")
    if layout.rank == 0:
        save_file(gradients, out / "gradients.safetensors")
        (out / "said.json").write_text(json.dumps(said))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for number, case in enumerate(json.loads(Path(sys.argv[1]).read_text())):
        if dist.is_initialized() and dist.get_rank() == 0:
            print("case", number, case["parallel"], flush=True)
        play(case)
    dist.destroy_process_group()
