"""What a tool is: a typed async function with a docstring. Its JSON schema is derived from both.

    @tool
    async def shell(context: ToolContext, command: str) -> Observation:
        \"\"\"Run a command in bash; the working directory persists.\"\"\"

The first parameter is the context; the others are the model's arguments (str, int, float, bool,
list[str], and optional ones with defaults). `Annotated[str, "..."]` documents an argument.
"""

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, overload

import msgspec

from practicum.core import Limits
from practicum.sandbox.contract import Sandbox
from practicum.tools.observation import cut_middle


class Observation(msgspec.Struct, frozen=True):
    """What the model is shown after a call, and what it means for the episode."""

    text: str
    ok: bool = True  # the call did what it says; a command that ran and failed has its exit code
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
        """Check the arguments and run. A bad call is an observation that says how to call it right.

        The text is cut to `limits.observation_chars`. Raises only what is not the model's fault.
        """
        problems = self._problems(arguments)
        if problems:
            text = f"Bad call: {'; '.join(problems)}. Call it like this: {self._example()}"
            found = Observation(text, ok=False)
        else:
            found = await self.function(context, **arguments)
        text = cut_middle(found.text, context.limits.observation_chars)
        return msgspec.structs.replace(found, text=text)

    def _problems(self, arguments: Any) -> list[str]:
        """What is wrong with the arguments of a call."""
        if not isinstance(arguments, Mapping):
            return ["the arguments must be one JSON object"]
        known = _parameters(self.function)
        problems = [f"unknown argument {name!r}" for name in arguments if name not in known]
        for name, parameter in known.items():
            if name in arguments:
                try:
                    msgspec.convert(arguments[name], parameter.annotation)
                except msgspec.ValidationError as error:
                    problems.append(f"{name!r}: {error}")
            elif parameter.default is parameter.empty:
                problems.append(f"missing argument {name!r}")
        return problems

    def _example(self) -> str:
        """A call with the required arguments (with all, when none is required)."""
        names = self.parameters["required"] or list(self.parameters["properties"])
        shown = {"string": "...", "integer": 1, "number": 1.5, "boolean": True, "array": ["..."]}
        kinds = {name: self.parameters["properties"][name].get("type") for name in names}
        arguments = {name: shown.get(kind) for name, kind in kinds.items()}
        return json.dumps({"name": self.name, "arguments": arguments})


@overload
def tool(function: Callable[..., Awaitable[Observation]]) -> Tool: ...


@overload
def tool(
    function: None = None, *, read_only: bool = False
) -> Callable[[Callable[..., Awaitable[Observation]]], Tool]: ...


def tool(function: Any = None, *, read_only: bool = False) -> Any:
    """Make a `Tool` of a typed async function: its name, first docstring paragraph and parameters.

    Raises TypeError when a parameter has no type or the function has no docstring.
    """
    if function is None:
        return lambda decorated: _derive(decorated, read_only)
    return _derive(function, read_only)


def _derive(function: Callable[..., Awaitable[Observation]], read_only: bool) -> Tool:
    description = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
    if not description:
        raise TypeError(f"tool {function.__name__!r} needs a docstring: it is the description")
    properties = {}
    required = []
    for name, parameter in _parameters(function).items():
        properties[name] = _schema(parameter)
        if parameter.default is parameter.empty:
            required.append(name)
        elif parameter.default not in (None, "", ()):
            properties[name]["default"] = parameter.default
    schema = {"type": "object", "properties": properties, "required": required}
    return Tool(function.__name__, description, schema, function, read_only)


@cache
def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The model's parameters: all but the first, with evaluated types."""
    found = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    for parameter in found:
        if parameter.annotation is parameter.empty:
            raise TypeError(f"parameter {parameter.name!r} of {function.__name__!r} needs a type")
    return {parameter.name: parameter for parameter in found}


def _schema(parameter: inspect.Parameter) -> dict[str, Any]:
    """JSON schema of one parameter; the first string in `Annotated` describes it."""
    annotation = parameter.annotation
    notes: tuple[str, ...] = ()
    if get_origin(annotation) is Annotated:
        annotation, *rest = get_args(annotation)
        notes = tuple(note for note in rest if isinstance(note, str))
    options = [option for option in get_args(annotation) if option is not NoneType]
    if get_origin(annotation) in (Union, UnionType) and len(options) == 1:
        annotation = options[0]  # optional: the model simply leaves it out
    schema = msgspec.json.schema(annotation)
    return {**schema, "description": notes[0]} if notes else schema
