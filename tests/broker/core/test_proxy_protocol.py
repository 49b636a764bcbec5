"""The PROXY protocol: the headers of both versions, and what is refused."""

import ipaddress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from semel.broker.network.first_bytes import PROXY_V2_SIGNATURE, describe_first_bytes
from semel.broker.network.proxy_protocol import MAXIMUM_HEADER_BYTES, ProxyLayer
from tests.broker.layer_driver import PLACES, Driven, mutated, pieces
from tests.modes import repeats

CONNECT = bytes.fromhex("100c 0004 4d515454 04 02 000a 0000")
TCP4, TCP6, UNIX, UNSPECIFIED = 0x11, 0x21, 0x31, 0x00
ADDRESSES4 = bytes([192, 0, 2, 7, 198, 51, 100, 1]) + (5124).to_bytes(2, "big") + b"\x07\x5b"
ADDRESSES6 = (
    ipaddress.ip_address("2001:db8::7").packed
    + ipaddress.ip_address("2001:db8::1").packed
    + (65535).to_bytes(2, "big")
    + b"\x07\x5b"
)
# An extension with the name of the host, and one with what the proxy knows of its TLS.
EXTENSIONS = b"\x02\x00\x04host" + b"\x20\x00\x05\x01\x00\x00\x00\x00"


def version_2(
    family: int, addresses: bytes, *, command: int = 1, version: int = 2, length: int | None = None
) -> bytes:
    size = len(addresses) if length is None else length
    head = bytes([version << 4 | command, family]) + size.to_bytes(2, "big")
    return PROXY_V2_SIGNATURE + head + addresses


ACCEPTED: list[tuple[bytes, tuple[str, int] | None]] = [
    (version_2(TCP4, ADDRESSES4), ("192.0.2.7", 5124)),
    (version_2(TCP4, ADDRESSES4 + EXTENSIONS), ("192.0.2.7", 5124)),
    (version_2(TCP6, ADDRESSES6), ("2001:db8::7", 65535)),
    (version_2(TCP6, ADDRESSES6 + EXTENSIONS), ("2001:db8::7", 65535)),
    (version_2(UNIX, bytes(216)), None),
    (version_2(UNSPECIFIED, b""), None),
    (version_2(UNSPECIFIED, EXTENSIONS), None),
    # LOCAL: a health check of the proxy itself; what its header contains is ignored.
    (version_2(UNSPECIFIED, b"", command=0), None),
    (version_2(TCP4, ADDRESSES4, command=0), None),
    (version_2(0xFF, b"x", command=0), None),
    (version_2(TCP4, ADDRESSES4 + bytes(MAXIMUM_HEADER_BYTES - 28)), ("192.0.2.7", 5124)),
    (b"PROXY TCP4 192.0.2.7 198.51.100.1 5124 1883\r\n", ("192.0.2.7", 5124)),
    (b"PROXY TCP4 192.0.2.7 198.51.100.1 0 65535\r\n", ("192.0.2.7", 0)),
    (b"PROXY TCP6 2001:DB8:0::7 ::1 65535 1883\r\n", ("2001:db8::7", 65535)),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", None),
    (b"PROXY UNKNOWN" + b" " * 92 + b"\r\n", None),
]

NOT_A_HEADER = "this port expects a PROXY protocol header; the peer sent "
REFUSED = [
    (CONNECT, NOT_A_HEADER + "an MQTT CONNECT"),
    (b"\x16\x03\x01\x02\x00\x01", NOT_A_HEADER + "a TLS handshake"),
    (b"GET / HTTP/1.1\r\n", NOT_A_HEADER + "an HTTP request"),
    (b"PROXX", NOT_A_HEADER + "bytes of an unknown protocol (50 52 4f 58 58)"),
    (b"\r\n\r\n\x00\r\nQUIT\r", NOT_A_HEADER + "bytes of an unknown protocol "),
    (version_2(TCP4, ADDRESSES4, version=1), "has version 1 and command 1; expected version 2"),
    (version_2(TCP4, ADDRESSES4, command=2), "has version 2 and command 2; expected version 2"),
    # UDP over IPv4, and a family that does not exist.
    (version_2(0x12, ADDRESSES4), "has address family 0x12; expected TCP"),
    (version_2(0x41, ADDRESSES4), "has address family 0x41; expected TCP"),
    (version_2(TCP4, ADDRESSES4[:-1]), "has 11 bytes for addresses; its family needs 12"),
    (version_2(TCP6, ADDRESSES4), "has 12 bytes for addresses; its family needs 36"),
    (version_2(UNIX, bytes(215)), "has 215 bytes for addresses; its family needs 216"),
    (version_2(TCP4, b"", length=4081), "has 4097 bytes; at most 4096 are accepted"),
    (version_2(TCP4, b"", length=65535), "has 65551 bytes; at most 4096 are accepted"),
    (b"PROXY UNKNOWN" + b" " * 93 + b"\r\n", "has no end of line within 107 bytes"),
    (b"PROXY " + bytes(1000), "has no end of line within 107 bytes"),
    (b"PROXY \r\n", "header is invalid: 'PROXY '"),
    (b"PROXY TCP5 192.0.2.7 198.51.100.1 1 2\r\n", "header is invalid: 'PROXY TCP5 192"),
    (b"PROXY TCP4 192.0.2.7 198.51.100.1 1\r\n", "header is invalid"),
    (b"PROXY TCP4  192.0.2.7 198.51.100.1 1 2\r\n", "header is invalid"),
    (b"PROXY TCP4 192.0.2.7 198.51.100.1 1 2 3\r\n", "header is invalid"),
    (b"PROXY TCP4 192.0.2.256 198.51.100.1 1 2\r\n", "address '192.0.2.256'; expected one of IPv4"),
    (b"PROXY TCP4 192.0.2.7 host 1 2\r\n", "has address 'host'; expected one of IPv4"),
    (b"PROXY TCP4 ::1 ::1 1 2\r\n", "has address '::1'; expected one of IPv4"),
    (b"PROXY TCP6 192.0.2.7 ::1 1 2\r\n", "has address '192.0.2.7'; expected one of IPv6"),
    (b"PROXY TCP6 fe80::1%\x1b[31m ::1 1 2\r\n", r"has address 'fe80::1%\x1b[31m'; expected one"),
    (b"PROXY TCP4 \xff\xfe 198.51.100.1 1 2\r\n", "has address '\ufffd\ufffd'; expected one"),
    (b"PROXY TCP4 192.0.2.7 198.51.100.1 65536 2\r\n", "has port '65536'; expected 0 to 65535"),
    (b"PROXY TCP4 192.0.2.7 198.51.100.1 1 065\r\n", "has port '065'; expected 0 to 65535"),
    (b"PROXY TCP4 192.0.2.7 198.51.100.1 -1 2\r\n", "has port '-1'; expected 0 to 65535"),
    (b"PROXY TCP4 192.0.2.7 198.51.100.1 1 \r\n", "has port ''; expected 0 to 65535"),
    (b"PROXY TCP4 192.0.2.7 198.51.100.1 123456 2\r\n", "has port '123456'; expected 0"),
]


