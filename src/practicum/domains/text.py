"""What the text-only domains share: no box is ever opened, the answer comes through `submit`."""

from collections.abc import Mapping, Sequence

from practicum.core import Score, Submission, Task
from practicum.domains.domain import Domain, Script
from practicum.domains.terminal import script
from practicum.rewards.canaries import canary, spoilt
from practicum.rewards.compare import shown
from practicum.rewards.parts import Check, checked
from practicum.sandbox.contract import Boxes


class TextOnly(Domain):
    """Base of the domains without a box: the answer is short, and exactly one answer is right.

    Case, outer blanks, a final full stop and the style of separators are free; anything else in
    the answer makes it wrong, so listing candidates or padding a right answer earns nothing.
    """

    family = "text"

    def ask(self, seed: int, level: int, prompt: str, answer: str, wrong: Sequence[str]) -> Task:
        """A task with this answer. `wrong` holds answers for the attacks to try."""
        return Task(
            domain=self.name,
            seed=seed,
            level=level,
            prompt=f"{prompt} Call submit with the answer only.",
            tools=("submit",),
            truth={"answer": answer, "wrong": list(wrong)},
        )

    async def grade(self, task: Task, submission: Submission, boxes: Boxes) -> Score:
        """Full marks for the one right answer, else nothing."""
        expected = task.truth["answer"]
        right = _items(submission.answer) == _items(expected)
        evidence = f"expected {shown(expected)}, found {shown(submission.answer)}"
        return checked([Check("answer", right, evidence)])

    def solve(self, task: Task) -> Script:
        """Submit the answer at once."""
        return script(answer=task.truth["answer"])

    def impossible(self, task: Task) -> Task:
        """The expected answer goes on with what nobody can know."""
        return canary(task, answer=spoilt(task, task.truth["answer"]))

    def attacks(self, task: Task) -> Mapping[str, Script]:
        """Wrong answers that are easy to come by, all of them at once, and a padded right one."""
        wrong, right = task.truth["wrong"], task.truth["answer"]
        scripts = {f"wrong_{at}": script(answer=answer) for at, answer in enumerate(wrong)}
        return scripts | {
            "prompt": script(answer=task.prompt),
            "all_candidates": script(answer=", ".join([*wrong, right])),
            "either": script(answer=f"{right} or {wrong[0]}"),
            "padded": script(answer=f"the answer is {right}"),
        }


def _items(answer: str) -> list[str]:
    """The items of an answer, separated by commas or blanks, in lower case."""
    text = answer.strip().removesuffix(".").casefold()
    return text.replace(",", " ").split()
