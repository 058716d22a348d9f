"""`practicum train` and `practicum report`. All that can be checked is, before a folder is made."""

import asyncio
import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from practicum.cli.audit import audit_domains, require_passed
from practicum.cli.progress import Watch
from practicum.cli.screen import stdout
from practicum.cli.tables import headline
from practicum.core import RecipeError, SandboxError, StoreError
from practicum.domains import Domain, get_domain
from practicum.engines.workers import Workers, joined
from practicum.evaluate.audit import is_audited
from practicum.evaluate.summary import build_summary
from practicum.models.reference import resolve
from practicum.recipe import Recipe, load_recipe, train
from practicum.recipe.evaluate import set_up_torch
from practicum.recipe.settings import parse_recipe
from practicum.sandbox.choose import open_boxes
from practicum.store import Run
from practicum.web.report import write_report


def run_recipe(
    target: Path, out: Path | None, *, resume: bool, overrides: Sequence[str], audit_first: bool
) -> None:
    """Train by the recipe or go on with the run at `target`; print what came of it.

    Of the processes that torchrun starts the first one does, and the others follow it.
    """
    recipe, folder = _plan(target, out, resume, overrides)
    with joined(recipe.parallel) as workers:
        if workers is None or workers.leads:
            _run(recipe, folder, workers, resume=resume, audit_first=audit_first)
        else:
            set_up_torch(recipe)
            workers.follow()


def _run(
    recipe: Recipe, folder: Path, workers: Workers | None, *, resume: bool, audit_first: bool
) -> None:
    console = stdout()
    going_on = _is_run(folder)
    if going_on and not resume:
        raise StoreError(
            f"{folder} already holds a run. Go on with it: practicum train --resume "
            f"{_word(folder)}; or choose another folder with --out"
        )
    if going_on:
        _refuse_other_recipe(recipe, Run.view(folder).recipe, folder)
    elif resume:
        console.print(Text(f"{folder} holds no run yet: it starts now"))
    _prepare(console, recipe, audit_first)
    with Run.open(folder) if going_on else Run.create(folder, recipe.to_toml()) as run:
        console.print(Text(f"run {recipe.name} in {folder}"))
        try:
            with Watch(console, stages=_steps(recipe)) as watch:
                summary = train(recipe, run, watch, workers=workers)
            write_report(folder)
        except BaseException as error:
            error.add_note(
                f"The run is kept in {folder}. Go on with: practicum train --resume {_word(folder)}"
            )
            raise
    _show(console, summary, folder)


def show_report(folder: Path) -> None:
    """Write the report of a run folder and print its headline."""
    run = Run.view(folder)
    summary = build_summary(run)
    write_report(folder)
    _show(stdout(), summary, folder)


def _show(console: Console, summary: dict[str, Any], folder: Path) -> None:
    if summary["evals"]:
        for table in headline(summary):
            console.print(table)
    else:
        console.print("No evaluation is complete yet.")
    for name in ("summary.json", "report.html"):
        if (folder / name).exists():
            console.print(Text(f"{name.partition('.')[0]:8} {folder / name}"), soft_wrap=True)


# What is asked for


def _plan(
    target: Path, out: Path | None, resume: bool, overrides: Sequence[str]
) -> tuple[Recipe, Path]:
    """The recipe and the run folder that the arguments mean."""
    if not target.is_dir():
        recipe = load_recipe(target, overrides)
        return recipe, out or Path("runs") / recipe.name
    if out is not None:
        raise typer.BadParameter(f"{target} is a folder, so it is the run folder; leave --out away")
    text = Run.view(target).recipe  # says so when it is none
    if not resume:
        raise typer.BadParameter(
            f"{target} is a run folder; to go on with it: practicum train --resume {_word(target)}"
        )
    return parse_recipe(text, overrides, str(target / "recipe.toml")), target


def _is_run(folder: Path) -> bool:
    return (folder / "recipe.toml").exists()


def _refuse_other_recipe(recipe: Recipe, text: str, folder: Path) -> None:
    """A run goes on with the recipe that it began with, or not at all."""
    asked = _flat(tomllib.loads(recipe.to_toml()))
    began = _flat(tomllib.loads(parse_recipe(text, (), str(folder / "recipe.toml")).to_toml()))
    differing = [key for key in sorted({*asked, *began}) if asked.get(key) != began.get(key)]
    if differing:
        lines = [
            f"  {k}: {began.get(k, 'not set')} in the run, now {asked.get(k, 'not set')}"
            for k in differing
        ]
        raise RecipeError(
            f"{folder} was begun with another recipe:\n"
            + "\n".join(lines)
            + f"\nGo on with its own: practicum train --resume {_word(folder)}; or begin a new run "
            "with --out"
        )


def _flat(value: Any, at: str = "") -> dict[str, Any]:
    """A nested table as `a.b.0.c` -> value; lists of plain values stay whole."""
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list) and any(isinstance(v, dict) for v in value):
        items = [(str(i), v) for i, v in enumerate(value)]
    else:
        return {at: value}
    return {
        k: v for key, inner in items for k, v in _flat(inner, f"{at}.{key}".lstrip(".")).items()
    }


# Before anything is written


def _prepare(console: Console, recipe: Recipe, audit_first: bool) -> None:
    """A box opens, every domain has passed its audit, and the base model is there."""
    asyncio.run(_try_box())
    missing = _unaudited(recipe)
    if missing and audit_first:
        require_passed(audit_domains(console, missing), console)
    elif missing:
        names = " ".join(domain.name for domain in missing)
        raise RecipeError(
            f"not audited, or changed since: {names.replace(' ', ', ')}. A domain is trained on "
            f"only after it passed. Run: practicum audit {names}; or add --audit to do so first"
        )
    resolve(recipe.model)


def _unaudited(recipe: Recipe) -> list[Domain]:
    names = [*recipe.domains.train, *recipe.domains.held_out]
    return [domain for name in names if not is_audited(domain := get_domain(name))]


async def _try_box() -> None:
    """Run one command in a box, so that a machine without namespaces says so at once."""
    boxes = open_boxes(max_running=1)
    try:
        async with await boxes.open() as box:
            result = await box.run(["true"])
        if result.exit_code != 0:
            said = result.stderr.decode("utf-8", "replace").strip()
            raise SandboxError(
                f"a box opens, but `true` fails in it ({said}): see the README on boxes"
            )
    finally:
        await boxes.close()


def _steps(recipe: Recipe) -> dict[str, int]:
    """The most steps that each stage can have."""
    return {settings.name: settings.most_steps for settings in recipe.stages}


def _word(folder: Path) -> str:
    return shlex.quote(str(folder))
