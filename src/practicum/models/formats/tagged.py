"""The default format: cheap in tokens and free of escaping.

    <tool_call>shell
    <command>sort a.txt > b.txt</command>
    </tool_call>

The name on the first line, then one element an argument with its raw text: strings as they are,
other types as JSON. Nothing is escaped, so a value may hold anything but its own closing tag:
the first one ends it.
"""

import re
from collections.abc import Mapping
from typing import Any

from practicum.core import ToolCall
from practicum.models.formats.contract import (
    CallFormat,
    Malformed,
    Schemas,
    end_of_bad,
    raw_text,
    read_name,
    typed_value,
)

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_ARGUMENT = re.compile(r"\s*<([A-Za-z_][\w.-]*)>")
_CLOSING = re.compile(r"\s*</tool_call>")
_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "array": "list"}


class Tagged(CallFormat):
    """Name on the first line, one element an argument, raw text inside."""

    name = "tagged"
    opening = re.compile(re.escape(_OPEN))
    markup = (_OPEN, _CLOSE)

    def render(self, call: ToolCall) -> str:
        """The call; raises ValueError for a value that holds its own closing tag."""
        lines = [f"{_OPEN}{call.name}"]
        for argument, value in call.arguments.items():
            text = raw_text(value)
            if f"</{argument}>" in text:
                raise ValueError(
                    f"argument {argument!r} of {call.name!r} holds </{argument}>, its own end"
                )
            lines.append(f"<{argument}>{text}</{argument}>")
        return "\n".join([*lines, _CLOSE])

    def read(self, text: str, start: int, tools: Schemas) -> tuple[ToolCall, int]:
        """See CallFormat."""
        name, position = read_name(text, start + len(_OPEN))
        if not name:
            raise self._bad(text, position, "", "a call begins with the tool's name")
        arguments: dict[str, Any] = {}
        while not (closing := _CLOSING.match(text, position)):
            opened = _ARGUMENT.match(text, position)
            if not opened:
                raise self._bad(text, position, name, f"no {_CLOSE} where the call should end")
            argument = opened[1]
            ended = text.find(f"</{argument}>", opened.end())
            if ended < 0:
                raise self._bad(text, opened.end(), name, f"<{argument}> has no </{argument}>")
            if argument in arguments:
                raise self._bad(text, ended, name, f"argument {argument} is given twice")
            value = text[opened.end() : ended]
            arguments[argument] = typed_value(value, name, argument, tools)
            position = ended + len(argument) + 3
        return ToolCall(name, arguments), closing.end()

    def instructions(self, tools: Schemas) -> str:
        """The format by one example, then one line a tool."""
        if not tools:
            return ""
        takers = [t for t in tools if t["function"].get("parameters", {}).get("properties")]
        shown = (takers or list(tools))[0]["function"]["name"]
        lines = ["Call a tool like this:", self.example(shown, tools), "Tools:"]
        return "\n".join([*lines, *(_signature(tool["function"]) for tool in tools)])

    def _bad(self, text: str, position: int, name: str, reason: str) -> Malformed:
        return Malformed(reason, name, end_of_bad(text, position, _CLOSE, self.opening))


def _signature(function: Mapping[str, Any]) -> str:
    parameters = function.get("parameters", {})
    required = set(parameters.get("required", ()))
    listed = ", ".join(
        f"{name}{'' if name in required else '?'}: {_type(schema)}"
        for name, schema in parameters.get("properties", {}).items()
    )
    about = function.get("description", "").strip().split("\n")[0].rstrip(".;")
    return f"{function['name']}({listed})" + (f" - {about}" if about else "")


def _type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "|".join(map(raw_text, schema["enum"]))
    if "anyOf" in schema:
        return "|".join(_type(c) for c in schema["anyOf"] if c.get("type") != "null")
    declared = schema.get("type", "any")
    return _TYPES.get(declared, "dict" if declared == "object" else str(declared))
