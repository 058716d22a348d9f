"""Killed anywhere, any number of times, a run ends with the weights and the records of an unbroken
one: at random moments, and at those between two epochs."""

import asyncio
import gc
import random
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from practicum.domains import get_domain
from practicum.domains.catalogue import _places
from practicum.engines.trainer import LocalTrainer
from practicum.evaluate.audit import audit
from practicum.recipe import Recipe, load_recipe, train
from practicum.sandbox.bubblewrap import BubblewrapBoxes
from practicum.store import Run, checkpoint

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


class Killed(Exception):
    """A death."""


class Fate:
    """Counts what happens, and kills at one moment of it."""

    def __init__(self, kills: Callable[[int, str], bool] = lambda number, what: False) -> None:
        self.kills = kills
        self.seen: list[str] = []

    def __call__(self, what: str) -> None:
        self.seen.append(what)
        if self.kills(len(self.seen), what):
            raise Killed(what)


class Told:
    """A `Progress` that fate listens to."""

    def __init__(self, fate: Fate) -> None:
        self.fate = fate

    def stage(self, name: str, steps: int | None) -> None:
        self.fate(f"begin {name}")

    def step(self, name: str, step: int, values: dict[str, float]) -> None:
        self.fate(f"{name} {step}{' epoch' if 'epoch' in values else ''}")

    def note(self, text: str) -> None:
        self.fate("note")


def fated(owner: Any, name: str, fate: Fate) -> Callable[..., Any]:
    """A method that can be the last thing done, or the first that is not."""
    does = getattr(owner, name)

    def done(*arguments: Any, **named: Any) -> Any:
        what = " ".join([name, *(a for a in arguments[:1] if isinstance(a, str))])
        fate(f"before {what}")
        found = does(*arguments, **named)
        fate(f"after {what}")
        return found

    return done


WRITES = ("log", "metric", "keep", "write_episodes", "write_batch", "write_eval", "write_summary")
LEARNS = ("forward_backward", "step", "save", "export")


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recipe]:
    """A recipe of every kind of stage for a model that already knows how to call tools."""
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(HERE / "plugin"))
    patch.setenv("PRACTICUM_CACHE", str(tmp_path_factory.mktemp("cache")))
    for cached in (_places, get_domain):
        cached.cache_clear()

    async def audited() -> None:
        boxes = BubblewrapBoxes(max_running=2)
        report = await audit(get_domain("echo_word"), boxes, seeds=(1, 2), levels=(1,))
        await boxes.close()
        assert report.passed

    asyncio.run(audited())
    first = load_recipe(HERE / "graph.toml", ["boxes.backend=bubblewrap", "evaluation.tasks=1"])
    first = first.model_copy(update={"stages": first.stages[:1]})
    folder = tmp_path_factory.mktemp("first") / "run"
    with Run.create(folder, first.to_toml()) as run:
        train(first, run, Told(Fate()))
    model = folder / "models" / "sft"
    yield load_recipe(HERE / "resume.toml", ["boxes.backend=bubblewrap", f"model={model}"])
    patch.undo()
    for cached in (_places, get_domain):
        cached.cache_clear()


def lived(recipe: Recipe, folder: Path, fate: Fate) -> bool:
    """Whether a run in `folder`, gone on with if it is there, came to its end."""
    run = Run.open(folder) if folder.exists() else Run.create(folder, recipe.to_toml())
    with pytest.MonkeyPatch.context() as patch, run:
        for name in WRITES:
            patch.setattr(run, name, fated(run, name, fate))
        for name in LEARNS:
            patch.setattr(LocalTrainer, name, fated(LocalTrainer, name, fate))
        try:
            train(recipe, run, Told(fate))
        except (Killed, ExceptionGroup) as death:
            if isinstance(death, ExceptionGroup) and death.split(Killed)[1]:
                raise
            return False
        finally:
            gc.collect()
    return True


