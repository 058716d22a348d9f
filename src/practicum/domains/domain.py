"""What a domain is: one class in one file, a seeded generator of tasks with its own grader.

`make` and the rest are pure functions of their arguments: no clock, no network, no global
randomness (use `self.rng(seed, level)`). What the grader needs to know goes into `Task.truth`; it
never reaches the agent. A task without tools that need a box never opens one.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from practicum.core import Message, Score, Submission, Task, content_hash
from practicum.sandbox.contract import Boxes

Script = Sequence[Message]
"""What a scripted policy says: assistant messages with calls, one a turn."""


class Domain(ABC):
    """Base of every domain."""

    name: ClassVar[str]
    family: ClassVar[str]
    levels: ClassVar[int] = 3  # difficulty 1..levels; the docstring says what a level adds
    floor: ClassVar[float] = 0.0  # the most that a non-solver may score
    version: ClassVar[int] = 1  # raise it when tasks or grading change

    @abstractmethod
    def make(self, seed: int, level: int) -> Task:
        """The task of this seed and level (1..levels)."""

    @abstractmethod
    async def grade(self, task: Task, submission: Submission, boxes: Boxes) -> Score:
        """Judge what was extracted. Candidate code runs in a fresh box from `boxes`, never here.

        Raises GraderError only when our own parts failed; whatever the candidate did is a Score.
        """

    @abstractmethod
    def solve(self, task: Task) -> Script:
        """A gold solution: it must score the maximum when played through the real rollout."""

    def attacks(self, task: Task) -> Mapping[str, Script]:
        """Scripts that try to score without solving; the audit plays them, beside its own panel."""
        return {}

    def impossible(self, task: Task) -> Task | None:
        """The same task with a truth that no work leads to (`rewards.canaries`), if there is one.

        Training mixes some of them in: a domain in which one earns anything is exploited.
        """
        return None

    def rng(self, seed: int, level: int) -> random.Random:
        """Randomness for one task, keyed by domain, version, seed and level."""
        return random.Random(content_hash([self.name, self.version, seed, level]))
