"""Shared by all rooms: torch as a test wants it, and tiny models."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Machines differ by a factor of ten: how long an example takes says nothing.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.fixture
def no_denormals(tiny: Path) -> None:
    """What every training process sets: Adam is many times slower with denormal numbers."""
    import torch

    torch.set_flush_denormal(True)


@pytest.fixture(autouse=True)
def denormal_numbers_afterwards() -> Iterator[None]:
    """Hypothesis needs them: a test must not inherit that the one before flushed them."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture(scope="session")
def tiny() -> Path:
    """A tiny model as it was initialised: it finds almost every token equally likely.

    Torch gets one thread: more of them only wait for each other at this size.
    """
    import torch

    from practicum.models.reference import resolve

    torch.set_num_threads(1)
    return resolve("tiny:0").path


@pytest.fixture(scope="session")
def sharp(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with ten times its weights: opinionated, so that small errors show."""
    return _sharpened(tiny, tmp_path_factory.mktemp("sharp") / "model")


@pytest.fixture(scope="session")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny mixture of experts, as opinionated."""
    from practicum.models.reference import resolve

    return _sharpened(resolve("tiny-moe:0").path, tmp_path_factory.mktemp("mixture") / "model")


def _sharpened(plain: Path, folder: Path) -> Path:
    import shutil

    import torch
    from transformers import AutoModelForCausalLM

    shutil.copytree(plain, folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(10)
    model.save_pretrained(folder)
    return folder
