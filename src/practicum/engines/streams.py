"""Work side by side on the threads of a CPU, bit for bit as if one item came after the other.

Models of this size are many small operations, which gain little from more threads each; batches
side by side do. Where items add to one sum, they take turns in their own order.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from practicum.engines.memory import settle_malloc

Item = TypeVar("Item")
Result = TypeVar("Result")


class Streams:
    """`count` items at once, each on its share of torch's threads; one item at a time if 1."""

    def __init__(self, count: int) -> None:
        self._threads = threads = torch.get_num_threads()
        self.count = max(1, min(count, threads))
        settle_malloc(threads)
        self._pool = ThreadPoolExecutor(self.count, "stream", _begin, (threads // self.count,))
        self._mine = threading.local()  # index of the item that this thread works on
        self._moved = threading.Condition()
        self._unfinished: set[int] = set()
        self._taken: dict[str, set[int]] = {}  # name -> items that have had their turn

    def run(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The results in the items' order. Raises what the first item to fail raised."""
        if self.count == 1:
            with _threads(self._threads):
                return [work(item) for item in items]
        self._unfinished, self._taken = set(range(len(items))), defaultdict(set)

        def one(index: int) -> Result:
            self._mine.index = index
            try:
                return work(items[index])
            finally:
                with self._moved:
                    self._unfinished.remove(index)
                    self._moved.notify_all()

        running = [self._pool.submit(one, index) for index in range(len(items))]
        try:
            return [future.result() for future in running]
        finally:  # nobody works on after a failure
            for future in running:
                future.cancel()
            for future in running:
                if not future.cancelled():
                    future.exception()

    @contextmanager
    def turn(self, name: str) -> Iterator[None]:
        """Within the block every earlier item has had its turn of this name, or has ended."""
        if self.count == 1:
            yield
            return
        index = self._mine.index
        with self._moved:
            self._moved.wait_for(
                lambda: all(i in self._taken[name] for i in self._unfinished if i < index)
            )
        yield
        with self._moved:
            self._taken[name].add(index)
            self._moved.notify_all()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Torch's threads for this thread of ours; a new one has as many as another set last."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _begin(threads: int) -> None:
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
