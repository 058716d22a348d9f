"""The command line as a module, which torchrun can start in many processes."""

from practicum.cli.main import app

app()
