"""One LoRA training step on one long text: how much memory it takes, and how that grows.

SmolLM2-135M, whose own limit is 8,192 tokens, with YaRN to twice that, in bf16 arithmetic, with
layers computed again in the backward pass. Each length runs in a process of its own. The last line
is one JSON object: `growth` is the memory of the last doubling by that of the one before, about 2
where memory grows with the length.

    python benchmarks/long_context.py [--quick]

`--quick` takes shorter texts, up to 8,192 tokens: 16,384 take longer than three minutes. Its growth
says little, as the optimiser's step and not the text is the peak of the shortest.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

from sides import ENVIRONMENT, MODEL, THREADS

FULL, QUICK = (4096, 8192, 16384), (2048, 4096, 8192)
PROMPT = 64  # tokens without weight; all others are trained


def step(length: int) -> dict[str, Any]:
    """A training step on a text of so many tokens."""
    import torch

    from practicum.core import Sample
    from practicum.engines.lora import LoRASettings
    from practicum.engines.rope import RopeSettings
    from practicum.engines.trainer import LocalTrainer, TrainerSettings
    from practicum.learn.losses import clip
    from practicum.models.reference import resolve

    torch.set_num_threads(THREADS)
    torch.set_flush_denormal(True)
    settings = TrainerSettings(lora=LoRASettings(), activations="recompute", streams=1)
    trainer = LocalTrainer(resolve(MODEL).path, settings, rope=RopeSettings(factor=2))
    ids = torch.randint(3, 40_000, (length,), generator=torch.Generator().manual_seed(0))
    zeros = (0.0,) * length
    weights = (*zeros[:PROMPT], *(1 / (length - PROMPT),) * (length - PROMPT))
    sample = Sample(tuple(ids.tolist()), zeros, weights, zeros, zeros)
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    trainer.forward_backward([sample], clip())
    trainer.step(1e-4)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "tokens": length,
        "peak_gb": round(used.ru_maxrss * 1024 / 1e9, 3),
        "loaded_gb": round(before.ru_maxrss * 1024 / 1e9, 3),
        "cpu_seconds": round(sum(used[:2]) - sum(before[:2]), 1),
        "wall_seconds": round(time.perf_counter() - started, 1),
    }


def measure(lengths: tuple[int, int, int]) -> dict[str, Any]:
    """A step of each length, each the double of the one before."""
    costs: dict[int, dict[str, Any]] = {}
    for length in lengths:
        done = subprocess.run(
            [sys.executable, __file__, "--length", str(length)],
            stdout=subprocess.PIPE,
            env=os.environ | ENVIRONMENT,
            text=True,
            check=True,
        )
        costs[length] = json.loads(done.stdout.splitlines()[-1])
        print(json.dumps(costs[length]), flush=True)
    peaks = [costs[length]["peak_gb"] for length in lengths]
    result: dict[str, Any] = {
        "name": "long_context",
        "peak_gb": dict(zip(map(str, lengths), peaks, strict=True)),
        "growth": round((peaks[2] - peaks[1]) / (peaks[1] - peaks[0]), 2),
    }
    if 16384 in costs:
        result["peak_gb_16k"] = costs[16384]["peak_gb"]
    return result


def main() -> None:
    """Measure all lengths, or be the process of one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter texts: 3 minutes")
    parser.add_argument("--length", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.length:
        print(json.dumps(step(given.length)))
    else:
        print(json.dumps(measure(QUICK if given.quick else FULL)))


if __name__ == "__main__":
    main()
