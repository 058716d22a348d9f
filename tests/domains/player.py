"""Plays a script with the real tools in a real box, and grades what it left behind."""

from practicum.core import Event, Score, Submission, Task
from practicum.domains import Domain, Script
from practicum.sandbox.contract import Boxes
from practicum.tools import ToolContext, get_tool


async def submitted(task: Task, script: Script, boxes: Boxes) -> Submission:
    """What a script leaves behind; its box is gone when this returns."""
    if task.tools == ("submit",):
        answers = [c.arguments.get("answer", "") for message in script for c in message.calls]
        return Submission(answer=answers[-1] if answers else "")
    answer, events = "", []
    async with await boxes.open(task.files, task.limits) as box:
        context = ToolContext(box, task.limits, task.limits.seconds)
        for message in script:
            for called in message.calls:
                assert called.name in task.tools
                seen = await get_tool(called.name).call(context, called.arguments)
                answer = seen.answer if seen.final else answer
                events.append(Event(len(events), "call", called.name, called.arguments, seen.ok))
        artifacts = await box.read(task.artifacts)
    return Submission(artifacts, answer, tuple(events))


async def play(domain: Domain, task: Task, script: Script, boxes: Boxes) -> Score:
    return await domain.grade(task, await submitted(task, script, boxes), boxes)
