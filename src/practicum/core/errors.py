"""Errors by boundary. Each message says what happened and what to do next."""


class PracticumError(Exception):
    """Base of every error that we raise on purpose."""


class SandboxError(PracticumError):
    """The box could not be made, died, or broke its contract. Never the model's fault."""


class EngineError(PracticumError):
    """A sampler or trainer failed."""


class GraderError(PracticumError):
    """A grader could not reach a verdict. Never the model's fault."""


class ModelError(PracticumError):
    """A model reference, tokenizer or chat template cannot be used."""


class RecipeError(PracticumError):
    """A recipe is wrong."""


class StoreError(PracticumError):
    """A run folder or checkpoint is missing, corrupt, or cannot be written."""
