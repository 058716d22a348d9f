"""The table of rooms in docs/architecture.md is the law; imports under src/practicum obey it."""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "practicum"
DOCUMENT = ROOT / "docs" / "architecture.md"

Arrows = dict[tuple[str, str], set[str]]  # (importer, imported) -> the files that do it


def table(document: str) -> tuple[dict[str, set[str]], set[str]]:
    """What each room may import, in the order of the table, and which rooms are only planned."""
    allowed: dict[str, set[str]] = {}
    planned: set[str] = set()
    section = document.split("\n## Rooms\n")[1].split("\n## ")[0]
    for line in section.splitlines():
        row = re.fullmatch(r"\| `(\w+)/` \| (.+) \| (.+) \|", line)
        if not row:
            continue
        room, owns, imports = row.groups()
        named = {name.strip() for name in imports.split(",")}
        special = {"any above": set(allowed), "nothing of ours": set()}
        allowed[room] = special.get(imports, named)
        if owns.startswith("*planned*"):
            planned.add(room)
    return allowed, planned


def imported(tree: ast.AST, package: list[str]) -> Iterator[str]:
    """Dotted names that a module of `package` imports, relative and dynamic ones resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{stem}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            first = node.args[0]
            if name in ("import_module", "__import__") and isinstance(first, ast.Constant):
                yield str(first.value)


def arrows(source: Path) -> Arrows:
    """Every arrow from one room to another. Modules beside the rooms count as the room ''."""
    found: Arrows = {}
    for path in sorted(source.rglob("*.py")):
        inside = path.relative_to(source)
        room = inside.parts[0] if len(inside.parts) > 1 else ""
        package = ["practicum", *inside.parts[:-1]]
        for name in imported(ast.parse(path.read_text("utf-8")), package):
            parts = name.split(".")
            if parts[0] != "practicum" or len(parts) < 2 or parts[1] == room:
                continue
            if (source / parts[1]).is_dir() or (source / f"{parts[1]}.py").is_file():
                found.setdefault((room, parts[1]), set()).add(str(inside))
    return found


def violations(allowed: dict[str, set[str]], found: Arrows) -> list[str]:
    """Arrows that the table does not allow, and a cycle if there is one."""
    wrong = [
        f"{room or 'practicum'} must not import {target}: {', '.join(sorted(files))}"
        for (room, target), files in sorted(found.items())
        if target not in allowed.get(room, set())
    ]
    graph: dict[str, set[str]] = {}
    for room, target in found:
        graph.setdefault(room, set()).add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        wrong.append(f"cycle: {' -> '.join(error.args[1])}")
    return wrong


def test_the_table_only_points_upwards_to_rooms_it_names() -> None:
    allowed, _ = table(DOCUMENT.read_text("utf-8"))
    seen: set[str] = set()
    for room, targets in allowed.items():
        assert targets <= seen, f"{room} names a room that is not above it: {targets - seen}"
        seen.add(room)
    assert {"core", "sandbox", "domains", "rollout", "learn", "evaluate", "cli"} <= seen


def test_every_room_is_in_the_table_and_only_planned_ones_are_missing() -> None:
    allowed, planned = table(DOCUMENT.read_text("utf-8"))
    present = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert present == set(allowed) - planned


def test_imports_follow_the_table_without_cycles() -> None:
    allowed, _ = table(DOCUMENT.read_text("utf-8"))
    found = arrows(SOURCE)
    assert ("domains", "core") in found  # the walk sees real arrows
    assert violations(allowed, found) == []


def test_every_test_named_in_the_document_exists() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", DOCUMENT.read_text("utf-8"))
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    "statement",
    [
        "import practicum.rollout.loop",
        "from practicum.rollout.loop import play",
        "from practicum.rollout import loop",
        "from practicum import rollout",
        "from .. import rollout",
        "from ..rollout.loop import play",
        "def later():\n    from practicum.rollout import loop",
        "import importlib\nimportlib.import_module('practicum.rollout')",
    ],
)
def test_a_forbidden_import_is_found_however_it_is_written(tmp_path: Path, statement: str) -> None:
    for room in ("core", "rollout"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").touch()
    (tmp_path / "rollout" / "loop.py").write_text("from practicum.core import Task\n")
    (tmp_path / "core" / "task.py").write_text(statement + "\n")
    allowed, _ = table(DOCUMENT.read_text("utf-8"))
    wrong = violations(allowed, arrows(tmp_path))
    assert any(line.startswith("core must not import rollout: core/task.py") for line in wrong)
    assert any(line.startswith("cycle: ") for line in wrong)


def test_imports_within_a_room_and_of_others_packages_are_free(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "__init__.py").write_text("from practicum.core.task import Task\n")
    (tmp_path / "core" / "task.py").write_text("import json\nfrom . import errors\n")
    assert arrows(tmp_path) == {}


def test_a_module_beside_the_rooms_may_import_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "__init__.py").touch()
    (tmp_path / "__init__.py").write_text("from practicum.core import Task\n")
    allowed, _ = table(DOCUMENT.read_text("utf-8"))
    assert violations(allowed, arrows(tmp_path)) == ["practicum must not import core: __init__.py"]
