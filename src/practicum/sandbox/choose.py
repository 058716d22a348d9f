"""Which kind of box a machine gets: the native one where it was built, else bubblewrap's."""

import logging
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

from practicum.core import SandboxError
from practicum.sandbox.bubblewrap import BubblewrapBoxes
from practicum.sandbox.layout import Root
from practicum.sandbox.local import LocalBoxes
from practicum.sandbox.native import NativeBoxes, helper

BACKENDS: dict[str, type[LocalBoxes]] = {"native": NativeBoxes, "bubblewrap": BubblewrapBoxes}
WEAK = "landlock"
OTHERS = {  # only by name, and imported when they are named
    WEAK: "practicum.sandbox.weak:WeakBoxes",
    "podman": "practicum.sandbox.podman:PodmanBoxes",
    "docker": "practicum.sandbox.podman:DockerBoxes",
    "gvisor": "practicum.sandbox.gvisor:GvisorBoxes",
}

_logger = logging.getLogger(__name__)


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
    kind = BACKENDS.get(backend) or pkgutil.resolve_name(OTHERS[backend])
    boxes: LocalBoxes = kind(max_running, ahead=ahead, roots=known)
    boxes.capabilities.refuse_without(require)
    return boxes
