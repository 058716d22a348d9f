"""What every trainer does with a batch, wherever its micro-batches are computed.

A batch goes through in micro-batches of bounded size. The weights of its tokens are final, so
neither packing nor the size of a micro-batch nor the number of processes changes the gradient.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import torch

from practicum.core import EngineError, Sample
from practicum.engines.contract import TokenLoss
from practicum.engines.packing import Packed


class Outputs(NamedTuple):
    """What a model says of the N weighted tokens of a pack, [N] each, in fp32."""

    logprobs: torch.Tensor
    entropy: torch.Tensor  # without gradient
    values: torch.Tensor | None = None  # of the value head, if there is one


class Passes(ABC):
    """The part of a `Trainer` that computes; see there."""

    device: str

    @abstractmethod
    def _each(self, batch: Sequence[Sample], work: Callable[[Any, Packed], Any]) -> list[Any]:
        """What `work(model, packed)` says of each micro-batch of the whole batch."""

    @abstractmethod
    def _outputs(self, model: Any, packed: Packed) -> Outputs:
        """The forward pass over one micro-batch."""

    def _forward_backward(self, batch: Sequence[Sample], loss: TokenLoss) -> dict[str, float]:
        """Go forward and backward through all micro-batches; the means of loss and metrics."""
        rl = sum(sum(sample.rl_weight) for sample in batch)
        ce = sum(sum(sample.ce_weight) for sample in batch)

        def backward(model: Any, packed: Packed) -> dict[str, float]:
            logprobs, entropy, values = self._outputs(model, packed)
            total = logprobs[:0].sum()  # 0, through which even a pack of no tokens goes back
            sums: dict[str, torch.Tensor] = {}
            if rl and len(logprobs):
                losses, metrics = loss(packed.tokens(logprobs, values))
                total = total + (losses * packed.rl_weight).sum()
                for name, each in {**metrics, "entropy": entropy, "loss": losses}.items():
                    sums[name] = (each.detach() * packed.rl_weight).sum() / rl
            if ce:
                nll = -(logprobs * packed.ce_weight).sum()
                total = total + nll
                sums["nll"] = nll.detach() / ce
            self._go_back(total)
            return {name: float(value) for name, value in sums.items()}

        totals: dict[str, float] = {}
        for sums in self._each(batch, backward):
            for name, value in sums.items():
                totals[name] = totals.get(name, 0.0) + value
        totals["rl_tokens"] = float(sum(w > 0 for sample in batch for w in sample.rl_weight))
        totals["ce_tokens"] = float(sum(w > 0 for sample in batch for w in sample.ce_weight))
        return totals

    def _go_back(self, total: torch.Tensor) -> None:
        """Add the gradient of a micro-batch's part of the loss."""
        total.backward()

    def score(self, batch: Sequence[Sample]) -> list[Sample]:
        """The samples with `reference`; see `Trainer`."""
        found = self._found(batch, lambda outputs: outputs.logprobs)
        return [msgspec.structs.replace(s, reference=tuple(f)) for s, f in found]

    def values(self, batch: Sequence[Sample]) -> list[Sample]:
        """The samples with `values`; see `Trainer`."""

        def values(outputs: Outputs) -> torch.Tensor:
            if outputs.values is None:
                raise EngineError("this trainer has no value head: make it with value_head=True")
            return outputs.values

        found = self._found(batch, values)
        return [msgspec.structs.replace(s, values=tuple(f)) for s, f in found]

    def evaluate(self, batch: Sequence[Sample]) -> dict[str, float]:
        """Mean cross-entropy over the tokens with `ce_weight`."""
        count = sum(sum(s.ce_weight) for s in batch)
        if not count:
            raise EngineError("nothing to evaluate: no token has cross-entropy weight")

        @torch.no_grad()
        def nll(model: Any, packed: Packed) -> float:
            return -float((self._outputs(model, packed).logprobs * packed.ce_weight).sum())

        return {"nll": sum(self._each(batch, nll)) / count, "tokens": count}

    def _found(
        self, batch: Sequence[Sample], of: Callable[[Outputs], torch.Tensor]
    ) -> list[tuple[Sample, list[float]]]:
        """Each sample with a number for each of its weighted tokens, and 0 for the others."""
        places = {id(sample): i for i, sample in enumerate(batch)}
        found = [[0.0] * len(sample.tokens) for sample in batch]

        @torch.no_grad()
        def look(model: Any, packed: Packed) -> list[tuple[int, int, float]]:
            numbers = of(self._outputs(model, packed)).tolist()
            return [
                (places[id(sample)], t, number)
                for (sample, t), number in zip(packed.places, numbers, strict=True)
            ]

        for numbers in self._each(batch, look):
            for i, t, number in numbers:
                found[i][t] = number
        return list(zip(batch, found, strict=True))
