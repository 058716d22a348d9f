"""Silence for libraries that draw progress bars and give advice while they convert or save."""

import contextlib
import io
from collections.abc import Iterator

from transformers.utils import logging


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing but exceptions comes out of the libraries inside; the settings come back after."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # bars are drawn there, past every setting
            yield
    finally:
        logging.set_verbosity(verbosity)
