"""Domains with one flaw each, of the kinds that were found in public environments."""

import time
from collections.abc import Mapping
from typing import Any

from practicum.core import File, Limits, Message, Score, ScorePart, Submission, Task, ToolCall
from practicum.domains import Domain, Script
from practicum.sandbox.contract import Boxes


def submit(answer: str) -> Script:
    return (Message.of("assistant", "", ToolCall("submit", {"answer": answer})),)


class Sound(Domain):
    """Adds numbers; a level adds one. No flaw: the others differ from it in one method."""

    name = "sound"
    family = "flawed"

    def make(self, seed: int, level: int) -> Task:
        numbers = [self.rng(seed, level).randint(100, 999) for _ in range(level + 1)]
        said = " + ".join(map(str, numbers))
        return Task(
            domain=self.name,
            seed=seed,
            level=level,
            prompt=f"What is {said}? Submit the number.",
            tools=("submit",),
            truth={"sum": sum(numbers)},
        )

    async def grade(self, task: Task, submission: Submission, boxes: Boxes) -> Score:
        answer = submission.answer.strip()
        right = answer == str(task.truth["sum"])
        return Score.of(ScorePart("answer", float(right)))

    def solve(self, task: Task) -> Script:
        return submit(str(task.truth["sum"]))


class AnyTextIsRight(Sound):
    """`bool(str) == bool(str)`."""

    name = "any_text_is_right"

    async def grade(self, task: Task, submission: Submission, boxes: Boxes) -> Score:
        return Score.of(ScorePart("answer", float(bool(submission.answer))))


class LooksForIt(Sound):
    """Substring match."""

    name = "looks_for_it"

    async def grade(self, task: Task, submission: Submission, boxes: Boxes) -> Score:
        found = str(task.truth["sum"]) in submission.answer
        return Score.of(ScorePart("answer", float(found)))


class ParsesAnything(Sound):
    """A parser that junk can crash."""

    name = "parses_anything"

    async def grade(self, task: Task, submission: Submission, boxes: Boxes) -> Score:
        right = int(submission.answer) == task.truth["sum"]
        return Score.of(ScorePart("answer", float(right)))


class Moody(Sound):
    """A verdict that depends on how often it was asked."""

    name = "moody"
    asked = 0

    async def grade(self, task: Task, submission: Submission, boxes: Boxes) -> Score:
        self.asked += 1
        part = ScorePart("mood", self.asked % 2, weight=0, kind="metric")
        return Score.of(*(await super().grade(task, submission, boxes)).parts, part)


class WrongGold(Sound):
    """A solution that does not solve."""

    name = "wrong_gold"

    def solve(self, task: Task) -> Script:
        return submit(str(task.truth["sum"] + 1))


class OpenToAttack(Sound):
    """Its own attack works."""

    name = "open_to_attack"

    async def grade(self, task: Task, submission: Submission, boxes: Boxes) -> Score:
        if submission.answer == "please":
            return Score.of(ScorePart("answer", 0.5))
        return await super().grade(task, submission, boxes)

    def attacks(self, task: Task) -> Mapping[str, Script]:
        return {"politeness": submit("please")}


class SetOrder(Sound):
    """Tasks that depend on the order of a set of strings."""

    name = "set_order"

    def make(self, seed: int, level: int) -> Task:
        words = {"north", "south", "east", "west", "up", "down", "left", "right"}
        return self._with(super().make(seed, level), prompt=f"{' '.join(words)} {seed} {level}")

    @staticmethod
    def _with(task: Task, **fields: Any) -> Task:
        kept = {name: getattr(task, name) for name in task.__struct_fields__}
        return Task(**{**kept, **fields})


class Clock(SetOrder):
    """Tasks that depend on the time."""

    name = "clock"

    def make(self, seed: int, level: int) -> Task:
        task = Sound.make(self, seed, level)
        return self._with(task, prompt=f"{task.prompt} {time.perf_counter_ns()}")


class ShipsTheAnswer(SetOrder):
    """The truth lies in a file that the agent gets."""

    name = "ships_the_answer"

    def make(self, seed: int, level: int) -> Task:
        task = Sound.make(self, seed, level)
        truth = f'{{"task":{{"sum":{task.truth["sum"]}}}}}'.encode()
        return self._with(task, files=(File("config.json", truth), File("solution.txt", b"")))


class UpsideDown(SetOrder):
    """Higher levels are easier."""

    name = "upside_down"

    def make(self, seed: int, level: int) -> Task:
        task = Sound.make(self, seed, 4 - level)
        return self._with(task, level=level)

    def solve(self, task: Task) -> Script:
        return submit("0" * (4 - task.level) * 5 + str(task.truth["sum"]))

    async def grade(self, task: Task, submission: Submission, boxes: Boxes) -> Score:
        stripped = Submission(answer=submission.answer.lstrip("0"), events=submission.events)
        return await super().grade(task, stripped, boxes)


class TooLong(SetOrder):
    """Gold needs more turns than the task allows."""

    name = "too_long"

    def solve(self, task: Task) -> Script:
        thought = Message.of("assistant", "", ToolCall("submit", {"result": "?"}))  # a bad call
        return (thought, thought, *submit(str(task.truth["sum"])))

    def make(self, seed: int, level: int) -> Task:
        task = Sound.make(self, seed, level)
        return self._with(task, limits=Limits(turns=2))


class Blind(Sound):
    """Has a rule that no task of level 1 ever comes near."""

    name = "blind"

    async def grade(self, task: Task, submission: Submission, boxes: Boxes) -> Score:
        if task.level > 999:
            return Score.of(ScorePart("answer", 0.0))
        return await super().grade(task, submission, boxes)


class Looping(Sound):
    """Counts down: one slip, and it counts for ever."""

    name = "looping"

    async def grade(self, task: Task, submission: Submission, boxes: Boxes) -> Score:
        left = 3
        while left > 0:
            left = left - 1
        return await super().grade(task, submission, boxes)
