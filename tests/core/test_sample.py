"""A sample refuses streams that do not fit its tokens."""

from typing import Any

import msgspec
import pytest

from practicum.core import Group, Sample


def streams(**changed: Any) -> dict[str, Any]:
    whole = {
        "tokens": (5, 6, 7),
        "rl_weight": (0.0, 1.0, 1.0),
        "ce_weight": (0.0, 0.0, 0.0),
        "advantage": (0.0, 0.5, 0.5),
        "logprobs": (0.0, -1.0, -2.0),
    }
    return whole | changed


@pytest.mark.parametrize("stream", list(streams()))
def test_streams_of_another_length_are_refused(stream: str) -> None:
    with pytest.raises(ValueError, match="different lengths"):
        Sample(**streams(**{stream: streams()[stream] + (0,)}))


@pytest.mark.parametrize("stream", ["rl_weight", "ce_weight"])
def test_the_first_token_cannot_carry_weight(stream: str) -> None:
    with pytest.raises(ValueError, match="first token"):
        Sample(**streams(**{stream: (1.0, 0.0, 0.0)}))


def test_decoding_checks_as_well() -> None:
    broken = msgspec.json.encode(streams(rl_weight=(1.0, 0.0, 0.0)))
    with pytest.raises(msgspec.ValidationError, match="first token"):
        msgspec.json.decode(broken, type=Sample)


def test_a_sample_survives_serialisation() -> None:
    sample = Sample(**streams(), temperature=0.7, group="g", episode="e")
    assert msgspec.json.decode(msgspec.json.encode(sample), type=Sample) == sample
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sample), type=Sample) == sample


def test_an_empty_sample_and_an_empty_group_are_values_too() -> None:
    assert Sample((), (), (), (), ()).tokens == ()
    assert Group("0123456789abcdef", ()).episodes == ()
