"""Short words for playing one episode of the practice domain."""

from typing import Any

from practice_domain import TwoLines

from practicum.core import Episode, Message, ToolCall
from practicum.engines.contract import Policy
from practicum.rollout import ScriptPolicy, play
from practicum.sandbox.contract import Boxes


def say(tool: str, **arguments: Any) -> Message:
    """A message with one call."""
    return Message.of("assistant", "", ToolCall(tool, arguments))


async def played(
    boxes: Boxes,
    *script: Message,
    domain: TwoLines | None = None,
    policy: Policy | None = None,
) -> Episode:
    """One episode of a script (or a policy)."""
    domain = domain or TwoLines()
    policy = policy or ScriptPolicy("script", script)
    return await play(domain.make(0, 1), domain, policy, boxes, key="key")
