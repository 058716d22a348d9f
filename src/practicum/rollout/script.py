"""A policy that says what it was given: gold solutions, attacks, and replays."""

from collections.abc import Sequence

from practicum.core import Message, Turn
from practicum.engines.contract import ToolSchemas


class ScriptPolicy:
    """Answers with the messages of a script, one a turn, then with nothing."""

    def __init__(self, name: str, script: Sequence[Message]) -> None:
        self.name = name
        self.script = tuple(script)

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
        """The next message of the script."""
        at = len(history)
        return Turn(self.script[at] if at < len(self.script) else Message.of("assistant"))
