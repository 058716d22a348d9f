"""The shell: each call is a fresh bash that starts in the folder where the last one ended."""

from practicum.tools.inside import ENTER_FOLDER, FOLDER_FILE, NO_TIME, ending, run, text
from practicum.tools.tool import Observation, ToolContext, tool

_MAX_COMMAND = 100_000  # bytes; the kernel takes 128 KiB an argument
# On one line, so that bash's own messages count lines from 1.
_SAVE_FOLDER = f"trap 'pwd >| {FOLDER_FILE} 2>/dev/null' EXIT"
_SCRIPT = f'exec 2>&1; {ENTER_FOLDER}; {_SAVE_FOLDER}; eval "$1"'


@tool
async def shell(context: ToolContext, command: str) -> Observation:
    """Run a bash command; the working directory persists."""
    if len(command.encode("utf-8", "replace")) > _MAX_COMMAND:
        return Observation("The command is too long: write a script with write_file.", ok=False)
    result = await run(context, ["/bin/bash", "-c", _SCRIPT, "bash", command])
    if result is None:
        return NO_TIME
    output = text(result.stdout + result.stderr)
    if result.output_cut:
        output += "\n[more output was thrown away]"
    lines = [part for part in (output.rstrip("\n"), ending(result)) if part]
    return Observation(
        "\n".join(lines) or "(no output)",
        ok=not result.timed_out,
        exit_code=result.exit_code,
        timed_out=result.timed_out,
    )
