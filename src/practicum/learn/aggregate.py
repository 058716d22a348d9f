"""How the losses of tokens become one number: by their weights, which the trainer multiplies with.

A weight knows the whole batch, and nothing about how it is packed: so neither packing nor the size
of a micro-batch nor the number of workers can change what is learned.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from practicum.core import Sample

Aggregation = Literal["token-mean", "sequence-mean", "prompt-mean", "constant"]


def aggregated(
    samples: Sequence[Sample],
    how: Aggregation = "token-mean",
    *,
    length: int = 0,
    cross_entropy: float = 1.0,
) -> list[Sample]:
    """The samples with their weights set for the batch that they are.

    Cross-entropy is a mean over its own tokens, times `cross_entropy`. RL losses, by name:
    token-mean (DAPO): each token counts the same. sequence-mean (GRPO, GSPO): each sequence does.
    prompt-mean: each group does, by tokens within. constant (Dr. GRPO, arXiv 2503.20783): a sum
    over tokens divided by the number of sequences and by `length`, the longest there can be.
    """
    demonstrated = sum(sum(sample.ce_weight) for sample in samples)
    counts = [sum(w > 0 for w in sample.rl_weight) for sample in samples]
    trained = [(sample, count) for sample, count in zip(samples, counts, strict=True) if count]
    total = sum(count for _, count in trained)
    groups: Counter[str] = Counter()
    for sample, count in trained:
        groups[sample.group] += count
    if how == "constant" and length < 1:
        raise ValueError('aggregation "constant" needs the greatest length of a sequence')
    made = []
    for sample, count in zip(samples, counts, strict=True):
        weight = 0.0
        if count:
            weight = {
                "token-mean": 1 / total,
                "sequence-mean": 1 / (len(trained) * count),
                "prompt-mean": 1 / (len(groups) * groups[sample.group]),
                "constant": 1 / (len(trained) * max(length, 1)),
            }[how]
        made.append(
            msgspec.structs.replace(
                sample,
                rl_weight=tuple(weight if w > 0 else 0.0 for w in sample.rl_weight),
                ce_weight=tuple(cross_entropy * w / (demonstrated or 1) for w in sample.ce_weight),
            )
        )
    return made
