"""One recipe of every kind of stage, each from the last policy's weights, killed and resumed."""

from pathlib import Path

import pytest
from processes import Start, turned

from practicum.core import EFFECTS, Episode
from practicum.engines.trainer import LocalTrainer, TrainerSettings
from practicum.learn.reward_model import rewards
from practicum.models.render import Renderer
from practicum.store import Run

pytestmark = pytest.mark.slow
STAGES = ("sft", "preference", "rl", "critic", "distil", "taught")
JUDGE = "reward-model"
FP32 = TrainerSettings(dtype="float32")


@pytest.fixture(scope="module")
def graph(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph") / "run"
    turned(start(folder, "graph.toml"))
    return folder


def sampled_with(episodes: list[Episode]) -> set[str]:
    return {t.record.digest for e in episodes for t in e.turns if t.record}


def test_every_stage_moves_the_weights_of_the_policy_before(graph: Path) -> None:
    run = Run.view(graph)
    digests = {line["name"]: line["digest"] for line in run.journal("stage")}
    assert tuple(digests) == STAGES
    assert len(set(digests.values())) == len(STAGES)
    for stage, digest in digests.items():
        assert sampled_with(run.read_eval(stage)[:1]) == {digest}
    assert run.read_summary()["digest"] == digests["taught"]
    before = dict(zip(STAGES[1:-1], STAGES, strict=False)) | {JUDGE: "preference", "distil": "sft"}
    for stage, source in before.items():
        assert sampled_with(run.read_episodes(stage, 0)) == {digests[source]}, stage


def test_a_reward_model_is_a_part_of_the_scores_and_no_policy(graph: Path) -> None:
    run = Run.view(graph)
    (line,) = run.journal("reward_model")
    assert JUDGE not in run.evals()
    judge = LocalTrainer(graph / "models" / JUDGE, FP32, value_head=True)
    assert judge.value_head is not None
    assert judge.value_head.any()
    end = Renderer.for_folder(graph / "models" / JUDGE).end_id
    for step in run.episode_steps("rl"):
        episodes = run.read_episodes("rl", step)
        said = rewards(judge, episodes, end)
        for episode, reward in zip(episodes, said, strict=True):
            assert episode.score is not None
            assert reward is not None
            (part,) = [p for p in episode.score.parts if p.name == "reward_model"]
            assert part.evidence == f"reward model {line['digest']}: {reward:.4g}"
            assert (part.kind, part.weight) == ("process", 0.1)
    plain = run.read_episodes("critic", 0)
    parts = [part for e in plain if e.score for part in e.score.parts]
    assert parts
    assert not any(part.name == "reward_model" for part in parts)


def test_a_batch_holds_what_the_recipe_says(graph: Path) -> None:
    run = Run.view(graph)
    start = LocalTrainer(graph / "models" / "preference", FP32)
    compared = 0
    for step in run.batch_steps("rl"):
        batch = run.read_batch("rl", step)
        shown = [s for s in batch if any(s.ce_weight)]
        practised = [s for s in batch if any(s.rl_weight)]
        assert len(shown) == 2
        assert len(shown) + len(practised) == len(batch)
        for found, wanted in zip(practised, start.score(practised), strict=True):
            assert found.reference == pytest.approx(wanted.reference, abs=1e-4)
        compared += len(practised)
    assert compared
    for step in run.batch_steps("critic"):
        batch = run.read_batch("critic", step)
        assert len(batch) == 6
        assert all(s.values and s.returns for s in batch)
    heads = [path.parent.name for path in (graph / "models").glob("*/value_head.safetensors")]
    assert sorted(heads) == ["critic", JUDGE]


def test_what_was_distilled_is_what_the_teacher_thinks_of_it(graph: Path) -> None:
    samples = Run.view(graph).read_batch("distil", 0)
    assert samples
    for sample in samples:
        for t, weight in enumerate(sample.rl_weight):
            wanted = sample.reference[t] - sample.logprobs[t] if weight else 0.0
            assert sample.advantage[t] == pytest.approx(wanted, abs=1e-6)
    assert any(any(sample.advantage) for sample in samples)


def test_a_teacher_plays_in_boxes_and_only_what_it_solved_is_learnt(graph: Path) -> None:
    run = Run.view(graph)
    (rl,) = [line["digest"] for line in run.journal("stage") if line["name"] == "rl"]
    episodes = run.read_episodes("taught-demonstrations", 0)
    assert len(episodes) == 4 * (6 + 4)
    assert sampled_with(episodes) == {rl}
    solved = [e for e in episodes[: 4 * 6] if e.solved]
    assert 0 < len(solved) < 4 * 6
    assert all(EFFECTS[e.outcome].reusable for e in solved)
    steps = [line for line in run.metrics("taught") if "seconds" in line]
    learnt = sum(line["ce_tokens"] for line in steps[: -(-len(solved) // 4)])
    assert learnt == sum(e.sampled_tokens for e in solved)


def test_a_kill_in_each_stage_changes_nothing(graph: Path, start: Start, tmp_path: Path) -> None:
    """Of whole processes; `test_resume` has many more moments in one."""
    folder = tmp_path / "run"
    for moment in (f"{JUDGE} 0", "critic 0"):
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
