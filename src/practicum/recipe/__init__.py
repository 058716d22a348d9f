"""Recipes: a TOML file of stages, checked as a whole, run in order, resumed where it stopped."""

from practicum.recipe.run import train
from practicum.recipe.settings import Recipe, load_recipe

__all__ = ["Recipe", "load_recipe", "train"]
