"""Which kind of box a machine gets: the native one where it was built, else bubblewrap's."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from practicum.core import SandboxError
from practicum.sandbox.bubblewrap import BubblewrapBoxes
from practicum.sandbox.layout import Root
from practicum.sandbox.local import LocalBoxes
from practicum.sandbox.native import NativeBoxes, helper
from practicum.sandbox.weak import WeakBoxes

WEAK = "landlock"
_logger = logging.getLogger(__name__)

BACKENDS: dict[str, type[LocalBoxes]] = {"native": NativeBoxes, "bubblewrap": BubblewrapBoxes}


def open_boxes(
    backend: str = "auto",
    *,
    max_running: int = 4,
    ahead: int = 0,
    require: Sequence[str] = (),
    roots: Mapping[str, Mapping[str, Any]] | None = None,
) -> LocalBoxes:
    """What makes boxes here; each of `roots` has the fields of `Root`.

    Raises SandboxError where that kind cannot be had, or not with the limits in `require`.
    """
    if backend == WEAK:
        _logger.warning("boxes are weak here, as was asked for: see docs/sandbox.md")
    if backend == "auto":
        try:
            helper()
            backend = "native"
        except SandboxError:
            backend = "bubblewrap"
    known = {name: Root(**fields) for name, fields in (roots or {}).items()}
    kind = WeakBoxes if backend == WEAK else BACKENDS[backend]
    boxes = kind(max_running, ahead=ahead, roots=known)
    boxes.capabilities.refuse_without(require)
    return boxes
