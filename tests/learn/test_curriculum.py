"""The curriculum draws what is sometimes solved, forgets nothing, and repeats itself exactly."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from practicum.learn.curriculum import Curriculum

CELLS = [("a", 1), ("a", 2), ("b", 1)]


def drawn(curriculum: Curriculum, count: int = 6000) -> Counter:
    return Counter(cell for cell, _ in curriculum.pick(0, count))


def taught(curriculum: Curriculum, cell: tuple[str, int], reward: float) -> None:
    for _ in range(40):
        curriculum.update(cell, [reward] * 4)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 20))
def test_equal_calls_agree(seed: int, step: int, count: int) -> None:
    picks = Curriculum(CELLS, seed=seed).pick(step, count)
    assert picks == Curriculum(CELLS, seed=seed).pick(step, count)
    assert len(picks) == count
    assert all(cell in CELLS and 0 <= task < 1_000_000 for cell, task in picks)


def test_steps_and_seeds_differ() -> None:
    base = Curriculum(CELLS, seed=1).pick(0, 8)
    assert base != Curriculum(CELLS, seed=1).pick(1, 8)
    assert base != Curriculum(CELLS, seed=2).pick(0, 8)


def test_what_is_always_or_never_solved_is_practised_at_the_floor() -> None:
    curriculum = Curriculum(CELLS, floor=0.05)
    taught(curriculum, CELLS[0], 1.0)
    taught(curriculum, CELLS[1], 0.0)
    found = drawn(curriculum)
    total = 0.05 + 0.05 + (0.25 + 0.05)
    for cell, weight in zip(CELLS, (0.05, 0.05, 0.3), strict=True):
        assert abs(found[cell] / 6000 - weight / total) < 0.03


def test_a_rate_is_an_exponential_mean() -> None:
    curriculum = Curriculum(CELLS, memory=0.7)
    curriculum.update(CELLS[0], [1.0, 0.0, 1.0, 1.0])
    assert curriculum.rates[CELLS[0]] == 0.7 * 0.5 + 0.3 * 0.75
    curriculum.update(CELLS[0], [])  # a group of our own failures says nothing
    curriculum.update(("unknown", 1), [1.0])
    assert curriculum.rates == {CELLS[0]: 0.7 * 0.5 + 0.3 * 0.75, CELLS[1]: 0.5, CELLS[2]: 0.5}


@given(st.lists(st.tuples(st.sampled_from(CELLS), st.floats(0, 1)), max_size=20))
def test_a_restored_curriculum_goes_on_alike(news: list[tuple[tuple[str, int], float]]) -> None:
    first, second = Curriculum(CELLS, seed=4), Curriculum(CELLS, seed=4)
    for cell, reward in news:
        first.update(cell, [reward])
    second.restore([*first.state(), ["gone", 3, 0.9]])
    assert second.rates == first.rates
    assert all(0 <= rate <= 1 for rate in first.rates.values())
    for step in range(3):
        assert first.pick(step, 5) == second.pick(step, 5)
