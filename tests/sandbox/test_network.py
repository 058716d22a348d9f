"""What a box may reach: nothing, itself, or the hosts that its task names."""

import asyncio
import http.server
import socketserver
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from practicum.core import Limits, SandboxError
from practicum.sandbox import BubblewrapBoxes, NativeBoxes, Sandbox

FETCH = """
import sys, urllib.request
try:
    print(urllib.request.urlopen(urllib.request.Request(sys.argv[1], data=b"asked"), timeout=9)
          .read().decode())
except Exception as error:
    print(type(error).__name__, error)
"""
TUNNEL = """
import socket, sys
with socket.create_connection(("127.0.0.1", 3128)) as way:
    way.sendall(b"CONNECT " + sys.argv[1].encode() + b" HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    print(way.recv(999).split(b"\\r\\n")[0].decode())
    way.sendall(b"POST / HTTP/1.0\\r\\nContent-Length: 4\\r\\n\\r\\nfour")
    print(way.makefile("rb").read().split(b"\\r\\n\\r\\n")[-1].decode())
"""
CONNECT = "import socket; socket.create_connection(('127.0.0.1', %d), 2); print('OPEN')"
OWN = """
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=lambda: server.accept()[0].sendall(b"hello"), daemon=True).start()
print(socket.create_connection(server.getsockname()).recv(9))
"""


class Echo(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = f"{self.path} {self.headers.get('Proxy-Connection')} {body.decode()}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture
async def native(native_built: None) -> AsyncIterator[NativeBoxes]:
    boxes = NativeBoxes()
    yield boxes
    await boxes.close()


async def fetch(box: Sandbox, url: str) -> str:
    # localhost is not asked of a proxy, as everywhere
    env = {"no_proxy": "", "NO_PROXY": ""}
    return (await box.run(["python3", "-c", FETCH, url], env=env)).stdout.decode().strip()


async def test_without_a_network_not_even_the_own_loopback_is_there(native: NativeBoxes) -> None:
    async with await native.open() as box:
        result = await box.run(["python3", "-c", OWN])
    assert b"hello" not in result.stdout
    assert b"unreachable" in result.stderr


async def test_with_a_loopback_a_server_of_its_own_works_and_the_hosts_does_not(
    native: NativeBoxes, port: int
) -> None:
    async with await native.open(limits=Limits(network=("loopback",))) as box:
        assert (await box.run(["python3", "-c", OWN])).stdout == b"b'hello'\n"
        assert b"OPEN" not in (await box.run(["python3", "-c", CONNECT % port])).stdout


async def test_a_host_that_is_named_is_reached_and_every_request_is_on_record(
    native: NativeBoxes, port: int
) -> None:
    async with await native.open(limits=Limits(network=(f"localhost:{port}",))) as box:
        assert await fetch(box, f"http://localhost:{port}/a?b=c") == "/a?b=c None asked"
        tunnel = await box.run(["python3", "-c", TUNNEL, f"LOCALHOST:{port}"])
        assert tunnel.stdout.decode() == "HTTP/1.1 200 Connection established\n/ None four\n"
        assert "403" in await fetch(box, f"http://127.0.0.1:{port}/")
        assert "403" in await fetch(box, f"http://localhost:{port + 1}/")
        assert b"OPEN" not in (await box.run(["python3", "-c", CONNECT % port])).stdout
        asked = box.requests()
        assert [(r.method, r.host, r.port - port, r.allowed) for r in asked] == [
            ("POST", "localhost", 0, True),
            ("CONNECT", "localhost", 0, True),
            ("POST", "127.0.0.1", 0, False),
            ("POST", "localhost", 1, False),
        ]
        assert asked[0].sent > 5
        assert asked[0].received > 16
        assert box.requests() == []


async def test_a_fork_reaches_the_same_and_a_server_that_is_down_is_said(
    native: NativeBoxes,
) -> None:
    limits = Limits(network=("localhost:9",))
    async with await native.open(limits=limits) as box:
        (child,) = await box.fork(1)
        for each in (box, child):
            assert "502" in await fetch(each, "http://localhost:9/")
            (asked,) = each.requests()
            assert asked.allowed
            assert "refused" in asked.error.lower() or "Connect call failed" in asked.error


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET file:///etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT localhost HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT a:99999 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01" + bytes(300),
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000,
    ],
)
async def test_nonsense_does_not_hold_the_proxy(
    native: NativeBoxes, port: int, said: bytes
) -> None:
    code = f"""
import socket
with socket.create_connection(("127.0.0.1", 3128)) as way:
    try:
        way.sendall({said!r})
        way.shutdown(1)
        while way.recv(999):
            pass
    except OSError:
        pass
"""
    async with await native.open(limits=Limits(network=(f"localhost:{port}",))) as box:
        result = await box.run(["python3", "-c", code], seconds=20)
        assert (result.exit_code, result.stderr) == (0, b"")
        assert await fetch(box, f"http://localhost:{port}/on") == "/on None asked"
        assert [asked.allowed for asked in box.requests()][-1]


