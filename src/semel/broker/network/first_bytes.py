"""Recognizes a protocol by the first bytes of a connection, to say what a client got wrong."""

import re
from typing import Final

PROXY_V1_PREFIX: Final = b"PROXY "
PROXY_V2_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"

# A record of TLS 1.0 to 1.3 that contains a handshake message; its second byte is always 3.
_TLS_HANDSHAKE: Final = b"\x16\x03"
_HTTP_METHOD: Final = re.compile(rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|CONNECT|TRACE|PRI) ")
# CONNECT: its first byte, a length of 1 to 4 bytes, and the name of the protocol.
_MQTT_CONNECT: Final = re.compile(rb"\x10[\x80-\xff]{0,3}[\x00-\x7f]\x00[\x04\x06]MQ", re.DOTALL)


def describe_first_bytes(data: bytes) -> str | None:
    """What the first bytes of a connection look like; None if they may be MQTT.

    No MQTT client can send them: each begins with a byte that is not that of a CONNECT.
    """
    if data.startswith(_TLS_HANDSHAKE):
        return "a TLS handshake"
    if data.startswith((PROXY_V1_PREFIX, PROXY_V2_SIGNATURE)):
        return "a PROXY protocol header"
    if _HTTP_METHOD.match(data):
        return "an HTTP request"
    return None


def describe_any_bytes(data: bytes) -> str:
    """The same for a port that expects something other than MQTT; always a description."""
    if _MQTT_CONNECT.match(data):
        return "an MQTT CONNECT"
    return describe_first_bytes(data) or f"bytes of an unknown protocol ({data[:8].hex(' ')})"
