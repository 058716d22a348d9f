from pathlib import Path

import msgspec
import pytest

from practicum.core import (
    Episode,
    Event,
    Message,
    Outcome,
    Score,
    ScorePart,
    TokenRecord,
    Turn,
)
from practicum.evaluate import measure
from practicum.evaluate.summary import build_summary
from practicum.store import Run


def episode(
    task: str,
    value: float | None = 1.0,
    *,
    outcome: Outcome = Outcome.COMPLETED,
    domain: str = "sorting",
    attempt: int = 0,
    tests: float | None = None,
) -> Episode:
    parts = [ScorePart("answer", value)]
    if tests is not None:
        parts.append(ScorePart("tests_passed", tests, weight=0, kind="metric"))
    turn = Turn(
        Message.of("assistant", "ls"), record=TokenRecord((1, 2), (3, 4, 5), (-1.0,) * 3, "w")
    )
    return Episode(
        id=f"{task}#{attempt}",
        task=task,
        domain=domain,
        level=1,
        policy="p",
        prompt=(Message.of("user", "sort it"),),
        turns=(turn, turn),
        events=(Event(0, "invalid"), Event(1, "call", "shell")),
        outcome=outcome,
        score=Score.of(*parts),
    )


def test_our_failures_are_no_failures_of_the_model() -> None:
    found = measure.summarise(
        [
            episode("a"),
            episode("b", 0.0),
            episode("c", outcome=Outcome.TAMPERED),  # a fail, whatever its parts say
            episode("d", outcome=Outcome.INFRA_FAILED),
            episode("e", None, outcome=Outcome.GRADER_FAILED),
        ]
    ).overall
    assert found.success is not None
    assert (found.success.mean, found.success.n) == (pytest.approx(1 / 3), 3)
    assert found.unscored.mean == pytest.approx(2 / 5)
    assert found.outcomes == {
        "completed": 2,
        "grader_failed": 1,
        "infra_failed": 1,
        "tampered": 1,
    }


def test_every_measure_is_taken_from_the_episode() -> None:
    found = measure.summarise([episode("a", 0.5, tests=0.75), episode("b", 0.25)]).overall
    means = [
        m.mean if m else None
        for m in (found.tests_passed, found.steps, found.invalid_calls, found.sampled_tokens)
    ]
    assert means == [0.5, 2, 1, 6]  # tests: the metric where there is one, else the score


def test_nothing_scored_is_no_number() -> None:
    found = measure.summarise([episode("a", outcome=Outcome.INFRA_FAILED)]).overall
    assert found.success is None
    assert found.unscored.mean == 1


def test_pairs_are_matched_by_task_and_attempt_in_any_order() -> None:
    before = [episode("a", 0.0, attempt=0), episode("a", 1.0, attempt=1), episode("b", 0.0)]
    after = [episode("b", 1.0), episode("a", 1.0, attempt=1), episode("a", 0.0, attempt=0)]
    found = measure.compare(before, after).overall
    assert found.success is not None
    assert (found.pairs, found.unpaired) == (3, 0)
    assert found.success.mean == pytest.approx(1 / 3)
    assert (found.success.improved, found.success.regressed) == (1, 0)


def test_an_unscored_attempt_takes_its_partner_out_and_shifts_no_other() -> None:
    before = [episode("a", 0.0, attempt=0), episode("a", 1.0, attempt=1)]
    after = [
        episode("a", outcome=Outcome.INFRA_FAILED, attempt=0),
        episode("a", 1.0, attempt=1),
        episode("z"),
    ]
    found = measure.compare(before, after).overall
    assert (found.pairs, found.unpaired) == (1, 3)
    assert found.success is not None
    assert found.success.mean == 0
    assert measure.compare(before, [episode("z")]).overall.success is None


def test_domains_and_splits_are_apart() -> None:
    episodes = [episode("a"), episode("b", 0.0, domain="maths"), episode("c", domain="maths")]
    found = measure.summarise(episodes, trained=["sorting"])
    assert {k: v.episodes for k, v in found.domains.items()} == {"maths": 2, "sorting": 1}
    assert {k: v.episodes for k, v in found.splits.items()} == {
        "trained_domains": 1,
        "held_out_domains": 2,
    }
    assert measure.summarise(episodes).splits == {}
    again = msgspec.json.decode(msgspec.json.encode(found), type=measure.Measurement)
    assert again == found


def test_the_summary_is_built_from_what_is_on_disk(tmp_path: Path) -> None:
    def played(solved: int) -> list[Episode]:
        trained = [episode(f"t{i}", float(i < solved)) for i in range(20)]
        held_out = [episode(f"h{i}", float(i < 5), domain="maths") for i in range(10)]
        return trained + held_out

    with Run.create(tmp_path / "run", "") as run:
        run.log("domains", trained=["sorting"], held_out=["maths"])
        for name, solved in [("base", 0), ("sft", 8), ("rl", 16)]:
            run.write_eval(name, played(solved))
        summary = build_summary(run)
        run.write_summary(summary)
    assert Run.view(tmp_path / "run").read_summary() == summary
    assert summary["evals"] == ["base", "sft", "rl"]
    assert summary["rl"]["success"] == pytest.approx(21 / 30)
    assert summary["rl"]["n"] == 30
    assert summary["rl"]["ci_low"] < 21 / 30 < summary["rl"]["ci_high"]
    assert summary["rl_minus_sft"] == pytest.approx(8 / 30)
    assert summary["rl_minus_sft_ci_low"] > 0
    assert (summary["rl_minus_base_improved"], summary["rl_minus_base_regressed"]) == (16, 0)
    assert summary["trained_domains"]["rl_minus_sft"] == pytest.approx(8 / 20)
    held_out = summary["held_out_domains"]
    assert held_out["rl_minus_sft"] == 0
    assert held_out["rl_minus_sft_ci_low"] < 0  # ten equal pairs do not prove equality
    assert summary["domains"]["maths"]["base"]["success"] == 0.5
