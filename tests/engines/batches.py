"""Batches for trainers: groups of two turns, demonstrations among them, and long ones."""

import random

import torch

from practicum.core import Sample
from practicum.learn.losses import clip

LOSS = clip(0.2, 0.28)


def sample(
    rng: random.Random, prompt: tuple[int, ...], *, group: str = "", kind: str = "rl"
) -> Sample:
    """Two turns after the prompt: own tokens, an observation, own tokens."""
    parts = [
        (0, len(prompt)),
        (1, rng.randint(1, 9)),
        (0, rng.randint(1, 6)),
        (1, rng.randint(1, 5)),
    ]
    own = [float(mine) for mine, count in parts for _ in range(count)]
    tokens = (*prompt, *(rng.randrange(3, 512) for _ in own[len(prompt) :]))
    rl, ce = (1.0, 0.0) if kind == "rl" else (0.0, 1.0)
    advantage = rng.uniform(-1, 1)
    return Sample(
        tokens=tokens,
        rl_weight=tuple(rl * x for x in own),
        ce_weight=tuple(ce * x for x in own),
        advantage=tuple(advantage * x for x in own),
        logprobs=tuple(x * rng.uniform(-7, -5) for x in own),
        temperature=0.8 if kind == "rl" else 1.0,
        group=group,
    )


def batch_of(seed: int = 0) -> list[Sample]:
    """Three groups of RL samples, and demonstrations among them."""
    rng = random.Random(seed)
    samples = []
    for group, size in enumerate((4, 1, 3)):
        prompt = tuple(rng.randrange(3, 512) for _ in range(rng.randint(2, 20)))
        samples += [sample(rng, prompt, group=str(group)) for _ in range(size)]
    samples += [sample(rng, (5, 6, 7), kind="ce"), sample(rng, (8,), kind="ce")]
    return samples


def long_batch(seed: int = 0) -> list[Sample]:
    """Two long samples that part late, and a short one."""
    rng = random.Random(seed)
    prompt = tuple(rng.randrange(3, 512) for _ in range(90))
    return [sample(rng, prompt), sample(rng, prompt), sample(rng, prompt[:5])]


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """|one - other| / |other| over all parameters."""
    assert one.keys() == other.keys()
    off = sum(float((one[n] - other[n]).double().square().sum()) for n in one)
    size = sum(float(other[n].double().square().sum()) for n in one)
    return (off / size) ** 0.5
