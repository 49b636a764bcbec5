"""HTTP requests: what is answered, and what is refused with which status."""

from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.metrics.requests import (
    MAXIMUM_HEAD,
    HttpProblem,
    HttpRequest,
    make_response,
    parse_request,
)


def test_a_request_of_prometheus() -> None:
    data = (
        b"GET /metrics?x=1 HTTP/1.1\r\nHost: localhost:9883\r\nUser-Agent: Prometheus/3.0\r\n"
        b"Accept: a/b\r\nACCEPT:c/d \r\n\r\nrest"
    )
    assert parse_request(data) == HttpRequest(False, "/metrics", "a/b, c/d")


def test_a_request_by_hand_needs_no_carriage_returns() -> None:
    assert parse_request(b"HEAD /healthz HTTP/1.0\n\n") == HttpRequest(True, "/healthz", "")


def test_an_incomplete_head_needs_more_bytes() -> None:
    data = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    for end in range(len(data)):
        assert parse_request(data[:end]) is None
    assert parse_request(data) == HttpRequest(False, "/", "")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"BREW /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /metrics HTTP/2.0\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET  /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nno header\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nA : b\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\n\n", 400),
        (b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x0a\x00\x00\n\n", 400),
        (b"G" * MAXIMUM_HEAD, 431),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * MAXIMUM_HEAD + b"\r\n\r\n", 431),
    ],
)
def test_other_requests_are_refused(data: bytes, status: int) -> None:
    found = parse_request(data)
    assert isinstance(found, HttpProblem)
    assert found.status == status


def test_the_largest_head_is_accepted() -> None:
    start = b"GET / HTTP/1.1\r\nA: "
    data = start + b"b" * (MAXIMUM_HEAD - len(start) - 4) + b"\r\n\r\n"
    assert len(data) == MAXIMUM_HEAD
    assert parse_request(data) == HttpRequest(False, "/", "")


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda rest: b"GET / HTTP/1.1" + rest))
def test_any_bytes_are_a_request_a_problem_or_incomplete(data: bytes) -> None:
    found = parse_request(data + b"\r\n\r\n")
    assert isinstance(found, HttpProblem | HttpRequest)


def test_a_response_to_head_has_no_body() -> None:
    whole = make_response(HTTPStatus.OK, b"body\n")
    assert whole.endswith(b"Connection: close\r\n\r\nbody\n")
    assert b"Content-Length: 5\r\n" in whole
    assert make_response(HTTPStatus.OK, b"body\n", is_head=True) == whole.removesuffix(b"body\n")
    assert b"Allow: GET, HEAD" in make_response(HTTPStatus.METHOD_NOT_ALLOWED, b"", allow=True)
