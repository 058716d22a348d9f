"""Supervised fine-tuning on a fixed set of demonstrations, until validation loss stops falling.

Who demonstrates is not said here: gold solutions, or a teacher whose tokens are learnt (off-policy
distillation).
"""

import math
import random
import time
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from practicum.core import EngineError, Sample, content_hash
from practicum.learn.aggregate import aggregated
from practicum.learn.losses import clip
from practicum.learn.stage import Stage, warmup


class SFTSettings(BaseModel):
    """Settings of an SFT stage."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["sft"]
    name: str = "sft"
    start: str = ""  # "base" or the stage whose weights it starts from; empty: the one before
    demonstrations: int = Field(400, ge=1)  # tasks that are shown, over all trained domains
    validation: int = Field(64, ge=1)  # further ones, never trained on
    teacher: str = ""  # who shows them: a model, or an earlier stage; empty: the gold solutions
    attempts: int = Field(1, ge=1)  # of the teacher at each task
    temperature: float = Field(1.0, ge=0)  # of the teacher
    solved_only: bool = True  # learn what the teacher solved, and not what it only tried
    batch_size: int = Field(16, ge=1)
    learning_rate: float = Field(1e-4, gt=0)
    warmup_steps: int = Field(5, ge=0)
    max_epochs: int = Field(8, ge=1)
    min_improvement: float = Field(0.01, ge=0)  # relative; less is "stopped falling"

    @property
    def most_steps(self) -> int:
        """Steps, if the validation loss falls to the end."""
        most = self.demonstrations * (self.attempts if self.teacher else 1)
        return self.max_epochs * math.ceil(most / self.batch_size)


def sft(
    stage: Stage, settings: SFTSettings, train: Sequence[Sample], held_out: Sequence[Sample]
) -> None:
    """Train epoch by epoch; end with the weights of the best validation loss.

    A checkpoint is made after each epoch; the run goes on from there. Stops after the first epoch
    that does not lower the validation loss by `min_improvement`, or after `max_epochs`.
    """
    stage.progress.stage(stage.name, None)
    step, meta = stage.resume()
    best_step, best = meta.get("best_step", 0), meta.get("best", float("inf"))
    epoch, stopped = meta.get("epoch", 0), meta.get("stopped", False)
    factor = warmup(settings.warmup_steps)
    while epoch < settings.max_epochs and not stopped:
        for batch in _batches(train, settings.batch_size, f"{stage.name}-{epoch}"):
            started = time.perf_counter()
            values = stage.trainer.forward_backward(aggregated(batch), clip())
            values |= stage.trainer.step(settings.learning_rate * factor(step))
            values["seconds"] = time.perf_counter() - started
            stage.metric(step, values)
            step += 1
        epoch += 1
        validation = stage.trainer.evaluate(held_out)["nll"]
        if not math.isfinite(validation):
            raise EngineError(
                f"the validation loss of {stage.name} is {validation} after epoch {epoch}: lower "
                "its learning_rate and start a new run"
            )
        stage.metric(step - 1, {"epoch": epoch, "val_nll": validation})
        stopped = validation >= best * (1 - settings.min_improvement)
        if validation < best:
            best_step, best = step, validation
        stage.save(
            step,
            {"epoch": epoch, "best_step": best_step, "best": best, "stopped": stopped},
        )
    if best_step != step:
        stage.load(best_step)
    stage.progress.note(f"{stage.name}: validation loss {best:.4f} after {best_step} steps")


def _batches(samples: Sequence[Sample], size: int, key: str) -> list[list[Sample]]:
    order = list(samples)
    random.Random(content_hash(key)).shuffle(order)
    return [order[i : i + size] for i in range(0, len(order), size)]
