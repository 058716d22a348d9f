"""A recipe over two processes, as torchrun starts them: the same run, and one that goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from practised import Done, said
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.slow
SHARD = ("--set", "parallel.shard=2", "--out", "runs/two")


def torchrun(place: Path, *arguments: str) -> "subprocess.Popen[str]":
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [*run, "-m", "practicum.cli", *arguments],
        cwd=place,
        env=os.environ | {"PRACTICUM_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def follower(process: "subprocess.Popen[str]") -> int:
    """The pid of the process that does not print."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in map(int, children):
        if b"RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes():
            return pid
    raise AssertionError(f"no follower among {children}")


def test_two_processes_train_a_recipe_and_go_on_after_one_was_killed(
    first: Done, place: Path
) -> None:
    process = torchrun(place, "train", "cli.toml", *SHARD)
    assert process.stdout
    for line in process.stdout:
        if "rl 2/3" in line:
            os.kill(follower(process), signal.SIGKILL)
            break
    began = time.monotonic()
    process.communicate(timeout=120)
    assert process.returncode != 0
    assert time.monotonic() - began < 60  # nobody waits for one that is gone
    assert not (place / "runs/two/summary.json").exists()

    process = torchrun(place, "train", "--resume", "runs/two")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err[-3000:]
    assert "rl: going on after step" in out
    assert out.count("rl 3/3") == 1  # one of them speaks
    summary = json.loads((place / "runs/two/summary.json").read_text())
    single = json.loads((place / "runs/small/summary.json").read_text())
    assert summary["evals"] == single["evals"]
    theirs, ours = (
        AutoModelForCausalLM.from_pretrained(place / f"runs/{name}/models/sft")
        for name in ("two", "small")
    )
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(other, mine, rtol=0, atol=2e-3, msg=name)


def test_processes_that_were_not_started_are_asked_for(trained: Path) -> None:
    done = said("train", "cli.toml", *SHARD[:2], "--out", "runs/none")
    assert done.returncode == 1
    assert "torchrun --standalone --nproc-per-node 2" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_processes_cannot_do_is_said_before_they_are_started(trained: Path) -> None:
    done = said("train", "cli.toml", *SHARD, "--set", "trainer.lora.rank=4")
    assert done.returncode == 1
    assert "[parallel] trains all weights" in done.stderr
