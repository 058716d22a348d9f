"""Tasks are the same everywhere, different by seed, short, graded by level, and hide their gold."""

import os
import subprocess
import sys

import msgspec
import pytest

from practicum.core import content_hash
from practicum.domains import all_domains, domain_names, get_domain
from practicum.domains.functions import FUNCTIONS, evaluate
from practicum.domains.names import PEOPLE, SERVICES, WORDS

PRINT_KEYS = """
from practicum.domains import all_domains
for domain in all_domains():
    print(domain.name, [domain.make(s, n).key for s in range(5) for n in (1, 2, 3)])
"""


def keys_in_a_new_process(hash_seed: str) -> str:
    env = os.environ | {"PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", PRINT_KEYS]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


def test_tasks_do_not_depend_on_the_process():
    first = keys_in_a_new_process("1")
    assert first == keys_in_a_new_process("2")
    assert len(first.splitlines()) == len(domain_names())


@pytest.mark.parametrize("name", domain_names())
@pytest.mark.parametrize("level", [1, 2, 3])
def test_seeds_give_different_tasks(name, level):
    domain = get_domain(name)
    tasks = [domain.make(seed, level) for seed in range(320)]
    visible = {content_hash([t.prompt, t.files]) for t in tasks}
    assert len(visible) == len(tasks)


@pytest.mark.parametrize("name", domain_names())
def test_tasks_are_short_and_well_formed(name):
    domain = get_domain(name)
    for level in (1, 2, 3):
        for seed in range(40):
            task = domain.make(seed, level)
            assert (task.domain, task.seed, task.level) == (name, seed, level)
            assert 8 <= len(task.prompt.split()) <= 90, task.prompt
            assert "{" not in task.prompt.replace("{}", "")
            paths = [file.path for file in task.files]
            assert len(set(paths)) == len(paths)
            assert sum(len(file.data) for file in task.files) < 200_000
            assert len(domain.solve(task)) <= task.limits.turns
            assert msgspec.json.decode(msgspec.json.encode(task), type=type(task)) == task


@pytest.mark.parametrize("name", domain_names())
def test_gold_is_longer_at_higher_levels(name):
    domain = get_domain(name)

    def work(level: int) -> int:
        scripts = [domain.solve(domain.make(seed, level)) for seed in range(60)]
        gold = [str(c.arguments) for s in scripts for message in s for c in message.calls]
        prompts = [domain.make(seed, level).prompt for seed in range(60)]
        return sum(map(len, gold if domain.family == "terminal" else prompts))

    assert work(1) < work(2) < work(3)


@pytest.mark.parametrize("name", domain_names("terminal"))
def test_what_the_agent_gets_holds_no_gold(name):
    domain = get_domain(name)
    for level in (1, 2, 3):
        task = domain.make(7, level)
        seen = task.prompt + "".join(f.data.decode("latin-1") for f in task.files)
        assert task.truth["gold"][-1] not in seen
        for hidden in task.truth.get("hidden", []):
            assert str(hidden[0]) + str(hidden[1]) not in seen


def test_families_have_the_promised_size():
    assert len(domain_names("terminal")) >= 12
    assert domain_names("text") == ["order_words", "small_sums"]
    for domain in all_domains():
        assert (domain.make(0, 1).tools == ("submit",)) == (domain.family == "text")


def test_no_word_is_part_of_another_one():
    pool = [*WORDS, *SERVICES]
    assert not [(a, b) for a in pool for b in pool if a != b and a in b]
    assert len(set(PEOPLE)) == len(PEOPLE)


@pytest.mark.parametrize("item", FUNCTIONS, ids=lambda item: item.name)
def test_every_bug_is_one_line_that_can_be_found_and_changes_results(item):
    everything = "\n".join(other.source for other in FUNCTIONS if other is not item)
    for right, wrong in item.bugs:
        assert item.source.count(right) == 1, right
        broken = item.source.replace(right, wrong)
        changed = set(broken.splitlines()) - set(item.source.splitlines())
        assert len(changed) == 1
        assert (broken + everything).count(changed.pop().strip()) == 1
        draws = [item.draw(get_domain("pytest_repair").rng(seed, 1)) for seed in range(40)]
        assert any(
            evaluate(broken, item.name, args) != evaluate(item.source, item.name, args)
            for args in draws
        )
