"""What a model can call. Other packages add tools by the entry point group `practicum.tools`."""

from functools import cache
from importlib.metadata import entry_points

from practicum.core import RecipeError
from practicum.tools import files as _files
from practicum.tools import shell as _shell
from practicum.tools import submit as _submit
from practicum.tools import task_state as _task_state
from practicum.tools.observation import cut_middle
from practicum.tools.task_state import KEY, render_task_state
from practicum.tools.tool import Observation, Tool, ToolContext, tool

_BUILT_IN = (
    _shell.shell,
    _files.read_file,
    _files.write_file,
    _files.edit_file,
    _files.list_files,
    _files.search_files,
    _submit.submit,
    _task_state.task_state,
)
TOOLS: dict[str, Tool] = {built_in.name: built_in for built_in in _BUILT_IN}
"""Tools by name: the built-in ones, and others once `get_tool` has looked for them."""


def get_tool(name: str) -> Tool:
    """The tool of this name; RecipeError lists those there are."""
    if name not in TOOLS:
        _load_entry_points()
    if name not in TOOLS:
        raise RecipeError(f"there is no tool {name!r}; there are {', '.join(sorted(TOOLS))}")
    return TOOLS[name]


@cache
def _load_entry_points() -> None:
    """Add the tools of other packages, once; a name that is taken is refused."""
    for entry in entry_points(group="practicum.tools"):
        found = entry.load()
        if not isinstance(found, Tool):
            raise RecipeError(f"entry point {entry.name!r} ({entry.value}) is not a Tool")
        if TOOLS.setdefault(found.name, found) is not found:
            raise RecipeError(f"{entry.value} adds a second tool {found.name!r}: rename it")


__all__ = [
    "KEY",
    "TOOLS",
    "Observation",
    "Tool",
    "ToolContext",
    "cut_middle",
    "get_tool",
    "render_task_state",
    "tool",
]
