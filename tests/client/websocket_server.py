"""The server's end of WebSocket, by hand: any frame can be made, and any answer be given."""

import asyncio
import base64
import hashlib
from typing import NamedTuple

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FIN = 0x80
GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def frame(opcode: int, data: bytes = b"", *, last: bool = True, mask: bytes = b"") -> bytes:
    """A frame as a server sends it: not masked, unless a test wants it."""
    masked = 0x80 if mask else 0
    head = bytes([(FIN if last else 0) | opcode])
    if len(data) < 126:
        head += bytes([masked | len(data)])
    elif len(data) < 65536:
        head += bytes([masked | 126]) + len(data).to_bytes(2, "big")
    else:
        head += bytes([masked | 127]) + len(data).to_bytes(8, "big")
    return head + mask + data


def close_frame(code: int, reason: str = "") -> bytes:
    return frame(CLOSE, code.to_bytes(2, "big") + reason.encode())


class Sent(NamedTuple):
    """A frame that the client has sent."""

    opcode: int
    data: bytes
    last: bool


async def read_frame(reader: asyncio.StreamReader) -> Sent:
    """The client's next frame. Fails if it is not masked, or has a reserved bit set."""
    first, second = await reader.readexactly(2)
    assert first & 0x70 == 0
    assert second & 0x80
    size = second & 0x7F
    if size >= 126:
        size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
    mask = await reader.readexactly(4)
    data = await reader.readexactly(size)
    longer = mask * (size // 4 + 1)
    plain = int.from_bytes(data, "big") ^ int.from_bytes(longer[:size], "big")
    return Sent(first & 0x0F, plain.to_bytes(size, "big"), bool(first & FIN))


class Request(NamedTuple):
    line: str
    # By their names in lower case; each comes once.
    headers: dict[str, str]

    @property
    def accept(self) -> str:
        key = self.headers["sec-websocket-key"]
        return base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()


async def read_request(reader: asyncio.StreamReader) -> Request:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").split("\r\n")[:-2]
    headers = [line.partition(": ") for line in lines[1:]]
    found = {name.lower(): value for name, _, value in headers}
    assert len(found) == len(headers)
    return Request(lines[0], found)


def response(
    request: Request,
    *,
    status: str = "101 Switching Protocols",
    **changes: str | None,
) -> bytes:
    """The answer that opens a WebSocket, with some headers changed or left out (None)."""
    headers: dict[str, str | None] = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Accept": request.accept,
        "Sec-WebSocket-Protocol": "mqtt",
    }
    headers |= {name.replace("_", "-"): value for name, value in changes.items()}
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode()


async def shake_hands(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request:
    request = await read_request(reader)
    writer.write(response(request))
    return request


async def answer_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Read what is left, and answer the client's close frame, whose data is returned."""
    while (sent := await read_frame(reader)).opcode != CLOSE:
        pass
    writer.write(frame(CLOSE, sent.data))
    return sent.data
