"""Each check finds the fault that it is for, and nothing in sound data."""

import math
import random

import msgspec
import pytest

from practicum.core import Sample
from practicum.learn.flight import Flight, FlightSettings, audit_streams

SOUND = Sample(
    tokens=(1, 2, 3, 4),
    rl_weight=(0.0, 0.0, 1.0, 1.0),
    ce_weight=(0.0,) * 4,
    advantage=(0.0, 0.0, 0.5, 0.5),
    logprobs=(0.0, 0.0, -0.7, 0.0),
    episode="e",
)
CALM = {"kl": 1e-4, "ratio": 1.0, "entropy": 0.5, "reward": 0.5, "sampled_tokens": 50.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rl_weight": (0.0,) * 4, "advantage": (0.0,) * 4}, "no token of it carries weight"),
        ({"logprobs": (0.0, 0.0, math.nan, -1.0)}, "not finite"),
        ({"advantage": (0.0, 0.0, math.inf, 1.0)}, "not finite"),
        ({"rl_weight": (0.0, 0.0, -1.0, 1.0)}, "below 0"),
        ({"logprobs": (0.0, 0.0, 0.5, -1.0)}, "above 0"),
        ({"logprobs": (0.0,) * 4}, "gave no log-probabilities"),
        ({"ce_weight": (0.0, 0.0, 1.0, 0.0)}, "is a demonstration and has an advantage"),
        ({"advantage": (0.0, 0.5, 0.5, 0.5)}, "was not sampled has an advantage"),
    ],
)
def test_streams_that_cannot_be_stop_the_run(changes: dict, message: str) -> None:
    assert audit_streams(SOUND) is None
    spoilt = msgspec.structs.replace(SOUND, **changes)
    (finding,) = Flight(FlightSettings()).batch([SOUND, spoilt])
    assert (finding.check, finding.action) == ("mask", "stop")
    assert message in finding.detail
    assert finding.detail.startswith("e: ")


def test_a_demonstration_is_sound() -> None:
    shown = (0.0, 0.0, 1.0, 1.0)
    assert audit_streams(Sample((1, 2, 3, 4), (0.0,) * 4, shown, (0.0,) * 4, (0.0,) * 4)) is None


def test_calm_steps_find_nothing() -> None:
    rng = random.Random(0)
    flight = Flight(FlightSettings())
    for _ in range(60):
        assert flight.batch([SOUND]) == []
        noisy = {name: value * rng.uniform(0.8, 1.2) for name, value in CALM.items()}
        assert flight.step({**noisy, "ratio": 1 + rng.uniform(-0.01, 0.01)}) == []
        assert flight.gradient(rng.uniform(0.5, 2.0)) is None
    assert flight.scale == 1.0


@pytest.mark.parametrize(
    ("values", "check"),
    [
        ({"kl": 0.03}, "mismatch"),
        ({"kl": math.nan}, "mismatch"),
        ({"ratio": 1.2}, "ratio"),
        ({"ratio": math.nan}, "ratio"),
    ],
)
def test_engines_that_disagree_stop_the_run(values: dict[str, float], check: str) -> None:
    (finding,) = Flight(FlightSettings()).step({**CALM, **values})
    assert (finding.check, finding.action) == (check, "stop")


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_is_skipped(norm: float) -> None:
    finding = Flight(FlightSettings()).gradient(norm)
    assert finding is not None
    assert finding.action == "skip"


def test_a_spike_reverts_and_slows_down_and_is_not_taken_for_usual() -> None:
    flight = Flight(FlightSettings(spike=5.0, slower=0.5))
    assert all(flight.gradient(1.0) is None for _ in range(5))
    for number in (1, 2):
        finding = flight.gradient(6.0)
        assert finding is not None
        assert (finding.check, finding.action) == ("spike", "revert")
        assert (flight.scale, flight.reverts) == (0.5**number, number)
    assert flight.gradient(4.0) is None
    assert flight.reverts == 0
    found = [flight.gradient(99.0) for _ in range(4)]
    assert [f.action for f in found if f] == ["revert", "revert", "revert", "stop"]
    still = Flight(FlightSettings())
    assert all(still.gradient(0.0) is None for _ in range(6))
    assert still.gradient(1.0) is None  # every sample was dropped before: nothing is usual
    young = Flight(FlightSettings())
    assert young.gradient(1.0) is None
    assert young.gradient(1000.0) is None  # nothing to compare with yet


def test_slow_ills_are_told() -> None:
    flight = Flight(FlightSettings())
    for _ in range(12):
        flight.step(CALM)
    (finding,) = flight.step({**CALM, "entropy": 0.04})
    assert (finding.check, finding.action) == ("entropy", "tell")
    found = [flight.step({**CALM, "kl": 1e-3}) for _ in range(5)]
    assert [f.check for findings in found for f in findings][-1] == "drift"
    longer = Flight(FlightSettings())
    for step in range(12):
        findings = longer.step({**CALM, "sampled_tokens": 50.0 if step < 6 else 150.0})
    assert [f.check for f in findings] == ["length"]
    better = Flight(FlightSettings())
    for step in range(12):
        late = {"sampled_tokens": 150.0, "reward": 0.9} if step > 5 else {}
        assert better.step({**CALM, **late}) == []  # longer, but it pays


def test_steps_without_variance_are_told_once() -> None:
    flight = Flight(FlightSettings(flat_steps=3))
    found = [[f.check for f in flight.batch([])] for _ in range(5)]
    assert found == [[], [], ["variance"], [], []]
    assert flight.batch([SOUND]) == []
    assert [len(flight.batch([])) for _ in range(3)] == [0, 0, 1]


def test_what_is_remembered_survives_a_checkpoint() -> None:
    flight = Flight(FlightSettings(spike=5.0))
    for _ in range(7):
        flight.step(CALM)
        flight.gradient(1.0)
    flight.gradient(99.0)
    again = Flight(flight.settings, msgspec.json.decode(msgspec.json.encode(flight.state())))
    assert again.state() == flight.state()
    assert again.gradient(6.0) is not None
