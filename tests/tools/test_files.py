"""File tools: read, write, edit, list and search in the shell's folder."""

from collections.abc import Awaitable, Callable

import pytest

from practicum.tools import Observation, ToolContext

Call = Callable[..., Awaitable[Observation]]


async def test_read_shows_a_file_or_some_lines(call: Call) -> None:
    assert (await call("read_file", path="notes/a.txt")).text == "one\ntwo\nthree\ntwo\n"
    assert (await call("read_file", path="notes/a.txt", start=2, end=3)).text == "two\nthree\n"
    assert (await call("read_file", path="notes/a.txt", start=4)).text == "two\n"
    assert (await call("read_file", path="notes/a.txt", start=9)).text == "(no lines)"
    assert "binary" in (await call("read_file", path="top.bin")).text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"path": "nowhere"}, "no such file"),
        ({"path": "notes"}, "directory"),
        ({"path": "/dev/zero"}, "not a regular file"),
        ({"path": "notes/a.txt", "start": 0}, "count from 1"),
        ({"path": "notes/a.txt", "start": 3, "end": 2}, "end is not before"),
        ({"path": "a\0b"}, "NUL"),
    ],
)
async def test_read_says_what_is_wrong(call: Call, arguments: dict, words: str) -> None:
    found = await call("read_file", **arguments)
    assert not found.ok
    assert words in found.text


async def test_paths_are_relative_to_the_shells_folder(call: Call) -> None:
    await call("shell", command="cd notes")
    assert (await call("read_file", path="deep/b.txt")).text == "two hundred\n"
    assert (await call("read_file", path="/workspace/notes/deep/b.txt")).ok
    await call("write_file", path="new.txt", content="x")
    assert (await call("shell", command="cat /workspace/notes/new.txt")).text == "x"


@pytest.mark.parametrize("path", ["plain", "a/b/c.txt", "-n", "sp ace", "q'\"$(touch z)", "ü"])
async def test_what_is_written_is_read(call: Call, path: str) -> None:
    content = "line 'one' $HOME\n\ttab \\n ü\n"
    found = await call("write_file", path=path, content=content)
    assert found.ok
    assert found.text == f"Wrote {len(content.encode())} bytes to {path}."
    assert (await call("read_file", path=path)).text == content
    assert (await call("shell", command="ls z")).exit_code != 0


async def test_write_keeps_the_mode_and_says_what_is_wrong(call: Call) -> None:
    await call("shell", command="echo > run; chmod 750 run")
    await call("write_file", path="run", content="y")
    assert (await call("shell", command="stat -c %a run; cat run")).text == "750\ny"
    assert "directory" in (await call("write_file", path="notes", content="")).text
    assert not (await call("write_file", path="notes/a.txt/x", content="")).ok
    assert not (await call("write_file", path="/usr/x", content="")).ok


async def test_edit_replaces_what_is_found_once(call: Call) -> None:
    found = await call("edit_file", path="notes/a.txt", old="one\ntwo", new="1\n2")
    assert found.ok
    assert (await call("read_file", path="notes/a.txt")).text == "1\n2\nthree\ntwo\n"
    await call("edit_file", path="notes/a.txt", old="three\n", new="")
    assert (await call("read_file", path="notes/a.txt")).text == "1\n2\ntwo\n"


@pytest.mark.parametrize(
    ("old", "words"),
    [("two", "found 2 times"), ("Two", "not found"), ("two ", "not found"), ("", "empty")],
)
async def test_edit_refuses_what_is_not_found_once(call: Call, old: str, words: str) -> None:
    found = await call("edit_file", path="notes/a.txt", old=old, new="x")
    assert not found.ok
    assert words in found.text
    assert (await call("read_file", path="notes/a.txt")).text == "one\ntwo\nthree\ntwo\n"


async def test_edit_keeps_bytes_that_are_no_text(call: Call) -> None:
    await call("shell", command="printf 'a\\377\\r\\nb\\n' > f")
    await call("edit_file", path="f", old="b", new="c")
    assert (await call("shell", command="od -An -tx1 f")).text.split() == [
        "61",
        "ff",
        "0d",
        "0a",
        "63",
        "0a",
    ]


async def test_edit_refuses_a_file_it_saw_only_in_part(call: Call) -> None:
    await call("shell", command="head -c 100000 /dev/zero | tr '\\0' x > big; echo y >> big")
    found = await call("edit_file", path="big", old="y", new="z")
    assert not found.ok
    assert "too large" in found.text
    assert (await call("shell", command="stat -c %s big")).text == "100002"


async def test_list_shows_folders_with_a_slash(call: Call) -> None:
    assert (await call("list_files")).text == "notes/\nnotes/a.txt\nnotes/deep/\ntop.bin"
    assert (await call("list_files", path="notes", depth=1)).text == "a.txt\ndeep/"
    assert (await call("list_files", path="notes", depth=9)).text == "a.txt\ndeep/\ndeep/b.txt"
    await call("shell", command="mkdir none .git; touch .git/x")
    assert (await call("list_files", path="none")).text == "(empty)"
    assert ".git" not in (await call("list_files")).text
    assert "not a directory" in (await call("list_files", path="top.bin")).text


async def test_search_finds_lines_in_order(call: Call) -> None:
    found = await call("search_files", pattern="two|hundred")
    assert found.text == "notes/a.txt:2:two\nnotes/a.txt:4:two\nnotes/deep/b.txt:1:two hundred"
    assert (await call("search_files", pattern="^t", path="notes/deep")).text.startswith("notes/")
    assert (await call("search_files", pattern="-x")).text == "No match."
    bad = await call("search_files", pattern="(")
    assert not bad.ok
    assert "Unmatched" in bad.text
    assert not (await call("search_files", pattern="x", path="nowhere")).ok


async def test_file_tools_are_charged(call: Call, context: ToolContext) -> None:
    before = context.seconds_left
    await call("list_files")
    assert context.seconds_left < before
