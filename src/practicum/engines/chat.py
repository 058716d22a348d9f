"""A policy behind an OpenAI-compatible chat endpoint: for evaluation, never for training.

Without token records nothing can be trained on. Calls arrive parsed; arguments that are not a JSON
object become a call with an error, which the rollout answers and never runs.
"""

import json
from collections.abc import Sequence
from typing import Any

import httpx

from practicum.core import EngineError, Message, Stop, ToolCall, Turn
from practicum.engines.contract import ToolSchemas


class ChatPolicy:
    """`Policy` over `POST {base_url}/chat/completions`.

    Every request has a deadline of `timeout` seconds. Raises EngineError when the endpoint cannot
    be reached, refuses, or answers in another shape.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str = "",
        temperature: float = 1.0,
        timeout: float = 120.0,
    ) -> None:
        self.name = model
        self.url = f"{base_url.rstrip('/')}/chat/completions"
        self.temperature = temperature
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = timeout

    async def begin(self, key: str) -> None:
        """Nothing to prepare."""

    async def end(self, key: str) -> None:
        """Nothing to give back."""

    async def respond(
        self,
        messages: Sequence[Message],
        tools: ToolSchemas,
        *,
        history: Sequence[Turn] = (),
        key: str = "",
        max_tokens: int = 256,
    ) -> Turn:
        """Ask for the next message."""
        request: dict[str, Any] = {
            "model": self.name,
            "messages": wire_messages(messages),
            "max_completion_tokens": max_tokens,
            "temperature": self.temperature,
        }
        if tools:
            request["tools"] = list(tools)
        try:
            async with httpx.AsyncClient(timeout=self._timeout, headers=self._headers) as client:
                answer = await client.post(self.url, json=request)
                answer.raise_for_status()
                choice = answer.json()["choices"][0]
                said = choice["message"]
                calls = [_call(entry["function"]) for entry in said.get("tool_calls") or ()]
                message = Message.of("assistant", said.get("content") or "", *calls)
        except httpx.HTTPStatusError as error:
            text = f"{self.url} answered {error.response.status_code}: {error.response.text[:200]}"
            raise EngineError(f"{text}. Check the model's name and the key") from error
        except httpx.HTTPError as error:
            raise EngineError(f"cannot reach {self.url}: {error!r}. Is the server up?") from error
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise EngineError(f"{self.url} did not answer as a chat endpoint: {error!r}") from error
        return Turn(message, Stop.LENGTH if choice.get("finish_reason") == "length" else Stop.END)


def wire_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages in OpenAI's shape; tool results are matched to calls by their order."""
    wire: list[dict[str, Any]] = []
    open_calls: list[str] = []
    for at, message in enumerate(messages):
        entry: dict[str, Any] = {"role": message.role, "content": message.text}
        if message.calls:
            open_calls = [f"call_{at}_{index}" for index in range(len(message.calls))]
            entry["tool_calls"] = [
                {
                    "id": name,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
                }
                for name, call in zip(open_calls, message.calls, strict=True)
            ]
        if message.role == "tool":
            entry["tool_call_id"] = open_calls.pop(0) if open_calls else f"call_{at}"
        wire.append(entry)
    return wire


def _call(function: dict[str, Any]) -> ToolCall:
    name = function["name"]
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except ValueError as error:
        return ToolCall(name, {}, f"the arguments of {name} are not valid JSON: {error}")
    if not isinstance(arguments, dict):
        return ToolCall(name, {}, f"the arguments of {name} must be one JSON object")
    return ToolCall(name, arguments)
