"""submit ends an episode; task_state keeps a record that can be shown back."""

from practicum.core import Limits
from practicum.tools import ToolContext, get_tool, render_task_state


def context() -> ToolContext:
    return ToolContext(box=None, limits=Limits(), seconds_left=0.0)


async def test_submit_is_final_and_carries_the_answer() -> None:
    found = await get_tool("submit").call(context(), {"answer": "42"})
    assert found.final
    assert found.answer == "42"
    assert (await get_tool("submit").call(context(), {})).answer == ""
    assert not (await get_tool("submit").call(context(), {"answer": 42})).final


async def test_the_record_is_kept_and_shown() -> None:
    here = context()
    assert render_task_state(here.state) == ""
    call = {"goal": "fix it", "in_progress": ["look"], "pending": ["edit", "test"]}
    found = await get_tool("task_state").call(here, call)
    assert found.text == render_task_state(here.state)
    assert found.text == "Goal: fix it\nDone: -\nIn progress: look\nPending: edit; test"
    await get_tool("task_state").call(here, {"done": ["look"], "pending": ["test"]})
    assert render_task_state(here.state) == (
        "Goal: fix it\nDone: look\nIn progress: -\nPending: test"
    )


async def test_a_bad_record_changes_nothing() -> None:
    here = context()
    await get_tool("task_state").call(here, {"goal": "g"})
    found = await get_tool("task_state").call(here, {"goal": "h", "done": [1]})
    assert not found.ok
    assert render_task_state(here.state).startswith("Goal: g\n")
