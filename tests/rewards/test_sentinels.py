"""Sentinels never fail an honest module: what they expect is certain to be wrong, names are new."""

import ast

from hypothesis import given
from hypothesis import strategies as st

from practicum.rewards.sentinels import with_sentinels

LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
)


@given(LITERALS, st.text())
def test_no_sentinel_expects_the_right_value(value: object, nonce: str) -> None:
    source, names = with_sentinels(f"def test_a():\n    assert f() == {value!r}\n", nonce)
    for name in names:
        scope: dict[str, object] = {"f": lambda: value, "inf": float("inf")}
        exec(source, scope)
        test = scope[name]
        assert callable(test)
        try:
            test()
        except AssertionError:
            continue
        raise ValueError(f"{name} passes: {source}")


def test_names_are_new_even_where_few_are_left() -> None:
    words = ("again", "basic", "case", "edge", "empty", "first", "large", "many", "other", "small")
    taken = {f"test_{word}_{n}" for word in words for n in range(10, 9_999)}
    source = "".join(f"def {name}(): pass\n" for name in sorted(taken))
    _, names = with_sentinels(source, "a")
    assert not taken & set(names)


def test_a_file_whose_tests_all_have_parameters_gets_no_test_without() -> None:
    source = (
        "pytestmark = pytest.mark.parametrize('n', [1])\ndef test_a(n):\n    assert f(n) == 1\n"
    )
    armed, names = with_sentinels(source, "a")
    assert len(names) == 1
    assert "hash" not in armed


def test_what_is_compared_as_an_approximation_is_left_alone() -> None:
    source = "def test_a():\n    assert pytest.approx(f(), rel=1e30) == 2.0\n"
    armed, names = with_sentinels(source, "a")
    assert len(names) == 1
    assert len(ast.parse(armed).body) == 2
