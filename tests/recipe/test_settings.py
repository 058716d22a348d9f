"""A recipe is checked as a whole; what is wrong is named, with the nearest right word."""

from pathlib import Path

import pytest

from practicum.core import RecipeError
from practicum.learn.sft import SFTSettings
from practicum.recipe import load_recipe, train
from practicum.recipe.settings import parse_recipe
from practicum.recipe.tasks import DEMONSTRATIONS, EVALUATION, MILLION, VALIDATION, spread
from practicum.store import Run

GOOD = """
[domains]
train = ["sort_lines"]
held_out = ["order_words"]

[[stages]]
type = "sft"

[[stages]]
type = "rl"
steps = 3
"""


def problem(text: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, overrides)
    return str(caught.value)


def test_a_good_recipe_is_resolved_and_reads_back_the_same() -> None:
    recipe = parse_recipe(GOOD)
    assert [stage.name for stage in recipe.stages] == ["sft", "rl"]
    text = recipe.to_toml()
    assert "learning_rate" in text  # every setting with its value
    assert parse_recipe(text) == recipe


@pytest.mark.parametrize(
    ("override", "where", "near"),
    [
        ("sede=1", "sede", "seed"),
        ("domains.trian=['sort_lines']", "domains.trian", "train"),
        ("sampler.max_row=3", "sampler.max_row", "max_rows"),
        ("trainer.micro_batch_token=3", "trainer.micro_batch_token", "micro_batch_tokens"),
        ("trainer.lora.rnk=3", "trainer.lora.rnk", "rank"),
        ("evaluation.task=3", "evaluation.task", "tasks"),
        ("stages.1.group_sise=4", "stages.1.group_sise", "group_size"),
        ("stages.0.max_epoch=4", "stages.0.max_epoch", "max_epochs"),
    ],
)
def test_a_wrong_key_names_the_nearest_right_one(override: str, where: str, near: str) -> None:
    said = problem(GOOD, override)
    assert f"{where}: there is no such key" in said
    assert f"did you mean {near!r}?" in said


def test_a_key_that_resembles_none_gets_the_list() -> None:
    said = problem(GOOD, "sampler.xyzzy=1")
    assert "max_rows" in said
    assert "dtype" in said


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("domains.train=['sort_line']", "did you mean 'sort_lines'?"),
        ("domains.train=['order_words']", "both trained and held out: ['order_words']"),
        ("domains.levels=[1, 9]", "levels 1 to 3, not [9]"),
        ("domains.train=[]", "domains.train"),
        ("stages.1.name='sft'", "distinct names"),
        ("stages.1.name='base'", "other than 'base'"),
        ("stages.1.steps=0", "stages.1.steps"),
        ("stages.1.group_size=1", "stages.1: advantage 'mean-centred' compares within a group"),
        ("sampler.dtype='int8'", "sampler.dtype"),
        ("trainer.lora.rank=0", "trainer.lora.rank"),
    ],
)
def test_a_wrong_value_is_named(override: str, wanted: str) -> None:
    assert wanted in problem(GOOD, override)


def test_all_faults_are_told_at_once() -> None:
    said = problem(GOOD, "sede=1", "stages.1.steps=-3", "evaluation.tasks=0")
    assert all(text in said for text in ("sede", "stages.1.steps", "evaluation.tasks"))


def test_overrides_take_toml_values_and_reach_into_lists() -> None:
    recipe = parse_recipe(
        GOOD,
        ["seed=7", "stages.0.learning_rate=1e-3", "name=my run", "trainer.lora.rank=4"],
    )
    assert (recipe.seed, recipe.name) == (7, "my run")
    assert isinstance(recipe.stages[0], SFTSettings)
    assert recipe.stages[0].learning_rate == 1e-3
    assert recipe.trainer.lora is not None
    assert recipe.trainer.lora.rank == 4
    assert recipe.stages[1].steps == 3


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("seed", "write it as key=value"),
        ("stages.5.steps=1", "there is no 'stages.5.steps'"),
        ("stages.first.steps=1", "there is no 'stages.first.steps'"),
        ("domains.train.x.y=1", "there is no 'domains.train.x.y'"),
    ],
)
def test_an_override_that_leads_nowhere_is_named(override: str, wanted: str) -> None:
    assert wanted in problem(GOOD, override)


def test_text_that_is_no_toml_and_files_that_are_not_there(tmp_path: Path) -> None:
    assert "not valid TOML" in problem("seed = = 3")
    with pytest.raises(RecipeError, match="cannot read the recipe"):
        load_recipe(tmp_path / "none.toml")
    with pytest.raises(RecipeError, match="cannot read the recipe"):
        load_recipe(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"name = '\xff\xfe'")
    with pytest.raises(RecipeError, match=r"bytes\.toml"):
        load_recipe(tmp_path / "bytes.toml")


def test_tasks_of_different_uses_never_overlap() -> None:
    domains, levels = ["sort_lines", "order_words", "small_sums"], [1, 2]
    used: set[str] = set()
    for base in (EVALUATION, DEMONSTRATIONS, VALIDATION):
        tasks = spread(domains, levels, 60, base=base, seed=1, avoid=used)
        keys = {task.key for task in tasks}
        assert len(keys) == 60
        assert not keys & used
        assert all(base <= task.seed < base + MILLION for task in tasks)
        cells = [(task.domain, task.level) for task in tasks]
        assert {cells.count(cell) for cell in cells} == {10}  # evenly spread
        used |= keys


def test_tasks_to_avoid_are_passed_over_even_if_another_seed_makes_them() -> None:
    first = spread(["sort_lines"], [1], 5, base=EVALUATION, seed=3)
    again = spread(["sort_lines"], [1], 5, base=EVALUATION, seed=3)
    assert [t.key for t in again] == [t.key for t in first]
    avoid = {first[0].key, first[2].key}
    others = spread(["sort_lines"], [1], 5, base=EVALUATION, seed=3, avoid=avoid)
    assert not avoid & {t.key for t in others}


def test_a_domain_that_was_not_audited_is_not_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRACTICUM_CACHE", str(tmp_path / "cache"))
    recipe = parse_recipe(GOOD)

    class Silent:
        def stage(self, name: str, steps: int | None) -> None: ...
        def step(self, name: str, step: int, values: dict[str, float]) -> None: ...
        def note(self, text: str) -> None: ...

    with (
        Run.create(tmp_path / "run", recipe.to_toml()) as run,
        pytest.raises(RecipeError, match="practicum audit sort_lines order_words"),
    ):
        train(recipe, run, Silent())
