"""WebSocket frames and requests made by hand, and what a server sends, read by hand."""

from typing import NamedTuple

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
MASK = b"\x11\x22\x33\x44"
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def request(path: str = "/mqtt", *, method: str = "GET", **headers: str | None) -> bytes:
    """A request for a WebSocket. A header of None is left out; _ stands for -."""
    found: dict[str, str | None] = {
        "Host": "localhost",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": KEY,
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "mqtt",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = [f"{name}: {value}" for name, value in found.items() if value is not None]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode("latin-1")


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    last: bool = True,
    mask: bytes | None = MASK,
) -> bytes:
    """A frame of a client; `opcode` may have reserved bits, and mask None is not masked."""
    first = (0x80 if last else 0) | opcode
    masked = 0 if mask is None else 0x80
    length = len(payload)
    if length < 126:
        head = bytes([first, masked | length])
    elif length < 1 << 16:
        head = bytes([first, masked | 126]) + length.to_bytes(2, "big")
    else:
        head = bytes([first, masked | 127]) + length.to_bytes(8, "big")
    if mask is None:
        return head + payload
    covered = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
    return head + mask + covered


def close_frame(code: int, reason: str = "") -> bytes:
    return frame(CLOSE, code.to_bytes(2, "big") + reason.encode())


class Sent(NamedTuple):
    """A frame of the server."""

    opcode: int
    payload: bytes


def read_frames(data: bytes) -> list[Sent]:
    """The frames of a server, which are whole and not masked."""
    found = []
    while data:
        assert data[0] & 0xF0 == 0x80
        length = data[1]
        start = 2
        if length == 126:
            start, length = 4, int.from_bytes(data[2:4], "big")
        elif length == 127:
            start, length = 10, int.from_bytes(data[2:10], "big")
        assert len(data) >= start + length
        found.append(Sent(data[0] & 0x0F, data[start : start + length]))
        data = data[start + length :]
    return found
