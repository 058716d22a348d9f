"""A judge's errors are carried into the intervals: they cover, by simulation."""

import json
import random
import re

import pytest

from practicum.core import GraderError
from practicum.evaluate.calibration import Calibration, calibrate, calibrated, corrected
from practicum.rewards.judge import Judge, Rubric


def alone(count: int) -> list[int]:
    return list(range(count))


def test_by_hand() -> None:
    verdicts = [True] * 18 + [False] * 2 + [True] * 4 + [False] * 16
    judge = calibrated(verdicts, [True] * 20 + [False] * 20)
    assert judge == Calibration(18, 20, 16, 20)
    estimate, low, high = corrected([True] * 55 + [False] * 45, alone(100), judge)
    assert estimate == pytest.approx((0.55 + 0.8 - 1) / 0.7)
    assert low < estimate < high
    assert corrected([True] * 10 + [False] * 90, alone(100), judge)[0] == 0.0
    (low, high), _ = judge.intervals
    assert (low, high) == pytest.approx((0.699, 0.972), abs=1e-3)


CASES = [(0.95, 0.9, 0.5), (0.8, 0.7, 0.2), (0.9, 0.6, 0.8), (0.99, 0.99, 0.1)]


@pytest.mark.parametrize(("sens", "spec", "rate"), CASES)
@pytest.mark.parametrize("attempts", [1, 8])
def test_the_interval_covers_the_true_rate(
    attempts: int, sens: float, spec: float, rate: float
) -> None:
    """Also where all attempts at a task share its fate, and the judge's view of it."""
    rng = random.Random(f"{sens} {spec} {rate} {attempts}")
    tasks = [task for task in range(200 if attempts == 1 else 40) for _ in range(attempts)]
    covered, runs = 0, 800
    for _ in range(runs):
        right = sum(rng.random() < sens for _ in range(60))
        rejected = sum(rng.random() < spec for _ in range(60))
        good = {task: rng.random() < rate for task in tasks}
        said = {task: rng.random() < (sens if good[task] else 1 - spec) for task in tasks}
        verdicts = [said[task] for task in tasks]
        _, low, high = corrected(verdicts, tasks, Calibration(right, 60, rejected, 60))
        covered += low <= rate <= high
    assert covered / runs >= 0.925  # three standard errors below 95 %


def test_an_interval_that_forgets_the_judges_errors_does_not() -> None:
    """What the correction is for: the plain interval of the judged rate misses nearly always."""
    rng = random.Random(5)
    covered = 0
    for _ in range(200):
        said = sum(rng.random() < (0.8 if rng.random() < 0.2 else 0.3) for _ in range(200)) / 200
        covered += abs(said - 0.2) <= 1.96 * (said * (1 - said) / 200) ** 0.5
    assert covered < 20


def test_attempts_that_differ_within_a_task_tell_more_than_those_that_agree() -> None:
    judge = Calibration(1900, 2000, 1900, 2000)
    tasks = [task for task in range(40) for _ in range(8)]
    agreeing = [task % 2 == 0 for task in tasks]
    differing = [at % 2 == 0 for at in range(len(tasks))]
    widths = []
    for verdicts in (agreeing, differing):
        estimate, low, high = corrected(verdicts, tasks, judge)
        assert estimate == pytest.approx(0.5)
        widths.append(high - low)
    assert widths[0] > 2 * widths[1]


@pytest.mark.parametrize("counts", [(2, 20, 3, 20), (10, 20, 10, 20), (19, 20, 60, 1000)])
def test_a_judge_that_guesses_is_refused(counts: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="no better than guessing"):
        Calibration(*counts)


def test_what_says_too_little_is_refused() -> None:
    with pytest.raises(ValueError, match="label at least 20 of each"):
        calibrated([True] * 30, [True] * 25 + [False] * 5)
    with pytest.raises(ValueError, match="at least two tasks"):
        corrected([True, False], ["a", "a"], Calibration(18, 20, 16, 20))


async def test_a_judge_is_calibrated_by_asking_it() -> None:
    """It likes whatever has an a, and has no form for what has a q."""

    async def ask(text: str) -> str:
        found = re.search(r"BEGIN (\w+)\n(.*)\nEND \1", text, re.DOTALL)
        assert found
        said = found.group(2)
        if re.fullmatch("[abq]{2}", said) is None:
            return json.dumps({"verdict": 0})
        return "hm" if "q" in said else json.dumps({"verdict": int("a" in said)})

    judge = Judge(ask, Rubric("Is it good?"), model="m")
    texts = ["ab"] * 18 + ["bb"] * 4 + ["bb"] * 16 + ["ba"] * 4 + ["qa"] * 3
    labels = [True] * 22 + [False] * 20 + [True] * 3
    assert await calibrate(judge, texts, labels) == Calibration(18, 22, 16, 20)

    async def fooled(text: str) -> str:
        return json.dumps({"verdict": 1})

    with pytest.raises(GraderError, match="lowest verdict"):
        await calibrate(Judge(fooled, Rubric("?"), model="m"), texts, labels)
