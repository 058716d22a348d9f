"""Training from the command line: what it says, what it leaves, and how it goes on."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from practised import Done, Start, said

pytestmark = pytest.mark.slow


def family(pid: int) -> set[int]:
    """The processes below one: its children, theirs, and so on."""
    below: set[int] = set()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            below |= {child, *family(child)}
    return below


def cgroups(pid: int) -> list[Path]:
    """Those of the boxes of a run with this pid."""
    return list(Path("/sys/fs/cgroup").rglob(f"practicum-{pid}-*"))


def until(process: "subprocess.Popen[str]", word: str) -> None:
    """Read what the command prints until a line holds `word`."""
    assert process.stdout
    for line in process.stdout:
        if word in line:
            return
    raise AssertionError(f"it ended before it said {word!r}: {process.communicate()[1]}")


def test_a_run_ends_with_the_headline_and_the_paths(first: Done, trained: Path) -> None:
    assert first.returncode == 0, first.stderr
    assert first.stderr == ""  # no bars, no advice of libraries
    out = first.stdout
    assert "\x1b" not in out
    assert "\r" not in out
    for step in ("rl 1/3", "rl 2/3", "rl 3/3"):
        assert step in out
    assert "RL − SFT" in out
    assert "all tasks" in out
    assert out.splitlines()[-2:] == [
        "summary  runs/small/summary.json",
        "report   runs/small/report.html",
    ]
    summary = json.loads((trained / "small/summary.json").read_text())
    assert summary["evals"] == ["base", "sft", "rl"]
    assert "<html" in (trained / "small/report.html").read_text()


def test_an_existing_run_is_not_touched_without_resume(trained: Path) -> None:
    done = said("train", "cli.toml")
    assert done.returncode == 1
    assert "practicum train --resume runs/small" in done.stderr


def test_a_finished_run_can_be_resumed_and_only_reports(trained: Path) -> None:
    done = said("train", "--resume", "runs/small")
    assert done.returncode == 0, done.stderr
    assert "rl 1/3" not in done.stdout
    assert "RL − SFT" in done.stdout


def test_another_recipe_cannot_go_on_with_a_run(trained: Path) -> None:
    done = said("train", "cli.toml", "--resume", "--set", "stages.1.learning_rate=1e-3")
    assert done.returncode == 1
    assert "stages.1.learning_rate: 5e-06 in the run, now 0.001" in done.stderr
    assert "seed" not in done.stderr


@pytest.mark.parametrize(
    ("number", "status", "word"),
    [
        (signal.SIGINT, 130, "evaluate base: "),
        (signal.SIGTERM, 143, "rl: 3 steps"),
    ],
)
def test_a_stopped_run_is_kept_leaves_nothing_behind_and_goes_on(
    trained: Path,
    start: Start,
    number: signal.Signals,
    status: int,
    word: str,
) -> None:
    folder = f"runs/stopped-{number.name}"
    process = start("train", "cli.toml", "--out", folder)
    until(process, word)
    while not (boxes := family(process.pid)):
        assert process.poll() is None, "no box was opened"
        time.sleep(0.005)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == status
    assert "Traceback" not in err
    assert f"practicum train --resume {folder}" in err
    assert [pid for pid in boxes if Path(f"/proc/{pid}").exists()] == []
    assert cgroups(process.pid) == []

    again = said("train", "--resume", folder)
    assert again.returncode == 0, again.stderr
    digests = [
        json.loads((Path(run) / "summary.json").read_text())["digest"]
        for run in ("runs/small", folder)
    ]
    assert digests[0] == digests[1]


def test_a_run_in_use_is_refused(trained: Path, start: Start) -> None:
    first = start("train", "cli.toml", "--out", "runs/used")
    until(first, "evaluate base: ")
    second = said("train", "--resume", "runs/used")
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=30)
    assert second.returncode == 1
    assert f"in use by another process (pid {first.pid})" in second.stderr


def test_a_corrupt_model_is_named_and_not_used(trained: Path) -> None:
    run = trained / "corrupt"
    subprocess.run(["cp", "-r", trained / "small", run], check=True)
    weights = run / "models/rl/model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    done = said("train", "--resume", "runs/corrupt")
    assert done.returncode == 1
    assert "model.safetensors is corrupt" in done.stderr
    assert "Traceback" not in done.stderr


def test_models_are_compared_on_the_tasks_of_a_run(trained: Path) -> None:
    done = said("eval", "runs/small", "--against", "tiny:0", "--tasks", "3", "--out", "e.json")
    assert done.returncode == 0, done.stderr
    assert "runs/small − tiny:0" in done.stdout
    numbers = json.loads((Path("e.json")).read_text())
    assert numbers["evals"] == ["tiny:0", "runs/small"]
    assert numbers["runs/small"]["tasks"] == 3
    assert "runs/small_minus_tiny:0_ci_low" in numbers


def test_an_evaluation_on_its_own_equals_that_of_the_run(trained: Path) -> None:
    done = said("eval", "runs/small/models/rl", "--out", "same.json")
    assert done.returncode == 0, done.stderr
    alone = json.loads((Path("same.json")).read_text())["runs/small/models/rl"]
    assert alone == json.loads((trained / "small/summary.json").read_text())["rl"]


def test_the_report_is_written_again(trained: Path) -> None:
    page = trained / "small/report.html"
    page.unlink()
    done = said("report", "runs/small")
    assert done.returncode == 0, done.stderr
    assert "SFT − Base" in done.stdout
    assert page.exists()
