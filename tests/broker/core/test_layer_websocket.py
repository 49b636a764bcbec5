"""MQTT over WebSocket as a layer: against the library's client, and against bytes made by hand."""

import logging
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame
from websockets.protocol import OPEN
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from semel.broker.network.first_bytes import PROXY_V2_SIGNATURE
from semel.broker.network.websocket import WebSocketLayer
from semel.broker.network.websocket_handshake import WebSocketRules
from tests.broker.layer_driver import PLACES, Driven, mutated, pieces
from tests.broker.websocket_frames import (
    ACCEPT,
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    Sent,
    close_frame,
    frame,
    read_frames,
    request,
)
from tests.modes import repeats

CONNECT = bytes.fromhex("100c 0004 4d515454 04 02 000a 0000")
MAXIMUM_FRAME = 100_000
RULES = WebSocketRules(maximum_frame=MAXIMUM_FRAME)
LARGE = bytes(range(250)) * 400


def opened(rules: WebSocketRules = RULES) -> tuple[WebSocketLayer, Driven]:
    layer = WebSocketLayer(rules)
    driven = Driven(layer)
    driven.give(request())
    assert driven.take_output().startswith(b"HTTP/1.1 101 ")
    return layer, driven


# --- the handshake --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        request(),
        request("/mqtt?token=1"),
        # [MQTT-6.0.0-3] a list that contains it
        request(Sec_WebSocket_Protocol="mqttv3.1, mqtt"),
        request(Sec_WebSocket_Protocol="mqtt,mqttv3.1"),
        request(Connection="keep-alive, Upgrade", Upgrade="WebSocket"),
        request(Origin="https://any.example"),
        # Compression is declined.
        request(Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits"),
    ],
)
def test_a_websocket_is_opened_with_the_subprotocol_mqtt(head: bytes) -> None:
    """[MQTT-6.0.0-4]"""
    data = head + frame(BINARY, CONNECT)
    for stream in ([data], [bytes([byte]) for byte in data]):
        driven = Driven(WebSocketLayer(RULES))
        for piece in stream:
            driven.give(piece)
        assert driven.failure is None
        assert driven.layer.is_established
        status, *headers = driven.output.decode().split("\r\n")
        assert status == "HTTP/1.1 101 Switching Protocols"
        assert f"Sec-WebSocket-Accept: {ACCEPT}" in headers
        assert "Sec-WebSocket-Protocol: mqtt" in headers
        assert not any(header.startswith("Sec-WebSocket-Extensions") for header in headers)
        assert driven.inner == CONNECT


