"""The endpoint over real sockets: what it answers, and what slow or hostile clients can do."""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from importlib import import_module

import pytest

from semel.metrics.endpoint import CannotServeMetrics, EndpointThread, MetricsEndpoint
from semel.metrics.families import MetricFamily, gauge
from semel.metrics.requests import MAXIMUM_HEAD
from tests.metrics.exposition import read_exposition
from tests.metrics.http_client import PATIENCE, ask, connect, read_response


class Numbers:
    """A source that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.size = 1
        self.is_broken = False
        self.unhealthy: str | None = None
        self.unready: str | None = None

    def families(self) -> list[MetricFamily]:
        self.asked += 1
        if self.is_broken:
            raise RuntimeError("broken on purpose")
        family = gauge("semel_asked", "How often it was asked")
        for number in range(self.size):
            family.add(self.asked, number=str(number))
        return [family]

    def health(self) -> str | None:
        return self.unhealthy

    def readiness(self) -> str | None:
        return self.unready


@pytest.fixture
def numbers() -> Numbers:
    return Numbers()


@pytest.fixture
def address(numbers: Numbers) -> Iterator[tuple[str, int]]:
    thread = EndpointThread(numbers)
    yield thread.start("127.0.0.1", 0)
    thread.stop()


@contextmanager
def serving(
    make: Callable[[], MetricsEndpoint], loop: str = "asyncio"
) -> Iterator[tuple[MetricsEndpoint, tuple[str, int]]]:
    """An endpoint with limits of the test's own, on a loop in a thread."""
    started: Future[tuple[MetricsEndpoint, tuple[str, int]]] = Future()
    running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        stopping = asyncio.Event()
        running.set_result((asyncio.get_running_loop(), stopping))
        endpoint = make()
        started.set_result((endpoint, await endpoint.start("127.0.0.1", 0)))
        await stopping.wait()
        await endpoint.stop()
        assert not endpoint.connections

    run = import_module("uvloop").run if loop == "uvloop" else asyncio.run
    thread = threading.Thread(target=lambda: run(serve()))
    thread.start()
    try:
        yield started.result(PATIENCE)
    finally:
        made, stopping = running.result(PATIENCE)
        made.call_soon_threadsafe(stopping.set)
        thread.join(PATIENCE)
        assert not thread.is_alive()


# --- what it answers ------------------------------------------------------------------------------


def test_metrics_in_both_formats(address: tuple[str, int]) -> None:
    plain = ask(address)
    assert plain.status == 200
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "semel_asked" in read_exposition(plain.body, is_open=False)
    found = ask(address, accept="application/openmetrics-text; version=1.0.0")
    assert found.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert "semel_asked" in read_exposition(found.body, is_open=True)


def test_head_gets_the_headers_only(address: tuple[str, int]) -> None:
    found = ask(address, method="HEAD")
    assert (found.status, found.body) == (200, "")
    assert int(found.headers["content-length"]) > 0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/metrics/", 404),
        ("GET", "//metrics", 404),
        ("GET", "/metrics?debug=1", 200),
        ("POST", "/metrics", 405),
        ("DELETE", "/", 405),
        ("GET", "*", 404),
        ("GET", "http://localhost/metrics", 404),
    ],
)
def test_other_paths_and_methods(
    address: tuple[str, int], method: str, path: str, status: int
) -> None:
    found = ask(address, path, method=method)
    assert found.status == status
    assert ("allow" in found.headers) == (status == 405)


def test_health_and_readiness_are_told_apart(address: tuple[str, int], numbers: Numbers) -> None:
    assert [ask(address, path).body for path in ("/healthz", "/readyz")] == ["ok\n", "ok\n"]
    numbers.unready = "the store\nfailed"
    assert ask(address, "/healthz").status == 200
    found = ask(address, "/readyz")
    assert (found.status, found.body) == (503, "the store failed\n")
    numbers.unhealthy = "the loop is stuck"
    for path in ("/healthz", "/readyz"):
        found = ask(address, path)
        assert (found.status, found.body) == (503, "the loop is stuck\n")
    numbers.unhealthy = numbers.unready = None
    assert ask(address, "/readyz").status == 200


def test_a_source_that_raises_is_logged_once_and_serving_goes_on(
    address: tuple[str, int], numbers: Numbers, caplog: pytest.LogCaptureFixture
) -> None:
    numbers.is_broken = True
    for _ in range(3):
        found = ask(address)
        assert (found.status, found.body) == (500, "the metrics could not be read: see the log\n")
    assert [record.message for record in caplog.records] == ["answering '/metrics' failed"]
    numbers.is_broken = False
    assert ask(address).status == 200


