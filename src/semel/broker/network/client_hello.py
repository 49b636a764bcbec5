"""Reads the first message of a TLS client: the server name and the protocols that it asks for.

The certificate is chosen by this name (SNI), before OpenSSL gets the message. The callback of
Python's `ssl` would print a traceback for every name that is not ASCII, and it does not say which
protocols the client offers (ALPN).

Nothing is decided here. A message that cannot be read asks for nothing, and OpenSSL refuses it.
"""

from dataclasses import dataclass
from typing import Final

_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_RECORD_HEADER_BYTES: Final = 5
_MESSAGE_HEADER_BYTES: Final = 4
_SERVER_NAME: Final = 0
_HOST_NAME: Final = 0
_ALPN: Final = 16


@dataclass(frozen=True, slots=True)
class ClientHello:
    """What a client asks for. None: it did not say."""

    # In lowercase, without a final dot.
    server_name: str | None = None
    protocols: tuple[bytes, ...] | None = None


class HelloReader:
    """Collects the bytes of the message, which may be in several records and pieces."""

    def __init__(self) -> None:
        # Everything received, for OpenSSL. The caller bounds it.
        self.data = bytearray()
        self._message = bytearray()
        # Where the next record begins in `data`.
        self._next = 0

    def feed(self, data: bytes) -> ClientHello | None:
        """Add bytes. Returns the message if it is complete, or cannot be one."""
        self.data += data
        while True:
            body = self._next + _RECORD_HEADER_BYTES
            if len(self.data) < body:
                return None
            if self.data[self._next] != _HANDSHAKE:
                return ClientHello()
            end = body + int.from_bytes(self.data[body - 2 : body], "big")
            if end == body:
                return ClientHello()
            if len(self.data) < end:
                return None
            self._message += self.data[body:end]
            self._next = end
            if self._message[0] != _CLIENT_HELLO:
                return ClientHello()
            if len(self._message) < _MESSAGE_HEADER_BYTES:
                continue
            length = _MESSAGE_HEADER_BYTES + int.from_bytes(self._message[1:4], "big")
            if len(self._message) >= length:
                return parse_client_hello(bytes(self._message[_MESSAGE_HEADER_BYTES:length]))


class _Fields:
    """Takes fields from the front of bytes. Raises ValueError if they do not suffice."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._data):
            raise ValueError("truncated")
        start, self._at = self._at, end
        return self._data[start:end]

    def number(self, length: int) -> int:
        return int.from_bytes(self.take(length), "big")

    def vector(self, length_bytes: int) -> bytes:
        """Bytes that their length precedes."""
        return self.take(self.number(length_bytes))


def parse_client_hello(body: bytes) -> ClientHello:
    """The message without its header. One that cannot be read asks for nothing."""
    server_name: str | None = None
    protocols: tuple[bytes, ...] | None = None
    fields = _Fields(body)
    try:
        # The version, the random number, the session, the ciphers and the compressions.
        fields.take(2 + 32)
        fields.vector(1)
        fields.vector(2)
        fields.vector(1)
        extensions = _Fields(fields.vector(2) if fields else b"")
        while extensions:
            kind = extensions.number(2)
            content = _Fields(extensions.vector(2))
            if kind == _SERVER_NAME:
                server_name = _read_server_name(_Fields(content.vector(2)))
            elif kind == _ALPN:
                protocols = _read_protocols(_Fields(content.vector(2)))
    except ValueError:
        return ClientHello()
    return ClientHello(server_name, protocols)


def _read_server_name(names: _Fields) -> str | None:
    """The host name; None if it is not ASCII, which no host name in a certificate is."""
    while names:
        kind, name = names.number(1), names.vector(2)
        if kind == _HOST_NAME:
            return name.decode("ascii").lower().removesuffix(".") if name.isascii() else None
    return None


def _read_protocols(names: _Fields) -> tuple[bytes, ...]:
    found = []
    while names:
        found.append(names.vector(1))
    return tuple(found)