@pytest.mark.parametrize(
    ("head", "status", "why"),
    [
        (request("/"), 404, "the path is '/'; MQTT is at '/mqtt'"),
        (request("/mqtt/"), 404, "the path is '/mqtt/'; MQTT is at '/mqtt'"),
        (request("/mqtt/../secret"), 404, "the path is '/mqtt/../secret'"),
        (request("/favicon.ico", Upgrade=None), 404, "the path is '/favicon.ico'"),
        (request("/" + "a" * 200), 404, "the path is '/" + "a" * 99 + "…'"),
        (request(Sec_WebSocket_Protocol=None), 400, "[MQTT-6.0.0-3]; it offers none"),
        (request(Sec_WebSocket_Protocol="mqttv3.1"), 400, "[MQTT-6.0.0-3]; it offers mqttv3.1"),
        (request(Sec_WebSocket_Protocol="MQTT"), 400, "[MQTT-6.0.0-3]; it offers MQTT"),
        (request("/", Upgrade=None), 426, "the request does not ask for a WebSocket"),
        (request(Upgrade=None), 426, "the request does not ask for a WebSocket"),
        (request(Upgrade="h2c"), 426, "the request does not ask for a WebSocket"),
        (request(Connection="close"), 426, "the request does not ask for a WebSocket"),
        (request(Sec_WebSocket_Key=None), 400, "the WebSocket handshake is malformed: missing"),
        (request(Sec_WebSocket_Key="short"), 400, "the WebSocket handshake is malformed: invalid"),
        (request(Sec_WebSocket_Version="8"), 400, "the WebSocket handshake is malformed: invalid"),
        (request(method="POST"), 405, "the method of the HTTP request is POST; a WebSocket begins"),
        (request(method="HEAD"), 405, "the method of the HTTP request is HEAD; a WebSocket begins"),
        (b"NONSENSE\r\n\r\n", 400, "this port expects an HTTP request"),
        (b"GET /mqtt HTTP/1.0\r\n\r\n", 400, "malformed: unsupported protocol; expected HTTP/1.1"),
        (b"GET /mqtt HTTP/1.1\r\nno header\r\n\r\n", 400, "malformed: invalid HTTP header line"),
        (b"GET / HTTP/1.1\nHost: a\r\n\r\n", 400, "malformed: a line does not end with CR and LF"),
        (b"GET /\x1b[2J\r\n\r\n", 400, "malformed: invalid HTTP request line: GET /\ufffd[2J"),
        (request(Sec_WebSocket_Key="gr\xf6\xdfe"), 400, "bytes that are not ASCII"),
        (request("/gr\xf6\xdfe"), 400, "bytes that are not ASCII"),
    ],
)
def test_any_other_request_is_refused_with_a_status(
    head: bytes, status: int, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        driven = Driven(WebSocketLayer(RULES))
        driven.give(head + frame(BINARY, CONNECT))
    assert driven.failure is not None
    assert driven.failure.startswith(f"HTTP {status}: ")
    assert why in driven.failure
    assert driven.failure.isprintable()
    assert driven.result == (b"", driven.failure, False, False)
    response, _, body = driven.output.partition(b"\r\n\r\n")
    assert response.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nConnection: close\r\n" in response
    assert b"\r\nContent-Length: %d\r\n" % len(body) in response
    assert body.decode() == driven.failure.partition(": ")[2] + "\n"
    assert (status == 405) == (b"\r\nAllow: GET" in response)
    assert (status == 426) == (b"\r\nUpgrade: websocket" in response)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("origins", "origin", "accepted"),
    [
        ((), "https://any.example", True),
        (("https://app.example",), "https://app.example", True),
        (("https://a.example", "https://b.example"), "https://b.example", True),
        # Only browsers send an origin.
        (("https://app.example",), None, True),
        (("https://app.example",), "http://app.example", False),
        (("https://app.example",), "https://app.example.evil", False),
        (("https://app.example",), "null", False),
    ],
)
def test_the_origin_of_a_browser_is_checked(
    origins: tuple[str, ...], origin: str | None, accepted: bool
) -> None:
    driven = Driven(WebSocketLayer(WebSocketRules(maximum_frame=1000, origins=origins)))
    driven.give(request(Origin=origin))
    if accepted:
        assert driven.failure is None
    else:
        assert driven.failure == f"HTTP 403: the origin {origin!r} is not allowed"


def test_the_path_is_a_setting() -> None:
    rules = WebSocketRules(maximum_frame=1000, path="/broker/ws")
    for path, accepted in (("/broker/ws", True), ("/mqtt", False)):
        driven = Driven(WebSocketLayer(rules))
        driven.give(request(path))
        assert (driven.failure is None) == accepted


def test_the_length_of_a_head_is_bounded() -> None:
    rules = WebSocketRules(maximum_frame=1000, maximum_head=500)
    size = 500 - len(request(X_Filler=""))
    for filler, accepted in ((size, True), (size + 1, False)):
        for step in (1, 100, 10_000):
            driven = Driven(WebSocketLayer(rules))
            head = request(X_Filler="x" * filler)
            for at in range(0, len(head), step):
                driven.give(head[at : at + step])
            assert (driven.failure is None) == accepted
            if not accepted:
                assert driven.output.startswith(b"HTTP/1.1 431 ")
                assert driven.failure == (
                    "HTTP 431: the head of the HTTP request is longer than 500 bytes"
                )
    endless = Driven(WebSocketLayer(RULES))
    for _ in range(10):
        endless.give(b"GET / HTTP/1.1\r\n" + b"x" * 1000)
    assert endless.failure == "HTTP 431: the head of the HTTP request is longer than 8192 bytes"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (CONNECT, "an MQTT CONNECT"),
        (b"\x16\x03\x01\x02\x00", "a TLS handshake"),
        (b"PROXY TCP4 ", "a PROXY protocol header"),
        (PROXY_V2_SIGNATURE, "a PROXY protocol header"),
        (b"get / HTTP/1.1\r\n", "bytes of an unknown protocol (67 65 74 20 2f 20 48 54)"),
    ],
)
def test_what_is_not_http_is_named(data: bytes, what: str) -> None:
    driven = Driven(WebSocketLayer(RULES))
    driven.give(data)
    assert driven.failure == (f"this port expects a WebSocket handshake; the client sent {what}")
    assert driven.output == b""


