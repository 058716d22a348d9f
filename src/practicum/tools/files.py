"""Files: read, write, edit, list and search, in the box and in the shell's working directory."""

import re
from collections.abc import Sequence
from typing import Annotated

from practicum.sandbox.contract import Result
from practicum.tools.inside import ENTER_FOLDER, NO_TIME, ending, run, text
from practicum.tools.tool import Observation, ToolContext, tool

_FILE = """
[ -d "$1" ] && { echo "$1 is a directory" >&2; exit 1; }
[ -e "$1" ] || { echo "$1: no such file" >&2; exit 1; }
[ -f "$1" ] || { echo "$1 is not a regular file" >&2; exit 1; }
"""
_READ = _FILE + 'exec sed -n "$2,$3p" < "$1"'
_WHOLE = _FILE + 'exec cat < "$1"'
_WRITE = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'
_LIST = r"""
[ -d "$1" ] || { echo "$1 is not a directory" >&2; exit 1; }
find "$1" -mindepth 1 -maxdepth "$2" -name .git -prune -o \
  -mindepth 1 \( -type d -printf '%P/\n' -o -printf '%P\n' \)
"""
_SEARCH = 'exec grep -rnIE --exclude-dir=.git -e "$2" -- "$1"'


@tool(read_only=True)
async def read_file(
    context: ToolContext, path: str, start: int = 1, end: int | None = None
) -> Observation:
    """Show a text file, or its lines start to end."""
    if start < 1 or (end is not None and end < start):
        return Observation("Lines count from 1, and end is not before start.", ok=False)
    result = await _script(context, _READ, path, str(start), "$" if end is None else str(end))
    if result is None or result.exit_code != 0:
        return _failure(result)
    if b"\0" in result.stdout:
        return Observation(f"{path} is a binary file.", exit_code=0)
    shown = text(result.stdout) or "(no lines)"
    more = "\n[the rest is too long: give start and end]" if result.output_cut else ""
    return Observation(shown + more, exit_code=0)


@tool
async def write_file(context: ToolContext, path: str, content: str) -> Observation:
    """Create or overwrite a file."""
    data = content.encode("utf-8", "replace")
    result = await _script(context, _WRITE, path, stdin=data)
    if result is None or result.exit_code != 0:
        return _failure(result)
    return Observation(f"Wrote {len(data)} bytes to {path}.", exit_code=0)


@tool
async def edit_file(
    context: ToolContext,
    path: str,
    old: Annotated[str, "exact text, found once in the file"],
    new: str,
) -> Observation:
    """Replace one exact piece of text in a file."""
    if not old:
        return Observation("old is empty: to make a file, use write_file.", ok=False)
    result = await _script(context, _WHOLE, path)
    if result is None or result.exit_code != 0:
        return _failure(result)
    if result.output_cut:
        return Observation(f"{path} is too large to edit: use sed in the shell.", ok=False)
    before, after = old.encode("utf-8", "replace"), new.encode("utf-8", "replace")
    count = result.stdout.count(before)
    if count == 0:
        hint = "the match is exact, white space included; read the file first."
        return Observation(f"old was not found in {path}: {hint}", ok=False)
    if count > 1:
        hint = "add lines around it until it is found once."
        return Observation(f"old was found {count} times in {path}: {hint}", ok=False)
    result = await _script(context, _WRITE, path, stdin=result.stdout.replace(before, after))
    if result is None or result.exit_code != 0:
        return _failure(result)
    return Observation(f"Edited {path}.", exit_code=0)


@tool(read_only=True)
async def list_files(context: ToolContext, path: str = ".", depth: int = 2) -> Observation:
    """List files and folders."""
    if depth < 1:
        return Observation("depth is at least 1.", ok=False)
    result = await _script(context, _LIST, path, str(depth))
    if result is None or result.exit_code != 0:
        return _failure(result)
    return Observation(
        "\n".join(sorted(text(result.stdout).splitlines())) or "(empty)", exit_code=0
    )


@tool(read_only=True)
async def search_files(
    context: ToolContext, pattern: Annotated[str, "extended regular expression"], path: str = "."
) -> Observation:
    """Find lines in files."""
    result = await _script(context, _SEARCH, path, pattern)
    if result is None or result.timed_out or result.exit_code not in (0, 1):
        return _failure(result)
    found = [line.removeprefix("./") for line in text(result.stdout).splitlines()]
    return Observation("\n".join(sorted(found, key=_place)) or "No match.", exit_code=0)


async def _script(
    context: ToolContext, script: str, path: str, *arguments: str, stdin: bytes = b""
) -> Result | None:
    """Run a script with the path (never mistaken for an option) and the arguments."""
    safe = path if path.startswith(("/", ".")) else f"./{path}"
    argv: Sequence[str] = ("/bin/sh", "-c", f"{ENTER_FOLDER}\n{script}", "sh", safe, *arguments)
    return await run(context, argv, stdin)


def _failure(result: Result | None) -> Observation:
    """What a script that did not succeed has to say."""
    if result is None:
        return NO_TIME
    words = re.sub(r"^sh: \d+: ", "", text(result.stderr).strip()) or ending(result)
    return Observation(words, ok=False, exit_code=result.exit_code, timed_out=result.timed_out)


def _place(line: str) -> tuple[str, int, str]:
    path, _, rest = line.partition(":")
    number = rest.partition(":")[0]
    return path, int(number) if number.isdecimal() else 0, rest
