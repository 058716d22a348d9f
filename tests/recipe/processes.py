"""Runs in processes of their own."""

import subprocess
from collections.abc import Callable

Start = Callable[..., "subprocess.Popen[str]"]
"""(run folder, arguments...) -> the process that turns the ring there."""


def turned(process: "subprocess.Popen[str]") -> None:
    """Wait until the run has ended well."""
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said[-3000:]