# --- frames ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 5, 1000, 1 << 20])
def test_packets_are_in_any_framing(size: int) -> None:
    """[MQTT-6.0.0-2]"""
    _, driven = opened()
    stream = b"".join(
        [
            frame(BINARY, b"one"),
            frame(BINARY),
            frame(BINARY, b"two ", last=False),
            frame(PING, b"in between"),
            frame(CONTINUATION, b"three ", last=False),
            frame(CONTINUATION, last=False),
            frame(CONTINUATION, b"four"),
            frame(PONG, b"unasked"),
            frame(BINARY, LARGE[:126]),
            frame(BINARY, LARGE[:65535]),
            frame(BINARY, LARGE, mask=bytes(4)),
            frame(BINARY, b"end"),
        ]
    )
    for at in range(0, len(stream), size):
        driven.give(stream[at : at + size])
    assert driven.failure is None
    expected = b"onetwo three four" + LARGE[:126] + LARGE[:65535] + LARGE + b"end"
    assert driven.inner == expected
    assert read_frames(driven.output) == [(PONG, b"in between")]


def test_a_payload_is_passed_on_before_its_frame_is_complete() -> None:
    layer, _ = opened()
    data = frame(BINARY, LARGE)
    assert layer.receive(data[:5]) == b""
    assert layer.receive(data[5:20]) == LARGE[:6]
    assert layer.receive(data[20:]) == LARGE[6:]


def test_a_message_of_fragments_has_no_bound() -> None:
    _, driven = opened()
    driven.give(frame(BINARY, LARGE, last=False))
    for _ in range(20):
        driven.give(frame(CONTINUATION, LARGE, last=False))
    driven.give(frame(CONTINUATION, b"end"))
    assert driven.failure is None
    assert driven.inner == LARGE * 21 + b"end"


def test_of_pings_that_arrive_together_the_last_is_answered() -> None:
    layer, driven = opened()
    driven.give(b"".join(frame(PING, bytes([number])) for number in range(100)))
    assert read_frames(driven.take_output()) == [Sent(PONG, bytes([99]))]
    driven.give(frame(PING, bytes(125)))
    driven.give(frame(PING))
    assert read_frames(driven.take_output()) == [Sent(PONG, bytes(125)), Sent(PONG, b"")]
    # Also if the answer to the first could not be taken.
    layer.receive(frame(PING, b"one"))
    layer.receive(frame(PING, b"two"))
    assert read_frames(layer.take_output()) == [Sent(PONG, b"two")]
    assert layer.take_output() == b""


@pytest.mark.parametrize("length", [0, 1, 125, 126, 65535, 65536, 1_000_000])
def test_data_is_sent_in_one_binary_frame(length: int) -> None:
    layer, _ = opened()
    data = bytes(length)
    assert read_frames(layer.send(data)) == ([Sent(BINARY, data)] if data else [])


TOO_LONG = bytes([0x82, 0xFF]) + (MAXIMUM_FRAME + 1).to_bytes(8, "big") + bytes(4)


