"""A fake of the page's server: the same interface, generated data, no broker.

It speaks just enough HTTP and WebSocket for a browser, with the standard library. It runs in a
thread of the tests, or alone for work on the page:

    python -m tests.web.page_server --port 8123
"""

import argparse
import asyncio
import base64
import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from tests.web import page_data

PAGE: Final = Path(__file__).resolve().parents[2] / "src" / "semel" / "web" / "page"
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
CSRF: Final = "a token"
_MAGIC: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

Values = dict[str, Any]


class PageStandIn:
    """The fake server. Its attributes may be changed while it runs."""

    def __init__(self, *, client_count: int = 1_000, hostile: bool = True) -> None:
        topics = list(page_data.plant_topics())
        if hostile:
            topics += list(page_data.hostile_topics())
        self.tree = page_data.Tree(topics)
        self.client_count = client_count
        self.needs_login = False
        self.is_logged_in = False
        self.role = "admin"
        self.landed = True
        # Why there is no record, if there is none.
        self.without_record: str | None = None
        # False: connections are closed and new ones refused, as by a server that has ended.
        self.is_up = True
        # Changes each sample before it is sent.
        self.change_sample: Callable[[Values], Values] = lambda sample: sample
        # True: connections stay open, and nothing is sent.
        self.is_silent = False
        self.version = "0.9"
        # What the page has posted or sent, in order.
        self.requests: list[tuple[str, Any]] = []
        self.now: float | None = None
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def time(self) -> float:
        return time.time() if self.now is None else self.now

    # --- running ----------------------------------------------------------------------------------

    async def serve(self, port: int = 0) -> None:
        """Serve until `stop` is called."""
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", port, limit=1 << 22)
        self.port = server.sockets[0].getsockname()[1]
        await self._ended.wait()
        # asyncio leaves a connection open that it accepts while its server is closed: so what was
        # accepted a moment ago begins and ends first.
        self.is_up = False
        for _ in range(3):
            await asyncio.sleep(0.01)
            self._close_all()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        server.close()

    def start(self) -> "PageStandIn":
        """Serve in a thread of its own."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self.serve()), daemon=True)
        self._thread.start()
        while not self.port:
            time.sleep(0.01)
        return self

    def stop(self) -> None:
        """End all connections and the thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(5)

    def cut(self) -> None:
        """Close all connections and refuse new ones, until `is_up` is set."""
        self.is_up = False
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._close_all)

    def _close_all(self) -> None:
        # Not closed in order: a browser that has gone would never read what is left to send.
        for writer in self._writers:
            writer.transport.abort()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    # --- HTTP -------------------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._serve_one(reader, writer)
                writer.close()
                await writer.wait_closed()
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ", 2)
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        if not self.is_up:
            return
        if urlsplit(target).path == "/api/live":
            await self._live(reader, writer, headers)
            return
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        status, content_type, content = self._answer(method, target, headers, body)
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(content)}\r\nContent-Security-Policy: {POLICY}\r\n"
            "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n"
            "Connection: close\r\n\r\n".encode()
            + content
        )
        await writer.drain()

    def _answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[str, str, bytes]:
        url = urlsplit(target)
        if url.path == "/" or url.path.startswith("/page/"):
            file = PAGE / ("index.html" if url.path == "/" else url.path.removeprefix("/page/"))
            if not file.is_file() or file.parent != PAGE:
                return "404 Not Found", "text/plain", b""
            return "200 OK", TYPES[file.suffix], file.read_bytes()
        values = {name: each[0] for name, each in parse_qs(url.query).items()}
        if method == "POST":
            given = json.loads(body)
            self.requests.append((url.path, given))
            if headers.get("x-csrf-token") is None:
                return self._json({"error": "the header is missing"}, "403 Forbidden")
            status, answer = self._post(url.path, given)
            if isinstance(answer, bytes):
                return status, "text/csv", answer
            return self._json(answer, status)
        if self.role_now is None and url.path != "/api/session":
            return self._json({"error": "log in first"}, "401 Unauthorized")
        return self._json(self._get(url.path, values))

    def _json(self, values: Values, status: str = "200 OK") -> tuple[str, str, bytes]:
        return status, "application/json", json.dumps(values).encode()

    @property
    def role_now(self) -> str | None:
        return None if self.needs_login and not self.is_logged_in else self.role

    def session(self) -> Values:
        is_known = self.needs_login and self.is_logged_in
        return {
            "version": self.version,
            "needs_login": self.needs_login,
            "user": "ann" if is_known else None,
            "role": self.role_now,
            "csrf": CSRF,
            "has_record": self.without_record is None,
            "without_record": self.without_record,
            "has_lake": True,
            "stream": "all",
        }

    def sample(self, now: float) -> Values:
        return self.change_sample(page_data.sample(now, landed=self.landed))

    def _get(self, path: str, values: dict[str, str]) -> Values:
        now = self.time()
        if path == "/api/session":
            return self.session()
        if path == "/api/clients":
            return page_data.clients(self.client_count)
        if path == "/api/client":
            return self._client(values.get("client", ""))
        if path == "/api/violations":
            return page_data.violations()
        if path == "/api/tables":
            return page_data.tables(now)
        if path == "/api/names":
            return page_data.NAMES
        if path == "/api/retained":
            entry = {"topic": values["topic"], "qos": 1, "bytes": 5, "expires_seconds": 3_600}
            return {"entries": [entry] if sum(values["topic"].encode()) % 2 else [], "more": False}
        if path == "/api/history":
            return self._history(values["topic"], now)
        return {"error": "there is no such page"}

    def _client(self, name: str) -> Values:
        found = page_data.clients(self.client_count)
        for each in found["clients"]:
            if each["client"] == name:
                session = {"durable": each["durable"], "queued_messages": each["queued_messages"]}
                more = {"certificate": None, "groups": ["machines"], "session": session}
                return {"client": {**each, **more}, "subscriptions": _subscriptions(name)}
        for each in found["sessions"]:
            if each["client"] == name:
                known = {"client": name, "session": each}
                return {"client": known, "subscriptions": _subscriptions(name)}
        return {"client": None, "subscriptions": []}

    def _history(self, topic: str, now: float) -> Values:
        rows = [
            {
                "at": now - 7.2 * n,
                "seq": 90_000 - n,
                "payload": page_data.describe_payload(page_data.payload_of(topic, now - 7.2 * n)),
                "qos": n % 3,
                "retain": False,
                "client": page_data.HOSTILE_CLIENTS[n % 3] if n % 50 == 9 else "press-0007",
            }
            for n in range(1, 501)
        ]
        return {"rows": rows, "more": True}

    def _post(self, path: str, given: Values) -> tuple[str, Values | bytes]:
        if path == "/api/login":
            if given.get("password") != "right":
                return "401 Unauthorized", {"error": "user or password is wrong"}
            self.is_logged_in = True
            return "200 OK", self.session()
        if path == "/api/logout":
            self.is_logged_in = False
            return "200 OK", {}
        if path == "/api/sql":
            try:
                return "200 OK", page_data.query(given["query"], self.time())
            except ValueError as problem:
                return "400 Bad Request", {"error": str(problem)}
        if path == "/api/export":
            return "200 OK", b"topic,messages\na,1\n"
        if path == "/api/disconnect" and self.role != "admin":
            return "403 Forbidden", {"error": "only an admin may do that"}
        return "200 OK", {}

    # --- WebSocket --------------------------------------------------------------------------------

    async def _live(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        headers: dict[str, str],
    ) -> None:
        if self.role_now is None:
            return
        key = headers["sec-websocket-key"].encode()
        accept = base64.b64encode(hashlib.sha1(key + _MAGIC).digest()).decode()
        writer.write(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {accept}\r\n\r\n".encode()
        )
        now = self.time()
        past = [self.sample(now - ago) for ago in range(299, -1, -1)]
        _send(writer, {"type": "hello", "history": past})
        page = _Page(self, writer)
        feeding = asyncio.create_task(page.feed())
        try:
            while True:
                message = await _receive(reader)
                if message is None:
                    return
                self.requests.append(("live", message))
                page.take(message)
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)


