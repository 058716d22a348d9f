"""Runs a recipe in a process of its own: turn_the_ring.py FOLDER [RECIPE.toml] [SEED_OF_DELAYS].

Goes on with the run if FOLDER holds one. Prints a line for everything that happens.
"""

import asyncio
import random
import sys
from pathlib import Path

from practicum.domains import get_domain
from practicum.evaluate.audit import audit, faults, is_audited
from practicum.recipe import load_recipe, train
from practicum.sandbox.bubblewrap import BubblewrapBoxes
from practicum.store import Run


class Told:
    """A `Progress` that prints."""

    def stage(self, name: str, steps: int | None) -> None:
        print(f"begin {name}", flush=True)

    def step(self, name: str, step: int, values: dict[str, float]) -> None:
        print(f"{name} {step}", flush=True)

    def note(self, text: str) -> None:
        print(f"# {text}", flush=True)


async def audited(name: str) -> None:
    boxes = BubblewrapBoxes(max_running=2)
    report = await audit(get_domain(name), boxes, seeds=(1, 2), levels=(1,))
    await boxes.close()
    assert report.passed, faults(report)


def main() -> None:
    folder, *words = Path(sys.argv[1]), *sys.argv[2:]
    name = words.pop(0) if words and words[0].endswith(".toml") else "ring.toml"
    seed = words
    recipe = load_recipe(Path(__file__).with_name(name))
    for domain in recipe.domains.train:
        if not is_audited(get_domain(domain)):
            asyncio.run(audited(domain))
    rng = random.Random(*seed)

    async def delay() -> None:
        await asyncio.sleep(rng.choice((0.0, 0.0, 0.01, 0.05)))

    boxes = BubblewrapBoxes(max_running=2, delay=delay if seed else None)
    found = Run.open(folder) if folder.exists() else Run.create(folder, recipe.to_toml())
    with found as run:
        train(recipe, run, Told(), boxes=boxes)


if __name__ == "__main__":
    main()
