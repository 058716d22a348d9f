"""How fast boxes are, from the Python API as an episode uses it, beside what else starts a command.

    python benchmarks/box.py [--quick]

Peers in the same run: a plain `subprocess`, bubblewrap with all namespaces but no limits, and
nsjail and gVisor's runsc where they are installed. The last line is one JSON object; ratios are
peer time divided by ours, so larger is better.
"""

import argparse
import asyncio
import itertools
import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from practicum.core import File, Limits, Task
from practicum.domains import Domain, domain_names, get_domain
from practicum.rollout import ScriptPolicy, play
from practicum.sandbox import BubblewrapBoxes, NativeBoxes
from practicum.sandbox.local import LocalBoxes

AT_ONCE = 4
LIMITS = Limits(memory_mb=256, processes=64, workspace_mb=16)
OTHERS = {  # the whole host to be read, no limits; runsc needs root here
    "nsjail": "-Mo -q -R /usr -R /lib -R /lib64 -R /bin -T /tmp -- /bin/true",
    "runsc": "--network=none --ignore-cgroups do true",
}
BWRAP = "--unshare-all --die-with-parent --new-session --ro-bind / / --dev /dev --proc /proc true"


async def ours_cold(boxes: NativeBoxes) -> None:
    """Make a box with every limit on, run a command, and wait until all is gone."""
    async with await boxes.open(limits=LIMITS) as box:
        assert (await box.run(["true"])).exit_code == 0


async def pooled_rate(count: int) -> float:
    """Boxes a second of a burst, as at the start of a step, that were made in a quiet moment."""
    boxes = NativeBoxes(max_running=AT_ONCE, ahead=count)
    await ours_cold(boxes)
    while len(boxes.pool) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    found = await rate(lambda: ours_cold(boxes), count)
    await boxes.close()
    return found


async def rate(work: Callable[[], Awaitable[object]], count: int) -> float:
    """How often per second `work` is done, `AT_ONCE` at a time."""
    left = itertools.count()

    async def worker() -> None:
        while next(left) < count:
            await work()

    begin = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return count / (time.perf_counter() - begin)


def peer_rate(argv: list[str], count: int) -> float:
    """The same for a command of its own each time, started by vfork from threads."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        begin = time.perf_counter()
        list(pool.map(lambda _: subprocess.run(argv, check=True), range(count)))
        return count / (time.perf_counter() - begin)


async def overshoot(boxes: NativeBoxes, count: int) -> float:
    """Milliseconds from a deadline until everything is dead and the result is here; the median."""
    late = []
    async with await boxes.open(limits=LIMITS) as box:
        for _ in range(count):
            begin = time.perf_counter()
            result = await box.run(["sh", "-c", "sleep 9 & sleep 9"], seconds=0.05)
            late.append((time.perf_counter() - begin - 0.05) * 1e3)
            assert result.timed_out
    return statistics.median(late)


async def fork_milliseconds(boxes: NativeBoxes, rounds: int) -> float:
    """For each child of a workspace with 200 files and 2 MB, the snapshot shared; the median."""
    spent = []
    files = [File(f"folder{n % 10}/file{n}", os.urandom(10_000)) for n in range(200)]
    async with await boxes.open(files, LIMITS) as box:
        for _ in range(rounds):
            begin = time.perf_counter()
            children = await box.fork(8)
            spent.append((time.perf_counter() - begin) * 1e3 / 8)
            await asyncio.gather(*(child.close() for child in children))
    return statistics.median(spent)


async def idle_megabytes(boxes: NativeBoxes, count: int) -> float:
    """Memory of the machine that one idle box takes."""

    def available() -> int:
        words = Path("/proc/meminfo").read_text().split()
        return int(words[words.index("MemAvailable:") + 1])

    before = available()
    made = [await boxes.open(limits=LIMITS) for _ in range(count)]
    after = available()
    await asyncio.gather(*(box.close() for box in made))
    return (before - after) / 1024 / count


async def episode_rate(boxes: LocalBoxes, seeds: int) -> float:
    """Whole episodes a second: the terminal family's gold solutions, played and graded."""
    domains = [get_domain(name) for name in domain_names() if get_domain(name).family == "terminal"]
    jobs = [(domain, domain.make(seed, 1)) for seed in range(seeds) for domain in domains]
    turns = asyncio.Semaphore(2 * AT_ONCE)

    async def one(number: int, domain: Domain, task: Task) -> None:
        async with turns:
            policy = ScriptPolicy("gold", domain.solve(task))
            episode = await play(task, domain, policy, boxes, key=str(number))
            assert episode.solved, episode.error

    begin = time.perf_counter()
    await asyncio.gather(*(one(number, *job) for number, job in enumerate(jobs)))
    return len(jobs) / (time.perf_counter() - begin)


