"""What is said: messages whose content is always a list of parts, and the calls a model makes."""

from typing import Any, Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]


class Text(msgspec.Struct, frozen=True, tag="text"):
    """A part of a message that is plain text."""

    text: str


Part = Text
"""Any part of a message. The union grows (pictures); the list shape stays."""


class ToolCall(msgspec.Struct, frozen=True):
    """One call of a tool by a model. With `error` set it cannot be run, and `error` says why."""

    name: str
    arguments: dict[str, Any] = {}
    error: str = ""


class Message(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: Role
    content: tuple[Part, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    name: str = ""  # for role "tool": the tool that answers

    @classmethod
    def of(cls, role: Role, text: str = "", *calls: ToolCall, name: str = "") -> "Message":
        """A message with one text part (none when `text` is empty)."""
        return cls(role, (Text(text),) if text else (), calls, name)

    @property
    def text(self) -> str:
        """All text parts, joined."""
        return "".join(part.text for part in self.content)
