"""Commands in this process, and types of the fixtures that run them in their own."""

import subprocess
from collections.abc import Callable

from typer.testing import CliRunner

from practicum.cli.main import app

Start = Callable[..., "subprocess.Popen[str]"]
"""Arguments of `practicum` -> the process."""

Done = subprocess.CompletedProcess[str]


def said(*arguments: object) -> Done:
    """How a command ends in this process, which has imported all that is heavy once."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Done(arguments, result.exit_code, result.stdout, result.stderr)