def _subscriptions(name: str) -> list[Values]:
    filters = (f"commands/{name[:40]}/#", "plant/+/alarm", "<b>bold</b>/#")
    return [
        {
            "filter": each,
            "qos": number,
            "no_local": number == 1,
            "retain_as_published": False,
            "identifier": None,
        }
        for number, each in enumerate(filters)
    ]


class _Page:
    """One WebSocket: what it watches."""

    def __init__(self, server: PageStandIn, writer: asyncio.StreamWriter) -> None:
        self.server = server
        self.writer = writer
        self.branches: list[str] = []
        self.search = ""
        self.filters: dict[str, int] = {}

    def take(self, message: Values) -> None:
        if "watch" in message:
            self.branches = message["branches"]
            self._send_topics()
        elif "search" in message:
            self.search = message["search"]
            self._send_topics()
        elif "subscribe" in message:
            name = message["subscribe"]
            if name == "bad/#/filter":
                problem = "a filter has # only at its end"
                _send(self.writer, {"type": "error", "about": "subscribe", "text": problem})
                return
            self.filters[name] = message["qos"]
            _send(self.writer, {"type": "subscribed", "filter": name, "qos": message["qos"]})
        elif "unsubscribe" in message:
            self.filters.pop(message["unsubscribe"], None)
            _send(self.writer, {"type": "unsubscribed", "filter": message["unsubscribe"]})
        elif "publish" in message:
            _send(self.writer, {"type": "published", "id": message["publish"]["id"]})

    def _send_topics(self) -> None:
        now = self.server.time()
        for branch in self.branches:
            _send(self.writer, self.server.tree.branch(branch, now))
        if self.search:
            _send(self.writer, self.server.tree.search(self.search, now))

    async def feed(self) -> None:
        topics = [*page_data.hostile_topics(), *list(page_data.plant_topics())[:40]]
        number = 0
        while True:
            await asyncio.sleep(1)
            now = self.server.time()
            if self.server.is_silent:
                continue
            _send(self.writer, self.server.sample(now))
            self._send_topics()
            for name, qos in self.filters.items():
                for _ in range(12):
                    topic = topics[number % len(topics)]
                    number += 1
                    payload = page_data.describe_payload(page_data.payload_of(topic, now))
                    properties = {"content_type": "text/html", "user": [["<i>", "x"]]}
                    _send(
                        self.writer,
                        {
                            "type": "message",
                            "filter": name,
                            "topic": topic,
                            "payload": payload,
                            "qos": qos,
                            "retain": number % 9 == 0,
                            "at": now,
                            "properties": properties if number % 5 == 0 else None,
                        },
                    )
                _send(self.writer, {"type": "skipped", "count": 3})


