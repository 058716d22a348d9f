"""One recipe of every kind of stage, each from the last one's weights, killed and gone on with."""

from pathlib import Path

import pytest
from processes import Start, turned

from practicum.store import Run

pytestmark = pytest.mark.slow
STAGES = ("sft", "preference", "rl", "distil")


@pytest.fixture(scope="module")
def graph(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph") / "run"
    turned(start(folder, "graph.toml"))
    return folder


def test_every_stage_moves_the_weights_of_the_one_before(graph: Path) -> None:
    run = Run.view(graph)
    digests = [line["digest"] for line in run.journal("stage")]
    assert [line["name"] for line in run.journal("stage")] == list(STAGES)
    assert len(set(digests)) == len(STAGES)
    for stage, digest in zip(STAGES, digests, strict=True):
        evaluated = run.read_eval(stage)[0].turns[0].record
        assert evaluated is not None
        assert evaluated.digest == digest
    sampled = [
        {t.record.digest for e in run.read_episodes(stage, 0) for t in e.turns if t.record}
        for stage in STAGES[1:]
    ]
    assert sampled == [{digest} for digest in digests[:-1]]


def test_what_was_distilled_is_what_the_teacher_thinks_of_it(graph: Path) -> None:
    samples = Run.view(graph).read_batch("distil", 0)
    assert samples
    for sample in samples:
        for t, weight in enumerate(sample.rl_weight):
            wanted = sample.reference[t] - sample.logprobs[t] if weight else 0.0
            assert sample.advantage[t] == pytest.approx(wanted, abs=1e-6)
    assert any(any(sample.advantage) for sample in samples)


def test_a_kill_in_each_stage_changes_nothing(graph: Path, start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for moment in ("preference 1", "rl 0", "distil 0"):
        process = start(folder, "graph.toml")
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == moment:
                break
        else:
            pytest.fail(f"the run ended before {moment!r}")
        process.kill()
        process.communicate()
    turned(start(folder, "graph.toml"))
    found, wanted = (Run.view(f).read_summary()["digest"] for f in (folder, graph))
    assert found == wanted
