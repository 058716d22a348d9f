"""Boxes: isolated workspaces in which whatever a model or a candidate wrote is run."""

from practicum.sandbox.bubblewrap import BubblewrapBoxes
from practicum.sandbox.choose import BACKENDS, open_boxes
from practicum.sandbox.contract import Archive, Boxes, Result, Sandbox, Snapshot
from practicum.sandbox.host import Capabilities
from practicum.sandbox.layout import Root
from practicum.sandbox.native import NativeBoxes

__all__ = [
    "BACKENDS",
    "Archive",
    "Boxes",
    "BubblewrapBoxes",
    "Capabilities",
    "NativeBoxes",
    "Result",
    "Root",
    "Sandbox",
    "Snapshot",
    "open_boxes",
]
