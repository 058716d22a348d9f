"""Halves are the fp32 numbers to the last bit, and their rounded half is what torch rounds to."""

import pytest
import torch

from practicum.engines import masters as module
from practicum.engines.masters import Halves, Named, Whole


def numbers(n: int = 200_000) -> torch.Tensor:
    """Weights, any bits there are, and what lies half-way between two bf16 numbers."""
    random = torch.Generator().manual_seed(0)
    weights = torch.randn(n, generator=random) * torch.rand(n, generator=random) ** 6
    bits = torch.randint(-(1 << 31), 1 << 31, (n,), generator=random).int()
    halfway = torch.randint(-(1 << 15), 1 << 15, (n,), generator=random).int() << 16 | 1 << 15
    some = torch.cat([weights, bits.view(torch.float32), halfway.view(torch.float32)])
    edges = torch.tensor([0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 3.3e38])
    return torch.cat([some[some.abs() < 3.38e38], edges])


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32)


@pytest.mark.parametrize("chunk", [module.CHUNK, 1000])
def test_no_bit_is_lost(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    wanted = numbers()
    halves = Halves(wanted)
    assert torch.equal(bits(halves.part(0, len(wanted))), bits(wanted))
    assert torch.equal(halves.rounded(torch.bfloat16), wanted.bfloat16())
    for start, stop in ((0, 1), (999, 1001), (500, 3500), (len(wanted) - 1, len(wanted))):
        assert torch.equal(bits(halves.part(start, stop)), bits(wanted[start:stop]))


def test_an_update_sees_and_leaves_what_a_whole_block_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 1000)
    start = numbers()
    halves, whole = Halves(start), Whole(start.clone())
    given = halves.rounded(torch.bfloat16)
    for factor in (1.0001, 0.37, -1.0):
        for one in (halves, whole):
            one.update(lambda at, values, f=factor: values.mul_(f))  # type: ignore[misc]
        n = len(start)
        assert torch.equal(bits(halves.part(0, n)), bits(whole.part(0, n)))
        assert torch.equal(halves.rounded(torch.bfloat16), whole.rounded(torch.bfloat16))
    assert torch.equal(given, start.bfloat16())  # what it gave before stays


def test_masters_are_found_by_name_beside_others() -> None:
    block = torch.arange(10.0)
    shapes = {"a": torch.Size([2, 3]), "b": torch.Size([4])}
    named = Named(shapes, Halves(block), {"c": torch.ones(1)})
    assert list(named) == ["a", "b", "c"]
    assert len(named) == 3
    assert torch.equal(named["a"], block[:6].view(2, 3))
    assert torch.equal(named["b"], block[6:])
    with pytest.raises(KeyError):
        named["d"]
