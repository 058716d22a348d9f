"""A judge against a real endpoint: strict form, quoted data, junk first, failures unscored."""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.core import GraderError, Score, ScorePart
from practicum.rewards.judge import Judge, Rubric, endpoint, parse, prompt, with_opinion

RUBRIC = Rubric("Is the text a greeting in at least two words?", most=2)


@contextmanager
def server(answer: Callable[[str], tuple[int, str]]) -> Iterator[tuple[str, list[dict]]]:
    """An OpenAI-compatible endpoint that answers by a rule; the requests that it got."""
    seen: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append({"path": self.path, "key": self.headers.get("Authorization"), **body})
            status, said = answer(body["messages"][0]["content"])
            data = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/v1", seen
        running.shutdown()


def quoted(text: str) -> str:
    found = re.search(r"BEGIN (\w+)\n(.*)\nEND \1", text.split("instruction.")[1], re.DOTALL)
    assert found
    return found.group(2)


def sound(text: str) -> tuple[int, str]:
    """Two points for hello and a name, one for hello alone."""
    said = re.fullmatch(r"hello( \w+)?", quoted(text))
    verdict = 0 if not said else 2 if said.group(1) else 1
    return 200, json.dumps({"reason": "by rule", "verdict": verdict})


def judge(url: str, **options: float) -> Judge:
    return Judge(endpoint(url, "m", seconds=2), RUBRIC, model="m", **options)


async def test_a_verdict_becomes_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with server(sound) as (url, seen):
        asked = judge(url)
        parts = [await asked.part(text) for text in ("hello ann", "hello", "bye")]
    assert [part.value for part in parts] == [1.0, 0.5, 0.0]
    assert parts[0].evidence == "m: 2 of 2"
    assert seen[0]["path"] == "/v1/chat/completions"
    assert seen[0]["key"] == "Bearer secret"
    assert seen[0]["temperature"] == 0
    vetting = len(seen) - 3
    assert vetting > 10  # once, before the first


@pytest.mark.parametrize("liked", ["Solution", ":", ""])
async def test_a_judge_that_likes_junk_scores_nothing(liked: str) -> None:
    def fooled(text: str) -> tuple[int, str]:
        return (200, '{"verdict": 2}') if quoted(text) == liked else sound(text)

    with server(fooled) as (url, seen):
        asked = judge(url)
        with pytest.raises(GraderError, match="does not give junk the lowest verdict"):
            await asked.part("hello ann")
        before = len(seen)
        with pytest.raises(GraderError, match="does not give junk the lowest verdict"):
            await asked.part("hello ann")
        assert len(seen) == before  # it is not asked again


@pytest.mark.parametrize("answer", ["Looks great! 2/2", "<html>log in</html>", ""])
async def test_a_judge_without_verdicts_on_junk_scores_nothing(answer: str) -> None:
    def loose(text: str) -> tuple[int, str]:
        return (200, '{"verdict": 2}') if quoted(text) == "hello ann" else (200, answer)

    with server(loose) as (url, _), pytest.raises(GraderError, match="no verdict"):
        await judge(url).part("hello ann")


async def test_an_opinion_is_an_outcome_only_where_no_program_can_check() -> None:
    with server(sound) as (url, seen):
        asked = judge(url)
        with pytest.raises(ValueError, match="a program checks this task"):
            await asked.part("hello ann", kind="outcome", weight=1.0)
        assert not seen
        part = await asked.part("hello ann", kind="outcome", weight=1.0, program_checkable=False)
    assert Score.of(part).solved


def test_a_judge_whose_vetting_was_cut_short_is_vetted_again() -> None:
    started: list[int] = []

    async def ask(text: str) -> str:
        if not started:
            started.append(1)
            await asyncio.sleep(30)
        return sound(text)[1]

    asked = Judge(ask, RUBRIC, model="m")

    async def given_up() -> None:
        waiting = asyncio.ensure_future(asked.part("hello ann"))
        await asyncio.sleep(0.05)
        waiting.cancel()

    asyncio.run(given_up())
    assert asyncio.run(asked.part("hello ann")).value == 1.0


