"""The command line as a person meets it: a recipe of seconds, with a cache of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from practised import Done, Start

RECIPE = Path(__file__).with_name("cli.toml")
PRACTICUM = [sys.executable, "-c", "from practicum.cli.main import app; app()"]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that commands run in; it holds the recipe."""
    folder = tmp_path_factory.mktemp("cli")
    shutil.copy(RECIPE, folder)
    return folder


@pytest.fixture(scope="session")
def start(place: Path) -> Iterator[Start]:
    """Starts a command and does not wait for it; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []
    cleared = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR")}
    environment = {**cleared, "PRACTICUM_CACHE": str(place / "cache")}

    def process(*arguments: object, **variables: object) -> "subprocess.Popen[str]":
        started.append(
            subprocess.Popen(
                [*PRACTICUM, *map(str, arguments)],
                cwd=place,
                env=environment | {key: str(value) for key, value in variables.items()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield process
    for each in started:
        if each.poll() is None:
            each.kill()
        each.communicate()


@pytest.fixture(scope="session")
def first(start: Start) -> Done:
    """How the recipe ended, trained once into runs/small."""
    process = start("train", "cli.toml", "--audit")
    out, err = process.communicate(timeout=300)
    return Done(process.args, process.returncode, out, err)


@pytest.fixture
def trained(first: Done, place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of runs, which this process is in, with the same cache."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("PRACTICUM_CACHE", str(place / "cache"))
    return place / "runs"
