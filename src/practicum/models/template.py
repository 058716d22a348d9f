"""A chat template as text pieces: what it writes itself, and what was put into it, kept apart.

Every content is replaced by a sentinel before rendering and the result is split at the sentinels,
so no content can be mistaken for the template's own text, and a template that looks into contents
(or escapes them) does the same for any. What a template cannot do is found by trying it, and
arranged beforehand: a system text it refuses moves into the first user message, tool results it has
no role for become user messages, user messages that follow each other are merged where roles must
alternate. A template that asks for the date is given a fixed one.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase

from practicum.core import Message, ModelError, ToolCall
from practicum.models.formats import DEFAULT, NATIVE, CallFormat
from practicum.models.formats.contract import Schemas
from practicum.models.jinja import FIXED_DATE, compile_template
from practicum.models.tokenizer import Piece

_REFUSED = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError)
_SENTINEL = re.compile(r"Zq7x(\d+)x7qZ")
_PROBE_CALL = ToolCall("probe", {"path": "Zq7argument7qZ"})
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "Probe.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string", "description": "A path."}},
            "required": ["path"],
        },
    },
}


def _sentinel(index: int) -> str:
    return f"Zq7x{index}x7qZ"


class Template:
    """The chat template of one tokenizer, with what it can and cannot do."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any]) -> None:
        if not tokenizer.chat_template:
            raise ModelError(
                "the tokenizer has no chat template. Use an instruction-tuned model, or put a "
                "chat_template.jinja into the model's folder."
            )
        self._tokenizer = tokenizer
        self._options = {
            "date_string": FIXED_DATE.strftime("%d %b %Y"),
            **options,
        }
        user, assistant = _plain("user", 0), _plain("assistant", 1)
        if _sentinel(0) not in self.render([user], prompt=True):
            raise ModelError("the chat template drops a user message: mend the template")
        self.takes_system = self._try([_plain("system", 1), user], 2) is not None
        self.alternates = self._try([user, _plain("user", 1)], 2) is None
        self.takes_tool = self._has_tool_role(user, assistant)
        self.escapes_tool = self.takes_tool and self._escapes(user, assistant)
        self.format = self._native_format(user) or DEFAULT

    @property
    def native(self) -> bool:
        """Whether the template itself introduces tools and writes calls."""
        return self.format is not DEFAULT

    def pieces(
        self, messages: Sequence[Message], tools: Schemas = (), *, prompt: bool = True
    ) -> list[Piece]:
        """The rendering of `messages`, the generation prompt included if `prompt`."""
        arranged = self.arrange(messages)
        contents: list[str] = []
        rendered = []
        for message in arranged:
            text = self.format.join(message.text, message.calls)
            core = text.strip()
            if core:  # white space around it stays with the template, which may strip it
                at = text.index(core)
                held = _sentinel(len(contents))
                contents.append(self._escaped(message, core))
                text = text[:at] + held + text[at + len(core) :]
            rendered.append(_chat(message.role, text, message.name))
        text = self.render(rendered, tools if self.native else (), prompt=prompt)
        parts = _SENTINEL.split(text)
        pieces = [
            Piece(part if even else contents[int(part)], even)
            for part, even in zip(parts, [True, False] * len(parts), strict=False)
        ]
        if len(set(parts[1::2])) != len(contents):
            raise ModelError("the chat template drops a message of this conversation")
        return [piece for piece in pieces if piece.text]

    def render(
        self, chat: Sequence[Mapping[str, Any]], tools: Schemas = (), *, prompt: bool
    ) -> str:
        """The template's text for messages in its own shape; raises ModelError."""
        try:
            return self._render(chat, tools, prompt=prompt)
        except _REFUSED as error:
            roles = ", ".join(str(message["role"]) for message in chat)
            raise ModelError(
                f"the chat template refuses a conversation of {roles}: {error}"
            ) from error

    def arrange(self, messages: Sequence[Message]) -> list[Message]:
        """The same conversation in roles that the template takes."""
        arranged: list[Message] = []
        held = ""
        for message in messages:
            if message.role == "system" and not self.takes_system:
                held = _joined(held, message.text)
                continue
            if message.role == "tool" and not self.takes_tool:
                text = f"<tool_response>\n{message.text}\n</tool_response>"
                message = Message.of("user", text)
            if message.role == "user" and held:
                message, held = Message.of("user", _joined(held, message.text)), ""
            last = arranged[-1] if arranged else None
            if self.alternates and last and last.role == message.role == "user":
                arranged[-1] = Message.of("user", _joined(last.text, message.text))
            else:
                arranged.append(message)
        if held:
            arranged.insert(0, Message.of("user", held))
        return arranged

    def _escaped(self, message: Message, text: str) -> str:
        if message.role == "tool" and self.escapes_tool:
            return json.dumps(text, ensure_ascii=False)[1:-1]
        return text

    def _render(self, chat: Sequence[Mapping[str, Any]], tools: Schemas, *, prompt: bool) -> str:
        source = self._tokenizer.get_chat_template(tools=[dict(tool) for tool in tools] or None)
        return compile_template(source).render(
            messages=[dict(message) for message in chat],
            tools=[dict(tool) for tool in tools] or None,
            documents=None,
            add_generation_prompt=prompt,
            **self._tokenizer.special_tokens_map,
            **self._options,
        )

    def _try(
        self, chat: Sequence[Mapping[str, Any]], contents: int, tools: Schemas = ()
    ) -> str | None:
        """The rendering, or None if the template refuses it or drops one of the contents."""
        try:
            text = self._render(chat, tools, prompt=True)
        except _REFUSED:
            return None
        shown = all(_sentinel(index) in text for index in range(contents))
        return text if shown else None

    def _has_tool_role(self, user: dict[str, Any], assistant: dict[str, Any]) -> bool:
        """Whether results have a role of their own, and are not passed off as the model's words."""
        as_tool = self._try([user, assistant, _plain("tool", 2)], 3)
        if as_tool is None:
            return False
        as_model = self._try([user, assistant, _plain("assistant", 2)], 3)
        return as_model is None or _between(as_tool) != _between(as_model)

    def _escapes(self, user: dict[str, Any], assistant: dict[str, Any]) -> bool:
        awkward = f'{_sentinel(2)}"\n{_sentinel(3)}'
        text = self._try([user, assistant, _chat("tool", awkward, "probe")], 4) or ""
        return awkward not in text and json.dumps(awkward)[1:-1] in text

    def _native_format(self, user: dict[str, Any]) -> CallFormat | None:
        """The format in which the template itself writes a call, if it introduces tools at all."""
        function = {"name": _PROBE_CALL.name, "arguments": _PROBE_CALL.arguments}
        call = {"id": "call00000", "type": "function", "function": function}
        caller = {"role": "assistant", "content": "", "tool_calls": [call]}
        prompt = self._try([user], 1, [_PROBE_TOOL])
        if not prompt or "Probe." not in prompt or not self.takes_tool:
            return None
        try:
            whole = self._render([user, caller], [_PROBE_TOOL], prompt=False)
        except _REFUSED:
            return None
        said = whole[len(prompt) :] if whole.startswith(prompt) else whole.split(_sentinel(0))[-1]
        for form in NATIVE:
            if form.parse(said, [_PROBE_TOOL]) == [_PROBE_CALL]:
                return form
        return None


def _plain(role: str, index: int) -> dict[str, Any]:
    return _chat(role, _sentinel(index), "probe")


def _chat(role: str, text: str, name: str) -> dict[str, Any]:
    message = {"role": role, "content": text}
    if role == "tool":
        message |= {"name": name or "tool", "tool_call_id": "call00000"}
    return message


def _between(text: str) -> str:
    """What stands between the assistant's and the next content of a probe."""
    return text.split(_sentinel(1))[-1].split(_sentinel(2))[0]


def _joined(first: str, second: str) -> str:
    return "\n\n".join(part for part in (first, second) if part)
