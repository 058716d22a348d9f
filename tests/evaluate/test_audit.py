from io import StringIO
from pathlib import Path

import flawed
import pytest
from rich.console import Console

from practicum.core import File, SandboxError, Task
from practicum.domains import Domain, get_domain
from practicum.domains.provenance import module_files
from practicum.evaluate import audit as module
from practicum.evaluate.audit import AuditReport, audit, audit_table, faults, is_audited
from practicum.evaluate.provenance import source_hash
from practicum.sandbox import BubblewrapBoxes

SEEDS = (1, 2)


def failed(report: AuditReport) -> set[str]:
    return {check.name for check in report.checks if check.failures}


async def test_a_sound_domain_passes_and_is_remembered(boxes: BubblewrapBoxes) -> None:
    domain = flawed.Sound()
    assert not is_audited(domain)
    report = await audit(domain, boxes, seeds=SEEDS)
    assert faults(report) == []
    assert report.passed
    assert report.tasks == 6
    assert is_audited(domain)


@pytest.mark.parametrize(
    ("domain", "check", "words"),
    [
        (flawed.AnyTextIsRight, "floor", "scored 1, the floor is 0"),
        (flawed.LooksForIt, "floor", "padded answer"),
        (flawed.ParsesAnything, "raises", "ValueError"),
        (flawed.Moody, "twice", "two verdicts"),
        (flawed.WrongGold, "gold", "completed"),
        (flawed.OpenToAttack, "floor", "attack politeness: scored 0.5"),
        (flawed.SetOrder, "bytes", "another process"),
        (flawed.Clock, "bytes", "within one process"),
        (flawed.ShipsTheAnswer, "leaks", "named 'solution'"),
        (flawed.UpsideDown, "order", "asks for less than level 1"),
        (flawed.TooLong, "budget", "gold needs 3 turns of 2"),
    ],
)
async def test_every_flaw_is_found(
    boxes: BubblewrapBoxes, domain: type[Domain], check: str, words: str
) -> None:
    report = await audit(domain(), boxes, seeds=SEEDS)
    assert check in failed(report)
    assert not report.passed
    assert not is_audited(domain())
    assert words in "\n".join(f for c in report.checks if c.name == check for f in c.failures)


@pytest.mark.parametrize("name", ["sort_lines", "json_data"])
async def test_shipped_domains_pass_in_real_boxes(boxes: BubblewrapBoxes, name: str) -> None:
    report = await audit(get_domain(name), boxes, seeds=(5,))
    assert faults(report) == []
    assert is_audited(get_domain(name))


async def test_a_dead_box_is_no_verdict(boxes: BubblewrapBoxes) -> None:
    class Unboxable(flawed.SetOrder):
        name = "unboxable"

        def make(self, seed: int, level: int) -> Task:
            task = super().make(seed, level)
            outside = (File("../outside", b"x"),)
            return self._with(task, tools=("shell", "submit"), files=outside)

    with pytest.raises(SandboxError, match="nothing is proven"):
        await audit(Unboxable(), boxes, seeds=SEEDS)


async def test_changed_source_asks_for_a_new_audit(
    boxes: BubblewrapBoxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from flawed import Sound\n\n\nclass Mine(Sound):\n    name = 'mine'\n"
    (tmp_path / "mine_domain.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    import mine_domain  # type: ignore[import-not-found]

    await audit(mine_domain.Mine(), boxes, seeds=(1,))
    assert is_audited(mine_domain.Mine())
    (tmp_path / "mine_domain.py").write_text(code + "    floor = 0.5\n")
    assert not is_audited(mine_domain.Mine())


def test_the_hash_covers_what_a_domain_imports() -> None:
    domain = get_domain("sort_lines")
    files = module_files(type(domain).__module__)
    for name in ("domains.sort_lines", "domains.terminal", "rewards.compare", "core.score"):
        assert f"practicum.{name}" in files
    assert source_hash(domain) == source_hash(domain)
    assert source_hash(domain) != source_hash(get_domain("json_data"))


async def test_the_table_and_the_faults_can_be_read(boxes: BubblewrapBoxes) -> None:
    reports = [await audit(d(), boxes, seeds=(1,)) for d in (flawed.Sound, flawed.WrongGold)]
    console = Console(width=100, record=True, file=StringIO())
    console.print(audit_table(reports))
    text = console.export_text()
    assert "sound" in text
    assert "✗" in text
    assert any("wrong_gold: gold: level 1 seed 1" in line for line in faults(reports[1]))
    assert len(faults(reports[1])) <= (module._SHOWN + 1) * len(reports[1].checks)