def records(folder: Path) -> dict[str, Any]:
    """All that a run leaves, but for times and for what was told of its resumptions."""
    run = Run.view(folder)
    timed = ("time", "seconds", "seconds_practise", "seconds_train")
    stages = [path.name for path in sorted((folder / "models").iterdir())]
    names = [*stages, "sft-demonstrations", "rl-demonstrations"]
    return {
        "digest": run.read_summary()["digest"],
        "stages": [(line["name"], line["digest"]) for line in run.journal("stage")],
        "graders": [checkpoint.meta(folder / "models" / name)["graders"] for name in stages],
        "kept": sorted(path.name for path in (folder / "artifacts").iterdir()),
        "judges": [(line["name"], line["digest"]) for line in run.journal("reward_model")],
        "metrics": [
            {k: v for k, v in line.items() if k not in timed}
            for name in stages
            for line in run.metrics(name)
        ],
        "batches": {n: [run.read_batch(n, s) for s in run.batch_steps(n)] for n in stages},
        "episodes": {
            n: [e.fingerprint for s in run.episode_steps(n) for e in run.read_episodes(n, s)]
            for n in names
        },
        "evals": {n: [e.fingerprint for e in run.read_eval(n)] for n in run.evals()},
    }


@pytest.fixture(scope="module")
def unbroken(
    learner: Recipe, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], list[str]]:
    """The records of a run that nobody killed, and all that happened in it."""
    folder, fate = tmp_path_factory.mktemp("unbroken") / "run", Fate()
    assert lived(learner, folder, fate)
    return records(folder), fate.seen


def test_the_unbroken_run_holds_something_of_everything(
    unbroken: tuple[dict[str, Any], list[str]],
) -> None:
    found, seen = unbroken
    assert [name for name, _ in found["stages"]] == ["sft", "preference", "rl", "distil"]
    assert [name for name, _ in found["judges"]] == ["reward-model"]
    assert len({digest for _, digest in found["stages"]}) == 4
    assert found["digest"] == found["stages"][-1][1]
    assert all(found["batches"][name] for name in ("preference", "reward-model", "rl", "distil"))
    assert any(s.values for batch in found["batches"]["rl"] for s in batch)
    assert len(seen) > 150


def kept_up(recipe: Recipe, folder: Path, *deaths: Callable[[int, str], bool]) -> dict[str, Any]:
    """The records of a run that died so often, and then was left alone."""
    for kills in deaths:
        assert not lived(recipe, folder, Fate(kills))
    assert lived(recipe, folder, Fate())
    found = records(folder)
    shutil.rmtree(folder)
    return found


@pytest.mark.parametrize("seed", range(2))
def test_kills_at_random_moments_change_nothing(
    learner: Recipe, unbroken: tuple[dict[str, Any], list[str]], tmp_path: Path, seed: int
) -> None:
    wanted, seen = unbroken
    rng = random.Random(f"kills {seed}")
    moments = sorted(rng.sample(range(1, len(seen)), 3))
    steps = [moments[0], *(after - before for before, after in pairwise(moments))]

    def at(number: int) -> Callable[[int, str], bool]:
        return lambda count, what: count == number

    assert kept_up(learner, tmp_path / "run", *map(at, steps)) == wanted


def test_kills_between_epochs_and_between_records_change_nothing(
    learner: Recipe, unbroken: tuple[dict[str, Any], list[str]], tmp_path: Path
) -> None:
    """SFT before and after the checkpoint of an epoch, preference between its two; a batch that is
    written and not trained; a model that is there and not yet in the journal."""
    wanted, seen = unbroken
    assert "sft 3 epoch" in seen
    epoch = sum(what.startswith("preference ") for what in seen) // 2 - 1
    moments = (
        "sft 1 epoch",
        "after save",
        "sft 3 epoch",
        "before log stage",
        f"preference {epoch}",
        "before log reward_model",
        "after write_batch rl",
    )
    assert all(moment in seen for moment in moments)

    def told(of: str) -> Callable[[int, str], bool]:
        return lambda count, what: what == of

    assert kept_up(learner, tmp_path / "run", *map(told, moments)) == wanted
