"""Many processes behind one `Trainer`: the first leads and knows the recipe, the others follow.

torchrun starts all of them alike. The leader sends each call to the followers, every process does
its part of it, and all say how it went before the leader goes on. While episodes are played the
followers wait; when the leader ends, so do they.
"""

import math
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import cloudpickle
import torch.distributed as dist

from practicum.core import EngineError, PracticumError, Sample
from practicum.engines.contract import TokenLoss, Weights
from practicum.engines.parallel import Layout, ParallelSettings, local_device, world_size
from practicum.engines.rope import RopeSettings
from practicum.engines.sharded import ShardedTrainer
from practicum.engines.trainer import TrainerSettings


class Workers:
    """The processes of a run. In each of them it holds this process's parts of the trainers."""

    def __init__(self, settings: ParallelSettings) -> None:
        self.device = local_device()
        self.layout = Layout(settings, self.device)
        self.leads = self.layout.rank == 0
        self.trainers: dict[int, ShardedTrainer] = {}
        self.made = 0
        self.done_with: list[int] = []  # trainers that the leader holds no longer

    def follow(self) -> None:
        """Do what the leader asks for, until it says that it is over."""
        while True:
            order: list[Any] = [None]
            dist.broadcast_object_list(order, group=self.layout.control)
            method, number, args = cloudpickle.loads(order[0])
            if method == "end":
                return
            with suppress(PracticumError):  # the leader has it, too, and decides
                self._together(method, number, args)

    def call(self, method: str, number: int, *args: Any, own: Sequence[Any] = ()) -> Any:
        """Let all processes do this; what the leader returns, which alone gets `own` as well.

        Raises what it raised, or EngineError for what another one did.
        """
        while self.done_with:
            done = self.done_with.pop()
            self._order("drop", done, ())
            self._together("drop", done, ())
        self._order(method, number, args)
        return self._together(method, number, (*args, *own))

    def end(self) -> None:
        """Let the followers go."""
        self._order("end", 0, ())

    def _order(self, method: str, number: int, args: Sequence[Any]) -> None:
        order = cloudpickle.dumps((method, number, args))
        dist.broadcast_object_list([order], group=self.layout.control)

    def _together(self, method: str, number: int, args: Sequence[Any]) -> Any:
        result, failure = None, ""
        mine: PracticumError | None = None
        try:
            result = self._do(method, number, args)
        except PracticumError as error:
            mine, failure = error, str(error)
        except Exception:  # a process that leaves the others alone makes them wait
            failure = traceback.format_exc()
        failures: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(failures, failure, group=self.layout.control)
        if mine is not None:
            raise mine
        if found := {rank: text for rank, text in enumerate(failures) if text}:
            raise EngineError(f"{method} failed in processes {sorted(found)}: {min(found.items())}")
        return result

    def _do(self, method: str, number: int, args: Sequence[Any]) -> Any:
        if method == "make":
            folder, settings, rope = args
            self.trainers[number] = ShardedTrainer(
                folder, settings, self.layout, device=self.device, rope=rope
            )
            return None
        if method == "drop":
            del self.trainers[number]
            return None
        return getattr(self.trainers[number], method)(*args)


@contextmanager
def joined(settings: ParallelSettings) -> Iterator[Workers | None]:
    """The processes of a recipe, which end with the block; None where there is only this one.

    Raises EngineError when torchrun did not start as many as the recipe says.
    """
    if settings.processes == 1 and world_size() == 1:
        yield None
        return
    workers = Workers(settings)
    try:
        yield workers
    finally:
        if workers.leads:
            workers.end()
        dist.destroy_process_group()


class LedTrainer:
    """The leader's `Trainer`: each call is one of all processes; see `ShardedTrainer`."""

    def __init__(
        self,
        workers: Workers,
        folder: Path,
        settings: TrainerSettings,
        *,
        rope: RopeSettings | None = None,
    ) -> None:
        self._workers, self._number = workers, workers.made
        workers.made += 1
        workers.call("make", self._number, folder, settings, rope)
        # The collector comes at any time, and followers listen only between two calls.
        weakref.finalize(self, workers.done_with.append, self._number)

    def forward_backward(self, batch: Sequence[Sample], loss: TokenLoss) -> dict[str, float]:
        """See `Trainer`."""
        return self._call("forward_backward", batch, loss)

    def score(self, batch: Sequence[Sample]) -> list[Sample]:
        """See `Trainer`."""
        return self._call("score", batch)

    def values(self, batch: Sequence[Sample]) -> list[Sample]:
        """See `Trainer`."""
        return self._call("values", batch)

    def evaluate(self, batch: Sequence[Sample]) -> dict[str, float]:
        """See `Trainer`."""
        return self._call("evaluate", batch)

    def step(
        self, learning_rate: float, accept: Callable[[float], bool] = math.isfinite
    ) -> dict[str, float]:
        """See `Trainer`. `accept` is asked here."""
        return self._workers.call("step", self._number, learning_rate, own=(accept,))

    def publish(self) -> Weights:
        """See `Trainer`."""
        return self._call("publish")

    def save(self, folder: Path) -> None:
        """See `Trainer`. All processes must see the folder."""
        self._call("save", folder)

    def load(self, folder: Path) -> None:
        """See `Trainer`."""
        self._call("load", folder)

    def export(self, folder: Path) -> None:
        """A plain model folder."""
        self._call("export", folder)

    def _call(self, method: str, *args: Any) -> Any:
        return self._workers.call(method, self._number, *args)
