import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.core import Episode, Message, Outcome, Sample, Score, ScorePart, StoreError
from practicum.store import Run
from practicum.store.journal import Journal, read_lines


def episode(task: str = "t1", value: float = 1.0) -> Episode:
    return Episode(
        id=f"{task}#0",
        task=task,
        domain="demo",
        level=1,
        policy="gold",
        prompt=(Message.of("user", "do \u2028 it"),),
        turns=(),
        events=(),
        outcome=Outcome.COMPLETED,
        score=Score.of(ScorePart("answer", value)),
    )


def sample(n: int = 3) -> Sample:
    return Sample(
        tokens=tuple(range(n)),
        rl_weight=(0.0,) + (1.0,) * (n - 1),
        ce_weight=(0.0,) * n,
        advantage=(0.1,) * n,
        logprobs=(0.0,) + (-1 / 3,) * (n - 1),
    )


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", "seed = 1\n", clock=lambda: 5.0) as run:
        run.log("stage", name="sft")
        run.metric("sft", 0, loss=1.5, gap=float("nan"))
        run.write_episodes("rl", 3, [episode("a"), episode("b", 0.5)])
        run.write_batch("rl", 3, [sample()])
        run.write_eval("base", [episode()])
        run.write_summary({"base": {"success": 0.5}})
    seen = Run.view(tmp_path / "run")
    assert seen.recipe == "seed = 1\n"
    assert seen.journal("stage") == [{"kind": "stage", "time": 5.0, "name": "sft"}]
    assert seen.metrics() == [{"stage": "sft", "step": 0, "time": 5.0, "loss": 1.5, "gap": None}]
    assert seen.read_episodes("rl", 3) == [episode("a"), episode("b", 0.5)]
    assert seen.read_batch("rl", 3) == [sample()]
    assert seen.batch_steps("rl") == seen.episode_steps("rl") == [3]
    assert seen.evals() == ["base"]
    assert seen.read_eval("base") == [episode()]
    assert seen.read_summary() == {"base": {"success": 0.5}}


def test_a_folder_takes_one_run_only(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", "").close()
    with pytest.raises(StoreError, match="--resume"):
        Run.create(tmp_path / "run", "")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine")
    with pytest.raises(StoreError, match=r"thesis\.tex"):
        Run.create(tmp_path / "other", "")
    with pytest.raises(StoreError, match="no run"):
        Run.open(tmp_path / "nowhere")


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    Run.create(tmp_path, "").close()
    seen = Run.view(tmp_path)
    for write in (
        lambda: seen.log("x"),
        lambda: seen.metric("sft", 1),
        lambda: seen.write_batch("sft", 1, []),
        lambda: seen.write_summary({}),
        lambda: seen.write_eval("base", []),
    ):
        with pytest.raises(StoreError, match="reading only"):
            write()


def test_a_torn_last_line_is_cut_and_overwritten(tmp_path: Path) -> None:
    with Run.create(tmp_path, "") as run:
        run.metric("rl", 1, reward=0.5)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"stage": "rl", "st')
    assert len(Run.view(tmp_path).metrics()) == 1  # a reader ignores it
    with Run.open(tmp_path) as run:
        run.metric("rl", 2, reward=0.6)
        assert [line["step"] for line in run.metrics()] == [1, 2]


def test_corruption_before_the_last_line_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'{"a":1}\n{"a"\n{"a":3}\n')
    with pytest.raises(StoreError, match=r"j\.jsonl, line 2"):
        read_lines(path)


@settings(deadline=None, max_examples=40)  # every line is synced to the disk
@given(
    st.lists(st.dictionaries(st.text(), st.text() | st.integers(-(2**53), 2**53)), max_size=5),
    st.data(),
)
def test_a_journal_cut_anywhere_keeps_a_prefix_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("j") / "j.jsonl"
    journal = Journal(path)
    for record in records:
        journal.append(record)
    journal.close()
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    kept = read_lines(path)
    assert kept == records[: len(kept)]
    assert len(kept) >= whole[:cut].count(b"\n")
    journal = Journal(path)
    journal.append({"next": 1})
    journal.close()
    assert read_lines(path) == [*kept, {"next": 1}]


