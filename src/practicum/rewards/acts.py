"""What an episode's calls did to which files: events, read as acts.

Shell commands are read word by word, not run and not fully parsed: what a script does inside itself
is not seen. So acts serve process parts and reports, and never decide an outcome.
"""

import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence

import msgspec

from practicum.core import Event

_WRITERS = {"tee", "touch", "mkdir", "rm", "rmdir", "mv", "ln", "chmod", "truncate", "patch", "dd"}
_QUIET = {"echo", "printf", "cd", "export", "set", "true", "test", "[", "sleep"}  # name no files
_CHECKERS = {"pytest", "make", "tox", "nox", "ctest", "unittest", "mypy", "ruff", "diff", "cmp"}
_SEARCHERS = {"grep", "rg", "find", "ls", "search_files", "list_files"}
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1(.*?)\n.*?^\s*\2\s*$", re.DOTALL | re.MULTILINE)
_JOINS = re.compile(r"[;&|()\n]+")
_REDIRECTIONS = {">": True, ">>": True, ">|": True, "&>": True, "<": False}  # whether it writes


class Act(msgspec.Struct, frozen=True):
    """One call and what it touched. Paths are normalised, relative to where the call was made."""

    turn: int
    tool: str
    call: str  # the tool and its arguments: equal for equal calls
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    checks: bool = False  # ran tests, a build or a comparison
    searches: bool = False
    failed: bool = False


def acts(events: Sequence[Event]) -> list[Act]:
    """The calls among the events that could be run, in order."""
    return [_act(event) for event in events if event.kind == "call"]


def _act(event: Event) -> Act:
    call = msgspec.json.encode([event.tool, event.arguments], order="deterministic").decode()
    failed = not event.ok or bool(event.exit_code)
    act = Act(event.turn, event.tool, call, failed=failed, searches=event.tool in _SEARCHERS)
    match event.tool:
        case "shell":
            reads, writes, names = _shell(str(event.arguments.get("command", "")))
            return msgspec.structs.replace(
                act,
                reads=frozenset(reads),
                writes=frozenset(writes),
                checks=bool(names & _CHECKERS),
                searches=bool(names & _SEARCHERS),
            )
        case "read_file" | "search_files":
            return msgspec.structs.replace(act, reads=_path(event))
        case "write_file" | "edit_file":
            return msgspec.structs.replace(act, writes=_path(event))
        case _:
            return act


def _path(event: Event) -> frozenset[str]:
    path = event.arguments.get("path")
    return frozenset([posixpath.normpath(path)] if isinstance(path, str) and path else [])


def _shell(command: str) -> tuple[set[str], set[str], set[str]]:
    """Files read, files written, and names of the commands that were run."""
    reads: set[str] = set()
    writes: set[str] = set()
    names: set[str] = set()
    for words in _commands(_HEREDOC.sub(r"\3", command)):
        rest = _redirected(words, reads, writes)
        while rest and re.fullmatch(r"\w+=.*", rest[0]):  # variables of this command
            rest = rest[1:]
        if not rest:
            continue
        name, arguments = posixpath.basename(rest[0]), rest[1:]
        if arguments[:1] == ["-m"]:  # python3 -m pytest
            name, arguments = (arguments[1] if arguments[1:] else name), arguments[2:]
        names.add(name)
        files = {posixpath.normpath(word) for word in arguments if _is_path(word)}
        in_place = name in ("sed", "perl") and any(re.match(r"-\w*i|--in-pl", a) for a in arguments)
        if name in ("cp", "install") and files:
            *sources, target = [a for a in arguments if _is_path(a)]
            reads |= {posixpath.normpath(path) for path in sources}
            writes.add(posixpath.normpath(target))
        elif name in _WRITERS or in_place:
            writes |= files
        elif name not in _QUIET:
            reads |= files
    return reads, writes, names


def _commands(text: str) -> Iterator[list[str]]:
    """The words of each simple command; nothing for text that no shell would take."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()<>\n")
    lexer.whitespace = " \t\r"
    lexer.commenters = ""
    words: list[str] = []
    try:
        for word in lexer:
            if _JOINS.fullmatch(word):
                yield words
                words = []
            else:
                words.append(word)
    except ValueError:  # a quote that is not closed
        return
    yield words


def _redirected(words: Sequence[str], reads: set[str], writes: set[str]) -> list[str]:
    """The words without redirections, whose files are noted."""
    rest: list[str] = []
    pending: bool | None = None
    for word in words:
        if word in _REDIRECTIONS:
            pending = _REDIRECTIONS[word]
        elif pending is not None:
            (writes if pending else reads).add(posixpath.normpath(word))
            pending = None
        else:
            rest.append(word)
    return rest


def _is_path(word: str) -> bool:
    """Whether a word may name a file; a word that is none is never among a task's files."""
    return bool(word) and not word.startswith(("-", "$")) and not re.search(r"[\s{}*?'\"\\]", word)
