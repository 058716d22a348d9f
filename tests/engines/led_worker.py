"""One of the processes that torchrun starts for test_workers.py: the first one leads."""

import json
import sys
from pathlib import Path

import torch
from batches import LOSS, batch_of

from practicum.core import EngineError, Sample
from practicum.engines.parallel import ParallelSettings
from practicum.engines.trainer import TrainerSettings
from practicum.engines.workers import LedTrainer, Workers, joined
from practicum.learn.aggregate import aggregated

SETTINGS = TrainerSettings(dtype="float32", eps=1e-4)


def lead(workers: Workers, folder: Path, out: Path) -> None:
    said: dict[str, object] = {}
    trainer = LedTrainer(workers, folder, SETTINGS)
    other = LedTrainer(workers, folder, SETTINGS)
    batch = aggregated(batch_of())
    asked = []
    said["metrics"] = trainer.forward_backward(batch, LOSS)
    said["step"] = trainer.step(1e-3, lambda norm: bool(asked.append(norm)) or True)
    said["asked"] = asked
    said["digest"] = trainer.publish().digest
    said["scores"] = [sample.reference for sample in other.score(batch_of())]
    del other
    trainer.export(out / "model")
    long = (1,) * 5000
    try:
        trainer.score([Sample(long, (0.0,) * 4999 + (1.0,), *[(0.0,) * 5000] * 3)])
    except EngineError as error:
        said["too long"] = str(error)
    try:  # something that only one process finds
        trainer.load(out / "nowhere")
    except EngineError as error:
        said["nowhere"] = str(error)
    said["held"] = sorted(workers.trainers)
    said["again"] = trainer.forward_backward(batch, LOSS)
    (out / "said.json").write_text(json.dumps(said))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with joined(ParallelSettings(shard=2)) as workers:
        assert workers
        if workers.leads:
            lead(workers, Path(sys.argv[1]), Path(sys.argv[2]))
        else:
            workers.follow()
