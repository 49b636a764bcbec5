"""A real broker and the server of its page in this process, and a browser that speaks HTTP."""

import asyncio
import http.client
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from semel.broker.authority import Authority
from semel.web.app import PageServer
from semel.web.server import RunningPage, open_socket
from semel.web.settings import WebSettings
from semel.web.sql_queries import LakeAddress
from tests.broker.controlled import PATIENCE, Controlled, controlled

Answer = tuple[int, dict[str, str], Any]


class Browser:
    """One browser: it keeps its cookie, and sends the token of its session."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.host = f"127.0.0.1:{port}"
        self.cookie: str | None = None
        self.csrf = ""

    async def get(self, path: str, **headers: str) -> Answer:
        return await self._send("GET", path, None, headers)

    async def post(self, path: str, body: object, **headers: str) -> Answer:
        given = {"X-CSRF-Token": self.csrf, **headers}
        return await self._send("POST", path, json.dumps(body).encode(), given)

    async def begin(self) -> dict[str, Any]:
        """Open the page: its session."""
        _, _, session = await self.get("/api/session")
        self.csrf = session["csrf"] or ""
        found: dict[str, Any] = session
        return found

    async def _send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> Answer:
        return await asyncio.to_thread(self._exchange, method, path, body, headers)

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        given = {"Host": self.host, **headers}
        if self.cookie is not None:
            given["Cookie"] = self.cookie
        connection.request(method, path, body, given)
        response = connection.getresponse()
        data = response.read()
        found = {name.lower(): value for name, value in response.getheaders()}
        connection.close()
        if "set-cookie" in found:
            self.cookie = found["set-cookie"].partition(";")[0]
        is_json = found.get("content-type", "").startswith("application/json")
        return response.status, found, json.loads(data) if is_json else data

    @asynccontextmanager
    async def live(self, origin: str | None = None) -> AsyncIterator["LiveStream"]:
        headers = {} if self.cookie is None else {"Cookie": self.cookie}
        url = f"ws://{self.host}/api/live"
        given = f"http://{self.host}" if origin is None else origin
        async with connect(url, origin=given, additional_headers=headers) as socket:  # type: ignore[arg-type]
            yield LiveStream(socket)


class LiveStream:
    """The live stream of a page."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, **values: Any) -> None:
        await self.socket.send(json.dumps(values))

    async def next(self, kind: str) -> dict[str, Any]:
        """The next object of this type; others are skipped."""
        async with asyncio.timeout(PATIENCE):
            while True:
                found: dict[str, Any] = json.loads(await self.socket.recv())
                if found["type"] == kind:
                    return found


class Served:
    """A broker, and its page."""

    def __init__(self, broker: Controlled, server: PageServer, port: int) -> None:
        self.broker = broker
        self.server = server
        self.port = port

    async def browser(self) -> Browser:
        made = Browser(self.port)
        await made.begin()
        return made


@asynccontextmanager
async def served(
    folder: Path,
    settings: WebSettings | None = None,
    *,
    authority: Authority | None = None,
    lake: LakeAddress | None = None,
    stream: str | None = None,
    data: Path | None = None,
    audit: Path | None = None,
) -> AsyncIterator[Served]:
    """A broker with a control socket in this folder, and its page."""
    async with controlled(folder, authority=authority, audit=audit) as broker:
        address = f"mqtt://127.0.0.1:{broker.address[1]}"
        server = PageServer(
            replace(settings or WebSettings(port=0), broker=address),
            control=broker.path,
            data=data,
            stream=stream,
            lake=lake,
        )
        opened = open_socket("127.0.0.1", 0)
        page = RunningPage(server, opened)
        await page.start()
        try:
            yield Served(broker, server, opened.getsockname()[1])
        finally:
            page.stop()
            await page.wait()
