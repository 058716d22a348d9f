"""Sub-goals: a declared one earns its step, and a solved task needs none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.core import File, Outcome, Score, ScorePart, Task
from practicum.domains.terminal import Terminal, script
from practicum.evaluate.audit import audit, faults
from practicum.rewards.compare import text_file
from practicum.rewards.goals import toward
from practicum.rewards.parts import Check, checked
from practicum.rollout import ScriptPolicy, play
from practicum.sandbox.contract import Boxes


class Report(Terminal):
    """Sort, count, then write a line about it: two sub-goals on the way."""

    name = "report"
    levels = 1

    def make(self, seed: int, level: int) -> Task:
        rng = self.rng(seed, level)
        words = rng.sample(["ash", "birch", "cedar", "elm", "fir", "oak", "pine"], 5)
        lines = "".join(f"{word}\n" for word in words)
        total = rng.randint(10, 99)
        return self.task(
            seed,
            level,
            f"Sort words.txt into sorted.txt, write the number of its lines times {total} into "
            "count.txt, and both, the first word and that number, into report.txt.",
            files=[File("words.txt", lines.encode())],
            artifacts=["report.txt"],
            gold=[
                f"sort words.txt > sorted.txt; echo {5 * total} > count.txt; "
                "echo $(head -n 1 sorted.txt) $(cat count.txt) > report.txt"
            ],
            goals={
                "sorted": ("sorted.txt", "text", "".join(f"{w}\n" for w in sorted(words))),
                "counted": ("count.txt", "text", f"{5 * total}\n"),
            },
            expected=f"{min(words)} {5 * total}\n",
        )

    async def judge(self, task, submission, boxes):
        return checked([text_file(submission, "report.txt", task.truth["expected"])])


@pytest.mark.parametrize(
    ("commands", "outcome", "reached"),
    [
        (["true"], 0.0, (0.0, 0.0)),
        (["sort words.txt > sorted.txt"], 1 / 3, (1.0, 0.0)),
        (["sort words.txt > sorted.txt; echo 0 > count.txt"], 1 / 3, (1.0, 0.0)),
        (None, 1.0, (1.0, 1.0)),
    ],
)
async def test_credit_and_report_follow_the_sub_goals(
    boxes: Boxes, commands: list[str] | None, outcome: float, reached: tuple[float, float]
) -> None:
    domain = Report()
    task = domain.make(3, 1)
    said = script(*commands) if commands else domain.solve(task)
    played = await play(task, domain, ScriptPolicy("by-hand", said), boxes, key="k")
    assert played.outcome is Outcome.COMPLETED
    assert played.score is not None
    assert played.score.outcome == pytest.approx(outcome)
    parts = {part.name: part for part in played.score.parts}
    assert (parts["goal sorted"].value, parts["goal counted"].value) == reached
    assert played.solved == (outcome == 1.0)


async def test_another_way_to_the_solution_is_as_good(boxes: Boxes) -> None:
    domain = Report()
    task = domain.make(3, 1)
    straight = script(f"echo {task.truth['expected'].strip()} > report.txt")
    played = await play(task, domain, ScriptPolicy("straight", straight), boxes, key="k")
    assert played.solved
    assert played.reward == 1.0


async def test_a_domain_with_sub_goals_passes_the_audit(boxes: Boxes) -> None:
    report = await audit(Report(), boxes, seeds=(1, 2), levels=(1,))
    assert faults(report) == []


@given(st.lists(st.booleans(), max_size=6), st.booleans())
def test_a_solved_task_ranks_above_any_number_of_sub_goals(goals: list[bool], solved: bool) -> None:
    checks = [Check(f"g{at}", passed, "") for at, passed in enumerate(goals)]
    score = toward(checked([Check("all", solved, "")]), checks)
    assert score.solved == solved
    assert score.outcome == (1.0 if solved else pytest.approx(sum(goals) / (len(goals) + 1)))


def test_what_has_partial_credit_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="solved or not"):
        toward(Score.of(ScorePart("o", 0.5), steps=4), [])


def test_an_unscored_outcome_stays_unscored() -> None:
    blank = Score.of(ScorePart("o", None), steps=1)
    assert toward(blank, [Check("g", True, "")]).value is None
