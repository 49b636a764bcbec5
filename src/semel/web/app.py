"""The routes of the page: its files, its data as JSON, and its live stream."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from semel import __version__
from semel.pipeline.errors import PipelineError
from semel.web.control_link import BrokerUnavailable, CommandRefused, ControlLink
from semel.web.lake_tables import DEAD_LETTERS_QUERY, list_tables
from semel.web.live import LiveFeed
from semel.web.page_client import ClientFailed, broker_address, check_password
from semel.web.record_topics import RecordTopics, RecordUnreadable
from semel.web.settings import ADMIN, WebSettings
from semel.web.sign_in import PageSession, Sessions, is_same
from semel.web.sql_queries import LakeAddress, QueryRefused, SqlQueries, TooManyQueries
from semel.web.violation_advice import advice_for

LOG: Final = logging.getLogger("semel.web")

COOKIE: Final = "semel_session"
CSRF_HEADER: Final = "x-csrf-token"
BODY_BYTES: Final = 256 * 1024
# Clients and sessions that are listed.
LISTED: Final = 5_000
LISTED_RETAINED: Final = 1_000
MAXIMUM_MINUTES: Final = 7 * 24 * 60
CHUNK_BYTES: Final = 256 * 1024
MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
EXPORT_TYPES: Final = {"csv": "text/csv; charset=utf-8", "parquet": "application/octet-stream"}
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")

Values = dict[str, Any]


class RequestRefused(Exception):
    """Why a request is refused, with its status code."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class PageServer:
    """What answers the page."""

    def __init__(
        self,
        settings: WebSettings,
        *,
        control: Path | None,
        data: Path | None,
        stream: str | None,
        lake: LakeAddress | None,
        root: str | None = None,
        without_record: str = "this broker records no stream",
        without_lake: str = "there is no lake",
    ) -> None:
        """`control` is the broker's control socket, `data` the data folder and `root` the record,
        as far as they are known; `stream` is the one to show. `without_record` and `without_lake`
        are shown where there is none."""
        self.settings = settings
        self.link = ControlLink(control)
        self.sessions = Sessions(settings)
        self.stream = stream
        self.lake = lake
        self.without_record = without_record
        self.without_lake = without_lake
        has_record = stream is not None and (data is not None or root is not None)
        self.topics = RecordTopics(data, root, stream) if has_record and stream else None
        self.queries = (
            None
            if lake is None
            else SqlQueries(lake, seconds=settings.query_seconds, memory=settings.query_memory)
        )
        self.feed = LiveFeed(
            self.link, data=data, stream=stream, topics=self.topics, locate=self.locate_broker
        )
        self._page = resources.files("semel.web") / "page"

    def app(self) -> ASGIApp:
        """The application to serve."""
        get, post = self._get, self._post
        routes = [
            Route("/", self._index),
            Route("/page/{name}", self._file),
            Route("/api/session", self._session),
            Route("/api/login", self._log_in, methods=["POST"]),
            Route("/api/logout", post(self._log_out), methods=["POST"]),
            Route("/api/history", get(self._history)),
            Route("/api/retained", get(self._retained)),
            Route("/api/clients", get(self._clients)),
            Route("/api/client", get(self._client)),
            Route("/api/violations", get(self._violations)),
            Route("/api/tables", get(self._tables)),
            Route("/api/names", get(self._names)),
            Route("/api/disconnect", post(self._disconnect, admin=True), methods=["POST"]),
            Route("/api/sql", post(self._sql), methods=["POST"]),
            Route("/api/export", post(self._export), methods=["POST"]),
            WebSocketRoute("/api/live", self._live),
        ]
        return GuardedApp(Starlette(routes=routes, lifespan=self._lifespan), self.settings)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        feeding = asyncio.create_task(self.feed.run())
        try:
            yield
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            if self.queries is not None:
                await self.queries.close()
            await self.link.close()

    async def locate_broker(self) -> str:
        """The address of the broker for the clients of pages. Raises ClientFailed."""
        return await broker_address(self.settings.broker, self.link)

    # --- files ------------------------------------------------------------------------------------

    async def _index(self, _: Request) -> Response:
        return self._content("index.html")

    async def _file(self, request: Request) -> Response:
        return self._content(request.path_params["name"])

    def _content(self, name: str) -> Response:
        found = next((each for each in self._page.iterdir() if each.name == name), None)
        media_type = MEDIA_TYPES.get(Path(name).suffix)
        if found is None or media_type is None:
            return JSONResponse({"error": "there is no such page"}, 404)
        return Response(found.read_bytes(), media_type=media_type)

    # --- sessions ---------------------------------------------------------------------------------

    def _find_session(self, connection: HTTPConnection) -> PageSession | None:
        return self.sessions.find(connection.cookies.get(COOKIE))

    async def _session(self, request: Request) -> Response:
        session = self._find_session(request)
        if session is None and not self.settings.needs_login:
            session = self.sessions.open()
        return self._with_session(session)

    def _with_session(self, session: PageSession | None) -> Response:
        response = JSONResponse(
            {
                "version": __version__,
                "needs_login": self.settings.needs_login,
                "user": None if session is None else session.user,
                "role": None if session is None else session.role,
                "csrf": None if session is None else session.csrf,
                "has_record": self.topics is not None,
                "has_lake": self.lake is not None,
                "without_record": self.without_record if self.topics is None else None,
                "stream": self.stream,
            }
        )
        if session is not None:
            response.set_cookie(
                COOKIE,
                session.token,
                httponly=True,
                samesite="strict",
                secure=self.settings.certfile is not None,
            )
        return response

    async def _log_in(self, request: Request) -> Response:
        address = request.client.host if request.client is not None else ""
        try:
            given = await _body(request)
            # A form of another site cannot send JSON, nor this header.
            if CSRF_HEADER not in request.headers:
                raise RequestRefused(403, f"the header {CSRF_HEADER} is missing")
            user, password = given.get("user"), given.get("password")
            if not isinstance(user, str) or not isinstance(password, str) or not user:
                raise RequestRefused(400, "give a user and a password")
            if not self.sessions.may_try(address):
                raise RequestRefused(429, "too many failed attempts: wait a minute")
            role = self.settings.role_of(user)
            is_right = await check_password(await self.locate_broker(), user, password)
            if role is None or not is_right:
                self.sessions.note_failure(address)
                LOG.warning("log in refused: user %a from %s", user[:64], address)
                raise RequestRefused(401, "user or password is wrong, or may not see this page")
        except RequestRefused as refused:
            return JSONResponse({"error": str(refused)}, refused.status)
        except ClientFailed as problem:
            return JSONResponse({"error": str(problem)}, 503)
        LOG.info("log in: user %a as %s from %s", user[:64], role, address)
        return self._with_session(self.sessions.log_in(user, password, role))

    async def _log_out(self, _: Request, session: PageSession) -> Values:
        self.sessions.log_out(session)
        return {}

    # --- requests ---------------------------------------------------------------------------------

    def _get(
        self, answer: Callable[[Request, PageSession], Awaitable[Values]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """A route that only a session may read."""

        async def handle(request: Request) -> Response:
            session = self._find_session(request)
            if session is None:
                return JSONResponse({"error": "log in first"}, 401)
            return await _answered(answer(request, session))

        return handle

    def _post(
        self,
        answer: Callable[[Request, PageSession], Awaitable[Values | Response]],
        *,
        admin: bool = False,
    ) -> Callable[[Request], Awaitable[Response]]:
        """A route that acts: only the page's own script can send its token."""

        async def handle(request: Request) -> Response:
            session = self._find_session(request)
            if session is None:
                return JSONResponse({"error": "log in first"}, 401)
            if not is_same(request.headers.get(CSRF_HEADER), session.csrf):
                return JSONResponse({"error": f"the header {CSRF_HEADER} is wrong"}, 403)
            if admin and session.role != ADMIN:
                return JSONResponse({"error": "only an admin may do that"}, 403)
            if not self.sessions.may_act(session):
                return JSONResponse({"error": "too many requests: wait a minute"}, 429)
            return await _answered(answer(request, session))

        return handle

    async def _history(self, request: Request, _: PageSession) -> Values:
        topic = request.query_params.get("topic", "")
        minutes = _number(request.query_params.get("minutes", "60"), 1, MAXIMUM_MINUTES)
        if self.topics is None:
            raise RequestRefused(404, self.without_record)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self.feed.reading, self.topics.history, topic, minutes * 60
        )

    async def _retained(self, request: Request, _: PageSession) -> Values:
        topic = request.query_params.get("topic") or None
        found, _done = await self.link.call("retained.list", LISTED_RETAINED, topic=topic)
        return {"entries": found[:LISTED_RETAINED], "more": len(found) > LISTED_RETAINED}

    async def _clients(self, _request: Request, _: PageSession) -> Values:
        clients, _done = await self.link.call("clients.list", LISTED)
        sessions, _done = await self.link.call("sessions.list", LISTED)
        by_client = {each["client"]: each for each in sessions}
        for client in clients:
            session = by_client.get(client["client"], {})
            for key in ("queued_messages", "inflight_messages", "subscriptions", "durable"):
                client[key] = session.get(key)
        return {
            "clients": clients[:LISTED],
            "sessions": [each for each in sessions if not each["connected"]][:LISTED],
            "more": max(len(clients), len(sessions)) >= LISTED,
        }

    async def _client(self, request: Request, _: PageSession) -> Values:
        client_id = request.query_params.get("client", "")
        client: Values | None = None
        with suppress(CommandRefused):
            _entries, client = await self.link.call("clients.show", client=client_id)
        if client is None:
            with suppress(CommandRefused):
                _entries, session = await self.link.call("sessions.show", client=client_id)
                client = {"client": client_id, "session": session}
        found, _done = await self.link.call("subscriptions.list", LISTED_RETAINED, client=client_id)
        return {"client": client, "subscriptions": found[:LISTED_RETAINED]}

    async def _violations(self, _request: Request, _: PageSession) -> Values:
        recent, _done = await self.link.call("violations.list")
        for each in recent:
            each["advice"] = advice_for(each)
        _entries, metrics = await self.link.call("metrics")
        totals: Mapping[str, int] = metrics.get("semel_violations", {})
        sentences = {each["rule"]: each["sentence"] for each in recent}
        return {
            "rules": [
                {"rule": rule, "sentence": sentences.get(rule, ""), "total": total}
                for rule, total in sorted(totals.items(), key=lambda item: -item[1])
                if total
            ],
            "recent": recent,
        }

    async def _tables(self, _request: Request, _: PageSession) -> Values:
        if self.lake is None or self.queries is None:
            raise RequestRefused(404, self.without_lake)
        found = await asyncio.to_thread(list_tables, self.lake)
        letters: list[Values] | None = None
        if any(each["table"] == "dead_letters" for each in found):
            with suppress(QueryRefused):
                result = await self.queries.run(DEAD_LETTERS_QUERY)
                names = [column["name"] for column in result["columns"]]
                letters = [dict(zip(names, row, strict=True)) for row in result["rows"]]
        return {"tables": found, "dead_letters": letters}

    async def _names(self, _request: Request, _: PageSession) -> Values:
        if self.queries is None:
            raise RequestRefused(404, self.without_lake)
        return await self.queries.names()

    async def _disconnect(self, request: Request, session: PageSession) -> Values:
        client_id = (await _body(request)).get("client")
        if not isinstance(client_id, str):
            raise RequestRefused(400, "client is missing")
        by = session.user or "the page"
        await self.link.call("disconnect", client=client_id, by=by)
        return {}

    async def _sql(self, request: Request, _: PageSession) -> Values:
        query = (await _body(request)).get("query")
        if not isinstance(query, str) or not query.strip():
            raise RequestRefused(400, "query is missing")
        if self.queries is None:
            raise RequestRefused(404, self.without_lake)
        return await self.queries.run(query)

    async def _export(self, request: Request, _: PageSession) -> Response:
        given = await _body(request)
        query, form = given.get("query"), given.get("format")
        if not isinstance(query, str) or form not in EXPORT_TYPES:
            raise RequestRefused(400, "give a query, and csv or parquet as format")
        if self.queries is None:
            raise RequestRefused(404, self.without_lake)
        context = self.queries.export(query, form)
        path = await context.__aenter__()

        async def content() -> AsyncIterator[bytes]:
            try:
                with path.open("rb") as file:
                    while data := await asyncio.to_thread(file.read, CHUNK_BYTES):
                        yield data
            finally:
                await context.__aexit__(None, None, None)

        name = f'attachment; filename="result.{form}"'
        return StreamingResponse(
            content(), media_type=EXPORT_TYPES[form], headers={"Content-Disposition": name}
        )

    # --- live -------------------------------------------------------------------------------------

    async def _live(self, socket: WebSocket) -> None:
        session = self._find_session(socket)
        origin = urlsplit(socket.headers.get("origin", "")).netloc
        if session is None or origin != socket.headers.get("host"):
            await socket.close(1008)
            return
        page = self.feed.open(session)
        if page is None:
            await socket.close(1013)
            return
        await socket.accept()

        async def sending() -> None:
            while True:
                await socket.send_text(await page.next())

        task = asyncio.create_task(sending())
        try:
            while True:
                request = json.loads(await socket.receive_text())
                if isinstance(request, dict):
                    await page.take(request)
        except (WebSocketDisconnect, ValueError, RuntimeError):
            # The page was closed, or sends what the page does not send.
            pass
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.feed.close(page)


class GuardedApp:
    """The application behind what holds for every request: host names, and headers.

    A request for a host name that is not ours comes from a page of another site whose name was
    made to point here.
    """

    def __init__(self, app: ASGIApp, settings: WebSettings) -> None:
        self._app = app
        own = settings.host if ":" not in settings.host else f"[{settings.host}]"
        self._names = {*settings.hostnames, own, *(_LOCAL_NAMES if settings.is_loopback else ())}
        self._takes_any = not settings.is_loopback and not settings.hostnames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if not self._takes_any and name.lower() not in self._names:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            text = f"host {name!a} is not a name of this page: add it to [web] hostnames"
            await JSONResponse({"error": text}, 421)(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(key.lower().encode(), text.encode()) for key, text in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        await self._app(scope, receive, send_with_headers)


async def _answered(made: Awaitable[Values | Response]) -> Response:
    """The answer of a route; what a user can cause is one sentence."""
    try:
        found = await made
    except RequestRefused as refused:
        return JSONResponse({"error": str(refused)}, refused.status)
    except CommandRefused as problem:
        return JSONResponse({"error": str(problem)}, 400)
    except TooManyQueries as problem:
        return JSONResponse({"error": str(problem)}, 429)
    except QueryRefused as problem:
        return JSONResponse({"error": str(problem)}, 400)
    except (BrokerUnavailable, RecordUnreadable, PipelineError) as problem:
        return JSONResponse({"error": str(problem)}, 503)
    return found if isinstance(found, Response) else JSONResponse(found)


async def _body(request: Request) -> Values:
    """The JSON object of a request. Raises RequestRefused."""
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > BODY_BYTES:
            raise RequestRefused(413, f"the request has more than {BODY_BYTES} bytes")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise RequestRefused(400, "the request is not JSON") from None
    if not isinstance(found, dict):
        raise RequestRefused(400, "the request is not a JSON object")
    return found


def _number(text: str, least: float, most: float) -> float:
    try:
        found = float(text)
    except ValueError:
        found = least - 1
    if not least <= found <= most:
        raise RequestRefused(400, f"{text[:20]!a} is not a number from {least:g} to {most:g}")
    return found
