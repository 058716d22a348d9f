"""The ring of `ring.toml`, turned once for all tests that look at it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import Start, turned

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Starts a process that runs the ring, with a cache and an audit of the session's own."""
    cache = tmp_path_factory.mktemp("cache")

    def process(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, HERE / "turn_the_ring.py", folder, *arguments],
            env={
                **os.environ,
                "PYTHONPATH": str(HERE / "plugin"),
                "PRACTICUM_CACHE": str(cache),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return process


@pytest.fixture(scope="session")
def ring(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of an unbroken run."""
    folder = tmp_path_factory.mktemp("ring") / "run"
    turned(start(folder))
    return folder
