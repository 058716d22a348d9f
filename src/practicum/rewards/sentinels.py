"""Tests that no honest module passes, beside the hidden ones.

A sentinel is a copy of a hidden test which expects what nobody can know. A candidate that makes
tests pass instead of being right (a rewritten report, an object that equals everything) makes it
pass, too: so whoever passes a sentinel has forged.
"""

import ast
import copy
import random
from collections.abc import Iterator

_WORDS = ("again", "basic", "case", "edge", "empty", "first", "large", "many", "other", "small")


def with_sentinels(source: str, nonce: str) -> tuple[str, list[str]]:
    """A test file with a sentinel beside each plain test, and their names as in ids.

    Names look like those of other tests, `test_sum_edge_41`, or `TestIt::test_sum_edge_41` in a
    class; they follow from the nonce and are new in the file. Raises SyntaxError for what is no
    Python.
    """
    tree = ast.parse(source)
    rng = random.Random(nonce)
    taken = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    names: list[str] = []
    for place, prefix in _places(tree):
        made: list[ast.stmt] = []
        for node in place:
            made.append(node)
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
                sentinel = _sentinel(node, rng, taken)
                if sentinel:
                    names.append(prefix + sentinel.name)
                    made.insert(rng.randrange(len(made) + 1) if not prefix else len(made), sentinel)
        place[:] = made
    if not any(_parametrised(node) for node in tree.body):  # a test without parameters is an error
        names.append(_name("test", rng, taken))
        number = _secret(rng)
        lone = f"def {names[-1]}():\n    assert hash({number}) == {number + 1}\n"
        tree.body += ast.parse(lone).body
    return ast.unparse(ast.fix_missing_locations(tree)), names


def _parametrised(node: ast.stmt) -> bool:
    """Whether this statement of a module may give parameters to all its tests."""
    text = ast.unparse(node) if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) else ""
    return text.startswith("pytestmark")


def _places(tree: ast.Module) -> Iterator[tuple[list[ast.stmt], str]]:
    """Bodies that hold tests, each with what comes before their names in an id."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield node.body, f"{node.name}::"
    yield tree.body, ""


def _name(like: str, rng: random.Random, taken: set[str]) -> str:
    while (name := f"{like}_{rng.choice(_WORDS)}_{rng.randrange(10, 10_000)}") in taken:
        pass
    taken.add(name)
    return name


def _sentinel(test: ast.FunctionDef, rng: random.Random, taken: set[str]) -> ast.FunctionDef | None:
    """The test with one literal that cannot be right; None if it compares a call with none."""
    if test.decorator_list:
        return None
    new = copy.deepcopy(test)
    new.name = _name(test.name, rng, taken)
    for node in new.body:
        if not isinstance(node, ast.Assert) or not isinstance(node.test, ast.Compare):
            continue
        compared = node.test
        calls = [n for n in ast.walk(compared.left) if isinstance(n, ast.Call)]
        if (
            not calls
            or "approx" in ast.unparse(compared.left)
            or len(compared.ops) != 1
            or not isinstance(compared.ops[0], ast.Eq)
        ):
            continue
        try:
            value = ast.literal_eval(compared.comparators[0])
        except (ValueError, TypeError):
            continue
        compared.comparators[0] = ast.parse(repr(_wrong(value, rng)), mode="eval").body
        return new
    return None


def _wrong(value: object, rng: random.Random) -> object:
    """A value of the same look that no honest bug comes up with."""
    secret = _secret(rng)
    match value:
        case bool() | None:
            return secret
        case int():
            return value + secret
        case float():  # a larger one would not change by the sum
            return value + secret if abs(value) < secret else float(secret)
        case str():
            return f"{value}{secret:015x}"
        case bytes():
            return value + f"{secret:015x}".encode()
        case list():
            return [*value, secret]
        case tuple():
            return (*value, secret)
        case _:
            return secret


def _secret(rng: random.Random) -> int:
    return rng.getrandbits(60) | 1 << 59
