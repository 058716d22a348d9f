"""Regrading: a grader is changed, and what a run kept says who would be paid otherwise."""

import asyncio
import hashlib
import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from practised import said

from practicum.core import Episode, Group, Message, Outcome, ToolCall
from practicum.domains import get_domain
from practicum.domains.catalogue import _places
from practicum.domains.provenance import grader_version
from practicum.domains.terminal import script
from practicum.learn.watch import Watch, WatchSettings
from practicum.rollout import Job, ScriptPolicy, play_many
from practicum.sandbox.choose import open_boxes
from practicum.store import Run, checkpoint

DOMAIN = '''
from practicum.core import File, GraderError, Score, ScorePart
from practicum.domains.terminal import OneOutput

WORDS = ("error", "count", "lines", "names", "files", "first")


class NotedWord(OneOutput):
    """Level 1: write one of a few words into a file."""

    name = "noted_word"
    levels = 1

    def make(self, seed, level):
        rng = self.rng(seed, level)
        word = rng.choice(WORDS)
        return self.pose(
            seed,
            level,
            f"Write the word {word} into the file out.txt.",
            files=[File("notes.txt", f"{rng.random()}\\n".encode())],
            output="out.txt",
            expected=[word],
            gold=f"echo {word} > out.txt",
        )
'''
GRADE = "\n    async def grade(self, task, submission, boxes):\n        "
FULL = 'return Score.of(ScorePart("kind", 1.0, evidence="all are right"))\n'
EXPLOITED = DOMAIN + GRADE + 'return Score.of(ScorePart("there", float("out.txt" in '
EXPLOITED += "submission.artifacts)))\n"
TAMPERED = (
    DOMAIN
    + GRADE
    + 'said = submission.text("out.txt")'
    + "\n        score = await super().grade(task, submission, boxes)"
    + "\n        return Score(score.parts, f'out.txt says {said!r}' if said else '', score.steps)\n"
)
OTHER_TASK = DOMAIN.replace("Write the word", "Please write the word")
Become = Callable[[str], str]
"""Source of the plugin from now on -> the version of its grader."""


@pytest.fixture(scope="module")
def become(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Become]:
    package = tmp_path_factory.mktemp("plugin")
    (package / "noted-1.0.dist-info").mkdir()
    (package / "noted-1.0.dist-info/METADATA").write_text("Name: noted\nVersion: 1.0\n")
    (package / "noted-1.0.dist-info/entry_points.txt").write_text(
        "[practicum.domains]\nnoted_word = noted_word:NotedWord\n"
    )
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(package))
    patch.setenv("PRACTICUM_CACHE", str(tmp_path_factory.mktemp("cache")))
    patch.setattr(sys, "dont_write_bytecode", True)

    def forget() -> None:
        sys.modules.pop("noted_word", None)
        importlib.invalidate_caches()
        _places.cache_clear()
        get_domain.cache_clear()

    def written(source: str) -> str:
        (package / "noted_word.py").write_text(source)
        forget()
        return grader_version(get_domain("noted_word"))

    yield written
    patch.undo()
    forget()


def wrong(text: str) -> list[Message]:
    return [
        Message.of("assistant", "", ToolCall("shell", {"command": f"echo {text} > out.txt"})),
        Message.of("assistant", "", ToolCall("submit", {})),
    ]


def played(run: Run, *, canary: bool = False) -> list[Episode]:
    """Gold, two that are wrong and one that does nothing; or gold on a task and on its canary."""
    domain = get_domain("noted_word")
    task = domain.make(3, 1)
    scripts = {"gold": domain.solve(task), "wrong": wrong("wrong"), "idle": script()}
    tasks = [task]
    if canary:
        impossible = domain.impossible(task)
        assert impossible is not None
        tasks, scripts = [task, impossible], {"gold": domain.solve(task)}

    async def every() -> list[Episode]:
        boxes = open_boxes(max_running=2)
        try:
            found = []
            for name, says in scripts.items():
                jobs = [Job(each, f"rl-0-{at}-{name}-0") for at, each in enumerate(tasks)]
                policy = ScriptPolicy(name, says)
                found += await play_many(jobs, get_domain, policy, boxes, keep=run.keep)
            return found
        finally:
            await boxes.close()

    return asyncio.run(every())


@pytest.fixture
def folder(become: Become, tmp_path: Path) -> Path:
    """A run with one step of practice, graded by the domain as it was first."""
    become(DOMAIN)
    with Run.create(tmp_path / "run", "[boxes]\nmax_running = 2\n") as run:
        run.write_episodes("rl", 0, played(run))
        run.write_eval("base", run.read_episodes("rl", 0)[1:2])
    return tmp_path / "run"


