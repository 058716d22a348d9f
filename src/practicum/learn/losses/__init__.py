"""The losses by name, each a small pure function with its source; see docs/algorithms.md."""

from practicum.learn.losses.correction import (
    Correction,
    corrected,
    geometric_mask,
    icepop,
    truncated,
    truncated_sequence,
    veto,
)
from practicum.learn.losses.kl import estimate, penalised
from practicum.learn.losses.policy import cispo, clip, dppo, gspo, importance, sapo
from practicum.learn.losses.preference import (
    bradley_terry,
    dpo,
    ipo,
    kto,
    paired,
    scored,
    single,
)
from practicum.learn.losses.value import squared, with_values

__all__ = [
    "Correction",
    "bradley_terry",
    "cispo",
    "clip",
    "corrected",
    "dpo",
    "dppo",
    "estimate",
    "geometric_mask",
    "gspo",
    "icepop",
    "importance",
    "ipo",
    "kto",
    "paired",
    "penalised",
    "sapo",
    "scored",
    "single",
    "squared",
    "truncated",
    "truncated_sequence",
    "veto",
    "with_values",
]
