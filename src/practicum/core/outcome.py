"""How an episode ends, and what each ending does: what keeps our failures out of rewards."""

from enum import StrEnum

import msgspec


class Outcome(StrEnum):
    """Every dispatched episode ends in exactly one of these."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    MALFORMED = "malformed"
    INFRA_FAILED = "infra_failed"
    GRADER_FAILED = "grader_failed"
    TAMPERED = "tampered"


class Effect(msgspec.Struct, frozen=True):
    """What an outcome does downstream."""

    in_baseline: bool
    trained: bool
    retried: bool  # the episode is played again (bounded)
    regraded: bool  # only the grading is done again (bounded)
    scored: bool  # counts in an evaluation; unscored ones are reported apart
    at_floor: bool  # its reward is 0 whatever its parts say
    reusable: bool  # may serve as data (demonstrations, traces)


EFFECTS: dict[Outcome, Effect] = {
    #                             baseline trained retried regraded scored floor  reusable
    Outcome.COMPLETED: Effect(True, True, False, False, True, False, True),
    Outcome.TRUNCATED: Effect(True, True, False, False, True, False, True),
    Outcome.MALFORMED: Effect(True, True, False, False, True, False, True),
    Outcome.INFRA_FAILED: Effect(False, False, True, False, False, False, False),
    Outcome.GRADER_FAILED: Effect(False, False, False, True, False, False, False),
    Outcome.TAMPERED: Effect(True, True, False, False, True, True, False),
}
