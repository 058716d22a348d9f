"""Llama 3 JSON: a bare object at the beginning of a line, with the arguments under `parameters`.

{"name": "shell", "parameters": {"command": "ls"}}
"""

import json
import re

from practicum.core import ToolCall
from practicum.models.formats.contract import CallFormat, Malformed, Schemas
from practicum.models.formats.hermes import read_json_call

_PYTHON_TAG = "<|python_tag|>"


class LlamaJson(CallFormat):
    """One bare JSON object with `name` and `parameters`."""

    name = "llama_json"
    opening = re.compile(r'(?m)(?:^[ \t]*|<\|python_tag\|>\s*|(?<=\})[;,\s]*)\{\s*"name"\s*:')
    markup = (_PYTHON_TAG,)

    def render(self, call: ToolCall) -> str:
        """See CallFormat."""
        return json.dumps({"name": call.name, "parameters": call.arguments}, ensure_ascii=False)

    def read(self, text: str, start: int, tools: Schemas) -> tuple[ToolCall, int]:
        """See CallFormat."""
        begin = text.index("{", start)
        try:
            return read_json_call(text, begin, "parameters")
        except Malformed as bad:
            following = self.opening.search(text, begin + 1)
            end = following.start() if following else len(text)
            raise Malformed(bad.reason, bad.name, end) from None
