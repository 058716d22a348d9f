"""A policy behind a chat endpoint: what is sent, what is read back, and what is our failure."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from practicum.core import EngineError, Message, Outcome, Stop, ToolCall
from practicum.domains import get_domain
from practicum.engines.chat import ChatPolicy, wire_messages
from practicum.rollout import play
from practicum.sandbox import BubblewrapBoxes


def answer(*calls: tuple[str, str], content: str = "", finish: str = "stop") -> dict:
    entries = [
        {"id": str(i), "type": "function", "function": {"name": name, "arguments": text}}
        for i, (name, text) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": content or None, "tool_calls": entries or None}
    return {"choices": [{"message": message, "finish_reason": finish}]}


@contextmanager
def endpoint(*answers: dict | int) -> Iterator[tuple[str, list[dict]]]:
    """A real HTTP server that gives these answers in turn (a number is a status)."""
    requests: list[dict] = []
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            reply = left.pop(0)
            body = json.dumps(reply).encode()
            self.send_response(reply if isinstance(reply, int) else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", requests
    finally:
        server.shutdown()
        server.server_close()


async def test_an_episode_is_played_through_a_chat_endpoint() -> None:
    domain = get_domain("sort_lines")
    task = domain.make(1, 1)
    command = json.dumps({"command": task.truth["gold"][0]})
    boxes = BubblewrapBoxes()
    with endpoint(answer(("shell", command)), answer(("submit", ""))) as (url, requests):
        episode = await play(task, domain, ChatPolicy(url, "m"), boxes, key="k")
    await boxes.close()
    assert episode.outcome is Outcome.COMPLETED
    assert episode.solved
    assert [turn.record for turn in episode.turns] == [None, None]
    assert {t["function"]["name"] for t in requests[0]["tools"]} == set(task.tools)
    call, result = requests[1]["messages"][1:]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]


async def test_arguments_that_are_no_object_are_an_error_and_never_run() -> None:
    with endpoint(answer(("shell", "[1]"), ("shell", "{oops"), finish="length")) as (url, _):
        turn = await ChatPolicy(url, "m").respond([Message.of("user", "hi")], [])
    assert turn.stop is Stop.LENGTH
    assert all(call.error for call in turn.message.calls)


@pytest.mark.parametrize("reply", [500, {"choices": []}, {"wrong": 1}])
async def test_a_failing_endpoint_is_an_engine_error(reply: dict | int) -> None:
    with endpoint(reply) as (url, _), pytest.raises(EngineError, match="answer"):
        await ChatPolicy(url, "m").respond([Message.of("user", "hi")], [])


async def test_an_endpoint_that_is_not_there_says_so() -> None:
    with endpoint() as (url, _):
        pass
    with pytest.raises(EngineError, match="cannot reach"):
        await ChatPolicy(url, "m", timeout=5).respond([Message.of("user", "hi")], [])


def test_results_are_matched_to_calls_in_order() -> None:
    wire = wire_messages(
        [
            Message.of("user", "go"),
            Message.of("assistant", "", ToolCall("a"), ToolCall("b")),
            Message.of("tool", "1", name="a"),
            Message.of("tool", "2", name="b"),
        ]
    )
    assert [m["tool_call_id"] for m in wire[2:]] == [c["id"] for c in wire[1]["tool_calls"]]
