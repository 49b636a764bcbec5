"""The PROXY protocol, versions 1 and 2: a header in which a proxy states the client's address.

The header precedes everything else on a connection. It is believed without proof, so a listener
accepts it only if it is switched on, and must then be reachable by its proxies only. Extensions of
version 2 (TLVs) are skipped.
"""

import ipaddress
from typing import Final

from semel.broker.network.first_bytes import (
    PROXY_V1_PREFIX,
    PROXY_V2_SIGNATURE,
    describe_any_bytes,
)
from semel.broker.network.layer import LayerFailed
from semel.counts import count

# The longest line of version 1, with its end, as its specification states it.
MAXIMUM_LINE_BYTES: Final = 107
# The longest header of version 2 that is accepted. Addresses take at most 232 bytes; the rest is
# for extensions, such as what a proxy knows about a client certificate.
MAXIMUM_HEADER_BYTES: Final = 4096

_FIXED_BYTES: Final = len(PROXY_V2_SIGNATURE) + 4
_VERSION_2: Final = 2
_LOCAL: Final = 0
_PROXY: Final = 1
_UNSPECIFIED: Final = 0x00
_TCP4: Final = 0x11
_TCP6: Final = 0x21
_UNIX_STREAM: Final = 0x31
# Bytes of the two addresses and ports, by family.
_ADDRESS_BYTES: Final = {_UNSPECIFIED: 0, _TCP4: 12, _TCP6: 36, _UNIX_STREAM: 216}

_NO_HEADER: Final = "this port expects a PROXY protocol header; the peer sent "


class ProxyLayer:
    """Consumes the header, and passes everything after it on. A `Layer`."""

    def __init__(self) -> None:
        self.is_established = False
        self.is_closed = False
        self.has_work = False
        # The address and port of the client. None: the header has none (LOCAL, UNKNOWN, a Unix
        # socket), and the address of the socket is valid.
        self.source: tuple[str, int] | None = None
        self._header = b""

    def receive(self, data: bytes) -> bytes:
        """As in Layer: the bytes after the header."""
        if self.is_established:
            return data
        header = self._header + data
        length = self._find_length(header)
        if length is None:
            self._header = header
            return b""
        self._header = b""
        self.is_established = True
        return header[length:]

    def send(self, data: bytes) -> bytes:
        """As in Layer: the same bytes."""
        return data

    def take_output(self) -> bytes:
        """As in Layer: the protocol has no answers."""
        return b""

    def work(self) -> None:
        """As in Layer: there is none."""

    def close(self, *, is_shutdown: bool = False) -> bytes:
        """As in Layer: the protocol has no end of its own."""
        return b""

    def _find_length(self, data: bytes) -> int | None:
        """Read the header. Returns its length, or None if more bytes are needed."""
        if data.startswith(PROXY_V2_SIGNATURE):
            return self._read_version_2(data)
        if data.startswith(PROXY_V1_PREFIX):
            return self._read_version_1(data)
        if PROXY_V2_SIGNATURE.startswith(data) or PROXY_V1_PREFIX.startswith(data):
            return None
        raise LayerFailed(f"{_NO_HEADER}{describe_any_bytes(data)}")

    def _read_version_1(self, data: bytes) -> int | None:
        end = data.find(b"\r\n", 0, MAXIMUM_LINE_BYTES)
        if end < 0:
            if len(data) >= MAXIMUM_LINE_BYTES:
                raise LayerFailed(
                    "the PROXY protocol header has no end of line within "
                    f"{MAXIMUM_LINE_BYTES} bytes"
                )
            return None
        words = data[:end].split(b" ")
        family = words[1]
        if family != b"UNKNOWN":
            if family not in (b"TCP4", b"TCP6") or len(words) != 6:
                raise LayerFailed(f"the PROXY protocol header is invalid: {_text(data[:end])!r}")
            version = 4 if family == b"TCP4" else 6
            source = _parse_address(words[2], version)
            _parse_address(words[3], version)
            port = _parse_port(words[4])
            _parse_port(words[5])
            self.source = (source, port)
        return end + 2

    def _read_version_2(self, data: bytes) -> int | None:
        if len(data) < _FIXED_BYTES:
            return None
        version, command = data[12] >> 4, data[12] & 0x0F
        family = data[13]
        length = int.from_bytes(data[14:16], "big")
        if version != _VERSION_2 or command not in (_LOCAL, _PROXY):
            raise LayerFailed(
                f"the PROXY protocol header has version {version} and command {command}; "
                "expected version 2 and command 0 or 1"
            )
        end = _FIXED_BYTES + length
        if end > MAXIMUM_HEADER_BYTES:
            raise LayerFailed(
                f"the PROXY protocol header has {end} bytes; "
                f"at most {MAXIMUM_HEADER_BYTES} are accepted"
            )
        if command == _PROXY:
            needed = _ADDRESS_BYTES.get(family)
            if needed is None:
                raise LayerFailed(
                    f"the PROXY protocol header has address family 0x{family:02x}; "
                    "expected TCP over IPv4 or IPv6, or a Unix stream"
                )
            if length < needed:
                raise LayerFailed(
                    f"the PROXY protocol header has {count(length, 'byte')} for addresses; "
                    f"its family needs {needed}"
                )
        if len(data) < end:
            return None
        if command == _PROXY and family == _TCP4:
            port = int.from_bytes(data[24:26], "big")
            self.source = (str(ipaddress.IPv4Address(data[16:20])), port)
        elif command == _PROXY and family == _TCP6:
            port = int.from_bytes(data[48:50], "big")
            self.source = (str(ipaddress.IPv6Address(data[16:32])), port)
        return end


def _parse_address(word: bytes, version: int) -> str:
    """The address in its canonical form. Raises LayerFailed."""
    text = _text(word)
    try:
        # A zone (fe80::1%eth0) would be text of the peer's choice.
        address = ipaddress.ip_address("" if "%" in text else text)
    except ValueError:
        address = None
    if address is None or address.version != version:
        raise LayerFailed(
            f"the PROXY protocol header has address {text!r}; expected one of IPv{version}"
        )
    return str(address)


def _parse_port(word: bytes) -> int:
    """Raises LayerFailed unless it is 0 to 65535 in decimal digits without leading zeros."""
    if word.isdigit() and len(word) <= 5 and (port := int(word)) <= 65535 and word == b"%d" % port:
        return port
    raise LayerFailed(f"the PROXY protocol header has port {_text(word)!r}; expected 0 to 65535")


def _text(data: bytes) -> str:
    return data.decode("ascii", "replace")