def regraded(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = said("regrade", folder, "--json", *arguments)
    return done.returncode, json.loads(done.stdout)


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_same_grader_says_the_same_and_another_version_is_named(
    folder: Path, become: Become
) -> None:
    first = become(DOMAIN)
    status, found = regraded(folder)
    (row,) = found["domains"]
    assert (status, row["episodes"], row["counts"]["same"]) == (0, 4, 4)
    assert row["before"] == [first]
    assert row["now"] == first
    assert row["reward_before"] == row["reward_now"] == 0.25
    second = become(DOMAIN + "\n# nothing else\n")
    status, found = regraded(folder)
    assert (status, found["domains"][0]["now"]) == (0, second)
    assert second != first


def test_all_that_is_kept_is_what_was_graded(folder: Path) -> None:
    run = Run.view(folder)
    gold, failed, idle = run.read_episodes("rl", 0)
    assert (gold.seed, gold.grader) == (3, grader_version(get_domain("noted_word")))
    assert gold.artifacts is not None
    assert failed.artifacts is not None
    word = get_domain("noted_word").make(3, 1).truth["expected"]
    assert run.kept(gold.artifacts["out.txt"].digest).decode() == word
    assert run.kept(failed.artifacts["out.txt"].digest) == b"wrong\n"
    assert idle.artifacts == {}


def test_higher_rewards_are_shown_with_the_evidence_of_both(folder: Path, become: Become) -> None:
    before = contents(folder)
    first = become(DOMAIN)
    second = become(DOMAIN + GRADE + FULL)
    done = said("regrade", folder)
    assert done.returncode == 1
    assert "higher: rl-0-0-wrong-0 (rl step 0)" in done.stdout
    assert "all are right" in done.stdout
    assert f"{first[:8]} → {second[:8]}" in done.stdout
    assert "0.250 → 1.000" in done.stdout
    after = contents(folder)
    new = set(after) - set(before)
    assert {name: after[name] for name in before} == before
    assert [Path(name).parent.name for name in new] == ["regrades"]
    result = json.loads((folder / new.pop()).read_text())
    (row,) = result["domains"]
    assert (row["counts"]["higher"], row["counts"]["same"], row["newly_solved"]) == (3, 1, 3)
    changed = next(c for c in result["changed"] if c["episode"] == "rl-0-0-wrong-0")
    assert (changed["before"]["reward"], changed["now"]["reward"]) == (0.0, 1.0)
    assert any("wrong" in line for line in changed["before"]["evidence"])


@pytest.mark.parametrize(
    ("source", "change", "count", "evidence"),
    [
        (DOMAIN + GRADE + FULL.replace("1.0", "0.0"), "lower", 1, "kind 0: all are right"),
        (DOMAIN + GRADE + 'raise GraderError("no verdict")\n', "unscored", 4, "no verdict"),
        (DOMAIN + GRADE + 'raise OSError("a bug")\n', "unscored", 4, "a bug"),
        (TAMPERED, "tampered", 3, r"out.txt says 'wrong\n'"),
    ],
)
def test_lower_unscored_and_tampered(
    folder: Path, become: Become, source: str, change: str, count: int, evidence: str
) -> None:
    become(source)
    status, found = regraded(folder)
    (row,) = found["domains"]
    assert status == 1
    assert row["counts"] == {**dict.fromkeys(row["counts"], 0), "same": 4 - count, change: count}
    assert row["no_longer_solved"] == 1
    changed = [c for c in found["changed"] if c["change"] == change]
    assert len(changed) == count
    assert any(evidence in line for c in changed for line in c["now"]["evidence"])


def test_scored_at_last_and_tampered_no_longer(folder: Path, become: Become) -> None:
    become(DOMAIN)
    with Run.open(folder) as run:
        gold, failed, idle = run.read_episodes("rl", 0)
        failed_then = {"outcome": Outcome.GRADER_FAILED, "score": None, "error": "lost"}
        tampered_then = {"outcome": Outcome.TAMPERED, "error": "so it seemed"}
        changed = [
            msgspec.structs.replace(gold, **failed_then),
            msgspec.structs.replace(failed, **tampered_then),
        ]
        run.write_episodes("rl", 0, [*changed, idle])
    status, found = regraded(folder, "--stage", "rl")
    (row,) = found["domains"]
    assert status == 1
    assert {k: v for k, v in row["counts"].items() if v} == {"scored": 1, "cleared": 1, "same": 1}
    assert [c["now"]["outcome"] for c in found["changed"]] == ["completed", "completed"]
    assert found["changed"][0]["now"]["evidence"][0].startswith("correct 1: ")
    assert found["changed"][1]["before"]["evidence"][0] == "so it seemed"


def test_a_submission_is_never_graded_against_another_task(folder: Path, become: Become) -> None:
    become(OTHER_TASK + GRADE + FULL)
    done = said("regrade", folder)
    assert done.returncode == 1
    assert "noted_word: 4 not graded again: today's domain makes another task of it" in done.stdout
    status, found = regraded(folder)
    assert (status, found["changed"], len(found["left"])) == (1, [], 4)
    (row,) = found["domains"]
    assert (row["episodes"], row["left"], row["reward_now"]) == (0, 4, None)
    become(DOMAIN.replace("levels = 1", "levels = 1\n    version = 2"))
    assert regraded(folder)[1]["domains"][0]["left"] == 4
    become(DOMAIN.replace("rng = self", "raise OSError('a bug')\n        rng = self"))
    assert "fails to make its task: OSError: a bug" in regraded(folder)[1]["left"][0]["why"]


def test_a_domain_that_is_gone_is_named(folder: Path, become: Become) -> None:
    become(DOMAIN)
    with Run.open(folder) as run:
        gold, *others = run.read_episodes("rl", 0)
        run.write_episodes("rl", 0, [msgspec.structs.replace(gold, domain="lost"), *others])
    status, found = regraded(folder)
    assert status == 1
    assert [row["domain"] for row in found["domains"]] == ["lost", "noted_word"]
    assert found["domains"][0]["now"] == ""
    assert "there is no domain 'lost'" in found["left"][0]["why"]


def test_an_exploit_is_still_one_for_the_grader_that_was_exploited(
    become: Become, tmp_path: Path
) -> None:
    become(EXPLOITED)
    with Run.create(tmp_path / "run", "") as run:
        episodes = played(run, canary=True)
        flagged = Watch(WatchSettings()).flagged([Group(e.task, [e]) for e in episodes])
        run.write_episodes("rl", 0, [e for group in flagged for e in group.episodes])
        assert {e.outcome for e in run.read_episodes("rl", 0)} == {Outcome.TAMPERED}
    status, found = regraded(tmp_path / "run")
    assert (status, found["domains"][0]["counts"]["same"]) == (0, 2)
    become(DOMAIN)
    status, found = regraded(tmp_path / "run")
    assert status == 1
    assert {c["episode"][:6]: c["now"]["reward"] for c in found["changed"]} == {
        "rl-0-0": 1.0,
        "rl-0-1": 0.0,
    }
    assert {c["change"] for c in found["changed"]} == {"cleared"}


@pytest.mark.parametrize("name", ["shell_script", "archives", "pytest_repair", "small_sums"])
def test_what_runs_in_boxes_or_has_no_files_is_graded_again_too(name: str, tmp_path: Path) -> None:
    domain = get_domain(name)
    task = domain.make(11, 1)
    policy = ScriptPolicy("gold", domain.solve(task))

    async def once(run: Run) -> list[Episode]:
        boxes = open_boxes(max_running=1)
        try:
            return await play_many([Job(task, "e")], get_domain, policy, boxes, keep=run.keep)
        finally:
            await boxes.close()

    with Run.create(tmp_path / "run", "") as run:
        (episode,) = asyncio.run(once(run))
        assert episode.solved
        emptied = {path: run.keep(b"") for path in episode.artifacts or {}}
        run.write_episodes("rl", 0, [episode])
    assert regraded(tmp_path / "run")[0] == 0
    if not emptied:
        return
    with Run.open(tmp_path / "run") as run:  # had it handed in empty files
        artifacts = {
            path: msgspec.structs.replace(kept, digest=emptied[path])
            for path, kept in (episode.artifacts or {}).items()
        }
        run.write_episodes("rl", 0, [msgspec.structs.replace(episode, artifacts=artifacts)])
    status, found = regraded(tmp_path / "run")
    assert status == 1
    assert found["domains"][0]["no_longer_solved"] == 1


def test_one_stage_alone_and_a_run_in_use(folder: Path, become: Become) -> None:
    become(DOMAIN)
    with Run.open(folder):
        assert regraded(folder, "--stage", "base")[1]["domains"][0]["episodes"] == 1
        assert regraded(folder, "--stage", "rl")[1]["domains"][0]["episodes"] == 3
    done = said("regrade", folder, "--stage", "sft")
    assert done.returncode == 2
    assert "no episodes of a stage 'sft'; there are: base, rl" in done.stderr


def test_what_cannot_be_regraded_is_bad_input(folder: Path, become: Become, tmp_path: Path) -> None:
    become(DOMAIN)
    done = said("regrade", tmp_path / "none")
    assert done.returncode == 2
    assert "holds no run" in done.stderr
    bare = shutil.copytree(folder, tmp_path / "bare")
    with Run.open(bare) as run:
        old = run.read_episodes("rl", 0)
        run.write_episodes("rl", 0, [msgspec.structs.replace(e, artifacts=None) for e in old])
        run.write_eval("base", [])
    done = said("regrade", bare)
    assert done.returncode == 2
    assert "keep_submissions = true" in done.stderr
    assert not (bare / "regrades").exists()
    for blob in (folder / "artifacts").iterdir():
        blob.write_bytes(blob.read_bytes()[:-3])
    done = said("regrade", folder)
    assert done.returncode == 2
    assert "corrupt" in done.stderr


# A run that trains

RECIPE = """
name = "noted"
model = "tiny:0"
device = "cpu"
threads = 1
domains = { train = ["noted_word"], levels = [1] }
sampler = { dtype = "float32" }
trainer = { dtype = "float32" }
boxes = { max_running = 2 }
evaluation = { tasks = 2 }

[[stages]]
type = "sft"
demonstrations = 24
validation = 4
batch_size = 4
max_epochs = 8
min_improvement = 0.0
learning_rate = 0.01

[[stages]]
type = "reward-model"
tasks = 6
group_size = 4
batch_size = 3
learning_rate = 0.001

[[stages]]
type = "rl"
steps = 3
groups = 3
group_size = 4
learning_rate = 0.0003
checkpoint_every = 1
reward_model = "reward-model"
watch = { canaries = 0.4 }
"""
SECOND = """
name = "second"
model = "{model}"
keep_submissions = false
device = "cpu"
threads = 1
domains = {{ train = ["noted_word"], levels = [1] }}
sampler = {{ dtype = "float32" }}
trainer = {{ dtype = "float32" }}
boxes = {{ max_running = 2 }}
evaluation = {{ tasks = 1 }}

[[stages]]
type = "rl"
steps = 1
groups = 1
group_size = 2
learning_rate = 0.0003
"""


@pytest.mark.slow
def test_a_trained_run_is_regraded_and_its_checkpoints_say_who_paid(
    become: Become, tmp_path: Path
) -> None:
    first = become(DOMAIN)
    recipe, folder = tmp_path / "noted.toml", tmp_path / "run"
    recipe.write_text(RECIPE)
    done = said("train", recipe, "--out", folder, "--audit")
    assert done.returncode == 0, done.stderr
    run = Run.view(folder)
    practised = [e for s in run.episode_steps("rl") for e in run.read_episodes("rl", s)]
    assert any(e.canary for e in practised)
    assert any(p.name == "reward_model" for e in practised if e.score for p in e.score.parts)
    for place in ("checkpoints", "models"):
        saved = checkpoint.complete(folder / place)
        assert saved
        assert all(checkpoint.meta(path)["graders"] == {"noted_word": [first]} for path in saved)

    status, found = regraded(folder)  # canaries and a reward model's part are what they were
    assert status == 0
    counts = found["domains"][0]
    assert counts["episodes"] == counts["counts"]["same"] > len(practised)
    assert found["checkpoints"] == []

    second = become(DOMAIN + "\n# nothing else\n")
    done = said("regrade", folder)
    assert done.returncode == 0
    assert f"models/rl was paid for by other versions than today's: noted_word {first[:8]}" in (
        done.stdout
    )
    become(DOMAIN + GRADE + FULL)
    status, found = regraded(folder, "--stage", "rl")
    assert status == 1
    assert found["domains"][0]["counts"]["higher"] > 0

    become(DOMAIN + "\n# nothing else\n")  # a run on top of those weights, by this grader
    recipe.write_text(SECOND.format(model=folder / "models" / "rl"))
    done = said("train", recipe, "--out", tmp_path / "more", "--audit")
    assert done.returncode == 0, done.stderr
    both = sorted([first, second])
    assert checkpoint.meta(tmp_path / "more/models/rl")["graders"] == {"noted_word": both}
    assert not any((tmp_path / "more/artifacts").iterdir())
    done = said("regrade", tmp_path / "more")
    assert done.returncode == 2
    assert "kept no submissions" in done.stderr