def test_many_requests_at_a_time_are_answered_by_few_readings(numbers: Numbers) -> None:
    clock = [0.0]
    with serving(lambda: MetricsEndpoint(numbers, clock=lambda: clock[0])) as (_, address):
        for _ in range(20):
            ask(address)
        assert numbers.asked == 1
        clock[0] += 1.0
        ask(address)
        assert numbers.asked == 2


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_large_response_arrives_whole(numbers: Numbers, loop: str) -> None:
    numbers.size = 50_000
    with serving(lambda: MetricsEndpoint(numbers), loop) as (_, address):
        with connect(address) as made:
            made.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            made.shutdown(socket.SHUT_WR)
            found = read_exposition(read_response(made).body, is_open=False)
        assert len(found["semel_asked"].samples) == 50_000


# --- slow and hostile clients ---------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("sent", [b"", b"GET /metrics HT", b"\x16\x03\x01"])
def test_a_client_that_does_not_finish_its_request_is_closed(
    numbers: Numbers, sent: bytes, loop: str
) -> None:
    with serving(lambda: MetricsEndpoint(numbers, request_seconds=0.2), loop) as (made, address):
        with connect(address) as slow:
            slow.sendall(sent)
            assert slow.recv(1) == b""
        wait_until(lambda: not made.connections)
        assert ask(address).status == 200


def test_a_client_that_sends_byte_by_byte_is_closed_in_time_or_answered(numbers: Numbers) -> None:
    with serving(lambda: MetricsEndpoint(numbers)) as (_, address), connect(address) as slow:
        slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"GET /healthz HTTP/1.1\r\n\r\n":
            slow.sendall(bytes([byte]))
        assert read_response(slow).status == 200


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_client_that_does_not_read_is_closed_and_delays_nobody(
    numbers: Numbers, loop: str
) -> None:
    numbers.size = 100_000
    with (
        serving(lambda: MetricsEndpoint(numbers, response_seconds=0.5), loop) as (made, address),
        connect(address) as slow,
    ):
        slow.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        wait_until(lambda: numbers.asked == 1)
        assert ask(address, "/healthz").status == 200
        wait_until(lambda: not made.connections)


def test_a_head_that_is_too_large_is_refused_before_its_end(numbers: Numbers) -> None:
    with serving(lambda: MetricsEndpoint(numbers)) as (_, address), connect(address) as large:
        large.sendall(b"GET / HTTP/1.1\r\n")
        large.sendall(b"A: " + b"b" * MAXIMUM_HEAD)
        # What follows is not kept, and does not destroy the response.
        large.sendall(b"c" * 100_000)
        assert read_response(large).status == 431


def test_one_connection_too_many_is_refused_and_room_comes_back(numbers: Numbers) -> None:
    with serving(lambda: MetricsEndpoint(numbers, maximum_connections=3)) as (made, address):
        with ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(connect(address))
            wait_until(lambda: len(made.connections) == 3)
            with connect(address) as more:
                found = read_response(more)
            assert found.status == 503
            assert found.body == "no more than 3 connections at a time\n"
        wait_until(lambda: not made.connections)
        assert ask(address).status == 200


def test_stopping_closes_what_is_open(numbers: Numbers) -> None:
    with ExitStack() as stack:
        with serving(lambda: MetricsEndpoint(numbers)) as (made, address):
            open_one = stack.enter_context(connect(address))
            wait_until(lambda: len(made.connections) == 1)
        assert open_one.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            connect(address)


# --- where it listens -----------------------------------------------------------------------------


def test_a_port_in_use_is_one_sentence(address: tuple[str, int], numbers: Numbers) -> None:
    with pytest.raises(CannotServeMetrics) as caught:
        EndpointThread(numbers).start(*address)
    assert str(caught.value) == (
        f"cannot serve metrics on 127.0.0.1:{address[1]}: the port is in use by another program:"
        " change metrics_port"
    )


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("192.0.2.1", "the host is not an address of this machine: change metrics_host"),
        ("no-such-host.invalid", "cannot serve metrics on no-such-host.invalid:0: "),
        ("a" * 300, "no such host name: change metrics_host"),
    ],
)
def test_a_wrong_host_is_one_sentence(numbers: Numbers, host: str, words: str) -> None:
    with pytest.raises(CannotServeMetrics) as caught:
        EndpointThread(numbers).start(host, 0)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_it_listens_by_ipv6_too(numbers: Numbers) -> None:
    thread = EndpointThread(numbers)
    host, port = thread.start("::1", 0)
    assert (host, ask(("::1", port)).status) == ("::1", 200)
    thread.stop()


def test_a_thread_that_was_never_started_can_be_stopped(numbers: Numbers) -> None:
    EndpointThread(numbers).stop()


def test_a_thread_that_failed_can_be_stopped(address: tuple[str, int], numbers: Numbers) -> None:
    thread = EndpointThread(numbers)
    with pytest.raises(CannotServeMetrics):
        thread.start(*address)
    thread.stop()


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_nothing_is_logged_for_requests(
    address: tuple[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        ask(address, "/nothing")
        ask(address)
    assert not caplog.records
