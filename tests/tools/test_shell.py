"""The shell: a folder that persists, output as in a terminal, and time that is charged."""

from collections.abc import Awaitable, Callable

import pytest

from practicum.tools import Observation, ToolContext

Call = Callable[..., Awaitable[Observation]]


async def test_the_folder_persists_over_calls(call: Call) -> None:
    await call("shell", command="cd notes/deep")
    assert (await call("shell", command="pwd")).text == "/workspace/notes/deep"
    await call("shell", command="cd .. && false")
    assert (await call("shell", command="pwd")).text == "/workspace/notes"
    await call("shell", command="cd /usr; exit 3")
    assert (await call("shell", command="pwd")).text == "/usr"


async def test_output_cannot_move_the_folder(call: Call) -> None:
    await call("shell", command="cd notes; echo /usr; echo PWD=/usr >&2; echo /usr >/dev/stdout")
    assert (await call("shell", command="pwd")).text == "/workspace/notes"


@pytest.mark.parametrize("name", ["with space", "-dash", "quote'\"$(x)", "späß", "tab\there"])
async def test_odd_folder_names_persist(call: Call, name: str) -> None:
    quoted = name.replace("'", "'\\''")
    await call("shell", command=f"mkdir -- '{quoted}'; cd -- '{quoted}'")
    assert (await call("shell", command="pwd")).text == f"/workspace/{name}"


async def test_a_folder_that_is_gone_falls_back_to_the_workspace(call: Call) -> None:
    await call("shell", command="mkdir x; cd x; rmdir /workspace/x")
    assert (await call("shell", command="pwd")).text == "/workspace"


async def test_subshells_functions_and_exec_do_not_confuse(call: Call) -> None:
    await call("shell", command="cd notes; (cd /usr); bash -c 'cd /etc'; f() { exit 4; }; f")
    assert (await call("shell", command="pwd")).text == "/workspace/notes"
    await call("shell", command="exec true")
    assert (await call("shell", command="pwd")).text == "/workspace/notes"


async def test_output_and_errors_come_in_order(call: Call) -> None:
    found = await call("shell", command="echo 1; echo 2 >&2; echo 3; exit 7")
    assert found.text == "1\n2\n3\n[exit code 7]"
    assert found.exit_code == 7
    assert found.ok
    assert (await call("shell", command="true")).text == "(no output)"


async def test_errors_of_bash_are_readable(call: Call) -> None:
    found = await call("shell", command="nope")
    assert found.text == "bash: line 1: nope: command not found\n[exit code 127]"
    found = await call("shell", command="if true; then")
    assert "syntax error" in found.text
    assert found.exit_code == 2


async def test_scripts_of_many_lines_and_heredocs_work(call: Call) -> None:
    command = "cat > s.py <<'EOF'\nprint('a' * 3)\nEOF\nfor i in 1 2; do\n  python3 s.py\ndone"
    assert (await call("shell", command=command)).text == "aaa\naaa"


async def test_a_timeout_says_so_and_keeps_the_output(call: Call, context: ToolContext) -> None:
    context.seconds_left = 0.5
    found = await call("shell", command="echo begun; sleep 60")
    assert found.timed_out
    assert not found.ok
    assert found.text.startswith("begun\n[timed out: killed after 0.")
    assert context.seconds_left <= 0
    again = await call("shell", command="echo no")
    assert again.timed_out
    assert "no time left" in again.text
    for name, arguments in (("read_file", {"path": "a"}), ("list_files", {})):
        assert (await call(name, **arguments)).timed_out


async def test_time_is_charged(call: Call, context: ToolContext) -> None:
    before = context.seconds_left
    await call("shell", command="sleep 0.3")
    assert 0.3 <= before - context.seconds_left < 5


async def test_death_by_signal_is_said(call: Call) -> None:
    found = await call("shell", command="kill -9 $$")
    assert found.text == "[killed by signal 9]"
    assert found.exit_code is None


async def test_long_output_is_cut_in_the_middle(call: Call, context: ToolContext) -> None:
    found = await call("shell", command="seq 100000; exit 5")
    assert len(found.text) <= context.limits.observation_chars
    assert found.text.startswith("1\n2\n")
    assert found.text.endswith("[exit code 5]")
    assert "characters cut" in found.text


async def test_bytes_that_are_no_text_are_shown_anyway(call: Call) -> None:
    assert (await call("shell", command="printf 'a\\377b'")).text == "a\ufffdb"


@pytest.mark.parametrize("command", ["echo \0", "echo \ud800", "x" * 200_000])
async def test_commands_that_no_kernel_takes_are_answered(call: Call, command: str) -> None:
    found = await call("shell", command=command)
    assert not found.ok or found.exit_code != 0
    assert found.text
