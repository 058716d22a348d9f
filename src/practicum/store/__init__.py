"""The run folder and its formats: journal, metrics, episodes, batches, checkpoints."""

from practicum.store.run import Run

__all__ = ["Run"]
