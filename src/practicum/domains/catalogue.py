"""Finds domains by name, without importing those that nobody asks for."""

import difflib
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from practicum.core import RecipeError
from practicum.domains.domain import Domain

GROUP = "practicum.domains"

BUILTIN = {
    "archives": "archives:Archives",
    "build_repair": "build_repair:BuildRepair",
    "config_edit": "config_edit:ConfigEdit",
    "csv_columns": "csv_columns:CsvColumns",
    "file_moves": "file_moves:FileMoves",
    "filter_lines": "filter_lines:FilterLines",
    "find_files": "find_files:FindFiles",
    "json_data": "json_data:JsonData",
    "log_counts": "log_counts:LogCounts",
    "log_fields": "log_fields:LogFields",
    "make_files": "make_files:MakeFiles",
    "order_words": "order_words:OrderWords",
    "permissions": "permissions:Permissions",
    "pytest_repair": "pytest_repair:PytestRepair",
    "replace_text": "replace_text:ReplaceText",
    "shell_script": "shell_script:ShellScript",
    "small_sums": "small_sums:SmallSums",
    "sort_lines": "sort_lines:SortLines",
    "text_slices": "text_slices:TextSlices",
    "word_counts": "word_counts:WordCounts",
}
"""Name of each built-in domain and where its class is, relative to this package."""


@cache
def _places() -> dict[str, str]:
    """Name and `module:class` of every domain, built-in ones first."""
    places = {name: f"practicum.domains.{place}" for name, place in BUILTIN.items()}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        if places.setdefault(point.name, point.value) != point.value:
            raise RecipeError(
                f"two domains are named {point.name!r} ({places[point.name]} and {point.value}); "
                "rename the entry point of one, or remove its package"
            )
    return places


@cache
def get_domain(name: str) -> Domain:
    """The domain of this name.

    Raises RecipeError when there is none, or when its class cannot be loaded.
    """
    places = _places()
    if name not in places:
        near = difflib.get_close_matches(name, places, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise RecipeError(
            f"there is no domain {name!r}{hint} `practicum domains` lists all of them"
        )
    module, _, attribute = places[name].partition(":")
    try:
        domain = getattr(import_module(module), attribute)()
    except (ImportError, AttributeError) as error:
        raise RecipeError(
            f"domain {name!r} cannot be loaded from {places[name]}: {error}; "
            "install or repair the package that offers it"
        ) from error
    if not isinstance(domain, Domain) or domain.name != name:
        raise RecipeError(
            f"{places[name]} is not a domain named {name!r}; its entry point must name a subclass "
            "of practicum.domains.Domain whose `name` is the entry point's"
        )
    return domain


def domain_names(family: str | None = None) -> list[str]:
    """Names in alphabetical order; of one family only, if it is given."""
    if family is None:
        return sorted(_places())
    return [domain.name for domain in all_domains() if domain.family == family]


def all_domains() -> list[Domain]:
    """Every domain, by name."""
    return [get_domain(name) for name in domain_names()]
