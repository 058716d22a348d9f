"""Calls are read back as they were written; whatever is not whole and right is never run."""

import string

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from written_templates import TOOLS

from practicum.core import Stop, ToolCall
from practicum.models.formats import (
    DEFAULT,
    NATIVE,
    CallFormat,
    Hermes,
    LlamaJson,
    QwenXml,
    Tagged,
    split_calls,
)

FORMATS = [DEFAULT, *NATIVE]
every_format = pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)

names = st.text(string.ascii_lowercase + "_", min_size=1, max_size=8)
texts = st.text(max_size=40) | st.lists(
    st.sampled_from(
        [
            "<",
            ">",
            "</",
            "\n",
            '"',
            "'",
            "\\",
            "{",
            "}",
            "<tool_call>",
            "</tool_call>",
            "é",
            "🙂",
            "<think>",
            "</think>",
            "<command>",
            " ",
            "&lt;",
            "<function=x>",
            "```",
            '{"name": "x"',
        ]
    ),
    max_size=8,
).map("".join)
values = st.integers() | st.booleans() | st.lists(texts, max_size=3) | st.none()


def schema(name: str, kinds: dict[str, str]) -> list[dict]:
    properties = {argument: {"type": kind} for argument, kind in kinds.items()}
    function = {"name": name, "parameters": {"type": "object", "properties": properties}}
    return [{"type": "function", "function": function}]


@every_format
@given(name=names, texts=st.dictionaries(names, texts, max_size=3))
def test_text_arguments_come_back_as_they_went(
    form: CallFormat, name: str, texts: dict[str, str]
) -> None:
    for argument, value in texts.items():  # the one documented exception: its own closing tag
        assume(f"</{argument}>" not in value and "</parameter>" not in value)
    call = ToolCall(name, texts)
    tools = schema(name, dict.fromkeys(texts, "string"))
    assert form.parse(form.render(call), tools) == [call]


@every_format
@given(name=names, values=st.dictionaries(names, values, max_size=3))
def test_typed_arguments_come_back_as_they_went(
    form: CallFormat, name: str, values: dict[str, object]
) -> None:
    kinds = {bool: "boolean", int: "integer", list: "array", type(None): "null"}
    assume(not any("</" in repr(value) for value in values.values()))
    call = ToolCall(name, values)
    tools = schema(name, {argument: kinds[type(value)] for argument, value in values.items()})
    assert form.parse(form.render(call), tools) == [call]


@every_format
@given(text=st.text(max_size=30), command=texts, cut=st.integers(min_value=1, max_value=200))
def test_a_call_that_was_cut_is_never_run(
    form: CallFormat, text: str, command: str, cut: int
) -> None:
    assume("</command>" not in command and "</parameter>" not in command)
    call = ToolCall("shell", {"command": command})
    whole = form.render(call)
    part = whole[: max(0, len(whole) - cut)]
    assume('"name": "x"' not in command and "<tool_call>" not in command)
    for stop in Stop:
        assert all(found.error for found in form.parse(part, TOOLS, stop))


@given(text=st.text("<>/tool_call{}\"name:\n shelcomand=functipr|'\\", max_size=120))
def test_reading_never_raises(text: str) -> None:
    for form in FORMATS:
        for stop in Stop:
            content, calls = split_calls(form, text, TOOLS, stop)
            assert isinstance(content, str)
            assert all(isinstance(call.arguments, dict) for call in calls)


@every_format
def test_two_calls_come_back_in_order_and_the_text_around_them_stays(form: CallFormat) -> None:
    first, second = ToolCall("shell", {"command": "ls -la"}), ToolCall("submit")
    text = f"I look.\n{form.render(first)}\n{form.render(second)}\nThat is all."
    content, calls = split_calls(form, text, TOOLS)
    assert calls == [first, second]
    assert content == "I look.\nThat is all."


@every_format
def test_nothing_inside_a_reasoning_block_is_a_call(form: CallFormat) -> None:
    call = ToolCall("shell", {"command": "rm -r /"})
    written = form.render(call)
    assert form.parse(f"<think>\n{written}\n</think>\n", TOOLS) == []
    assert form.parse(f"<think>\n{written}\nand so", TOOLS) == []
    assert form.parse(f"<think>{written}</think>\n{written}", TOOLS) == [call]
    assert split_calls(form, f"{written}</think>\n{written}", TOOLS, reasoning=True)[1] == [call]


