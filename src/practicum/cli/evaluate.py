"""`practicum eval`: models on the held-out tasks of a recipe, alone or against each other."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import typer
from rich.text import Text

from practicum.cli.progress import Watch
from practicum.cli.screen import stdout
from practicum.cli.tables import headline
from practicum.core import StoreError
from practicum.evaluate.summary import summarise_all
from practicum.models.reference import ModelFolder, resolve
from practicum.recipe.evaluate import evaluate
from practicum.recipe.settings import Recipe, load_recipe, parse_recipe
from practicum.store import Run
from practicum.store.files import write_atomic


def run_evaluation(
    reference: str,
    against: str | None,
    recipe: Path | None,
    overrides: Sequence[str],
    out: Path | None,
) -> None:
    """Evaluate the model (and the one it is compared with), print the tables, write the numbers."""
    console = stdout()
    plan = _recipe(reference, recipe, overrides)
    if out is not None and not out.parent.is_dir():
        raise StoreError(f"there is no folder {out.parent}: make it first, or choose another --out")
    wanted = {
        name: _model(name) for name in dict.fromkeys([*([against] if against else []), reference])
    }
    for name, model in wanted.items():
        console.print(Text(f"{name}: {model.description}"), soft_wrap=True)
    with Watch(console) as watch:
        played = {
            name: evaluate(plan, model.path, watch, name=name) for name, model in wanted.items()
        }
    summary = summarise_all(played, plan.domains.train)
    for table in headline(summary):
        console.print(table)
    if out is not None:
        about = {name: model.description for name, model in wanted.items()}
        text = msgspec.json.encode({"models": about, **summary})
        write_atomic(out, msgspec.json.format(text, indent=2) + b"\n")
        console.print(Text(f"numbers  {out}"), soft_wrap=True)


def _recipe(reference: str, recipe: Path | None, overrides: Sequence[str]) -> Recipe:
    """The recipe that was named, or that of the run which the model belongs to."""
    if recipe is not None:
        return load_recipe(recipe, overrides)
    folder = Path(reference)
    for place in (folder, folder.parent.parent):  # a run, or RUN/models/STAGE
        if folder.is_dir() and (place / "recipe.toml").exists():
            return parse_recipe(Run.view(place).recipe, overrides, str(place / "recipe.toml"))
    raise typer.BadParameter(
        f"say whose held-out tasks: --recipe FILE ({reference} belongs to no run)"
    )


def _model(reference: str) -> ModelFolder:
    """A model reference; for a run folder, the model of the last stage that is done."""
    folder = Path(reference)
    if not (folder / "recipe.toml").exists():
        return resolve(reference)
    done = [line["name"] for line in Run.view(folder).journal("stage")]
    if not done:
        raise StoreError(
            f"{folder} has no trained model yet; finish a stage: practicum train --resume {folder}"
        )
    found = resolve(str((folder / "models" / done[-1]).resolve()))
    return ModelFolder(found.path, found.name, f"the model {done[-1]!r} of {folder}")
