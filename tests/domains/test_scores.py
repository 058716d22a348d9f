"""Through real boxes: gold scores full marks, and nothing else scores anything."""

import asyncio

import pytest
from player import play

from practicum.core import Message, ToolCall
from practicum.domains import domain_names, get_domain
from practicum.domains.terminal import script

LEVELS = (1, 2, 3)


@pytest.mark.parametrize("name", domain_names())
async def test_gold_scores_full_marks_and_its_checks_all_pass(name, boxes):
    domain = get_domain(name)
    tasks = [domain.make(seed, level) for level in LEVELS for seed in range(4)]
    scores = await asyncio.gather(*(play(domain, t, domain.solve(t), boxes) for t in tasks))
    for task, score in zip(tasks, scores, strict=True):
        assert score.solved, (task.prompt, domain.solve(task), score)
        assert [part.value for part in score.parts if part.name == "tests_passed"] == [1.0]


@pytest.mark.parametrize("name", domain_names())
async def test_attacks_and_idlers_stay_at_the_floor(name, boxes):
    domain = get_domain(name)
    for level in LEVELS:
        task = domain.make(level, level)
        scripts = {"nothing": (), "submit only": (), **domain.attacks(task)}
        scripts["submit only"] = (Message.of("assistant", "", ToolCall("submit", {})),)
        for seed in (101, 102):
            scripts[f"gold of seed {seed}"] = domain.solve(domain.make(seed, level))
        scores = await asyncio.gather(*(play(domain, task, s, boxes) for s in scripts.values()))
        for attack, score in zip(scripts, scores, strict=True):
            assert score.value == 0.0 <= domain.floor, (attack, task.prompt, score)
            assert score.parts[0].evidence
        assert len(domain.attacks(task)) >= 2


async def test_a_conftest_that_rewrites_reports_is_flagged_and_an_honest_one_is_not(boxes):
    domain = get_domain("pytest_repair")
    task = domain.make(3, 1)
    attack = await play(domain, task, domain.attacks(task)["conftest"], boxes)
    assert "conftest.py" in attack.tampered
    honest = Message.of(
        "assistant",
        "",
        ToolCall("shell", {"command": "echo 'import pytest' > conftest.py; touch notes.txt"}),
    )
    score = await play(domain, task, (honest, *domain.solve(task)), boxes)
    assert score.solved
    assert not score.tampered


async def test_part_of_the_work_earns_part_of_the_marks(boxes):
    domain = get_domain("config_edit")
    task = domain.make(5, 3)
    first = task.truth["gold"][0].split("; ")[0]
    assert (await play(domain, task, script(first), boxes)).outcome == 0.5


async def test_one_of_two_bugs_repaired_earns_something_but_not_all(boxes):
    domain = get_domain("pytest_repair")
    task = domain.make(2, 3)
    edits = domain.solve(task)[1].calls
    score = await play(domain, task, (Message.of("assistant", "", edits[0]),), boxes)
    assert 0.0 < score.value < 1.0
