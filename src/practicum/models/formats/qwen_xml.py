"""The XML-like format of Qwen3-Coder. A value may hold anything but its own closing tag.

<tool_call>
<function=shell>
<parameter=command>
ls
</parameter>
</function>
</tool_call>
"""

import re
from typing import Any

from practicum.core import ToolCall
from practicum.models.formats.contract import (
    CallFormat,
    Malformed,
    Schemas,
    end_of_bad,
    raw_text,
    typed_value,
)

_OPEN, _CLOSE, _END = "<tool_call>", "</tool_call>", "</parameter>"
_FUNCTION = re.compile(r"<tool_call>\s*<function=([^>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?")
_CLOSING = re.compile(r"\s*</function>\s*</tool_call>")


class QwenXml(CallFormat):
    """A function element with one parameter element an argument, raw text inside."""

    name = "qwen_xml"
    opening = re.compile(re.escape(_OPEN))
    markup = (_OPEN, _CLOSE)

    def render(self, call: ToolCall) -> str:
        """The call; raises ValueError for a value that holds the closing tag."""
        lines = [_OPEN, f"<function={call.name}>"]
        for argument, value in call.arguments.items():
            text = raw_text(value)
            if _END in text:
                raise ValueError(f"argument {argument!r} of {call.name!r} holds {_END}")
            lines += [f"<parameter={argument}>", text, _END]
        return "\n".join([*lines, "</function>", _CLOSE])

    def read(self, text: str, start: int, tools: Schemas) -> tuple[ToolCall, int]:
        """See CallFormat."""
        opened = _FUNCTION.match(text, start)
        if not opened:
            raise self._bad(text, start + len(_OPEN), "", "no <function=name> in the call")
        name, position = opened[1].strip(), opened.end()
        arguments: dict[str, Any] = {}
        while not (closing := _CLOSING.match(text, position)):
            parameter = _PARAMETER.match(text, position)
            if not parameter:
                raise self._bad(text, position, name, "no </function> and </tool_call> at the end")
            ended = text.find(_END, parameter.end())
            if ended < 0:
                raise self._bad(text, parameter.end(), name, f"a parameter has no {_END}")
            value = text[parameter.end() : ended].removesuffix("\n")
            argument = parameter[1].strip()
            arguments[argument] = typed_value(value, name, argument, tools)
            position = ended + len(_END)
        return ToolCall(name, arguments), closing.end()

    def _bad(self, text: str, position: int, name: str, reason: str) -> Malformed:
        return Malformed(reason, name, end_of_bad(text, position, _CLOSE, self.opening))
