import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from example_run import HOSTILE, make_run
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.core import Episode
from practicum.store import Run
from practicum.web import chart
from practicum.web.report import render, write_report
from practicum.web.transcript import chosen, shown, verdict

CHROMIUM = "/usr/bin/chromium"


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "terminal-practice")


def test_the_page_needs_nothing_else_and_is_written_while_the_run_is_held(run_folder: Path) -> None:
    with Run.open(run_folder):
        path = write_report(run_folder)
    page = path.read_text()
    assert path == run_folder / "report.html"
    assert "http://" not in page
    assert "https://" not in page
    assert 'src="' not in page
    for text in ("RL beats SFT.", "Held-out domains, never trained on", "csv_columns", "rl"):
        assert text in page


def test_hostile_text_stays_text(run_folder: Path) -> None:
    page = render(Run.view(run_folder))
    assert page.count("<script") == 1
    assert "<img" not in page
    assert "{{ 7 * 7 }}" in page  # shown, not evaluated
    assert "\u202e" not in page
    assert "\x00" not in page
    assert HOSTILE not in page


def test_a_run_without_evaluations_or_steps_still_has_a_page(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", "seed = 1") as run:
        assert "No evaluation has been written yet" in render(run)
        run.metric("sft", 1, loss=2.0)
        assert "<polyline" in render(run)
        run.write_eval("base", [])
        assert "No evaluation has been written yet" in render(run)


def test_the_same_run_shows_the_same_episodes(run_folder: Path) -> None:
    episodes = Run.view(run_folder).read_eval("sft")
    first = chosen(episodes)
    assert [e.id for e in chosen(episodes[::-1])] == [e.id for e in first]
    kinds = [verdict(e) for e in first]
    assert kinds.count("failed") == kinds.count("solved") == 6
    assert len({e.domain for e in first if verdict(e) == "failed"}) == 6  # spread over domains


@settings(deadline=None)
@given(st.text(), st.integers(10, 60))
def test_shown_text_is_bounded_and_harmless(text: str, cap: int) -> None:
    found = shown(text, cap)
    assert len(found) <= 6 * (cap + 60)
    assert not set(found) & {"\x00", "\x1b", "\x7f", "\u202e", "\u2066"}


@settings(deadline=None)
@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=40))
def test_charts_stay_within_their_frame(values: list[float]) -> None:
    found = chart.line_chart("t", "t", range(len(values)), values)
    for point in found.line.split():
        x, y = map(float, point.split(","))
        assert chart.LEFT <= x <= chart.WIDTH - chart.RIGHT
        assert chart.TOP - 0.1 <= y <= chart.HEIGHT - chart.BOTTOM + 0.1
    assert 2 <= len(found.y_ticks) <= 8


@pytest.fixture
def page(run_folder: Path) -> Iterator:
    if not os.path.exists(CHROMIUM):
        pytest.skip("no chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    flags = ["--disable-gpu", "--disable-quic", "--disable-background-networking"]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        tab = browser.new_page(viewport={"width": 1200, "height": 900})
        tab.complaints = []
        tab.on("console", lambda m: tab.complaints.append(m.text) if m.type == "error" else None)
        tab.on("pageerror", lambda e: tab.complaints.append(str(e)))
        tab.on("request", lambda r: r.url.startswith("file:") or tab.complaints.append(r.url))
        tab.goto(write_report(run_folder).as_uri())
        yield tab
        browser.close()


def test_in_a_browser_it_reads_by_keyboard_without_an_error(page, run_folder: Path) -> None:
    first = page.locator("details.transcript").first
    observation = first.locator(".observation pre").first
    assert not observation.is_visible()
    first.locator("summary").focus()
    page.keyboard.press("Enter")
    assert "document.title='owned'" in observation.inner_text()
    page.select_option("#verdict", "solved")
    assert not first.is_visible()
    chart_ = page.locator("svg[data-points]").first
    chart_.focus()
    page.keyboard.press("Home")
    assert page.locator("figure .value").first.inner_text().startswith("step 1: ")
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.title() == f"{run_folder.name} · Practicum report"
    assert page.complaints == []


def test_a_link_to_a_transcript_opens_it(page, run_folder: Path) -> None:
    shown_first: Episode = chosen(Run.view(run_folder).read_eval("rl"))[0]
    anchor = f"rl-{shown_first.task}-{shown_first.id}"
    page.evaluate("hash => { location.hash = hash }", anchor)
    page.wait_for_selector(f'[id="{anchor}"][open]')
    assert page.complaints == []
