"""The whole ring on a tiny model and real boxes: it learns, it repeats, and it survives kills."""

import random
import time
from itertools import pairwise
from pathlib import Path

import pytest
from processes import Start, turned

from practicum.core import Episode
from practicum.engines.trainer import read_weights
from practicum.store import Run

pytestmark = pytest.mark.slow
STEPS = 6


def practised(run: Run) -> list[Episode]:
    return [e for step in run.episode_steps("rl") for e in run.read_episodes("rl", step)]


def fingerprints(folder: Path) -> list[str]:
    """Every episode of a run: demonstrations, practice and evaluations."""
    run = Run.view(folder)
    episodes = [*run.read_episodes("sft-demonstrations", 0), *practised(run)]
    episodes += [e for name in ("base", "sft", "rl") for e in run.read_eval(name)]
    return [episode.fingerprint for episode in episodes]


def losses(run: Run, stage: str) -> list[dict]:
    """The lines of metrics that tell of a step (not of an epoch)."""
    return [line for line in run.metrics(stage) if "seconds" in line]


def test_sft_teaches_the_calls_and_rl_moves(ring: Path) -> None:
    run = Run.view(ring)
    assert not any(e.events and e.events[0].ok for e in run.read_eval("base"))
    called = [e for e in practised(run) if e.events and e.events[0].exit_code == 0]
    assert len(called) > len(practised(run)) / 2
    steps = losses(run, "rl")
    assert len(steps) == STEPS
    assert sum(line["varied_groups"] > 0 for line in steps) >= STEPS / 2
    digests = [run.read_eval(n)[0].turns[0].record.digest for n in ("base", "sft", "rl")]
    assert len(set(digests)) == 3
    assert digests[1:] == [line["digest"] for line in run.journal("stage")]
    assert digests[2] == run.read_summary()["digest"]
    assert read_weights(ring / "models" / "rl").digest == digests[2]


def test_a_step_is_sampled_with_the_weights_of_the_step_before(ring: Path) -> None:
    run = Run.view(ring)
    found = []
    for step in run.episode_steps("rl"):
        episodes = run.read_episodes("rl", step)
        digests = {t.record.digest for e in episodes for t in e.turns}
        assert len(digests) == 1
        found += digests
    trained = [bool(run.read_batch("rl", step)) for step in run.episode_steps("rl")]
    changed = [one != other for one, other in pairwise(found)]
    assert changed == trained[:-1]


def test_practice_demonstrations_and_evaluation_share_no_task(ring: Path) -> None:
    run = Run.view(ring)
    measured = {e.task for e in run.read_eval("base")}
    shown = {e.task for e in run.read_episodes("sft-demonstrations", 0)}
    played = {e.task for e in practised(run)}
    assert not measured & shown
    assert not (measured | shown) & played
    assert all(run.read_eval(n)[0].task in measured for n in ("sft", "rl"))


def test_slow_boxes_change_neither_episodes_nor_weights(
    ring: Path, start: Start, tmp_path: Path
) -> None:
    turned(start(tmp_path / "run", "7"))
    assert fingerprints(tmp_path / "run") == fingerprints(ring)
    assert (
        Run.view(tmp_path / "run").read_summary()["digest"]
        == Run.view(ring).read_summary()["digest"]
    )


def test_three_kills_do_not_change_the_weights(ring: Path, start: Start, tmp_path: Path) -> None:
    rng = random.Random(2024)
    folder = tmp_path / "run"
    moments = [
        f"sft {rng.randint(7, 30)}",  # in SFT, after its first checkpoint
        "begin evaluate sft",  # between two stages
        f"rl {rng.randint(1, STEPS - 2)}",  # then somewhere in the next step of RL
    ]
    for moment in moments:
        process = start(folder)
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == moment:
                break
        else:
            pytest.fail(f"the run ended before {moment!r}")
        if moment.startswith("rl"):
            time.sleep(rng.uniform(0.1, 0.5))
        process.kill()
        process.communicate()
        assert process.returncode == -9
    turned(start(folder))
    run, unbroken = Run.view(folder), Run.view(ring)
    assert run.read_summary()["digest"] == unbroken.read_summary()["digest"]
    assert fingerprints(folder) == fingerprints(ring)
    for stage in ("sft", "rl"):
        assert [m["step"] for m in losses(run, stage)] == [
            m["step"] for m in losses(unbroken, stage)
        ]
    assert [m.get("grad_norm") for m in losses(run, "rl")] == [
        m.get("grad_norm") for m in losses(unbroken, "rl")
    ]
