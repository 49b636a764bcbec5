"""Serves metrics over HTTP: /metrics, /healthz and /readyz, on a port of its own.

It runs on the event loop of a broker, so that it must never disturb it: a connection has a bounded
head, a deadline, and one response, which is made once and reused for a moment; there are few
connections at a time. A program without a loop uses `EndpointThread`.

    open ─▶ head complete ─▶ response ─▶ closed by the client, or by us when the deadline is over
"""

import asyncio
import errno
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from http import HTTPStatus
from typing import Final, Protocol, cast

from semel.metrics.families import MetricFamily
from semel.metrics.requests import (
    PLAIN_TEXT,
    HttpProblem,
    HttpRequest,
    make_response,
    parse_request,
)
from semel.metrics.text import content_type_for, write_families

LOG: Final = logging.getLogger("semel.metrics")

# At most this many connections at a time; further ones are refused with status 503.
MAXIMUM_CONNECTIONS: Final = 16
# Seconds for sending the head, and for reading the response.
REQUEST_SECONDS: Final = 5.0
RESPONSE_SECONDS: Final = 10.0
# For this many seconds a response is reused, so that many requests cost little.
REUSE_SECONDS: Final = 0.1
# Seconds between two reports of a failure.
REPORT_SECONDS: Final = 60.0
# How long `EndpointThread` waits for the end of its thread.
_THREAD_SECONDS: Final = 10.0

METRICS_PATH: Final = "/metrics"
HEALTH_PATH: Final = "/healthz"
READINESS_PATH: Final = "/readyz"


class CannotServeMetrics(Exception):
    """Why the endpoint cannot listen on its address, in one sentence."""


class MetricsSource(Protocol):
    """What an endpoint serves. All methods are called on the loop of the endpoint."""

    def families(self) -> Sequence[MetricFamily]:
        """All metrics at this time."""

    def health(self) -> str | None:
        """Why the process does not work, in one line; None: it works."""

    def readiness(self) -> str | None:
        """Why the process does not serve its users now, in one line; None: it does."""


