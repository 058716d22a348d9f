"""Which kind of box a machine gets: the native one where it was built, else bubblewrap's."""

from practicum.core import SandboxError
from practicum.sandbox.bubblewrap import BubblewrapBoxes
from practicum.sandbox.local import LocalBoxes
from practicum.sandbox.native import NativeBoxes, helper

BACKENDS: dict[str, type[LocalBoxes]] = {"native": NativeBoxes, "bubblewrap": BubblewrapBoxes}


def open_boxes(backend: str = "auto", *, max_running: int = 4) -> LocalBoxes:
    """What makes boxes here. Raises SandboxError where that kind cannot be had."""
    if backend == "auto":
        try:
            helper()
            backend = "native"
        except SandboxError:
            backend = "bubblewrap"
    return BACKENDS[backend](max_running)
