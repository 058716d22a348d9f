"""Gold with exactly one thing wrong: what a grader must not take for a solution.

Each is wrong for certain, whatever the task was: something of the solution is missing, something
beside it was damaged, or a value differs. What may be free in some tasks (blanks, the order of
lines, the mode of a new file, another way to write a program) is not touched.
"""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from practicum.core import Artifact, Submission

_PATHS = 4  # paths of one task that are tried
_JSON = 40  # edits of one JSON document


def near_misses(
    start: Submission, gold: Submission, program: bool
) -> Iterator[tuple[str, Submission]]:
    """Name and submission of every near miss; with `program` the text of files is left alone."""
    for path in changed(start, gold)[:_PATHS]:
        yield f"gold without {path}", _undone(start, gold, path)
        for what, artifact in _wrong_kinds(gold.artifacts.get(path)):
            bare = _undone(Submission(), gold, path)
            yield f"gold, {path} is {what}", _put(bare, path, artifact)
    if program:
        return
    kept = [p for p, a in start.artifacts.items() if gold.artifacts.get(p) == a]
    for path in [p for p in sorted(kept) if is_file(start.artifacts[p])][:_PATHS]:
        artifacts = {p: a for p, a in gold.artifacts.items() if p != path}
        yield f"gold, but {path} is deleted", instead(gold, artifacts, gold.answer)
    written = texts(start, gold)
    for path in targets(start, gold)[:_PATHS]:
        artifact = gold.artifacts[path]
        edits = _text_edits(artifact.data) if path in written else _damage(start, artifact.data)
        for what, data in edits:
            edited = msgspec.structs.replace(artifact, data=data)
            yield f"gold, {path} {what}", _put(gold, path, edited)


def changed(start: Submission, gold: Submission) -> list[str]:
    """Paths whose artifact the gold solution made, changed or removed, in order."""
    paths = sorted({*start.artifacts, *gold.artifacts})
    return [p for p in paths if start.artifacts.get(p) != gold.artifacts.get(p)]


def targets(start: Submission, gold: Submission) -> list[str]:
    """Where an answer is looked for: files that the gold solution made or changed."""
    return [p for p in changed(start, gold) if is_file(gold.artifacts.get(p))]


def texts(start: Submission, gold: Submission) -> list[str]:
    """Text files whose content the gold solution made or changed."""
    return [
        p
        for p in targets(start, gold)
        if _is_text(gold.artifacts[p].data)
        and (p not in start.artifacts or start.artifacts[p].data != gold.artifacts[p].data)
    ]


def is_file(artifact: Artifact | None) -> bool:
    """Whether it is there and a regular file."""
    return artifact is not None and artifact.kind == "file"


def instead(base: Submission, artifacts: dict[str, Artifact], answer: str) -> Submission:
    """A submission with the events of another."""
    return Submission(artifacts, answer, base.events)


def _undone(start: Submission, gold: Submission, path: str) -> Submission:
    """Gold, but at `path` and below everything is as it was at the start."""
    below = f"{path}/"
    artifacts = {p: a for p, a in gold.artifacts.items() if p != path and not p.startswith(below)}
    artifacts |= {p: a for p, a in start.artifacts.items() if p == path or p.startswith(below)}
    return instead(gold, artifacts, gold.answer)


def _wrong_kinds(artifact: Artifact | None) -> Iterator[tuple[str, Artifact]]:
    """The artifact as something that it must not be."""
    if artifact is None:
        return
    if artifact.kind == "symlink":
        yield "a link to another place", Artifact(artifact.data + b"x", 0o777, "symlink")
        yield "a file with the link's target", Artifact(artifact.data, 0o644)
    elif artifact.kind == "dir":
        yield "a file instead of a folder", Artifact(b"", 0o755)
        yield "a link instead of a folder", Artifact(b"/tmp", 0o777, "symlink")
    else:
        yield "a link with its text", Artifact(artifact.data, 0o777, "symlink")
        yield "a folder instead of a file", Artifact(b"", 0o755, "dir")
        yield "cut", msgspec.structs.replace(artifact, truncated=True)


def _text_edits(data: bytes) -> Iterator[tuple[str, bytes]]:
    """A text with one line or one value off."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict | list):
        for edited in islice(_json_edits(value), _JSON):
            yield "with one JSON value off", json.dumps(edited).encode()
        return
    lines = data.decode().splitlines()
    if not lines:
        yield "not empty", b"x\n"
        return
    for what, edited in {
        "without its first line": lines[1:],
        "without its last line": lines[:-1],
        "with its last line twice": [*lines, lines[-1]],
        "with one more character": [*lines[:-1], lines[-1] + "x"],
        "with a blank in a word": [*lines[:-1], lines[-1][:1] + " " + lines[-1][1:]]
        if len(lines[-1]) > 1 and " " not in lines[-1][:2]
        else [],
    }.items():
        yield what, "".join(f"{line}\n" for line in edited).encode()


def _damage(start: Submission, data: bytes) -> Iterator[tuple[str, bytes]]:
    """Half of a file that is no text; other content if it was only moved, or had its mode set."""
    yield "is only half there", data[: len(data) // 2] if data else b"zzz junk\n"
    if any(artifact.data == data for artifact in start.artifacts.values()):
        yield "with other content", data + b"zzz junk\n"


def _json_edits(value: Any) -> Iterator[Any]:
    """The value with one difference: itself wrapped, longer, shorter, or one part of it edited."""
    yield [value]
    if isinstance(value, bool) or value is None:
        yield int(bool(value))
        yield not value
    elif isinstance(value, int | float):
        yield value + 1
        yield str(value)
        if value in (0, 1):
            yield bool(value)
    elif isinstance(value, str):
        yield value + "x"
    elif isinstance(value, list):
        yield [*value, value[-1] if value else 0]
        if value:
            yield value[:-1]
            for at in dict.fromkeys((len(value) - 1, 0)):
                for edited in _json_edits(value[at]):
                    yield [*value[:at], edited, *value[at + 1 :]]
    elif isinstance(value, dict):
        yield {**value, "zzz": 0}
        for key in list(value)[:3]:
            yield {k: v for k, v in value.items() if k != key}
            for edited in islice(_json_edits(value[key]), 10):
                yield {**value, key: edited}


def _put(gold: Submission, path: str, artifact: Artifact) -> Submission:
    return instead(gold, {**gold.artifacts, path: artifact}, gold.answer)


def _is_text(data: bytes) -> bool:
    try:
        return "\x00" not in data.decode()
    except UnicodeDecodeError:
        return False