class MetricsEndpoint:
    """Listens on one address and answers requests, on the running event loop."""

    def __init__(
        self,
        source: MetricsSource,
        *,
        maximum_connections: int = MAXIMUM_CONNECTIONS,
        request_seconds: float = REQUEST_SECONDS,
        response_seconds: float = RESPONSE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.maximum_connections: Final = maximum_connections
        self.request_seconds: Final = request_seconds
        self.response_seconds: Final = response_seconds
        self.connections: set[HttpConnection] = set()
        self._source = source
        self._clock = clock
        self._listener: asyncio.Server | None = None
        # By content type: the last body, and until when it is reused.
        self._bodies: dict[str, tuple[bytes, float]] = {}
        self._report_due = float("-inf")

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen. Returns host and port (if the port is 0, the one that the system chose).

        Raises CannotServeMetrics.
        """
        where = f"{host}:{port}"
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(lambda: HttpConnection(self), host, port)
        except OSError as problem:
            raise CannotServeMetrics(_listen_problem(where, problem)) from None
        except ValueError:
            # Not a valid host name.
            raise CannotServeMetrics(
                f"cannot serve metrics on {where}: no such host name: change metrics_host"
            ) from None
        address: tuple[str, int] = self._listener.sockets[0].getsockname()[:2]
        return address

    async def stop(self) -> None:
        """Stop listening, and close all connections."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in list(self.connections):
            connection.abort()
        # The transports report their end in the next pass of the loop.
        await asyncio.sleep(0)

    def answer(self, found: HttpRequest | HttpProblem) -> bytes:
        """The response to a request. Never raises: a failure of the source is status 500."""
        if isinstance(found, HttpProblem):
            body = _line(found.reason)
            return make_response(found.status, body, allow=found.allow)
        try:
            status, body, content_type = self._answer(found)
        except Exception:
            if self._clock() >= self._report_due:
                self._report_due = self._clock() + REPORT_SECONDS
                LOG.exception("answering %s failed", ascii(found.path))
            status, content_type = HTTPStatus.INTERNAL_SERVER_ERROR, PLAIN_TEXT
            body = _line("the metrics could not be read: see the log")
        return make_response(status, body, content_type=content_type, is_head=found.is_head)

    def _answer(self, request: HttpRequest) -> tuple[HTTPStatus, bytes, str]:
        if request.path == METRICS_PATH:
            content_type = content_type_for(request.accept)
            return HTTPStatus.OK, self._body(content_type), content_type
        if request.path == HEALTH_PATH:
            return _condition(self._source.health())
        if request.path == READINESS_PATH:
            return _condition(self._source.health() or self._source.readiness())
        known = f"there are {METRICS_PATH}, {HEALTH_PATH} and {READINESS_PATH}"
        return HTTPStatus.NOT_FOUND, _line(known), PLAIN_TEXT

    def _body(self, content_type: str) -> bytes:
        body, until = self._bodies.get(content_type, (b"", float("-inf")))
        if self._clock() >= until:
            body = write_families(self._source.families(), content_type)
            self._bodies[content_type] = (body, self._clock() + REUSE_SECONDS)
        return body


def _condition(problem: str | None) -> tuple[HTTPStatus, bytes, str]:
    if problem is None:
        return HTTPStatus.OK, _line("ok"), PLAIN_TEXT
    return HTTPStatus.SERVICE_UNAVAILABLE, _line(" ".join(problem.split())), PLAIN_TEXT


def _line(text: str) -> bytes:
    return f"{text}\n".encode(errors="replace")


def _listen_problem(where: str, problem: OSError) -> str:
    if problem.errno == errno.EADDRINUSE:
        return (
            f"cannot serve metrics on {where}: the port is in use by another program:"
            " change metrics_port"
        )
    if problem.errno == errno.EADDRNOTAVAIL:
        return (
            f"cannot serve metrics on {where}: the host is not an address of this machine:"
            " change metrics_host"
        )
    return f"cannot serve metrics on {where}: {problem.strerror or problem}"


class HttpConnection(asyncio.Protocol):
    """One connection: reads the head of one request, sends the response, and closes."""

    def __init__(self, endpoint: MetricsEndpoint) -> None:
        self._endpoint = endpoint
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._is_answered = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the methods of asyncio.Transport, but is no subclass.
        self._transport = cast(asyncio.Transport, transport)
        endpoint = self._endpoint
        endpoint.connections.add(self)
        if len(endpoint.connections) > endpoint.maximum_connections:
            limit = f"no more than {endpoint.maximum_connections} connections at a time"
            self._send(HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, limit))
            # It takes part in no limit, so it must not stay.
            self._transport.close()
            return
        self._end_after(endpoint.request_seconds)

    def data_received(self, data: bytes) -> None:
        if self._is_answered:
            # A body, or another request: not read, but taken from the socket, because closing a
            # socket with unread bytes can discard the response.
            return
        self._received += data
        found = parse_request(bytes(self._received))
        if found is not None:
            self._send(found)

    def connection_lost(self, problem: Exception | None) -> None:
        self._endpoint.connections.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _send(self, found: HttpRequest | HttpProblem) -> None:
        assert self._transport is not None
        self._is_answered = True
        self._received.clear()
        self._transport.write(self._endpoint.answer(found))
        self._transport.write_eof()
        self._end_after(self._endpoint.response_seconds)

    def _end_after(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.abort)


class EndpointThread:
    """An endpoint on a loop and a thread of its own, for a program that has no event loop.

    The thread is a daemon: it never keeps a program from ending.
    """

    def __init__(self, source: MetricsSource) -> None:
        self._source = source
        self._listening: Future[tuple[str, int]] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen. Returns host and port. Raises CannotServeMetrics."""
        self._thread = threading.Thread(
            target=self._run, args=(host, port), name="metrics", daemon=True
        )
        self._thread.start()
        # The thread always sets a result or an exception.
        return self._listening.result()

    def stop(self) -> None:
        """Close the endpoint."""
        if self._loop is not None and self._stopping is not None:
            # The loop may have been closed by an error.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stopping.set)
        if self._thread is not None:
            self._thread.join(_THREAD_SECONDS)

    def _run(self, host: str, port: int) -> None:
        try:
            asyncio.run(self._serve(host, port))
        except BaseException as problem:
            if self._listening.done():
                LOG.exception("the metrics are no longer served")
            else:
                self._listening.set_exception(problem)

    async def _serve(self, host: str, port: int) -> None:
        endpoint = MetricsEndpoint(self._source)
        address = await endpoint.start(host, port)
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._listening.set_result(address)
        await self._stopping.wait()
        await endpoint.stop()
