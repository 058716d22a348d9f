"""A small domain whose grading can be told to fail in every way in which grading fails."""

from collections.abc import Callable

from practicum.core import File, Limits, Score, ScorePart, Submission, Task
from practicum.domains.domain import Domain, Script
from practicum.domains.terminal import script
from practicum.sandbox.contract import Boxes

TOOLS = ("shell", "read_file", "write_file", "list_files", "submit", "task_state")
Verdict = Callable[[Submission], Score]


def share(submission: Submission) -> Score:
    """The share of out.txt that is right: its two lines are `one` and `two`."""
    lines = (submission.text("out.txt") or "").split("\n")
    return Score.of(ScorePart("lines", sum(word in lines for word in ("one", "two")) / 2))


class TwoLines(Domain):
    """`verdicts` are used one after the other, the last one for ever after."""

    name = "two_lines"
    family = "test"

    def __init__(
        self, *verdicts: Verdict, limits: Limits | None = None, text_only: bool = False
    ) -> None:
        self.verdicts = list(verdicts or (share,))
        self.limits, self.text_only = limits or Limits(), text_only
        self.gradings = 0

    def make(self, seed: int, level: int) -> Task:
        boxed = {} if self.text_only else {"files": (File("in.txt", b"two\none\n"),)}
        tools = ("submit", "task_state") if self.text_only else TOOLS
        return Task(
            self.name,
            seed,
            level,
            "Sort in.txt into out.txt.",
            tools=tools,
            artifacts=() if self.text_only else ("out.txt",),
            truth={"gold": "sort in.txt > out.txt"},
            limits=self.limits,
            **boxed,
        )

    async def grade(self, task: Task, submission: Submission, boxes: Boxes) -> Score:
        self.gradings += 1
        verdict = self.verdicts.pop(0) if len(self.verdicts) > 1 else self.verdicts[0]
        return verdict(submission)

    def solve(self, task: Task) -> Script:
        return script(task.truth["gold"])