@every_format
def test_a_call_whose_argument_speaks_of_reasoning_is_a_call(form: CallFormat) -> None:
    call = ToolCall("shell", {"command": "echo '<think>'"})
    assert form.parse(form.render(call), TOOLS) == [call]


@every_format
def test_an_error_shows_how_to_call_right(form: CallFormat) -> None:
    whole = form.render(ToolCall("shell", {"command": "sort a.txt"}))
    (cut,) = form.parse(whole[: len(whole) - 20], TOOLS, Stop.LENGTH)
    assert "token limit" in cut.error
    assert form.render(ToolCall("shell", {"command": "..."})) in cut.error
    assert (cut.name, cut.arguments) == ("shell", {})


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (Tagged(), "<tool_call>shell\nls -la\n</tool_call>"),
        (Tagged(), "<tool_call>\n</tool_call>"),
        (Tagged(), "<tool_call>shell\n<command>ls</tool_call>"),
        (Tagged(), "<tool_call>shell\n<command>a</command><command>b</command></tool_call>"),
        (Hermes(), '<tool_call>\n{"name": "shell", "arguments": {"command": ls}}\n</tool_call>'),
        (Hermes(), '<tool_call>\n{"arguments": {}}\n</tool_call>'),
        (Hermes(), '<tool_call>\n{"name": "shell", "arguments": "ls"}\n</tool_call>'),
        (Hermes(), '<tool_call>{"name": "shell", "arguments": {}} and more</tool_call>'),
        (QwenXml(), "<tool_call>\nshell\n</tool_call>"),
        (QwenXml(), "<tool_call>\n<function=shell>\n<parameter=command>\nls\n</tool_call>"),
        (LlamaJson(), '{"name": "shell", "parameters": {"command": ls}}'),
    ],
)
def test_a_malformed_call_is_an_error_and_the_next_call_still_counts(
    form: CallFormat, text: str
) -> None:
    (bad,) = form.parse(text, TOOLS)
    assert bad.error
    assert bad.arguments == {}
    good = ToolCall("submit")
    assert form.parse(f"{text}\n{form.render(good)}", TOOLS)[-1] == good


@pytest.mark.parametrize(
    "value",
    ['"\\ud800"', "NaN", "[" * 9000 + "]" * 9000, "[" * 90_000],
    ids=["half a character", "not a number", "deep", "deeper"],
)
def test_what_an_episode_cannot_hold_is_an_error(value: str) -> None:
    text = f'<tool_call>{{"name": "edit", "arguments": {{"line": {value}}}}}</tool_call>'
    (call,) = Hermes().parse(text, TOOLS)
    assert call.error
    tagged = f"<tool_call>edit\n<line>{value}</line>\n</tool_call>"
    (call,) = Tagged().parse(tagged, TOOLS)
    assert call.error or msgspec.json.encode(call)


def test_the_default_format_reads_as_documented() -> None:
    form = Tagged()
    text = "<tool_call>shell\n<command>sort a.txt > b.txt</command>\n</tool_call>"
    call = ToolCall("shell", {"command": "sort a.txt > b.txt"})
    assert form.render(call) == text
    assert form.parse(text, TOOLS) == [call]
    assert form.render(ToolCall("submit")) == "<tool_call>submit\n</tool_call>"
    typed = "<tool_call>edit\n<path>3</path>\n<line>3</line>\n<note>null</note>\n</tool_call>"
    assert form.parse(typed, TOOLS) == [ToolCall("edit", {"path": "3", "line": 3, "note": None})]
    wrong = "<tool_call>edit\n<path>a</path>\n<line>three</line>\n</tool_call>"
    assert form.parse(wrong, TOOLS) == [ToolCall("edit", {"path": "a", "line": "three"})]


def test_the_default_instructions_are_an_example_and_one_line_a_tool() -> None:
    assert Tagged().instructions(TOOLS).split("\n") == [
        "Call a tool like this:",
        "<tool_call>shell",
        "<command>...</command>",
        "</tool_call>",
        "Tools:",
        "shell(command: str) - Run a command in bash; the working directory persists",
        "edit(path: str, line: int, words?: list, note?: str) - Change a line",
        "submit() - Finish the task",
    ]
    assert Tagged().instructions([]) == ""