def test_rewind_drops_later_steps_and_later_stages(tmp_path: Path) -> None:
    with Run.create(tmp_path, "") as run:
        for stage, step in [("sft", 1), ("sft", 2), ("rl", 1), ("rl", 2), ("rl", 3)]:
            run.metric(stage, step)
        run.rewind("rl", 1)
        assert [(m["stage"], m["step"]) for m in run.metrics()] == [
            ("sft", 1),
            ("sft", 2),
            ("rl", 1),
        ]
        run.metric("rl", 2)
        run.rewind("sft", 1)
        assert [(m["stage"], m["step"]) for m in run.metrics()] == [("sft", 1)]
        run.rewind("sft", -1)
        assert run.metrics() == []


def test_writing_a_step_again_replaces_it(tmp_path: Path) -> None:
    with Run.create(tmp_path, "") as run:
        run.write_episodes("rl", 1, [episode("a"), episode("b")])
        run.write_episodes("rl", 1, [episode("c")])
        assert [e.task for e in run.read_episodes("rl", 1)] == ["c"]


def test_a_corrupt_batch_says_which(tmp_path: Path) -> None:
    with Run.create(tmp_path, "") as run:
        run.write_batch("rl", 1, [sample()])
        path = tmp_path / "batches" / "rl-000001.msgpack"
        path.write_bytes(path.read_bytes()[:-3])
        with pytest.raises(StoreError, match=r"rl-000001\.msgpack is corrupt"):
            run.read_batch("rl", 1)
        with pytest.raises(StoreError, match="does not exist"):
            run.read_batch("rl", 2)


@pytest.mark.parametrize("name", ["../evil", "", ".hidden", "a/b"])
def test_names_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    with Run.create(tmp_path, "") as run, pytest.raises(StoreError, match="cannot name"):
        run.write_eval(name, [])


HOLD = """
import sys, time
from practicum.store import Run
run = Run.open(sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""


def test_two_processes_cannot_share_a_folder_and_death_frees_it(tmp_path: Path) -> None:
    Run.create(tmp_path, "").close()
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match=f"in use by another process .pid {other.pid}"):
            Run.open(tmp_path)
        Run.view(tmp_path).metrics()  # looking on is allowed
    finally:
        other.kill()
        other.communicate()
    Run.open(tmp_path).close()


def test_one_process_cannot_open_a_folder_twice(tmp_path: Path) -> None:
    with Run.create(tmp_path, "") as run:
        with pytest.raises(StoreError, match="already open in this process"):
            Run.open(tmp_path)
        run.log("still mine")
    Run.open(tmp_path).close()


LIMITED = """
import resource, signal, sys
from practicum.core import StoreError
from practicum.store import Run
run = Run.open(sys.argv[1])
run.metric("rl", 1, note="a" * 100)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for write in (
    lambda: run.metric("rl", 2, note="b" * 2000),
    lambda: run.write_summary({"note": "c" * 2000}),
):
    try:
        write()
    except StoreError as error:
        print(error)
run.metric("rl", 3, note="fits")
"""


def test_a_write_that_does_not_fit_leaves_nothing_half_written(tmp_path: Path) -> None:
    Run.create(tmp_path, "").close()
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "metrics.jsonl" in first
    assert "free some space" in first
    assert "summary.json" in second
    assert [m["step"] for m in Run.view(tmp_path).metrics()] == [1, 3]
    assert not list(tmp_path.glob(".*.tmp"))
    assert not (tmp_path / "summary.json").exists()


def test_a_folder_of_someone_else_is_refused_clearly(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreError, match="no permission"):
            Run.create(tmp_path / "run", "")
    finally:
        tmp_path.chmod(0o700)


def test_episode_files_are_plain_json_lines(tmp_path: Path) -> None:
    with Run.create(tmp_path, "") as run:
        run.write_episodes("rl", 1, [episode("a"), episode("b")])
    lines = (tmp_path / "episodes" / "rl-000001.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line)["task"] for line in lines] == ["a", "b"]
