"""Items side by side give what they give one after the other, in their order, and end."""

import threading
import time

import pytest
import torch

from practicum.engines.streams import Streams


@pytest.fixture
def streams() -> Streams:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        made = Streams(3)
    finally:
        torch.set_num_threads(before)
    assert made.count == 3
    return made


def test_results_come_in_the_order_of_the_items(streams: Streams) -> None:
    def work(item: int) -> int:
        time.sleep(0.01 * (5 - item))
        return item * item

    assert streams.run(work, range(5)) == [0, 1, 4, 9, 16]


def test_work_goes_on_side_by_side(streams: Streams) -> None:
    together = threading.Barrier(3, timeout=10)

    def work(_: int) -> int:
        together.wait()
        return threading.get_ident()

    assert len(set(streams.run(work, range(3)))) == 3


def test_turns_are_taken_in_order_whichever_is_faster(streams: Streams) -> None:
    taken: dict[str, list[int]] = {"a": [], "b": []}

    def work(item: int) -> None:
        for name in taken:
            time.sleep(0.004 * ((item * 7) % 5))
            with streams.turn(name):
                taken[name].append(item)

    streams.run(work, range(12))
    assert taken == {"a": list(range(12)), "b": list(range(12))}


def test_an_item_that_never_takes_its_turn_holds_up_nobody_for_ever(streams: Streams) -> None:
    taken = []

    def work(item: int) -> None:
        if item % 2 == 0:
            time.sleep(0.02)
            return
        with streams.turn("a"):
            taken.append(item)

    streams.run(work, range(8))
    assert taken == [1, 3, 5, 7]


def test_the_first_failure_is_raised_and_nobody_works_on(streams: Streams) -> None:
    begun, ended = [], []

    def work(item: int) -> None:
        begun.append(item)
        if item == 1:
            raise ValueError("one")
        with streams.turn("a"):
            time.sleep(0.05)
        ended.append(item)

    with pytest.raises(ValueError, match="one"):
        streams.run(work, range(50))
    assert sorted(begun) == sorted([1, *ended])
    assert len(begun) < 50
    assert streams.run(lambda item: item, [7, 8]) == [7, 8]  # and it can be used again


def test_one_stream_works_in_the_callers_thread() -> None:
    alone = Streams(1)

    def work(_: int) -> int:
        with alone.turn("a"):
            return threading.get_ident()

    assert alone.run(work, [1, 2]) == [threading.get_ident()] * 2