def _send(writer: asyncio.StreamWriter, values: Values) -> None:
    if writer.is_closing():
        return
    data = json.dumps(values).encode()
    if len(data) < 126:
        head = bytes([0x81, len(data)])
    elif len(data) < 1 << 16:
        head = bytes([0x81, 126]) + len(data).to_bytes(2, "big")
    else:
        head = bytes([0x81, 127]) + len(data).to_bytes(8, "big")
    writer.write(head + data)


async def _receive(reader: asyncio.StreamReader) -> Values | None:
    """The next object of a browser, which sends masked frames; None: it has closed."""
    first, second = await reader.readexactly(2)
    size = second & 0x7F
    if size == 126:
        size = int.from_bytes(await reader.readexactly(2), "big")
    elif size == 127:
        size = int.from_bytes(await reader.readexactly(8), "big")
    mask = await reader.readexactly(4)
    data = await reader.readexactly(size)
    if first & 0x0F != 1:
        return None
    plain = bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))
    found = json.loads(plain)
    return found if isinstance(found, dict) else None


def main() -> None:
    """Serve on a port until Ctrl-C."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--login", action="store_true")
    given = parser.parse_args()
    server = PageStandIn()
    server.needs_login = given.login
    print(f"http://127.0.0.1:{given.port}/")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(server.serve(given.port))


if __name__ == "__main__":
    main()
