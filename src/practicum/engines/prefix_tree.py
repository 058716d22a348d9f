"""What samples begin with alike, as a tree: each of its tokens is laid out and computed once.

The prompt of a group is one node, and so is a turn that several attempts have in common: a sample
is a path from the root to a leaf. A radix tree (Morrison 1968) over tokens, without short nodes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from practicum.core import Sample

LEAST_SHARED = 16  # tokens; sharing fewer is not worth a node


@dataclass(eq=False)
class Node:
    """Tokens `start` to `stop` of the samples that pass through it, behind those of `parent`."""

    parent: "Node | None"
    start: int
    stop: int
    tokens: np.ndarray  # of a whole sample that passes through it, [T]
    through: Sample  # this sample
    children: list["Node"] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)  # that end here

    @property
    def size(self) -> int:
        """Number of its own tokens."""
        return self.stop - self.start

    def path(self) -> list["Node"]:
        """The nodes above it, the root first."""
        found: list[Node] = []
        node = self.parent
        while node is not None:
            found.append(node)
            node = node.parent
        return found[::-1]

    def walk(self) -> Iterator["Node"]:
        """This node and all below it, parents before children."""
        yield self
        for child in self.children:
            yield from child.walk()


def trees(samples: Sequence[Sample]) -> list[Node]:
    """One tree for all samples that begin alike; the samples in no particular order."""
    arrays = [(np.array(sample.tokens), sample) for sample in samples]
    arrays.sort(key=lambda item: item[1].tokens)
    return _grow(arrays, None, 0)


def common(a: np.ndarray, b: np.ndarray) -> int:
    """How many tokens two samples have in common from the beginning on."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    return int(differ.argmax()) if differ.any() else n


def _grow(
    arrays: Sequence[tuple[np.ndarray, Sample]], parent: Node | None, start: int
) -> list[Node]:
    """Nodes for sorted samples that agree in all tokens before `start`."""
    made: list[Node] = []
    run: list[tuple[np.ndarray, Sample]] = []
    shared = 0  # tokens that the whole run has in common
    for array, sample in arrays:
        alike = common(run[-1][0], array) if run else 0
        if run and alike - start >= LEAST_SHARED:
            shared = min(shared, alike)
            run.append((array, sample))
            continue
        if run:
            made.append(_node(run, parent, start, shared))
        run, shared = [(array, sample)], len(array)
    if run:
        made.append(_node(run, parent, start, shared))
    return made


def _node(
    run: Sequence[tuple[np.ndarray, Sample]], parent: Node | None, start: int, stop: int
) -> Node:
    node = Node(parent, start, stop, *run[0])
    node.samples = [sample for array, sample in run if len(array) == stop]
    node.children = _grow([item for item in run if len(item[0]) > stop], node, stop)
    return node
