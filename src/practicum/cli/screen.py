"""Where text goes: colours and moving parts on a terminal, plain lines everywhere else."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

_PLAIN_WIDTH = 140


def stdout() -> Console:
    """For results. Without a terminal: no control codes, and wide enough for tables."""
    return _console(stderr=False)


def stderr() -> Console:
    """For messages."""
    return _console(stderr=True)


def is_live(console: Console) -> bool:
    """Whether lines can be drawn over."""
    return console.is_terminal and not console.is_dumb_terminal


@contextmanager
def loading() -> Iterator[None]:
    """Show that something goes on while heavy libraries are imported."""
    console = stdout()
    if not is_live(console):
        yield
        return
    with console.status("loading", spinner_style="dim"):
        yield


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return Console(file=stream, highlight=False)
    width = int(os.environ.get("COLUMNS", "")) if os.environ.get("COLUMNS", "").isdigit() else 0
    return Console(
        file=stream,
        force_terminal=False,
        color_system=None,
        highlight=False,
        width=width or _PLAIN_WIDTH,
    )


def silence_libraries() -> None:
    """No bars and no advice from the libraries that are imported after this; errors still raise."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not sys.warnoptions:
        os.environ.setdefault("PYTHONWARNINGS", "ignore")
        warnings.simplefilter("ignore")
