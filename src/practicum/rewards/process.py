"""Process parts: how the work was done, read from the events, each with its evidence and turns.

Each part lies in 0..1 and has a weight of its own choosing, in steps of the outcome (`core.score`):
0 to be reported only. What they see is what was called, so they are easier to please than an
outcome; that is why all of them together can never change the order of outcomes.
"""

from collections.abc import Callable, Mapping, Sequence

from practicum.core import Score, ScorePart, Submission, Task
from practicum.rewards.acts import Act, acts

Finding = tuple[float, str, tuple[int, ...]]
"""Value, evidence, and the turns that earned it."""


def processed(
    score: Score, task: Task, submission: Submission, weights: Mapping[str, float]
) -> Score:
    """The score with all parts of `PARTS`, those without a weight reported only.

    Raises ValueError for too much weight (`core.score`).
    """
    done = acts(submission.events)
    made = []
    for name, part in PARTS.items():
        if found := part(task, submission, done):
            value, evidence, turns = found
            weight = weights.get(name, 0.0)
            made.append(ScorePart(name, value, weight, "process", evidence, turns))
    return score.plus(*made)


def known(weights: Mapping[str, float]) -> None:
    """Raise ValueError for a weight of a part that there is not."""
    if unknown := weights.keys() - PARTS.keys():
        raise ValueError(f"no process parts {sorted(unknown)}; there are {', '.join(PARTS)}")


def submitted(task: Task, submission: Submission, done: Sequence[Act]) -> Finding | None:
    """Whether `submit` was called, instead of being cut off by a limit."""
    if "submit" not in task.tools:
        return None
    for event in submission.events:
        if event.tool == "submit" and event.ok and event.kind == "call":
            return 1.0, "submit was called", (event.turn,)
    return 0.0, "a limit ended the episode before submit", ()


def read_first(task: Task, submission: Submission, done: Sequence[Act]) -> Finding | None:
    """The share of the task's files that were changed after they, or what is in them, were seen."""
    there = {file.path for file in task.files if file.kind == "file"}
    seen: set[str] = set()
    changed: dict[str, bool] = {}
    turns = []
    for act in done:
        for path in sorted(act.writes & there - changed.keys()):
            changed[path] = path in seen or act.tool == "edit_file"  # which quotes it
        if act.reads & there - seen:
            turns.append(act.turn)
        seen |= act.reads
    if not changed:
        return None
    blind = [path for path, known in changed.items() if not known]
    if blind:
        return 1 - len(blind) / len(changed), f"changed without a look at: {', '.join(blind)}", ()
    return 1.0, "what was changed had been read", tuple(dict.fromkeys(turns))


def located_first(task: Task, submission: Submission, done: Sequence[Act]) -> Finding | None:
    """Whether a fault was made to show, or searched for, before the first change."""
    first = next((at for at, act in enumerate(done) if act.writes), None)
    if first is None:
        return None
    for act in done[:first]:
        if act.searches or (act.checks and act.failed):
            return 1.0, f"turn {act.turn} looked for the fault first", (act.turn,)
    return 0.0, "the first change came before any test, build or search", ()


def not_repeated(task: Task, submission: Submission, done: Sequence[Act]) -> Finding | None:
    """The share of calls that are not an earlier one again, with nothing changed in between."""
    since: set[str] = set()
    again = []
    for act in done:
        if act.call in since:
            again.append(act.turn)
        if act.writes:
            since.clear()
        since.add(act.call)
    if not done:
        return None
    return 1 - len(again) / len(done), f"{len(again)} of {len(done)} calls repeat another", ()


def valid(task: Task, submission: Submission, done: Sequence[Act]) -> Finding | None:
    """The share of calls that could be run."""
    wrong = sum(event.kind == "invalid" for event in submission.events)
    total = wrong + len(done)
    return (1 - wrong / total, f"{wrong} of {total} calls were invalid", ()) if total else None


def verified(task: Task, submission: Submission, done: Sequence[Act]) -> Finding | None:
    """Whether the last change was looked at, tested or built again before the end."""
    last = max((at for at, act in enumerate(done) if act.writes), default=None)
    if last is None:
        return None
    written = frozenset[str]().union(*(act.writes for act in done))
    for act in done[last + 1 :]:
        if act.checks or act.reads & written:
            return 1.0, f"turn {act.turn} checked the work", (act.turn,)
    if done[last].checks or done[last].reads & done[last].writes:
        return 1.0, "the last change was checked at once", (done[last].turn,)
    return 0.0, "nothing looked at the last change", ()


def corrected(task: Task, submission: Submission, done: Sequence[Act]) -> Finding | None:
    """The share of failed calls after which something else was called that did not fail."""
    failed = [at for at, act in enumerate(done) if act.failed]
    if not failed:
        return None
    mended, turns = 0, []
    for at in failed:
        better = [a for a in done[at + 1 :] if not a.failed and a.call != done[at].call]
        if better:
            mended += 1
            turns.append(better[0].turn)
    return (
        mended / len(failed),
        f"{mended} of {len(failed)} failures were answered with a call that worked",
        tuple(dict.fromkeys(turns)),
    )


def state_kept(task: Task, submission: Submission, done: Sequence[Act]) -> Finding | None:
    """Whether the task state was noted, and at the end had nothing pending or in progress."""
    if "task_state" not in task.tools:
        return None
    notes = [e for e in submission.events if e.tool == "task_state" and e.ok and e.kind == "call"]
    if not notes:
        return 0.0, "the task state was never noted", ()
    left = [*notes[-1].arguments.get("in_progress", ()), *notes[-1].arguments.get("pending", ())]
    if left:
        return 0.5, f"the last note leaves {len(left)} steps open", (notes[-1].turn,)
    return 1.0, "the last note leaves nothing open", (notes[-1].turn,)


def unspent(task: Task, submission: Submission, done: Sequence[Act]) -> Finding | None:
    """The share of the turns beyond the first that were not needed."""
    last = max((event.turn for event in submission.events), default=0)
    most = task.limits.turns - 1
    return (1 - min(1.0, last / most), f"{last + 1} of {most + 1} turns", ()) if most > 0 else None


PARTS: dict[str, Callable[[Task, Submission, Sequence[Act]], Finding | None]] = {
    "submitted": submitted,
    "read_first": read_first,
    "located_first": located_first,
    "not_repeated": not_repeated,
    "valid": valid,
    "verified": verified,
    "corrected": corrected,
    "state_kept": state_kept,
    "unspent": unspent,
}
"""By name. A part that has nothing to say of an episode (None) is left out of its score."""
