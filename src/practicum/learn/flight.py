"""Checks before an optimiser step: what would corrupt a model in silence is found, named, acted on.

A check looks at the batch, or at what the forward and backward pass said of it, and answers with a
`Finding` or nothing. Its action says what a stage does: `stop` ends the run before the step, `skip`
drops the step, `revert` returns to the last checkpoint and a smaller learning rate, and `tell`
only says so. What the checks remember is part of a checkpoint, so a resumed run finds the same.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from practicum.core import Sample

Action = Literal["stop", "skip", "revert", "tell"]
_LEAST = 5  # steps before a value is compared with those before it


class Finding(msgspec.Struct, frozen=True):
    """What a check found."""

    check: str
    action: Action
    detail: str


class FlightSettings(BaseModel):
    """Where the checks of an RL stage draw their lines."""

    model_config = ConfigDict(extra="forbid")
    mismatch: float = Field(0.02, gt=0)  # KL(sampler || trainer) a token, nats
    ratio: float = Field(0.1, gt=0)  # of the mean ratio from 1, on fresh data
    spike: float = Field(10.0, gt=1)  # gradient norm, in medians of those before
    entropy: float = Field(0.1, ge=0, lt=1)  # what is left of the first steps' entropy
    drift: float = Field(2.0, gt=1)  # kl of recent steps, in medians of those before
    flat_steps: int = Field(10, ge=1)  # in a row without a group whose rewards differ
    reverts: int = Field(3, ge=0)  # in a row, before the run stops
    slower: float = Field(0.5, gt=0, lt=1)  # learning rate after a revert, in those before


class Flight:
    """The checks of one stage, and what they remember from step to step."""

    def __init__(self, settings: FlightSettings, state: Mapping[str, Any] | None = None) -> None:
        self.settings = settings
        state = state or {}
        self.history: dict[str, list[float]] = {
            n: list(v) for n, v in state.get("history", {}).items()
        }
        self.flat = int(state.get("flat", 0))
        self.scale = float(state.get("scale", 1.0))  # of the learning rate
        self.reverts = int(state.get("reverts", 0))  # in a row

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        return {
            "history": self.history,
            "flat": self.flat,
            "scale": self.scale,
            "reverts": self.reverts,
        }

    def batch(self, samples: Sequence[Sample]) -> list[Finding]:
        """Before anything is computed: are these streams what they claim to be?"""
        found = [problem for sample in samples if (problem := audit_streams(sample))]
        compared = any(any(sample.rl_weight) for sample in samples)
        self.flat = 0 if compared else self.flat + 1
        if self.flat == self.settings.flat_steps:
            detail = (
                f"{self.flat} steps in a row had no group whose rewards differ: nothing is learnt"
            )
            found.append(Finding("variance", "tell", detail))
        return found

    def step(self, values: Mapping[str, float]) -> list[Finding]:
        """After forward and backward, before the step: `values` are the means of the batch."""
        settings, found = self.settings, []
        kl, ratio = values.get("kl", 0.0), values.get("ratio", 1.0)
        if not kl <= settings.mismatch:
            detail = (
                f"sampler and trainer disagree about the sampled tokens (KL {kl:.3g} nats a token, "
                f"allowed {settings.mismatch:g}); the step was not taken. One of them computes "
                'something else: try trainer.dtype and sampler.dtype "float32", or set '
                "flight.mismatch"
            )
            found.append(Finding("mismatch", "stop", detail))
        elif not abs(ratio - 1) <= settings.ratio:
            detail = f"the mean ratio of policy to sampler is {ratio:.3g} on fresh data, not 1"
            found.append(Finding("ratio", "stop", detail))
        found += self._against_before(values)
        for name in ("entropy", "kl", "reward", "sampled_tokens"):
            if name in values and math.isfinite(values[name]):
                self.history.setdefault(name, []).append(values[name])
        return found

    def _against_before(self, values: Mapping[str, float]) -> list[Finding]:
        found = []
        entropies = self.history.get("entropy", [])
        if len(entropies) >= _LEAST and "entropy" in values:
            first = median(entropies[:_LEAST])
            if values["entropy"] < self.settings.entropy * first:
                detail = f"entropy fell to {values['entropy']:.3g} nats a token, from {first:.3g}"
                found.append(Finding("entropy", "tell", detail))
        kls = self.history.get("kl", [])
        if len(kls) >= 2 * _LEAST and "kl" in values:
            recent, before = median([*kls[-_LEAST + 1 :], values["kl"]]), median(kls[:-_LEAST])
            if before > 0 and recent > self.settings.drift * before:
                detail = f"KL grows faster: {recent:.3g} nats a token lately, {before:.3g} before"
                found.append(Finding("drift", "tell", detail))
        rewards, lengths = (self.history.get(n, []) for n in ("reward", "sampled_tokens"))
        if min(len(rewards), len(lengths)) >= 2 * _LEAST:
            better = median(rewards[-_LEAST:]) > median(rewards[:_LEAST])
            longer = median(lengths[-_LEAST:]) / max(median(lengths[:_LEAST]), 1e-9)
            if longer > self.settings.drift and not better:
                detail = f"episodes are {longer:.2g} times as long as at first, and no better"
                found.append(Finding("length", "tell", detail))
        return found

    def gradient(self, norm: float) -> Finding | None:
        """Of the norm of the whole gradient, before it is applied."""
        if not math.isfinite(norm):
            return Finding("gradient", "skip", f"the gradient's norm is {norm}")
        norms = self.history.setdefault("grad_norm", [])
        if len(norms) >= _LEAST:
            usual = median(norms[-4 * _LEAST :])
            if usual > 0 and norm > self.settings.spike * usual:
                self.scale *= self.settings.slower
                self.reverts += 1
                if self.reverts > self.settings.reverts:
                    detail = f"{self.reverts} steps in a row had a gradient far above the usual"
                    return Finding("spike", "stop", detail)
                detail = (
                    f"the gradient's norm is {norm:.3g}, {norm / usual:.1f} times the usual; "
                    f"the learning rate is {self.scale:.3g} of what it was from here on"
                )
                return Finding("spike", "revert", detail)
        norms.append(norm)
        self.reverts = 0
        return None


def audit_streams(sample: Sample) -> Finding | None:
    """Whether a sample's streams can be what was sampled: `stop` if they cannot."""
    weighted = [t for t, w in enumerate(sample.rl_weight) if w]
    problem = ""
    if not weighted and not any(sample.ce_weight):
        problem = "no token of it carries weight"
    elif not all(map(math.isfinite, (*sample.rl_weight, *sample.advantage, *sample.logprobs))):
        problem = "a weight, advantage or log-probability of it is not finite"
    elif not all(map(math.isfinite, (*sample.reference, *sample.values, *sample.returns))):
        problem = "a reference, value or return of it is not finite"
    elif any(w < 0 for w in sample.rl_weight):
        problem = "a token of it has a weight below 0"
    elif any(sample.logprobs[t] > 1e-6 for t in weighted):
        problem = "a log-probability of it is above 0"
    elif len(weighted) > 1 and not any(sample.logprobs[t] for t in weighted):
        problem = "it is trained, but the sampler gave no log-probabilities"
    elif any(w and a for w, a in zip(sample.ce_weight, sample.advantage, strict=True)):
        problem = "a token of it is a demonstration and has an advantage"
    elif any(a and not w for w, a in zip(sample.rl_weight, sample.advantage, strict=True)):
        problem = "a token that was not sampled has an advantage"
    return Finding("mask", "stop", f"{sample.episode}: {problem}") if problem else None