@pytest.mark.parametrize(("header", "source"), ACCEPTED)
def test_a_header_is_consumed_and_the_rest_is_passed_on(
    header: bytes, source: tuple[str, int] | None
) -> None:
    for stream in ([header + CONNECT], [bytes([byte]) for byte in header + CONNECT]):
        layer = ProxyLayer()
        driven = Driven(layer)
        for piece in stream:
            driven.give(piece)
        assert driven.result == (CONNECT, None, True, False)
        assert layer.source == source
        driven.give(b"more")
        assert driven.inner == CONNECT + b"more"
        assert driven.output == b""


@pytest.mark.parametrize(("header", "source"), ACCEPTED)
def test_nothing_is_established_before_the_last_byte(
    header: bytes, source: tuple[str, int] | None
) -> None:
    driven = Driven(ProxyLayer())
    driven.give(header[:-1])
    assert driven.result == (b"", None, False, False)
    driven.give(header[-1:])
    assert driven.result == (b"", None, True, False)


@pytest.mark.parametrize(("data", "why"), REFUSED)
def test_anything_else_is_refused_with_a_sentence(data: bytes, why: str) -> None:
    driven = Driven(ProxyLayer())
    driven.give(data)
    assert driven.failure is not None
    assert why in driven.failure
    assert driven.failure.isprintable()
    assert driven.result == (b"", driven.failure, False, False)
    one_by_one = Driven(ProxyLayer())
    for byte in data:
        one_by_one.give(bytes([byte]))
    assert one_by_one.failure is not None
    assert one_by_one.result[2:] == (False, False)


def test_bytes_to_the_client_are_not_changed() -> None:
    layer = ProxyLayer()
    layer.receive(b"PROXY UNKNOWN\r\n")
    layer.work()
    assert layer.send(b"data") == b"data"
    assert layer.close() == b""
    assert layer.close(is_shutdown=True) == b""


STREAMS = st.sampled_from([header for header, _ in ACCEPTED]).map(lambda header: header + CONNECT)


@settings(max_examples=repeats(1_000, 300))
@given(st.one_of(st.binary(max_size=300), mutated(STREAMS)), PLACES)
@example(b"PROXY TCP4 192.0.2.7 198.51.100.1 1 2\r\n", [5, 6, 7])
def test_random_input_fails_or_passes_whatever_the_split(data: bytes, places: list[int]) -> None:
    whole, split = Driven(ProxyLayer()), Driven(ProxyLayer())
    whole.give(data)
    for piece in pieces(data, places):
        split.give(piece)
    assert split.inner == whole.inner
    assert (split.failure is None) == (whole.failure is None)
    assert split.result[2:] == whole.result[2:]
    assert data.endswith(whole.inner)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x16\x03\x01\x02\x00", "a TLS handshake"),
        (b"\x16\x03", "a TLS handshake"),
        (b"GET / HTTP/1.1\r\n", "an HTTP request"),
        (b"OPTIONS * HTTP/1.1\r\n", "an HTTP request"),
        (b"PRI * HTTP/2.0\r\n", "an HTTP request"),
        (b"PROXY TCP4 ", "a PROXY protocol header"),
        (PROXY_V2_SIGNATURE, "a PROXY protocol header"),
        (CONNECT, None),
        (b"", None),
        (b"\x16", None),
        (b"GETTER", None),
        (b"\x16\x04", None),
        (b"\r\n\r\n", None),
    ],
)
def test_the_first_bytes_of_other_protocols_are_recognized(data: bytes, what: str | None) -> None:
    assert describe_first_bytes(data) == what
