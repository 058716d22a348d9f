"""Running a tool's command in the episode's box: in the shell's folder, on the episode's time."""

from collections.abc import Sequence

from practicum.core import SandboxError
from practicum.sandbox.contract import Result
from practicum.tools.tool import Observation, ToolContext

# The shell leaves its folder in a file of the box, so that no output needs to be believed.
FOLDER_FILE = '"${TMPDIR:-/tmp}/.cwd"'  # as a shell says it
ENTER_FOLDER = f'cd -- "$(cat {FOLDER_FILE} 2>/dev/null)" 2>/dev/null || cd "$HOME"'

NO_TIME = Observation("There is no time left for commands.", ok=False, timed_out=True)


async def run(context: ToolContext, argv: Sequence[str], stdin: bytes = b"") -> Result | None:
    """Run `argv` with the time that is left, and charge it; None when none is left."""
    if context.box is None:
        raise SandboxError("this tool needs a box: give the task files or open one for it")
    if context.seconds_left <= 0:
        return None
    seconds = min(context.limits.command_seconds, context.seconds_left)
    result = await context.box.run(argv, stdin=stdin, seconds=seconds)
    context.seconds_left -= result.seconds
    return result


def text(data: bytes) -> str:
    """Output as text; bytes that are no UTF-8 are replaced."""
    return data.decode("utf-8", "replace")


def ending(result: Result) -> str:
    """How a command ended, in words; empty when it succeeded."""
    if result.timed_out:
        return f"[timed out: killed after {result.seconds:.1f} s]"
    if result.signal is not None:
        return f"[killed by signal {result.signal}]"
    return f"[exit code {result.exit_code}]" if result.exit_code else ""