@pytest.mark.parametrize(
    ("bad", "what", "code"),
    [
        (frame(TEXT, b"x"), "a text frame; MQTT is in binary frames only [MQTT-6.0.0-1]", 1003),
        (frame(TEXT, b"x", last=False), "a text frame; MQTT is in binary frames only", 1003),
        (frame(BINARY, b"x", mask=None), "a frame that is not masked", 1002),
        (frame(PING, mask=None), "a frame that is not masked", 1002),
        (frame(3), "a frame with the unknown opcode 3", 1002),
        (frame(11), "a frame with the unknown opcode 11", 1002),
        (frame(0x20 | BINARY), "a frame with reserved bits, such as those of compression", 1002),
        (frame(0x40 | BINARY), "a frame with reserved bits, such as those of compression", 1002),
        (frame(CONTINUATION, b"x"), "the continuation of a message that has not begun", 1002),
        (frame(PING, bytes(126)), "a control frame of more than 125 bytes", 1002),
        (frame(PING, last=False), "a control frame in fragments", 1002),
        (TOO_LONG, "a frame of 100001 bytes; at most 100000 are accepted", 1009),
        (bytes([0x82, 0xFF]) + b"\xff" * 8 + bytes(4), "a frame of 18446744073709551615", 1009),
        (frame(CLOSE, b"x"), "a close frame that is malformed", 1002),
        (close_frame(999), "a close frame that is malformed", 1002),
        (close_frame(1005), "a close frame that is malformed", 1002),
        (frame(CLOSE, b"\x03\xe8\xff"), "a close frame that is malformed", 1002),
    ],
)
def test_a_frame_that_is_not_allowed_ends_the_connection(bad: bytes, what: str, code: int) -> None:
    for at_once in (False, True):
        _, driven = opened()
        stream = frame(BINARY, b"before") + frame(PING) + bad + frame(BINARY, b"after")
        for piece in [stream] if at_once else [bytes([byte]) for byte in stream]:
            driven.give(piece)
        assert driven.inner == b"before"
        assert driven.failure is not None
        assert driven.failure.startswith(f"WebSocket: the client sent {what}")
        *_, last = read_frames(driven.output)
        assert last.opcode == CLOSE
        assert last.payload[:2] == code.to_bytes(2, "big")
        assert last.payload[2:].decode() == driven.failure.removeprefix(
            "WebSocket: the client sent "
        )


def test_a_message_must_end_before_the_next_one() -> None:
    _, driven = opened()
    driven.give(frame(BINARY, b"a", last=False) + frame(BINARY, b"b"))
    assert driven.inner == b"a"
    assert driven.failure == (
        "WebSocket: the client sent a new message before the end of the last one"
    )


def test_the_longest_frame_is_accepted() -> None:
    _, driven = opened()
    driven.give(frame(BINARY, bytes(MAXIMUM_FRAME)))
    assert driven.failure is None
    assert len(driven.inner) == MAXIMUM_FRAME


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "answer"),
    [
        (close_frame(1000), b"\x03\xe8"),
        (close_frame(1001, "going home"), b"\x03\xe9"),
        (close_frame(4000, "private"), b"\x0f\xa0"),
        (frame(CLOSE), b""),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_close_frame_is_answered_after_what_came_before_it(
    last: bytes, answer: bytes, at_once: bool
) -> None:
    layer, driven = opened()
    stream = frame(BINARY, b"DISCONNECT") + frame(PING) + last + frame(BINARY, b"after")
    for piece in [stream] if at_once else [bytes([byte]) for byte in stream]:
        driven.give(piece)
    assert driven.result == (b"DISCONNECT", None, True, True)
    assert read_frames(driven.output)[-1] == Sent(CLOSE, answer)
    assert layer.receive(frame(BINARY, b"late")) == b""
    assert layer.send(b"late") == layer.close() == layer.take_output() == b""


@pytest.mark.parametrize(
    ("is_shutdown", "code"),
    [(False, CloseCode.NORMAL_CLOSURE), (True, CloseCode.GOING_AWAY)],
)
def test_close_sends_a_close_frame(is_shutdown: bool, code: int) -> None:
    layer, driven = opened()
    layer.receive(frame(PING, b"last"))
    sent = read_frames(layer.close(is_shutdown=is_shutdown))
    assert sent == [Sent(PONG, b"last"), Sent(CLOSE, code.to_bytes(2, "big"))]
    assert layer.close() == layer.send(b"late") == b""
    driven.give(frame(BINARY, b"on its way") + frame(PING))
    assert driven.result == (b"", None, True, False)
    driven.give(close_frame(code))
    assert driven.result == (b"", None, True, True)
    assert driven.output == b""


def test_what_breaks_the_protocol_after_close_only_ends_it() -> None:
    layer, driven = opened()
    layer.close()
    driven.give(frame(TEXT, b"x"))
    assert driven.result == (b"", None, True, True)
    assert driven.output == b""


def test_before_the_handshake_there_is_no_close_frame() -> None:
    layer = WebSocketLayer(RULES)
    layer.work()
    assert layer.receive(b"") == b""
    assert layer.receive(b"GET ") == layer.take_output() == b""
    assert layer.close() == b""
    assert layer.receive(request()) == layer.take_output() == b""
    assert not layer.is_established


# --- another WebSocket ----------------------------------------------------------------------------


def test_the_client_of_the_library_speaks_with_it() -> None:
    client = ClientProtocol(
        parse_uri("ws://localhost/mqtt"), subprotocols=[Subprotocol("mqtt")], max_size=None
    )
    layer = WebSocketLayer(RULES)
    driven = Driven(layer)

    def exchange() -> None:
        for data in client.data_to_send():
            driven.give(data)
        answer = driven.take_output()
        if answer:
            client.receive_data(answer)

    client.send_request(client.connect())
    exchange()
    assert client.state is OPEN
    assert client.handshake_exc is None
    client.send_binary(LARGE)
    client.send_binary(b"a", fin=False)
    client.send_ping(b"here?")
    client.send_continuation(b"b", fin=True)
    exchange()
    assert driven.inner == LARGE + b"ab"
    client.receive_data(layer.send(LARGE))
    frames = [event for event in client.events_received() if isinstance(event, Frame)]
    assert [(each.opcode, bytes(each.data)) for each in frames] == [
        (PONG, b"here?"),
        (BINARY, LARGE),
    ]
    client.send_close(1000, "done")
    exchange()
    assert layer.is_closed
    assert client.close_rcvd is not None
    assert client.close_rcvd.code == CloseCode.NORMAL_CLOSURE


# --- many, and random -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "one", [frame(BINARY, bytes(16)), frame(BINARY), frame(PING), frame(PONG)], ids=range(4)
)
def test_the_time_for_a_frame_does_not_grow_with_their_number(one: bytes) -> None:
    def seconds_each(count: int) -> float:
        layer, _ = opened()
        data = one * count
        begin = time.process_time()
        layer.receive(data)
        return (time.process_time() - begin) / count

    few = min(seconds_each(2_000) for _ in range(5))
    many = min(seconds_each(40_000) for _ in range(2))
    assert many < 6 * few


