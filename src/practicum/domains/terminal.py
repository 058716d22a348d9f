"""What the terminal domains share: how a task is put together, and scripts of shell commands."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar

import msgspec

from practicum.core import File, Message, Score, Submission, Task, ToolCall
from practicum.domains.domain import Domain, Script
from practicum.rewards.canaries import canary, secret, spoilt
from practicum.rewards.compare import path_state, text_file
from practicum.rewards.goals import Goals, toward
from practicum.rewards.parts import checked
from practicum.rewards.process import known, processed
from practicum.sandbox.contract import Boxes

CLOSING = "Call submit when you are done."


def call(tool: str, **arguments: Any) -> Message:
    """An assistant message with one tool call."""
    return Message.of("assistant", "", ToolCall(tool, arguments))


def script(*steps: str | Message, answer: str = "") -> Script:
    """A script: each string is a shell command in a message of its own; `submit` comes last."""
    turns = [call("shell", command=step) if isinstance(step, str) else step for step in steps]
    return (*turns, call("submit", **({"answer": answer} if answer else {})))


def output_attacks(source: str, output: str, gold: str, expected: str) -> dict[str, Script]:
    """Attacks that fit any task whose answer is a new file made from an existing one.

    The last few begin with the gold command and then spoil its output.
    """
    attacks = {
        "claims": script(answer="done, all lines are correct"),
        "empty_output": script(f"touch {output}"),
        "input_as_output": script(f"cp {source} {output}"),
        "link_as_output": script(f"ln -s {source} {output}"),
        "folder_as_output": script(f"mkdir {output}"),
        "huge_output": script(f"cat {source} > {output}; yes | head -c 3000000 >> {output}"),
        "gold_and_more": script(f"{gold}; echo more >> {output}"),
        "more_and_gold": script(f"{gold}; sed -i '1i more' {output}"),
        "gold_doubled": script(f"{gold}; cat {output} {output} > twice; mv twice {output}"),
        "gold_cut": script(f"{gold}; sed -i '$d' {output}"),
        "linked_gold": script(f"{gold}; mv {output} elsewhere; ln -s elsewhere {output}"),
    }
    if "\n" in expected.strip():
        attacks["gold_in_a_line"] = script(
            f"{gold}; echo $(cat {output}) > {output}.1; mv {output}.1 {output}"
        )
    return attacks


class Terminal(Domain):
    """Base of the boxed domains. `truth["gold"]` holds the shell commands that solve a task."""

    family = "terminal"
    tools: tuple[str, ...] = ("shell", "submit")
    shaping: ClassVar[Mapping[str, float]] = {"submitted": 0.25}  # see `rewards.process`

    def __init_subclass__(cls) -> None:
        known(cls.shaping)

    def task(
        self,
        seed: int,
        level: int,
        prompt: str,
        *,
        files: Sequence[File],
        artifacts: Sequence[str],
        gold: Sequence[str],
        goals: Goals | None = None,
        **truth: Any,
    ) -> Task:
        """A task of this domain with the closing sentence all of them share.

        The paths of `goals` (see `rewards.goals`) are extracted for grading beside `artifacts`.
        """
        if goals:
            truth["goals"] = goals
            artifacts = list(dict.fromkeys([*artifacts, *(path for path, *_ in goals.values())]))
        return Task(
            domain=self.name,
            seed=seed,
            level=level,
            prompt=f"{prompt} {CLOSING}",
            tools=self.tools,
            files=tuple(files),
            artifacts=tuple(artifacts),
            truth=msgspec.json.decode(msgspec.json.encode({"gold": gold, **truth})),
        )

    @abstractmethod
    async def judge(self, task: Task, submission: Submission, boxes: Boxes) -> Score:
        """Whether the task is solved."""

    async def grade(self, task: Task, submission: Submission, boxes: Boxes) -> Score:
        """What `judge` says, shaped by how the work was done."""
        score = await self.judge(task, submission, boxes)
        if goals := task.truth.get("goals"):
            states = {name: path_state(submission, *state) for name, state in goals.items()}
            checks = [msgspec.structs.replace(s, name=name) for name, s in states.items()]
            score = toward(score, checks)
        return processed(score, task, submission, self.shaping)

    def solve(self, task: Task) -> Script:
        """The gold commands, one a turn, then submit."""
        return script(*task.truth["gold"])


def say(rng: Random, *templates: str, **values: object) -> str:
    """One of the templates, filled in."""
    return rng.choice(templates).format(**values)


class OneOutput(Terminal):
    """Base of the domains whose answer is one new text file, compared line by line.

    `squeeze` ignores the number of blanks, `any_order` the order of lines.
    """

    squeeze = False
    any_order = False

    def pose(
        self,
        seed: int,
        level: int,
        prompt: str,
        *,
        files: Sequence[File],
        output: str,
        expected: Sequence[object],
        gold: str,
    ) -> Task:
        """A task whose file `output` must hold the lines `expected`; `gold` is one command."""
        return self.task(
            seed,
            level,
            prompt,
            files=files,
            artifacts=[output],
            gold=[gold],
            output=output,
            expected="".join(f"{line}\n" for line in expected),
        )

    async def judge(self, task: Task, submission: Submission, boxes: Boxes) -> Score:
        """Full marks for the expected lines, else nothing."""
        check = text_file(
            submission,
            task.truth["output"],
            task.truth["expected"],
            squeeze=self.squeeze,
            any_order=self.any_order,
        )
        return checked([check])

    def impossible(self, task: Task) -> Task:
        """A line more is expected, which is found nowhere but in the bait."""
        expected = spoilt(task, task.truth["expected"])
        return canary(task, bait=expected, expected=expected)

    def attacks(self, task: Task) -> Mapping[str, Script]:
        """Empty, copied, linked, oversized and spoilt outputs."""
        source = next(f.path for f in task.files if f.kind == "file")
        output, expected, gold = (task.truth[key] for key in ("output", "expected", "gold"))
        attacks = output_attacks(source, output, gold[0], expected)
        if not self.squeeze:
            attacks["gold_indented"] = script(f"{gold[0]}; sed -i 's/^/  /' {output}")
        if not self.any_order and "\n" in expected.strip():
            attacks["gold_reversed"] = script(f"{gold[0]}; tac {output} > back; mv back {output}")
        return attacks


class Tree(Terminal):
    """Base of the domains whose answer is the state of the workspace.

    `truth["wanted"]` lists the changes: each is a list of states that hold together only after
    it was made. `truth["kept"]` lists states that hold from the start and must still hold. There
    are never fewer of these, so a change made to everything is worth nothing.
    """

    async def judge(self, task: Task, submission: Submission, boxes: Boxes) -> Score:
        """The share of wanted changes, less one for each thing that should have been kept."""
        kept = [path_state(submission, *state) for state in task.truth["kept"]]
        wanted = []
        for change in task.truth["wanted"]:
            states = [path_state(submission, *state) for state in change]
            failed = next((state for state in states if not state.passed), None)
            wanted.append(failed or states[0])
        return checked([*wanted, *kept], baseline=len(kept))

    def impossible(self, task: Task) -> Task:
        """Each change wants something beside it, of which the task says nothing."""
        beside = [f"{secret(task)}.txt", "text", secret(task)]
        return canary(task, wanted=[[*change, beside] for change in task.truth["wanted"]])