def bwrap_version() -> str:
    """As bubblewrap says it."""
    return subprocess.check_output(["bwrap", "--version"], text=True).split()[-1]


async def measure(quick: bool) -> dict[str, object]:
    """Every figure; peers and ours take turns, and medians are compared."""
    rounds, count = (3, 60) if quick else (7, 200)
    boxes = NativeBoxes(max_running=AT_ONCE)
    bwrap = shutil.which("bwrap")
    rates: dict[str, list[float]] = {
        name: [] for name in ("cold", "pooled", "warm", "subprocess", "bwrap")
    }
    warm = [await boxes.open(limits=LIMITS) for _ in range(AT_ONCE)]
    free = asyncio.Queue[object]()
    for box in warm:
        free.put_nowait(box)

    async def run_warm() -> None:
        box = await free.get()
        await box.run(["true"])  # type: ignore[attr-defined]
        free.put_nowait(box)

    await rate(lambda: ours_cold(boxes), 20)
    for _ in range(rounds):
        rates["cold"].append(await rate(lambda: ours_cold(boxes), count))
        rates["pooled"].append(await pooled_rate(count))
        rates["warm"].append(await rate(run_warm, 2 * count))
        rates["subprocess"].append(await asyncio.to_thread(peer_rate, ["true"], 2 * count))
        if bwrap:
            argv = [bwrap, *BWRAP.split()]
            rates["bwrap"].append(await asyncio.to_thread(peer_rate, argv, count))
        for name, words in OTHERS.items():
            path = shutil.which(name) if name != "runsc" or os.geteuid() == 0 else None
            if path:
                argv = [path, *words.split()]
                rates[name] = [*rates.get(name, []), await asyncio.to_thread(peer_rate, argv, 10)]
    median = {name: statistics.median(found) for name, found in rates.items() if found}
    for name, value in median.items():
        print(f"{name:12} {value:8.1f} a second")
    found = {
        "name": "box",
        "ratio_throughput_vs_bwrap": median["cold"] / median["bwrap"] if bwrap else None,
        "ratio_throughput_pooled_vs_bwrap": median["pooled"] / median["bwrap"] if bwrap else None,
        **{f"ratio_throughput_vs_{n}": median["cold"] / median[n] for n in OTHERS if n in median},
        "ratio_warm_vs_subprocess": median["warm"] / median["subprocess"],
        "fork_child_ms": await fork_milliseconds(boxes, 3 if quick else 9),
        "timeout_overshoot_ms": await overshoot(boxes, 10 if quick else 30),
        "idle_box_mb": await idle_megabytes(boxes, 100 if quick else 500),
        "episodes_per_second": await episode_rate(boxes, 1 if quick else 4),
        "peer": "bubblewrap",
        "peer_version": bwrap_version() if bwrap else None,
        "cgroups": boxes.cgroups.version,
        "root": os.geteuid() == 0,
    }
    await boxes.close()
    if bwrap:
        others = BubblewrapBoxes(max_running=AT_ONCE)
        found["episodes_per_second_bubblewrap"] = await episode_rate(others, 1 if quick else 4)
        await others.close()
    return {k: round(v, 3) if isinstance(v, float) else v for k, v in found.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds: about 20 seconds")
    print(json.dumps(asyncio.run(measure(parser.parse_args().quick))))