MASKS = st.binary(min_size=4, max_size=4)
FRAMES = st.one_of(
    st.builds(
        frame, st.just(BINARY), st.binary(max_size=200), mask=st.binary(min_size=4, max_size=4)
    ),
    st.tuples(st.binary(max_size=130), st.binary(max_size=9)).map(
        lambda both: frame(BINARY, both[0], last=False) + frame(CONTINUATION, both[1])
    ),
    st.builds(frame, st.sampled_from([PING, PONG]), st.binary(max_size=125)),
    st.builds(frame, st.integers(min_value=0, max_value=127), st.binary(max_size=9)),
    st.builds(close_frame, st.integers(min_value=900, max_value=5100)),
)
STREAMS = st.lists(FRAMES, max_size=12).map(b"".join)


@pytest.mark.slow
@settings(max_examples=repeats(800, 300))
@given(st.one_of(STREAMS, mutated(STREAMS), st.binary(max_size=300)), PLACES)
def test_random_frames_give_the_same_bytes_whatever_the_split(
    data: bytes, places: list[int]
) -> None:
    _, whole = opened()
    layer, split = opened()
    whole.give(data)
    for piece in pieces(data, places):
        split.give(piece)
        assert len(layer._beginning) < 140
    assert split.result == whole.result
    assert read_frames(split.output)[-1:] == read_frames(whole.output)[-1:]
    assert len(whole.inner) <= len(data)


HEADS = st.sampled_from(
    [request(), request("/"), request(Upgrade=None), request(Origin="https://a.example")]
)


@settings(max_examples=repeats(800, 300))
@given(st.one_of(mutated(HEADS), st.binary(max_size=300).map(lambda tail: b"GET /" + tail)), PLACES)
def test_random_requests_fail_or_wait_whatever_the_split(data: bytes, places: list[int]) -> None:
    whole, split = Driven(WebSocketLayer(RULES)), Driven(WebSocketLayer(RULES))
    whole.give(data)
    for piece in pieces(data, places):
        split.give(piece)
    assert split.inner == whole.inner
    assert (split.failure is None) == (whole.failure is None)
    assert split.result[2:] == whole.result[2:]
    assert whole.failure is None or whole.failure.isprintable()