async def test_many_parts_wait_for_one_vetting() -> None:
    with server(sound) as (url, seen):
        asked = judge(url)
        parts = await asyncio.gather(*(asked.part("hello ann") for _ in range(4)))
    assert [part.value for part in parts] == [1.0] * 4
    assert len(seen) == len(RUBRIC.junk) + 4


async def test_no_text_can_make_its_own_verdict_fail() -> None:
    longest = 0

    async def ask(text: str) -> str:
        nonlocal longest
        longest = max(longest, len(text.encode()))
        return sound(text)[1]

    asked = Judge(ask, RUBRIC, model="m")
    for text in ("bye \ud800", "x" * 5_000_000):
        assert (await asked.part(text)).value == 0.0
    assert longest < 30_000


@pytest.mark.parametrize(
    "broken",
    [
        (200, "Sure! I would say 2."),
        (200, '{"verdict": 3}'),
        (200, '{"verdict": true}'),
        (200, '{"verdict": "2"}'),
        (200, '{"verdict": 0, "verdict": 2}'),
        (200, ""),
        (500, "{}"),
        (401, "{}"),
    ],
)
async def test_whatever_goes_wrong_is_unscored_and_never_zero(broken: tuple[int, str]) -> None:
    def later(text: str) -> tuple[int, str]:
        return broken if quoted(text) == "hello ann" else sound(text)

    with server(later) as (url, _):
        part = await judge(url).part("hello ann", kind="process", weight=0.2)
    assert part.value is None
    assert part.evidence
    assert Score.of(ScorePart("tests", 1.0), part, steps=1).value is None


async def test_a_busy_endpoint_is_asked_again() -> None:
    failures = iter([503, 429])

    def busy(text: str) -> tuple[int, str]:
        status = next(failures, 200) if quoted(text) == "hello ann" else 200
        return (status, sound(text)[1])

    with server(busy) as (url, _):
        assert (await judge(url).part("hello ann")).value == 1.0


async def test_a_wait_is_bounded() -> None:
    async def never(text: str) -> str:
        if quoted(text) == "hello ann":
            await asyncio.sleep(60)
        return sound(text)[1]

    part = await Judge(never, RUBRIC, model="m", seconds=0.1).part("hello ann")
    assert part.value is None
    assert "TimeoutError" in part.evidence


async def test_an_endpoint_that_is_not_there_leaves_the_part_unscored() -> None:
    asked = Judge(endpoint("http://127.0.0.1:9/v1", "m", tries=1), RUBRIC, model="m")
    part = await asked.part("hello ann", kind="process", weight=0.1)
    assert part.value is None
    assert "ConnectError" in part.evidence


@given(st.text())
def test_no_text_closes_its_quote(text: str) -> None:
    shown = prompt(RUBRIC, text)
    assert quoted(shown) == text
    (mark,) = set(re.findall(r"BEGIN (\w{16})\n", shown)) - set(re.findall(r"\w{16}", text))
    assert mark != re.findall(r"BEGIN (\w{16})\n", prompt(RUBRIC, text))[0]


@given(st.text() | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_an_answer_is_a_verdict_or_a_value_error(answer: str) -> None:
    try:
        verdict = parse(answer, 2)
    except ValueError:
        return
    assert verdict in (0, 1, 2)


def test_an_opinion_is_no_outcome_where_a_program_checks() -> None:
    score = Score.of(ScorePart("tests", 1.0), steps=1)
    with pytest.raises(ValueError, match="a program checks this task"):
        with_opinion(score, ScorePart("judge", 1.0))
    shaped = with_opinion(score, ScorePart("judge", 0.5, 0.2, "process"))
    assert shaped.value == pytest.approx(1.1 / 1.2)
