"""What a tool is: a typed async function with a docstring. Its JSON schema is derived from both.

    @tool
    async def shell(context: ToolContext, command: str) -> Observation:
        \"\"\"Run a command in bash; the working directory persists.\"\"\"

The first parameter is the context; the others are the model's arguments (str, int, float, bool,
list[str], and optional ones with defaults). Each argument may be documented by `Annotated[str, "..."]`.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from practicum.core import Limits
from practicum.sandbox.contract import Sandbox


class Observation(msgspec.Struct, frozen=True):
    """What the model is shown after a call, and what it means for the episode."""

    text: str
    ok: bool = True
    exit_code: int | None = None
    timed_out: bool = False
    final: bool = False  # the episode ends here
    answer: str = ""  # the final answer, if `final`


@dataclass
class ToolContext:
    """What tools of one episode share. `box` is None in a text-only task."""

    box: Sandbox | None
    limits: Limits
    seconds_left: float
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tool:
    """A tool by name, with its derived schema."""

    name: str
    description: str
    parameters: dict[str, Any]  # JSON schema of the arguments object
    function: Callable[..., Awaitable[Observation]]
    read_only: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in OpenAI's function shape."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters,
            },
        }

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> Observation:
        """Check the arguments and run. A bad call is an observation that says how to call it right."""
        raise NotImplementedError("the tools helper writes this")


def tool(function: Any = None, *, read_only: bool = False) -> Any:
    """Make a `Tool` of a typed async function."""
    raise NotImplementedError((inspect, "the tools helper writes this"))
