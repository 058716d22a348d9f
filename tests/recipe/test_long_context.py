"""A recipe's window follows its models' scaled positions, and is never longer than they are."""

from pathlib import Path

import pytest

from practicum.core import RecipeError
from practicum.engines.policy import SamplerPolicy
from practicum.models.render import Renderer
from practicum.recipe.evaluate import make_policy, make_sampler
from practicum.recipe.settings import parse_recipe

RECIPE = """
[domains]
train = ["sort_lines"]

[[stages]]
type = "sft"
"""
ROPE = ("rope.factor=2", "rope.rope_type='ntk'")


def policy(folder: Path, *overrides: str) -> SamplerPolicy:
    recipe = parse_recipe(RECIPE, ["device='cpu'", *overrides])
    assert parse_recipe(recipe.to_toml()) == recipe
    renderer = Renderer.for_folder(folder)
    return make_policy(recipe, make_sampler(recipe, folder, renderer), renderer, "base", 1.0)


@pytest.mark.parametrize(
    ("overrides", "window"),
    [
        ((), 4096),
        (("sampler.window=500",), 500),
        (ROPE, 8192),
        ((*ROPE, "sampler.window=6000"), 6000),
    ],
)
def test_the_window_is_the_models_own_unless_it_is_said(
    tiny: Path, overrides: tuple[str, ...], window: int
) -> None:
    assert policy(tiny, *overrides).window == window


def test_a_window_that_is_longer_than_the_model_is_refused(tiny: Path) -> None:
    with pytest.raises(RecipeError, match=r"sampler.window is 6000 .* 4096 positions.*\[rope\]"):
        policy(tiny, "sampler.window=6000")


def test_a_wrong_key_names_the_nearest_right_one() -> None:
    with pytest.raises(RecipeError, match=r"rope.fact.*did you mean 'factor'"):
        parse_recipe(RECIPE, ["rope.fact=2"])
