"""What a box may reach: nothing, its own loopback, or a list of hosts through a proxy out here.

`Limits.network` says which: nothing in it means no interface at all, "loopback" a box's own, and
"host:port" a place that may be asked for, by name, from a proxy at `URL`, which is an HTTP proxy
(CONNECT, and plain http). The socket it listens on belongs to the box's network namespace, from
which no other way leads out; it serves in this process, and keeps a record of all it was asked.
"""

import asyncio
import contextlib
import logging
import socket
import time
from urllib.parse import urlsplit

import h11
import msgspec

from practicum.core import Limits, SandboxError

LOOPBACK = "loopback"
PORT = 3128  # box.c has it too
URL = f"http://127.0.0.1:{PORT}"
ENVIRONMENT = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), URL),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1"),
}
_NONE, _OWN, _PROXY = range(3)  # as box.c numbers them
_HEAD_SECONDS = 30.0
_IDLE_SECONDS = 120.0
_CHUNK = 1 << 16
_AT_ONCE = 32  # connections of one box
_RECORDS = 1000  # requests that are remembered between two looks at them
_LONGEST = 253  # characters of a host's name
_ITS_OWN_DOING = (OSError, TimeoutError, h11.RemoteProtocolError)  # what it sent, that it hung up

_logger = logging.getLogger(__name__)


class Request(msgspec.Struct, frozen=True):
    """One thing that a box asked its proxy for."""

    method: str
    host: str
    port: int
    allowed: bool
    error: str = ""  # why it could not be had, though allowed
    sent: int = 0  # bytes, by the box
    received: int = 0
    seconds: float = 0.0


def network(limits: Limits) -> int:
    """The number by which box.c knows the kind of network. SandboxError for words without sense."""
    hosts = allowed(limits)
    return _PROXY if hosts else _OWN if limits.network else _NONE


def allowed(limits: Limits) -> frozenset[tuple[str, int]]:
    """The hosts and ports in `limits`."""
    found = set()
    for word in limits.network:
        host, _, port = word.rpartition(":")
        if word == LOOPBACK:
            continue
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise SandboxError(
                f"Limits.network has {word!r}: write 'loopback', or 'host:port' such as "
                "'pypi.org:443'"
            )
        found.add((host.lower(), int(port)))
    return frozenset(found)


class Proxy:
    """Serves one box. What is not in `hosts` is refused with 403, and recorded like the rest."""

    def __init__(self, hosts: frozenset[tuple[str, int]]) -> None:
        self.hosts = hosts
        self.requests: list[Request] = []
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket) -> None:
        """Begin to serve on a socket that listens; the one before is served no more."""
        await self.close()
        listener.setblocking(False)
        self._server = await asyncio.start_server(self._connected, sock=listener)

    def _record(self, request: Request) -> None:
        """Keep a request, unless there are too many: a box must not fill our memory."""
        if len(self.requests) < _RECORDS:
            self.requests.append(request)

    async def close(self) -> None:
        """End every connection."""
        server, self._server = self._server, None
        if server:
            server.close()
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._running) >= _AT_ONCE:
            writer.close()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._running.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._running.discard(task)
            writer.close()
            error = None if task.cancelled() else task.exception()
            if error and not isinstance(error, _ITS_OWN_DOING):
                _logger.error("the proxy of a box failed", exc_info=error)

        task.add_done_callback(ended)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, then bytes both ways until one side ends."""
        ours = h11.Connection(h11.SERVER)
        async with asyncio.timeout(_HEAD_SECONDS):
            while (event := ours.next_event()) is h11.NEED_DATA:
                ours.receive_data(await reader.read(_CHUNK))
        if not isinstance(event, h11.Request):
            return
        method, target = event.method.decode(), event.target.decode("ascii")
        host, port, path = _place(method, target)
        if (host, port) not in self.hosts:
            self._record(Request(method, host[:_LONGEST], port, allowed=False))
            writer.write(_answer(403, f"{host}:{port} is not among {sorted(self.hosts)}"))
            await writer.drain()
            return
        begin = time.monotonic()
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                far_reader, far_writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError) as error:
            said = f"{type(error).__name__}: {error}"
            self._record(Request(method, host, port, allowed=True, error=said))
            writer.write(_answer(502, said))
            await writer.drain()
            return
        first = ours.trailing_data[0]
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            first = _head(event, method, path) + first
        there, back = _Flow(reader, far_writer, first), _Flow(far_reader, writer)
        there.other, back.other = back, there
        copies = [asyncio.create_task(flow.copy()) for flow in (there, back)]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)
            far_writer.close()
            failed = [c.exception() for c in copies if not c.cancelled() and c.exception()]
            ended = f"{type(failed[0]).__name__}: {failed[0]}" if failed else ""
            spent = time.monotonic() - begin
            sizes = there.size, back.size
            self._record(Request(method, host, port, True, ended, *sizes, seconds=spent))


def _place(method: str, target: str) -> tuple[str, int, str]:
    """Host, port and path of what a proxy is asked for; an empty host where it is not clear."""
    try:
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        port = parts.port or 80
    except ValueError:
        return "", 0, ""
    path = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
    known = method == "CONNECT" or parts.scheme == "http"
    return (parts.hostname or "").lower() if known else "", port, path


def _head(request: h11.Request, method: str, path: str) -> bytes:
    """The request as the server itself expects it; one on a connection, so that each is judged."""
    lines = [f"{method} {path} HTTP/1.1".encode()]
    for name, value in request.headers:
        if not name.startswith(b"proxy-") and name not in (b"connection", b"keep-alive"):
            lines.append(name + b": " + value)
    return b"\r\n".join([*lines, b"connection: close", b"", b""])


def _answer(status: int, text: str) -> bytes:
    body = f"{text}\n".encode()
    head = f"HTTP/1.1 {status} Practicum\r\ncontent-type: text/plain\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


class _Flow:
    """Bytes from one side to the other, counted."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes = b""
    ) -> None:
        self.reader, self.writer, self.size = reader, writer, len(first)
        self.moved = time.monotonic()
        self.other = self
        writer.write(first)

    async def copy(self) -> None:
        """Until the end, or until nothing has moved for long, neither way."""
        while True:
            try:
                async with asyncio.timeout(_IDLE_SECONDS):
                    chunk = await self.reader.read(_CHUNK)
            except TimeoutError:
                if time.monotonic() - self.other.moved < _IDLE_SECONDS:
                    continue
                raise
            if not chunk:
                break
            self.size += len(chunk)
            self.moved = time.monotonic()
            self.writer.write(chunk)
            async with asyncio.timeout(_IDLE_SECONDS):
                await self.writer.drain()
        with contextlib.suppress(OSError):
            self.writer.write_eof()
