"""One test a row of the outcome table: what each ending does to training and evaluation."""

import pytest

from practicum.core import EFFECTS, Effect, Outcome


def test_every_outcome_has_exactly_one_row() -> None:
    assert list(EFFECTS) == list(Outcome)


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.TRUNCATED, Outcome.MALFORMED])
def test_what_the_policy_did_counts_everywhere(outcome: Outcome) -> None:
    assert EFFECTS[outcome] == Effect(
        in_baseline=True,
        trained=True,
        retried=False,
        regraded=False,
        scored=True,
        at_floor=False,
        reusable=True,
    )


def test_infra_failed_is_played_again_and_never_counts() -> None:
    assert EFFECTS[Outcome.INFRA_FAILED] == Effect(
        in_baseline=False,
        trained=False,
        retried=True,
        regraded=False,
        scored=False,
        at_floor=False,
        reusable=False,
    )


def test_grader_failed_is_graded_again_and_never_counts() -> None:
    assert EFFECTS[Outcome.GRADER_FAILED] == Effect(
        in_baseline=False,
        trained=False,
        retried=False,
        regraded=True,
        scored=False,
        at_floor=False,
        reusable=False,
    )


def test_tampered_counts_at_the_floor_and_is_never_data() -> None:
    assert EFFECTS[Outcome.TAMPERED] == Effect(
        in_baseline=True,
        trained=True,
        retried=False,
        regraded=False,
        scored=True,
        at_floor=True,
        reusable=False,
    )


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_failure_of_ours_is_never_a_reward(outcome: Outcome) -> None:
    effect = EFFECTS[outcome]
    ours = effect.retried or effect.regraded
    assert ours != effect.in_baseline == effect.trained == effect.scored
