import sys

import pytest

from practicum.core import RecipeError
from practicum.domains import all_domains, catalogue, domain_names, get_domain

MODULE = """
from practicum.domains.order_words import OrderWords


class Mine(OrderWords):
    name = "mine"
    family = "mine"
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Installs a package that offers domains by entry points."""

    def install(*points: str) -> None:
        (tmp_path / "mine_domains.py").write_text(MODULE)
        folder = tmp_path / "mine-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text("\n".join(["[practicum.domains]", *points]))
        monkeypatch.syspath_prepend(str(tmp_path))

    def forget() -> None:
        catalogue._places.cache_clear()
        get_domain.cache_clear()
        sys.modules.pop("mine_domains", None)

    forget()
    yield install
    forget()


def test_domains_are_listed_by_name_and_family():
    assert domain_names() == sorted(domain_names("terminal") + domain_names("text"))
    assert [domain.name for domain in all_domains()] == domain_names()
    assert get_domain("filter_lines") is get_domain("filter_lines")


def test_an_unknown_name_is_an_error_that_names_the_nearest():
    with pytest.raises(RecipeError, match="'fliter_lines'; did you mean 'filter_lines'"):
        get_domain("fliter_lines")


def test_a_package_adds_a_domain_by_entry_point(plugin):
    plugin("mine = mine_domains:Mine")
    assert "mine" in domain_names()
    assert domain_names("mine") == ["mine"]
    assert get_domain("mine").make(1, 1).domain == "mine"


def test_a_package_cannot_take_the_name_of_another_domain(plugin):
    plugin("filter_lines = mine_domains:Mine")
    with pytest.raises(RecipeError, match="two domains are named 'filter_lines'"):
        domain_names()


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ("gone = mine_missing:Mine", "cannot be loaded"),
        ("gone = mine_domains:Nothing", "cannot be loaded"),
        ("other = mine_domains:Mine", "not a domain named 'other'"),
    ],
)
def test_a_broken_entry_point_is_a_clear_error(plugin, point, message):
    plugin(point)
    with pytest.raises(RecipeError, match=message):
        get_domain(point.split(" ")[0])
