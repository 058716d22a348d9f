"""A planted domain that can be gamed is found out and put in quarantine; training goes on."""

from pathlib import Path

import pytest
from processes import Start, turned

from practicum.core import Episode, Outcome
from practicum.store import Run
from practicum.web.report import render

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def watched(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched") / "run"
    turned(start(folder, "watched.toml"))
    return folder


def played(run: Run) -> list[list[Episode]]:
    return [run.read_episodes("rl", step) for step in run.episode_steps("rl")]


def test_the_planted_domain_is_quarantined_and_the_other_is_not(watched: Path) -> None:
    run = Run.view(watched)
    (found,) = [line for line in run.journal("finding") if line["check"] == "canary"]
    assert found["detail"].startswith("open_door: ")
    assert "an impossible task earned 1" in found["detail"]
    steps = played(run)
    assert len(steps) == 5
    assert "open_door" in {e.domain for e in steps[found["step"]]}
    for later in steps[found["step"] + 1 :]:
        assert {e.domain for e in later} == {"echo_word"}
    assert any(e.solved for later in steps[found["step"] + 1 :] for e in later)


def test_nothing_of_it_is_trained_on_once_it_is_known(watched: Path) -> None:
    run = Run.view(watched)
    (found,) = [line for line in run.journal("finding") if line["check"] == "canary"]
    by_id = {e.id: e for step in played(run) for e in step}
    trained = 0
    for step in run.batch_steps("rl"):
        for sample in run.read_batch("rl", step):
            episode = by_id[sample.episode]
            assert not episode.canary
            if step >= found["step"]:
                assert episode.domain == "echo_word"
                trained += 1
    assert trained


def test_honest_work_on_an_impossible_task_is_no_tampering(watched: Path) -> None:
    episodes = [e for step in played(Run.view(watched)) for e in step if e.canary]
    honest = [e for e in episodes if e.domain == "echo_word"]
    gamed = [e for e in episodes if e.domain == "open_door" and e.outcome is Outcome.TAMPERED]
    assert honest
    assert gamed
    assert all(e.outcome is not Outcome.TAMPERED and e.reward == 0 for e in honest)
    assert all(e.reward == 0 and not e.solved for e in gamed)


def test_the_report_shows_the_finding_and_a_flagged_transcript(watched: Path) -> None:
    run = Run.view(watched)
    page = render(run)
    flagged = next(e for step in played(run) for e in step if e.outcome is Outcome.TAMPERED)
    assert "the domain is in quarantine" in page
    assert f'id="rl-{flagged.task}-{flagged.id}"' in page
    assert "an impossible task earned 1" in page


def test_a_run_that_goes_on_keeps_the_quarantine(
    watched: Path, start: Start, tmp_path: Path
) -> None:
    """Killed after the stage's second step, it ends with the same episodes and weights."""
    process = start(tmp_path / "run", "watched.toml")
    assert process.stdout
    for line in process.stdout:
        if line.startswith("rl 1"):
            process.kill()
            break
    process.communicate()
    turned(start(tmp_path / "run", "watched.toml"))
    whole, again = Run.view(watched), Run.view(tmp_path / "run")
    assert [[e.fingerprint for e in step] for step in played(again)] == [
        [e.fingerprint for e in step] for step in played(whole)
    ]
    assert again.read_summary()["digest"] == whole.read_summary()["digest"]
