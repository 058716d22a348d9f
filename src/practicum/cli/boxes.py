"""`practicum boxes`: which boxes live on this machine, who opened them, and what was left over."""

from rich.table import Table
from rich.text import Text

from practicum.cli.screen import stdout
from practicum.sandbox.running import clean, running

_SHOWN = 60  # characters of a command


def list_boxes() -> None:
    """The native boxes in a table; those of bubblewrap have no name by which to know them."""
    found = running()
    if not found:
        stdout().print("no native box is open on this machine")
        return
    table = Table()
    for column in ("pid", "age", "processes", "memory", "owner", "command"):
        table.add_column(column, justify="left" if column == "command" else "right")
    for box in found:
        owner = Text(box.command[:_SHOWN]) if box.command else Text("gone", style="red")
        table.add_row(
            str(box.pid),
            f"{box.seconds:.0f} s",
            str(box.processes),
            f"{box.megabytes:.1f} MB",
            str(box.owner),
            owner,
        )
    stdout().print(table)
    gone = sum(not box.command for box in found)
    if gone:
        stdout().print(f"{gone} without an owner: `practicum boxes --clean` ends them")


def clean_up() -> None:
    """End what has no owner any more."""
    killed, removed = clean()
    stdout().print(f"{killed} boxes without an owner killed, {removed} empty cgroups removed")
