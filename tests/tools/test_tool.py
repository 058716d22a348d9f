"""Tools in general: schemas from typed functions, and bad calls that are answered, not raised."""

from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import practicum.tools as tools
from practicum.core import Limits, RecipeError, SandboxError
from practicum.tools import TOOLS, Observation, Tool, ToolContext, cut_middle, get_tool, tool


def context(**limits: Any) -> ToolContext:
    return ToolContext(box=None, limits=Limits(**limits), seconds_left=10.0)


@tool(read_only=True)
async def sample(
    context: ToolContext,
    path: Annotated[str, "where"],
    count: int,
    ratio: float = 0.5,
    deep: bool = False,
    names: Sequence[str] = (),
    tags: list[str] | None = None,
    kind: Literal["a", "b"] = "a",
) -> Observation:
    """Do a sample thing
    over two lines.

    More that only a reader of the code needs.
    """
    return Observation(f"{path} {count} {ratio} {deep} {list(names)} {tags} {kind}")


def test_the_schema_follows_the_function() -> None:
    assert sample.read_only
    assert sample.schema == {
        "type": "function",
        "function": {
            "name": "sample",
            "description": "Do a sample thing over two lines.",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "where"},
                    "count": {"type": "integer"},
                    "ratio": {"type": "number", "default": 0.5},
                    "deep": {"type": "boolean", "default": False},
                    "names": {"type": "array", "items": {"type": "string"}},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "kind": {"enum": ["a", "b"], "default": "a"},
                },
                "required": ["path", "count"],
            },
        },
    }


async def test_a_good_call_runs_with_defaults() -> None:
    found = await sample.call(context(), {"path": "p", "count": 2, "ratio": 1})
    assert found == Observation("p 2 1 False [] None a")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, ["missing argument 'path'", "missing argument 'count'"]),
        ({"path": "p", "count": 1, "pth": "x"}, ["unknown argument 'pth'"]),
        ({"path": 3, "count": 1}, ["'path'", "str"]),
        ({"path": "p", "count": "1"}, ["'count'", "int"]),
        ({"path": "p", "count": 1, "names": [1]}, ["'names'", "str"]),
        ({"path": "p", "count": 1, "names": "abc"}, ["'names'", "array"]),
        ({"path": "p", "count": True}, ["'count'", "int"]),
        ({"path": "p", "count": 1, "kind": "c"}, ["'kind'", "'c'"]),
        (["p", 1], ["one JSON object"]),
        ("p", ["one JSON object"]),
        (None, ["one JSON object"]),
    ],
)
async def test_a_bad_call_says_what_is_wrong_and_how_it_is_right(
    arguments: Any, words: list[str]
) -> None:
    found = await sample.call(context(), arguments)
    assert not found.ok
    for word in words:
        assert word in found.text
    assert '{"name": "sample", "arguments": {"path": "...", "count": 1}}' in found.text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["path", "count", "names", "x", "tags"]), json_values))
async def test_no_arguments_raise(arguments: dict[str, Any]) -> None:
    found = await sample.call(context(), arguments)
    assert len(found.text) <= Limits().observation_chars


def test_a_tool_needs_types_and_words() -> None:
    async def untyped(context: ToolContext, x) -> Observation:  # type: ignore[no-untyped-def]
        """Words."""
        return Observation(x)

    async def silent(context: ToolContext, x: str) -> Observation:
        return Observation(x)

    with pytest.raises(TypeError, match="needs a type"):
        tool(untyped)
    with pytest.raises(TypeError, match="docstring"):
        tool(silent)


async def test_our_own_failures_pass_through() -> None:
    with pytest.raises(SandboxError, match="needs a box"):
        await get_tool("shell").call(context(), {"command": "true"})


def test_the_built_in_tools_are_cheap_in_words() -> None:
    assert list(TOOLS)[:8] == [
        *("shell", "read_file", "write_file", "edit_file", "list_files", "search_files"),
        *("submit", "task_state"),
    ]
    for name in list(TOOLS)[:8]:
        assert len(TOOLS[name].description) <= 70
    reading = [name for name, found in TOOLS.items() if found.read_only]
    assert reading == ["read_file", "list_files", "search_files"]


def test_other_packages_add_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    value = f"{__name__}:sample"
    entry = EntryPoint("anything", value, "practicum.tools")
    monkeypatch.setattr(EntryPoint, "load", lambda self: sample)
    monkeypatch.setattr(tools, "entry_points", lambda group: [entry])
    monkeypatch.setattr(tools, "TOOLS", dict(TOOLS))
    tools._load_entry_points.cache_clear()
    assert get_tool("sample") is sample
    other = Tool("sample", "another", {}, sample.function)
    monkeypatch.setattr(EntryPoint, "load", lambda self: other)
    tools._load_entry_points.cache_clear()
    with pytest.raises(RecipeError, match="second tool 'sample'"):
        get_tool("unknown")
    tools._load_entry_points.cache_clear()


def test_an_unknown_tool_names_the_known() -> None:
    with pytest.raises(RecipeError, match=r"no tool 'shel'.*shell"):
        get_tool("shel")


@given(st.text(max_size=400), st.integers(0, 300))
def test_cutting_keeps_both_ends_and_the_limit(text: str, limit: int) -> None:
    found = cut_middle(text, limit)
    assert len(found) <= limit or found == text
    if len(text) <= limit:
        assert found == text
    elif "characters cut" in found:
        head, _, tail = found.partition("\n[... ")
        count, _, rest = tail.partition(" characters cut ...]\n")
        assert text.startswith(head)
        assert text.endswith(rest)
        assert len(head) + len(rest) + int(count) == len(text)


def test_cutting_shows_how_much_is_gone() -> None:
    found = cut_middle("a" * 500 + "b" * 500, 100)
    assert len(found) <= 100
    assert found.startswith("a" * 30)
    assert found.endswith("b" * 30)
    assert "characters cut" in found
