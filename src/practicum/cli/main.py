"""The command line: names, arguments and help. What a command does is imported when it is run."""

from pathlib import Path
from typing import Annotated

import typer

from practicum.cli.ending import Commands
from practicum.cli.screen import loading, silence_libraries

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a setting of the recipe, such as seed=3."
    ),
]


@app.callback(epilog="A first run: practicum train recipes/demo.toml --audit")
def main(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks of errors; may stand anywhere.")
    ] = False,
) -> None:
    """Post-training by practice: a model works in real boxes and learns from what holds up."""
    silence_libraries()


@app.command()
def train(
    recipe: Annotated[
        Path,
        typer.Argument(metavar="RECIPE", help="A recipe (TOML); with --resume also a run folder."),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The run folder; default runs/NAME.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that was stopped.")
    ] = False,
    overrides: Set = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="First audit the domains that have not passed yet.")
    ] = False,
) -> None:
    """Run a recipe: stages with an evaluation before and after each, then a report.

    A run that was stopped or killed goes on with --resume, to the same weights as an unbroken one.
    """
    with loading():
        from practicum.cli.train import run_recipe

    run_recipe(recipe, out, resume=resume, overrides=overrides or [], audit_first=audit)


@app.command(name="eval")
def evaluate(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A model reference, or a run folder: its last model."),
    ],
    recipe: Annotated[
        Path | None,
        typer.Option(
            metavar="RECIPE", help="Whose held-out tasks; default: the recipe of MODEL's run."
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Another model, compared pair by pair.")
    ] = None,
    tasks: Annotated[int | None, typer.Option(min=1, help="How many tasks.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the numbers there, as JSON.")
    ] = None,
    overrides: Set = None,
) -> None:
    """Evaluate a model on the held-out tasks of a recipe."""
    with loading():
        from practicum.cli.evaluate import run_evaluation

    settings = [*(overrides or []), *([f"evaluation.tasks={tasks}"] if tasks else [])]
    run_evaluation(model, against, recipe, settings, out)


@app.command()
def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder; the run may be going on.")
    ],
) -> None:
    """Write a run's report.html anew and print the headline."""
    with loading():
        from practicum.cli.train import show_report

    show_report(run)


@app.command()
def domains(
    name: Annotated[str | None, typer.Argument(help="Show an example task of this domain.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the example.")] = 0,
    level: Annotated[int, typer.Option(min=1, help="Level of the example.")] = 1,
) -> None:
    """List the domains, or show a task of one with its gold solution."""
    with loading():
        from practicum.cli.catalogue import list_domains, show_domain

    if name is None:
        list_domains()
    else:
        show_domain(name, seed, level)


@app.command()
def audit(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Default: all.")
    ] = None,
    family: Annotated[str | None, typer.Option(help="Only domains of this family.")] = None,
    mutants: Annotated[
        bool,
        typer.Option(
            "--mutants", help="Also test the audit: damage the graders, count what it misses."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Check that domains can be solved and that nothing else pays. Fails when one does not pass."""
    with loading():
        from practicum.cli.audit import run_audit

    run_audit(names or [], family, with_mutants=mutants, as_json=as_json)


@app.command()
def regrade(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder; the run may be going on.")
    ],
    stage: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Only this stage, its demonstrations and its evaluation."
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Grade again, with today's graders, what a run kept; nothing is played.

    Exits with 0 when every verdict is the same, 1 when one differs or could not be had, and 2 when
    there is nothing to grade again.
    """
    with loading():
        from practicum.cli.regrade import run_regrade

    run_regrade(run, stage, as_json=as_json)


@app.command()
def models(
    reference: Annotated[
        str | None,
        typer.Argument(metavar="[REFERENCE]", help="Fetch this model and say what it is."),
    ] = None,
) -> None:
    """List the models that work without network, or fetch one."""
    with loading():
        from practicum.cli.catalogue import list_models, show_model

    if reference is None:
        list_models()
    else:
        show_model(reference)


@app.command()
def boxes(
    clean: Annotated[
        bool,
        typer.Option("--clean", help="Kill boxes whose owner is gone, remove what they left."),
    ] = False,
) -> None:
    """List the boxes of this machine and who opened them."""
    with loading():
        from practicum.cli.boxes import clean_up, list_boxes

    if clean:
        clean_up()
    else:
        list_boxes()
