"""What a call format is, and the one scanner that finds calls in a message, whatever the format.

The scanner guarantees: nothing inside a reasoning block is a call; a call that is cut off or
malformed is never repaired, it becomes a call with an error that shows how to call right; calls
come back in the order in which they stand; all other text stays.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from practicum.core import Stop, ToolCall

Schemas = Sequence[Mapping[str, Any]]
"""Tools in OpenAI's function shape."""

_REASONING = re.compile(r"<(think|thinking|reasoning)>")
_NAME = re.compile(r"[A-Za-z_][\w.-]*")


class Malformed(Exception):
    """A call that cannot be read: `reason`, the tool's `name` if known, and where the call ends."""

    def __init__(self, reason: str, name: str, end: int) -> None:
        super().__init__(reason)
        self.reason, self.name, self.end = reason, name, end


class CallFormat(ABC):
    """A way to write calls as text, and to read them back."""

    name: ClassVar[str]
    opening: ClassVar[re.Pattern[str]]  # where a call begins
    markup: ClassVar[tuple[str, ...]] = ()  # strings of the format that may be tokens of their own

    @abstractmethod
    def render(self, call: ToolCall) -> str:
        """The call as the model would write it."""

    @abstractmethod
    def read(self, text: str, start: int, tools: Schemas) -> tuple[ToolCall, int]:
        """The call that begins at `start` (a match of `opening`) and where it ends.

        Raises Malformed for a call that is not complete and right.
        """

    def instructions(self, tools: Schemas) -> str:
        """What the system message must say; empty where the template introduces the tools."""
        return ""

    def parse(self, text: str, tools: Schemas = (), stop: Stop = Stop.END) -> list[ToolCall]:
        """All calls in `text`, those that cannot be run with their error."""
        return split_calls(self, text, tools, stop)[1]

    def join(self, content: str, calls: Sequence[ToolCall]) -> str:
        """A whole message: its text, then its calls."""
        return "\n".join(part for part in (content, *map(self.render, calls)) if part)

    def example(self, name: str, tools: Schemas) -> str:
        """How a call of tool `name` looks, with `...` for what must be filled in."""
        names = [tool["function"]["name"] for tool in tools]
        known = name if name in names or not names else names[0]
        properties = function_schema(known, tools).get("parameters", {})
        wanted = properties.get("required") or list(properties.get("properties", {}))[:1]
        return self.render(ToolCall(known or "name", dict.fromkeys(wanted, "...")))


def split_calls(
    form: CallFormat,
    text: str,
    tools: Schemas = (),
    stop: Stop = Stop.END,
    *,
    reasoning: bool = False,
) -> tuple[str, list[ToolCall]]:
    """The text around the calls, stripped, and the calls in order.

    `reasoning` says that the prompt has already opened a reasoning block.
    """
    kept, calls, position = [], [], 0
    if reasoning:
        position = _after_reasoning(text, 0, "think")
        kept.append(text[:position])
    while True:
        thought = _REASONING.search(text, position)
        opening = form.opening.search(text, position)
        if thought and (opening is None or thought.start() <= opening.start()):
            end = _after_reasoning(text, thought.end(), thought[1])
            kept.append(text[position:end])
        elif opening:
            kept.append(text[position : opening.start()])
            try:
                call, end = form.read(text, opening.start(), tools)
                if not _storable(call):
                    raise Malformed("an argument is neither text nor a normal number", "", end)
            except Malformed as bad:
                cut = stop == Stop.LENGTH and bad.end >= len(text)
                reason = "the call was cut off by the token limit" if cut else bad.reason
                advice = f"{reason}. Call it like this:\n{form.example(bad.name, tools)}"
                call, end = ToolCall(bad.name, {}, error=advice), bad.end
            calls.append(call)
        else:
            kept.append(text[position:])
            return _tidy(kept), calls
        position = end


def _storable(call: ToolCall) -> bool:
    """Whether JSON on disk can hold the call: no half characters, no NaN, no endless nesting."""
    said = [call.name, call.arguments]
    try:
        return bool(msgspec.json.decode(msgspec.json.encode(said)) == said)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return False


def _after_reasoning(text: str, start: int, tag: str) -> int:
    closing = text.find(f"</{tag}>", start)
    return len(text) if closing < 0 else closing + len(tag) + 3


def _tidy(kept: Sequence[str]) -> str:
    return "\n".join(part for part in (piece.strip() for piece in kept) if part)


def function_schema(name: str, tools: Schemas) -> Mapping[str, Any]:
    """The function called `name` among `tools`, or an empty mapping."""
    for tool in tools:
        if tool["function"]["name"] == name:
            found: Mapping[str, Any] = tool["function"]
            return found
    return {}


def raw_text(value: Any) -> str:
    """An argument as raw text: strings as they are, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def typed_value(text: str, name: str, argument: str, tools: Schemas) -> Any:
    """An argument's raw text as its schema types it.

    Text where the schema allows a string (`null` is None where it allows that too) or says
    nothing; else the JSON value, or the text itself where it is none, for the tool to object to.
    """
    parameters = function_schema(name, tools).get("parameters", {})
    kinds = _kinds(parameters.get("properties", {}).get(argument, {}))
    if "null" in kinds and text.strip() == "null":
        return None
    if not kinds or "string" in kinds:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    declared = schema.get("type", ())
    kinds = {declared} if isinstance(declared, str) else set(declared)
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        kinds |= _kinds(choice)
    return kinds


def read_name(text: str, start: int) -> tuple[str, int]:
    """The tool's name at `start` (after white space), maybe empty, and where it ends."""
    while start < len(text) and text[start].isspace():
        start += 1
    found = _NAME.match(text, start)
    return (found[0], found.end()) if found else ("", start)


def end_of_bad(text: str, start: int, closing: str, opening: re.Pattern[str]) -> int:
    """Where a malformed call ends: after its closing tag, before the next call, or at the end."""
    closed = text.find(closing, start)
    following = opening.search(text, start)
    if following and (closed < 0 or following.start() < closed):
        return following.start()
    return len(text) if closed < 0 else closed + len(closing)
