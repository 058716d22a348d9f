"""What a recipe says of its stages: their own keys are suggested, and names lead somewhere."""

import pytest

from practicum.core import RecipeError
from practicum.learn.rl import RLSettings
from practicum.recipe.settings import Recipe, parse_recipe

WHOLE = """
[domains]
train = ["sort_lines"]

[[stages]]
type = "sft"

[[stages]]
type = "preference"
loss = "kto"

[[stages]]
type = "reward-model"
name = "judge"

[[stages]]
type = "rl"
advantage = "gae"
critic = { trace = 0.9 }
loss = { kl = 0.01, reference = "sft" }
mix = { each_step = 4 }
flight = { spike = 20.0 }
reward_model = "judge"

[[stages]]
type = "distil"
teacher = "sft"

[[stages]]
type = "sft"
name = "taught"
teacher = "rl"
"""


def problem(*overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(WHOLE, overrides)
    return str(caught.value)


def test_a_recipe_of_all_kinds_is_resolved_and_reads_back_the_same() -> None:
    recipe = parse_recipe(WHOLE)
    assert parse_recipe(recipe.to_toml()) == recipe
    assert [s.type for s in recipe.stages] == [
        "sft",
        "preference",
        "reward-model",
        "rl",
        "distil",
        "sft",
    ]
    rl = recipe.stages[3]
    assert isinstance(rl, RLSettings)
    assert rl.critic is not None
    assert (rl.critic.trace, rl.critic.coefficient) == (0.9, 0.5)
    assert all(stage.most_steps > 0 for stage in recipe.stages)


@pytest.mark.parametrize(
    ("override", "near"),
    [
        ("stages.3.loss.polcy='clip'", "policy"),
        ("stages.3.loss.kl_estimat='k2'", "kl_estimate"),
        ("stages.3.flight.spikes=3", "spike"),
        ("stages.3.critic.traces=1", "trace"),
        ("stages.3.mix.each_steps=1", "each_step"),
        ("stages.3.reward_modl='judge'", "reward_model"),
        ("stages.2.validations=0.5", "validation"),
        ("stages.1.weight_god=2", "weight_good"),
        ("stages.4.teachr='sft'", "teacher"),
        ("stages.5.attempt=3", "attempts"),
    ],
)
def test_a_wrong_key_of_a_table_is_set_right_by_those_of_that_table(
    override: str, near: str
) -> None:
    said = problem(override)
    assert f"{override.partition('=')[0]}: there is no such key" in said
    assert f"did you mean {near!r}?" in said


def test_keys_of_another_kind_of_stage_are_not_suggested() -> None:
    said = problem("stages.4.advantage='grpo'")
    assert "stages.4.advantage: there is no such key" in said
    assert "did you mean 'advantage'" not in said
    said = problem("stages.3.loss.xyzzy=1")
    assert "'aggregation'" in said  # the list of its own keys
    assert "'groups'" not in said


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("stages.3.reward_model='jury'", "rl: reward_model names a reward-model stage before it"),
        ("stages.3.reward_model='sft'", "before it, judge; not 'sft'"),
        ("stages.3.loss.reference='rl'", "rl: 'rl' is no stage before it"),
        ("stages.3.loss.reference='judge'", "'judge' is no stage before it that trains a policy"),
        ("stages.4.teacher='taught'", "'taught' is no stage before it"),
        ("stages.5.teacher='judge'", "'judge' is no stage before it"),
        ("stages.4.start='taught'", "'taught' is no stage before it"),
        ("stages.4.start='judge'", "'judge' is no stage before it"),
        ("stages.4.start='tiny:1'", "start is 'base' or a stage"),
        ("stages.2.name='sft'", "distinct names"),
        ("stages.3.type='ril'", "stages.3"),
        ("stages.3.advantage='grpo'", "a critic has no effect"),
    ],
)
def test_a_name_that_leads_nowhere_is_said(override: str, wanted: str) -> None:
    assert wanted in problem(override)


def test_a_model_may_be_named_where_a_stage_can() -> None:
    found = parse_recipe(WHOLE, ["stages.4.teacher='tiny:1'", "stages.3.loss.reference='tiny:0'"])
    assert isinstance(found, Recipe)


def test_a_reward_model_needs_a_stage_of_its_kind() -> None:
    text = WHOLE.replace('"reward-model"', '"preference"')
    with pytest.raises(RecipeError, match="and there is none; not 'judge'"):
        parse_recipe(text)
