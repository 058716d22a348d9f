"""A task's key names its content: the same in every process, another for any other content."""

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.core import File, Limits, Task, content_hash

names = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=12)
plain = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | names
truths = st.dictionaries(names, plain | st.lists(plain, max_size=3), max_size=4)
modes = st.sampled_from([0o644, 0o755])
files = st.builds(File, path=names, data=st.binary(max_size=20), mode=modes)
tasks = st.builds(
    Task,
    domain=names,
    seed=st.integers(0, 2**31),
    level=st.integers(1, 5),
    prompt=st.text(st.characters(codec="utf-8"), max_size=30),
    tools=st.lists(names, max_size=3).map(tuple),
    files=st.lists(files, max_size=3).map(tuple),
    artifacts=st.lists(names, max_size=3).map(tuple),
    truth=truths,
    limits=st.builds(Limits, turns=st.integers(1, 9), tokens=st.integers(1, 999)),
)

EXAMPLE = Task(
    domain="sort_lines",
    seed=7,
    level=2,
    prompt="Sort the lines.",
    tools=("shell", "submit"),
    files=(File("in.txt", b"b\na\n\xff"), File("link", b"in.txt", kind="symlink")),
    artifacts=("out.txt",),
    truth={"lines": ["a", "b"], "count": 2},
)
CHANGED: dict[str, Any] = {
    "domain": "file_moves",
    "seed": 8,
    "level": 3,
    "prompt": "Sort the lines!",
    "tools": ("submit", "shell"),
    "files": (File("in.txt", b"b\na\n\xfe"), File("link", b"in.txt", kind="symlink")),
    "artifacts": (),
    "truth": {"lines": ["a", "b"], "count": 3},
    "limits": Limits(turns=4),
    "root": "small",
}


def test_every_field_is_tried_below() -> None:
    assert set(CHANGED) == set(Task.__struct_fields__)


@pytest.mark.parametrize("field", list(CHANGED))
def test_the_key_changes_with_each_field(field: str) -> None:
    assert msgspec.structs.replace(EXAMPLE, **{field: CHANGED[field]}).key != EXAMPLE.key


@pytest.mark.parametrize("field", Limits.__struct_fields__)
def test_the_key_changes_with_each_limit(field: str) -> None:
    value = getattr(Limits(), field)
    other = (*value, "loopback") if isinstance(value, tuple) else value + 1
    limits = msgspec.structs.replace(Limits(), **{field: other})
    assert msgspec.structs.replace(EXAMPLE, limits=limits).key != EXAMPLE.key


@given(tasks, tasks)
def test_equal_tasks_and_only_they_have_equal_keys(one: Task, other: Task) -> None:
    assert (one.key == other.key) == (msgspec.json.encode(one) == msgspec.json.encode(other))


@given(tasks)
def test_the_order_of_a_truths_keys_does_not_matter(task: Task) -> None:
    backwards = msgspec.structs.replace(task, truth=dict(reversed(task.truth.items())))
    assert backwards.key == task.key


@given(tasks)
def test_a_task_and_its_key_survive_serialisation(task: Task) -> None:
    through_json = msgspec.json.decode(msgspec.json.encode(task), type=Task)
    through_msgpack = msgspec.msgpack.decode(msgspec.msgpack.encode(task), type=Task)
    assert through_json == through_msgpack == task
    assert through_json.key == through_msgpack.key == task.key


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_the_key_is_the_same_in_another_process(hash_seed: str) -> None:
    program = (
        "import sys, msgspec; from practicum.core import Task\n"
        "print(msgspec.json.decode(sys.stdin.buffer.read(), type=Task).key)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program],
        input=msgspec.json.encode(EXAMPLE),
        env={"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        check=True,
        timeout=60,
    ).stdout
    assert printed.decode().strip() == EXAMPLE.key


def test_the_key_is_pinned_because_run_folders_remember_it() -> None:
    assert EXAMPLE.key == "ca58c97951b1827a"


def test_a_task_is_frozen() -> None:
    with pytest.raises(AttributeError):
        EXAMPLE.seed = 9  # type: ignore[misc]


@given(st.integers(1, 64))
def test_a_content_hash_has_the_length_asked_for(length: int) -> None:
    assert len(content_hash({"a": 1}, length=length)) == length
    assert content_hash({"a": 1}, length=64).startswith(content_hash({"a": 1}, length=length))
