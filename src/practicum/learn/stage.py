"""What stages share: where they read and write, whom they tell, and how they are resumed."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from practicum.core import Episode, StoreError
from practicum.engines.contract import Trainer
from practicum.store import Run, checkpoint


class Progress(Protocol):
    """Told what happens, as it happens."""

    def stage(self, name: str, steps: int | None) -> None:
        """A stage or an evaluation of so many steps begins (None: not known)."""
        ...

    def step(self, name: str, step: int, values: dict[str, float]) -> None:
        """One step of it is done."""
        ...

    def note(self, text: str) -> None:
        """Something worth a line."""
        ...


@dataclass
class Stage:
    """One stage of a run while it trains. Checkpoints are named STAGE-STEP: steps that are done."""

    name: str
    run: Run
    trainer: Trainer
    progress: Progress
    keep: int = 2
    graders: dict[str, set[str]] = field(default_factory=dict)  # domain -> versions that paid

    def paid(self, episodes: Iterable[Episode]) -> None:
        """Note whose rewards are learned from: checkpoints from now on say so."""
        for episode in episodes:
            if episode.grader and episode.reward is not None:
                self.graders.setdefault(episode.domain, set()).add(episode.grader)

    def inherit(self, meta: Mapping[str, Any]) -> None:
        """Note who paid for the weights of a checkpoint, by its meta: they are built upon."""
        for domain, versions in meta.get("graders", {}).items():
            self.graders.setdefault(domain, set()).update(versions)

    @property
    def payers(self) -> dict[str, list[str]]:
        """Domain -> versions of its grader that paid for the weights so far, sorted."""
        return {domain: sorted(versions) for domain, versions in sorted(self.graders.items())}

    def metric(self, step: int, values: dict[str, float]) -> None:
        """Write a line of metrics and tell the person who watches."""
        self.run.metric(self.name, step, **values)
        self.progress.step(self.name, step, values)

    def save(self, step: int, meta: dict[str, Any]) -> Path:
        """Checkpoint after `step` steps. Only the newest `keep` of them stay."""
        folder = self.run.checkpoints / f"{self.name}-{step:06d}"
        meta = {"stage": self.name, "step": step, "graders": self.payers, **meta}
        checkpoint.save(folder, self.trainer.save, meta, keep=self.keep)
        return folder

    def _mine(self) -> list[Path]:
        """This stage's checkpoints, the newest last."""
        return [
            folder
            for folder in checkpoint.complete(self.run.checkpoints)
            if folder.name.rpartition("-")[0] == self.name
        ]

    def resume(self) -> tuple[int, dict[str, Any]]:
        """Load this stage's newest checkpoint: the steps that are done, and its meta.

        (0, {}) when the stage has none. Metrics after that point are dropped: they come again.
        """
        mine = self._mine()
        if not mine:
            self.run.rewind(self.name, -1)
            return 0, {}
        meta = checkpoint.load(mine[-1])
        self.inherit(meta)
        self.trainer.load(mine[-1])
        self.run.rewind(self.name, int(meta["step"]) - 1)
        self.progress.note(f"{self.name}: going on after step {meta['step']}")
        return int(meta["step"]), meta

    def revert(self) -> int | None:
        """Go back to the newest checkpoint; its step, or None when there is none to go back to."""
        mine = self._mine()
        if not mine:
            return None
        self.trainer.load(mine[-1])
        return int(checkpoint.load(mine[-1])["step"])

    def load(self, step: int) -> None:
        """Go back to the checkpoint after `step` steps."""
        folder = self.run.checkpoints / f"{self.name}-{step:06d}"
        checkpoint.load(folder)
        self.trainer.load(folder)


def same_weights(expected: str, found: str, what: str) -> None:
    """Raise StoreError unless two digests agree."""
    if expected != found:
        raise StoreError(
            f"{what}: sampled with weights {expected}, but the trainer holds {found}. The journal "
            "does not belong to this checkpoint; start again in a new run folder"
        )


Warmup = Callable[[int], float]


def warmup(steps: int) -> Warmup:
    """Learning-rate factor of a step (from 0): rises linearly over `steps` steps, then stays 1."""
    return lambda step: min(1.0, (step + 1) / steps) if steps > 0 else 1.0
