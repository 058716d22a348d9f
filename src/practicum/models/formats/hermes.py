"""Hermes JSON, the format of Qwen 2.5, Qwen 3 and many others.

<tool_call>
{"name": "shell", "arguments": {"command": "ls"}}
</tool_call>
"""

import json
import re

from practicum.core import ToolCall
from practicum.models.formats.contract import CallFormat, Malformed, Schemas, end_of_bad

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]+)"')
_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder(strict=False)  # raw line breaks in strings are read as what they mean


class Hermes(CallFormat):
    """One JSON object with `name` and `arguments` between tags."""

    name = "hermes"
    opening = re.compile(re.escape(_OPEN))
    markup = (_OPEN, _CLOSE)

    def render(self, call: ToolCall) -> str:
        """See CallFormat."""
        body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        return f"{_OPEN}\n{body}\n{_CLOSE}"

    def read(self, text: str, start: int, tools: Schemas) -> tuple[ToolCall, int]:
        """See CallFormat."""
        begin = _skip(text, start + len(_OPEN))
        try:
            call, end = read_json_call(text, begin, "arguments")
        except Malformed as bad:
            end = end_of_bad(text, begin, _CLOSE, self.opening)
            raise Malformed(bad.reason, bad.name, end) from None
        end = _skip(text, end)
        if not text.startswith(_CLOSE, end):
            bad_end = end_of_bad(text, end, _CLOSE, self.opening)
            raise Malformed(f"no {_CLOSE} after the JSON object", call.name, bad_end)
        return call, end + len(_CLOSE)


def read_json_call(text: str, start: int, key: str) -> tuple[ToolCall, int]:
    """A call written as a JSON object with `name` and an object under `key`; and where it ends.

    Raises Malformed with `end` at the end of the text.
    """
    named = _NAME.search(text, start)
    name = named[1] if named else ""
    try:
        found, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        what = getattr(error, "msg", str(error))
        raise Malformed(f"the call is not valid JSON ({what})", name, len(text)) from None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise Malformed("the call is not a JSON object with a name", name, len(text))
    arguments = found.get(key, {})
    if not isinstance(arguments, dict):
        raise Malformed(f"{key} is not a JSON object", found["name"], len(text))
    return ToolCall(found["name"], arguments), end


def _skip(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return found.end() if found else position
