"""Boxes: isolated workspaces in which whatever a model or a candidate wrote is run."""

from practicum.sandbox.bubblewrap import BubblewrapBoxes
from practicum.sandbox.contract import Boxes, Result, Sandbox
from practicum.sandbox.host import Capabilities

__all__ = ["Boxes", "BubblewrapBoxes", "Capabilities", "Result", "Sandbox"]
