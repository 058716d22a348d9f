from pathlib import Path

import pytest

from practicum.engines.sampler import LocalSampler
from practicum.engines.trainer import read_weights


@pytest.fixture(autouse=True)
def _torch(no_denormals: None) -> None:
    pass


@pytest.fixture
def sampler(sharp: Path) -> LocalSampler:
    made = LocalSampler(sharp, stop_ids=[2], dtype="float32")
    made.load(read_weights(sharp))
    return made