async def test_closing_a_box_ends_its_connections(native: NativeBoxes, port: int) -> None:
    hold = "import socket,time; s=socket.create_connection(('127.0.0.1',3128)); time.sleep(60)"
    box = await native.open(limits=Limits(network=(f"localhost:{port}",)))
    task = asyncio.create_task(box.run(["python3", "-c", hold], seconds=60))
    await asyncio.sleep(0.3)
    await asyncio.wait_for(box.close(), 5)
    with pytest.raises(SandboxError, match="closed"):
        await task


@pytest.mark.parametrize("word", ["pypi.org", ":80", "a:b", "a:0", "a:70000", ""])
async def test_a_word_that_names_no_place_is_refused(native: NativeBoxes, word: str) -> None:
    with pytest.raises(SandboxError, match="host:port"):
        await native.open(limits=Limits(network=(word,)))


async def test_bubblewrap_refuses_what_it_cannot_do() -> None:
    boxes = BubblewrapBoxes()
    with pytest.raises(SandboxError, match="native boxes"):
        await boxes.open(limits=Limits(network=("localhost:9",)))
    await boxes.close()


async def test_boxes_without_a_network_share_nothing_though_namespaces_are_used_again(
    native: NativeBoxes,
) -> None:
    listen = "import socket, time; s = socket.socket(socket.AF_UNIX); s.bind('\\0here'); s.listen()"
    look = "readlink /proc/self/ns/net; grep -c here /proc/net/unix"
    first = await native.open()
    task = asyncio.create_task(first.run(["python3", "-c", f"{listen}; time.sleep(60)"]))
    await asyncio.sleep(0.5)
    seen = []
    for _ in range(4):
        async with await native.open() as other:
            net, count = (await other.run(["sh", "-c", look])).stdout.split()
            seen.append(net)
            assert count == b"0"
    assert len(set(seen)) < 4  # or this test shows nothing
    await first.close()
    with pytest.raises(SandboxError):
        await task
    for _ in range(3):
        async with await native.open() as other:
            assert (await other.run(["sh", "-c", look])).stdout.split()[1] == b"0"


async def test_a_box_cannot_fill_our_memory_with_refusals(native: NativeBoxes) -> None:
    code = """
import socket
for number in range(1200):
    with socket.create_connection(("127.0.0.1", 3128)) as way:
        place = b"x" * 5000 + b":%d" % (number + 1)
        way.sendall(b"CONNECT " + place + b" HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        way.recv(99)
"""
    async with await native.open(limits=Limits(network=("localhost:9",))) as box:
        assert (await box.run(["python3", "-c", code], seconds=60)).exit_code == 0
        asked = box.requests()
    assert len(asked) == 1000
    assert max(len(request.host) for request in asked) == 253


async def test_a_connection_that_moves_one_way_is_not_idle(
    native: NativeBoxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("practicum.sandbox.network._IDLE_SECONDS", 0.4)

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
        for _ in range(12):
            writer.write(b"drop")
            await writer.drain()
            await asyncio.sleep(0.1)
        writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with await native.open(limits=Limits(network=(f"127.0.0.1:{port}",))) as box:
        assert await fetch(box, f"http://127.0.0.1:{port}/") == "drop" * 12
        (asked,) = box.requests()
        assert asked.error == ""
    server.close()
