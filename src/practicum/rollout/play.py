"""One episode from task to outcome, and many of them together.

Every job that is played ends in exactly one `Episode` with exactly one `Outcome`, whatever fails:
what the policy does wrong is an observation, what we do wrong is `infra_failed` and tried again.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from practicum.core import (
    EFFECTS,
    Artifact,
    EngineError,
    Episode,
    Event,
    Kept,
    Message,
    Outcome,
    SandboxError,
    Score,
    Stop,
    Submission,
    Task,
    ToolCall,
    Turn,
)
from practicum.domains.domain import Domain
from practicum.domains.provenance import grader_version
from practicum.engines.contract import ContextFull, Policy
from practicum.rollout.grade import extract, grade, needs_box
from practicum.sandbox.contract import Boxes, Sandbox
from practicum.tools import KEY, Tool, ToolContext, get_tool, render_task_state

ATTEMPTS = 3  # plays of one job before our own failure is final
MALFORMED_AFTER = 3  # turns in a row without a usable call
NO_CALL = "No tool was called. Every message must call a tool."


Keep = Callable[[bytes], str]
"""Stores bytes and returns the digest that they are found under; called in a thread."""


class Job(msgspec.Struct, frozen=True):
    """One episode to play. The key names it: noise and order follow from it."""

    task: Task
    key: str


async def play(
    task: Task,
    domain: Domain,
    policy: Policy,
    boxes: Boxes,
    *,
    key: str,
    keep: Keep | None = None,
) -> Episode:
    """Play one episode. Never raises for what the policy, a box or the grader does."""
    (episode,) = await play_many([Job(task, key)], lambda _: domain, policy, boxes, keep=keep)
    return episode


async def play_many(
    jobs: Sequence[Job],
    domain_of: Callable[[str], Domain],
    policy: Policy,
    boxes: Boxes,
    *,
    on_done: Callable[[Episode], None] | None = None,
    keep: Keep | None = None,
) -> list[Episode]:
    """Play all jobs together; the episodes in the order of the jobs.

    With `keep`, what grading saw is kept, so that it can be graded again (`recipe.regrade`).
    Keys must be distinct. All of them begin before the first is asked for a turn, so that a
    batching policy sees the same batches however fast the boxes are.
    """
    if len({job.key for job in jobs}) != len(jobs):
        raise ValueError("two jobs have the same key")
    for job in jobs:
        await policy.begin(job.key)

    async def one(job: Job) -> Episode:
        try:
            episode = await _bounded(job, domain_of(job.task.domain), policy, boxes, keep)
        finally:
            await policy.end(job.key)
        if on_done:
            on_done(episode)
        return episode

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(job)) for job in jobs]
    return [task.result() for task in running]


async def _bounded(
    job: Job, domain: Domain, policy: Policy, boxes: Boxes, keep: Keep | None
) -> Episode:
    """Play until the outcome is one that is not tried again, or the attempts are used up."""
    attempt = 0
    while True:
        attempt += 1
        episode = await Play(job, domain, policy, boxes, keep=keep).run()
        if not EFFECTS[episode.outcome].retried or attempt == ATTEMPTS:
            return msgspec.structs.replace(episode, attempts=attempt)


@dataclass
class Play:
    """One attempt: its state while it runs."""

    job: Job
    domain: Domain
    policy: Policy
    boxes: Boxes
    turns: list[Turn] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    answer: str = ""
    bad_turns: int = 0
    times: dict[str, float] = field(default_factory=dict)
    context: ToolContext | None = None  # from the first turn on
    keep: Keep | None = None

    def __post_init__(self) -> None:
        self.tools: dict[str, Tool] = {name: get_tool(name) for name in self.job.task.tools}
        self.messages = [Message.of("user", self.job.task.prompt)]
        for turn in self.turns:
            self.messages += [turn.message, *turn.results]

    @property
    def box(self) -> Sandbox | None:
        """The box, if there is one yet."""
        return self.context.box if self.context else None

    async def run(self) -> Episode:
        """Play to the end."""
        try:
            try:
                outcome, error = await self.converse(self.job.task.limits.turns)
                return await self.conclude(outcome, error)
            finally:
                if self.box is not None:
                    await self.box.close()
        except (SandboxError, EngineError) as failure:
            error = f"{type(failure).__name__}: {failure}"
            return self.episode(Outcome.INFRA_FAILED, None, error)

    async def conclude(self, outcome: Outcome, error: str) -> Episode:
        """Take out what was made, close the box, and have it graded."""
        task, score = self.job.task, None
        artifacts = await extract(task, self.box)
        if self.box is not None:
            await self.box.close()
        submission = Submission(artifacts, self.answer, tuple(self.events))
        with self._timed("grade"):
            score, verdict, why = await grade(task, self.domain, submission, self.boxes)
        if verdict is not None:
            outcome, error = verdict, why
        return msgspec.structs.replace(
            self.episode(outcome, score, error),
            grader=grader_version(self.domain),
            artifacts=await self._kept(artifacts),
        )

    async def _kept(self, artifacts: dict[str, Artifact]) -> dict[str, Kept] | None:
        """Where each artifact lies from now on."""
        if self.keep is None:
            return None
        return {
            path: Kept(await asyncio.to_thread(self.keep, a.data), a.mode, a.kind, a.truncated)
            for path, a in artifacts.items()
        }

    def episode(self, outcome: Outcome, score: Score | None, error: str) -> Episode:
        """What is on record so far."""
        task = self.job.task
        return Episode(
            id=self.job.key,
            task=task.key,
            domain=task.domain,
            level=task.level,
            seed=task.seed,
            canary=bool(task.canary),
            policy=self.policy.name,
            prompt=(self.messages[0],),
            turns=tuple(self.turns),
            events=tuple(self.events),
            outcome=outcome,
            score=score,
            answer=self.answer,
            error=error,
            seconds=dict(self.times),
        )

    async def converse(self, turns: int) -> tuple[Outcome, str]:
        """Turns until the policy submits, its budget is used up, or there are so many."""
        task = self.job.task
        limits = task.limits
        schemas = [tool.schema for tool in self.tools.values()]
        while len(self.turns) < turns:
            left = limits.tokens - sum(len(t.record.ids) for t in self.turns if t.record)
            if left <= 0:
                return Outcome.TRUNCATED, f"all {limits.tokens} tokens used"
            try:
                with self._timed("respond"):
                    turn = await self.policy.respond(
                        self.messages,
                        schemas,
                        history=self.turns,
                        key=self.job.key,
                        max_tokens=left,
                    )
            except ContextFull as full:
                return Outcome.TRUNCATED, str(full)
            if self.context is None:  # only now: most of a large batch have yet to begin
                box = None
                if needs_box(task):
                    box = await self.boxes.open(task.files, limits, root=task.root)
                self.context = ToolContext(box, limits, limits.seconds)
            context = self.context
            results, final = await self._act(context, turn)
            self._note_requests()
            state = render_task_state(context.state)
            if state and not final and not any(c.name == KEY for c in turn.message.calls):
                results[-1] = _with_note(results[-1], state)
            self.turns.append(msgspec.structs.replace(turn, results=tuple(results)))
            self.messages += [turn.message, *results]
            if final:
                return Outcome.COMPLETED, ""
            if self.bad_turns >= MALFORMED_AFTER:
                return Outcome.MALFORMED, f"{self.bad_turns} turns in a row without a usable call"
            if context.seconds_left <= 0:
                return Outcome.TRUNCATED, f"all {limits.seconds:g} seconds of commands used"
        return Outcome.TRUNCATED, f"all {turns} turns used"

    async def _act(self, context: ToolContext, turn: Turn) -> tuple[list[Message], bool]:
        """Run the calls of one turn; a turn without a usable call gets a word of advice."""
        at = len(self.turns)
        calls = turn.message.calls
        usable = [call for call in calls if not call.error and call.name in self.tools]
        self.bad_turns = 0 if usable else self.bad_turns + 1
        if not calls:
            advice = self._advice(turn.stop)
            self.events.append(Event(at, "invalid", ok=False, observation=advice))
            return [Message.of("user", advice)], False
        results: list[Message] = []
        final = False
        for batch in _batches(calls, self.tools):
            if final:  # what comes after the submission is not run
                break
            found = await asyncio.gather(*(self._call(context, at, call) for call in batch))
            for event, message, ends in found:
                self.events.append(event)
                results.append(message)
                final = final or ends
        return results, final

    def _note_requests(self) -> None:
        """Put on record what the commands of this turn asked of the network."""
        for asked in self.box.requests() if self.box else ():
            place = {"method": asked.method, "host": asked.host, "port": asked.port}
            fine = asked.allowed and not asked.error
            said = asked.error or ("" if asked.allowed else "not allowed")
            self.events.append(
                Event(len(self.turns), "network", "", place, fine, None, said, asked.seconds)
            )

    async def _call(
        self, context: ToolContext, turn: int, call: ToolCall
    ) -> tuple[Event, Message, bool]:
        tool = self.tools.get(call.name)
        if call.error or tool is None:
            text = call.error or f"There is no tool {call.name!r}; use {', '.join(self.tools)}."
            event = Event(turn, "invalid", call.name, call.arguments, False, None, text)
            return event, Message.of("tool", text, name=call.name or "error"), False
        started = time.perf_counter()
        seen = await tool.call(context, call.arguments)
        seconds = time.perf_counter() - started
        self.times["tools"] = self.times.get("tools", 0.0) + seconds
        if seen.final:
            self.answer = seen.answer
        event = Event(
            turn,
            "call",
            call.name,
            call.arguments,
            seen.ok,
            seen.exit_code,
            seen.text,
            seconds,
        )
        return event, Message.of("tool", seen.text, name=call.name), seen.final

    def _advice(self, stop: Stop) -> str:
        cut = " Your message was cut off: keep it short." if stop is Stop.LENGTH else ""
        return f"{NO_CALL}{cut} Tools: {', '.join(self.tools)}."

    def _timed(self, name: str) -> "_Timer":
        return _Timer(self.times, name)


def _batches(calls: Sequence[ToolCall], tools: dict[str, Tool]) -> list[list[ToolCall]]:
    """Neighbouring read-only calls run together, every other one alone; the order is kept."""
    batches: list[list[ToolCall]] = []
    together = False
    for call in calls:
        reads = call.name in tools and tools[call.name].read_only
        if reads and together:
            batches[-1].append(call)
        else:
            batches.append([call])
        together = reads
    return batches


def _with_note(message: Message, note: str) -> Message:
    return Message.of(message.role, f"{message.text}\n\n{note}", name=message.name)


class _Timer:
    """Adds the seconds of a `with` block to a record."""

    def __init__(self, record: dict[str, float], name: str) -> None:
        self.record, self.name = record, name

    def __enter__(self) -> None:
        self.started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        spent = time.perf_counter() - self.started
        self.record[self.name] = self.record.get(self.name, 0.0) + spent
