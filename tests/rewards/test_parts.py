import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.rewards.parts import Check, above, checked


def checks(*passed: bool) -> list[Check]:
    return [Check(f"check {at}", ok, "" if ok else "broken") for at, ok in enumerate(passed)]


@given(st.integers(1, 50), st.data())
def test_credit_starts_above_the_baseline_and_ends_at_all(total, data):
    baseline = data.draw(st.integers(0, total - 1))
    shares = [above(passed, total, baseline) for passed in range(total + 1)]
    assert shares == sorted(shares)
    assert shares[: baseline + 1] == [0.0] * (baseline + 1)
    assert shares[baseline + 1] > 0
    assert shares[-1] == 1.0


def test_nothing_above_the_baseline_is_a_mistake_of_the_grader():
    with pytest.raises(ZeroDivisionError):
        above(3, 3, 3)


def test_breaking_what_should_be_kept_costs_what_a_change_earns():
    assert checked(checks(True, True, True, True), baseline=2).value == 1.0
    assert checked(checks(True, True, True, False), baseline=2).value == 0.5
    assert checked(checks(True, True, False, False), baseline=2).value == 0.0


def test_evidence_counts_and_names_the_first_failures():
    evidence = checked(checks(True, *[False] * 5), baseline=1).parts[0].evidence
    assert evidence == (
        "1 of 6 checks passed, 1 of them earn nothing; "
        "check 1: broken; check 2: broken; check 3: broken"
    )


def test_visible_checks_count_as_tests_and_earn_nothing():
    score = checked(checks(False, False), visible=checks(True, True))
    assert score.value == 0.0
    assert score.parts[1].name == "tests_passed"
    assert score.parts[1].value == 0.5
    assert not score.parts[1].weight
