"""How a command ends: one clear message and the right exit status, never a bare traceback.

0 done; 1 an error of ours, told in one message on stderr; 2 wrong usage; 128 + n stopped by signal
n (130 for Ctrl-C). SIGTERM and SIGHUP stop a command as Ctrl-C does, so that everything is closed.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import typer
from rich.text import Text
from typer.core import TyperGroup

from practicum.cli.screen import stderr
from practicum.core import PracticumError

DEBUG = "--debug"


class Commands(TyperGroup):
    """All commands. What they raise becomes a message; `--debug` may stand anywhere."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move `--debug` to the front, where it is an option of the group."""
        rest = [arg for arg in args if arg != DEBUG]
        return super().parse_args(ctx, [DEBUG, *rest] if len(rest) < len(args) else args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        with _stoppable() as signals:
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt as stop:
                number = signals[0] if signals else signal.SIGINT
                _tell("stopped", "yellow", "", stop, ctx.params["debug"])
                _leave(128 + number)
            except Exception as error:
                known = _known(error)
                if known is None:
                    raise
                _tell("error", "red", str(known), error, ctx.params["debug"])
                raise typer.Exit(1) from error


def _known(error: BaseException) -> BaseException | None:
    """The error of ours in `error`, which may be a group of them; None when there is none."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for e in error.exceptions if (found := _known(e))), None)
    return error if isinstance(error, PracticumError) else None


def _tell(word: str, style: str, message: str, error: BaseException, debug: bool) -> None:
    """Say what happened, with the notes that were added on its way up."""
    if debug:
        traceback.print_exception(error)
    notes = [] if debug else getattr(error, "__notes__", [])
    lines = [text for text in (message, *notes) if text]
    stderr().print(
        Text(f"{word}: ", style=f"bold {style}") + Text("\n".join(lines)), soft_wrap=True
    )


def _leave(status: int) -> NoReturn:
    """End at once: not after a thread that still decodes a batch. All else is closed by now."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@contextmanager
def _stoppable() -> Iterator[list[int]]:
    """SIGTERM and SIGHUP do what Ctrl-C does; gives the list of those that came."""
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        interrupt = signal.getsignal(signal.SIGINT)  # an event loop puts its own in place
        if not callable(interrupt):
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    numbers = [signal.SIGTERM, signal.SIGHUP]
    numbers = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
