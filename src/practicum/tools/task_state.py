"""The model's own record of its task: kept in the episode's state and shown back to it."""

from collections.abc import Mapping, Sequence
from typing import Any

from practicum.tools.tool import Observation, ToolContext, tool

KEY = "task_state"
_LISTS = ("done", "in_progress", "pending")


@tool
async def task_state(
    context: ToolContext,
    goal: str = "",
    done: Sequence[str] = (),
    in_progress: Sequence[str] = (),
    pending: Sequence[str] = (),
) -> Observation:
    """Note your goal and the steps done, in progress and pending.

    The lists replace the earlier ones; the goal stays when none is given.
    """
    goal = goal or context.state.get(KEY, {}).get("goal", "")
    steps = dict(zip(_LISTS, (list(done), list(in_progress), list(pending)), strict=True))
    context.state[KEY] = {"goal": goal, **steps}
    return Observation(render_task_state(context.state))


def render_task_state(state: Mapping[str, Any]) -> str:
    """The record in `ToolContext.state` as the model is shown it; empty when there is none."""
    record = state.get(KEY)
    if not record:
        return ""
    lines = [f"Goal: {record['goal'] or '-'}"]
    for name in _LISTS:
        title = name.replace("_", " ").capitalize()
        lines.append(f"{title}: {'; '.join(record[name]) or '-'}")
    return "\n".join(lines)
