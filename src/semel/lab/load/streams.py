"""Connections of a load over TLS, WebSocket and Unix sockets, used like non-blocking sockets.

Plain TCP does not come here. A stream gives back everything that it has received, because epoll
only knows the bytes that are still in the system.
"""

import base64
import os
import socket
import ssl
from typing import Final

ANSWER_SECONDS: Final = 20.0
# The most data in a record of TLS.
RECORD: Final = 16 * 1024
# The longest head of an HTTP response that is accepted.
MAXIMUM_HEAD: Final = 16 * 1024

_HEAD_END: Final = b"\r\n\r\n"
_OPCODE: Final = 0x0F
_BINARY: Final = 0x82
_CLOSE: Final = 0x8
_CONTINUATION: Final = 0x0
_DATA: Final = (_CONTINUATION, 0x2)
_MASKED: Final = 0x80
# A mask of zeros leaves the payload as it is. A load need not be unpredictable.
_MASK: Final = bytes(4)


class StreamFailed(OSError):
    """Why a stream cannot be opened; `strerror` is a part of a sentence."""

    def __init__(self, why: str) -> None:
        super().__init__(0, why)


class TlsStream:
    """A socket with TLS."""

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, host: str) -> None:
        """Does the handshake. Raises OSError."""
        try:
            self._tls = context.wrap_socket(connected, server_hostname=host)
        except ssl.SSLError as problem:
            # Imported here, because a worker starts three times as fast without the client.
            from semel.client.transport import explain

            raise StreamFailed(explain(problem)) from None
        self._is_blocking = True

    def fileno(self) -> int:
        return self._tls.fileno()

    def setblocking(self, is_blocking: bool) -> None:
        self._is_blocking = is_blocking
        self._tls.setblocking(is_blocking)

    def close(self) -> None:
        self._tls.close()

    def sendall(self, data: bytes) -> None:
        self._tls.sendall(data)

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Send some bytes. Raises BlockingIOError if none can be sent."""
        view = memoryview(data)
        sent = 0
        try:
            while sent < len(view):
                sent += self._tls.send(view[sent : sent + RECORD])
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            if not sent:
                raise BlockingIOError from None
        return sent

    def recv(self, size: int) -> bytes:
        """At least `size` bytes if there are so many, and then the rest of the last record."""
        if self._is_blocking:
            return self._tls.recv(size)
        pieces = []
        total = 0
        try:
            while total < size or self._tls.pending():
                piece = self._tls.recv(RECORD)
                if not piece:
                    break
                pieces.append(piece)
                total += len(piece)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not pieces:
                raise BlockingIOError from None
        return b"".join(pieces)

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """Read as much as whole records fit into the buffer."""
        view = memoryview(buffer)
        total = 0
        try:
            while len(view) - total >= RECORD:
                size = self._tls.recv_into(view[total:])
                if not size:
                    break
                total += size
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not total:
                raise BlockingIOError from None
        return total


class WebSocketStream:
    """The client's side of a WebSocket, over a socket or a TlsStream."""

    def __init__(self, inner: "socket.socket | TlsStream", where: str, path: str) -> None:
        """Does the handshake. Raises OSError."""
        self._inner = inner
        self._is_blocking = True
        # What is not sent yet of the head of the current frame, and how much of its payload.
        self._head = b""
        self._to_send = 0
        # The beginning of a received frame; how much of its payload is to come, and whether that
        # is data.
        self._beginning = b""
        self._to_receive = 0
        self._is_data = False
        self._is_closed = False
        # Received payload that was not asked for yet.
        self._ready = b""
        self._shake_hands(where, path)

    def _shake_hands(self, where: str, path: str) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        lines = (
            *(f"GET {path} HTTP/1.1", f"Host: {where}", "Upgrade: websocket"),
            *("Connection: Upgrade", f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13"),
            *("Sec-WebSocket-Protocol: mqtt", "", ""),
        )
        self._inner.sendall("\r\n".join(lines).encode())
        head = b""
        while _HEAD_END not in head:
            data = self._inner.recv(RECORD)
            if not data or len(head) > MAXIMUM_HEAD:
                raise StreamFailed("the answer to the WebSocket request is not HTTP")
            head += data
        head, _, rest = head.partition(_HEAD_END)
        status = head.split(b" ", 2)[1:2]
        if status != [b"101"]:
            code = b"".join(status).decode("ascii", "replace")
            raise StreamFailed(f"the WebSocket request was answered with HTTP {code!r}")
        self._ready = self._unframe(rest)

    def fileno(self) -> int:
        return self._inner.fileno()

    def setblocking(self, is_blocking: bool) -> None:
        self._is_blocking = is_blocking
        self._inner.setblocking(is_blocking)

    def close(self) -> None:
        self._inner.close()

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self.send(view) :]

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Send some bytes in a frame. Raises BlockingIOError if none can be sent.

        The rest of the data, which belongs to the same frame, must be sent next.
        """
        view = memoryview(data)
        if not self._to_send:
            self._head = _frame_head(len(view))
            self._to_send = len(view)
        length = len(self._head)
        sent = self._inner.send(self._head + view[: self._to_send])
        if sent < length:
            self._head = self._head[sent:]
            raise BlockingIOError
        self._head = b""
        self._to_send -= sent - length
        return sent - length

    def recv(self, size: int) -> bytes:
        """Payload of frames; b"" at the end. Raises BlockingIOError if there is none yet."""
        while not self._ready and not self._is_closed:
            data = self._inner.recv(max(size, RECORD))
            if not data:
                return b""
            self._ready = self._unframe(data)
            if not self._is_blocking and not self._ready and not self._is_closed:
                raise BlockingIOError
        if not self._is_blocking:
            ready, self._ready = self._ready, b""
            return ready
        ready, self._ready = self._ready[:size], self._ready[size:]
        return ready

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """Like `recv`. The payload is never longer than what the system gave."""
        data = self._ready or self.recv(len(buffer) - RECORD)
        taken = min(len(data), len(buffer))
        buffer[:taken] = data[:taken]
        self._ready = data[taken:]
        return taken

    def _unframe(self, data: bytes) -> bytes:
        """The payload of data frames in these bytes."""
        payload = []
        data = self._beginning + data
        self._beginning = b""
        at = 0
        while at < len(data):
            if not self._to_receive:
                size = data[at + 1] & 0x7F if at + 1 < len(data) else 0
                start = at + 2 + {126: 2, 127: 8}.get(size, 0)
                if start > len(data):
                    self._beginning = data[at:]
                    break
                if size >= 126:
                    size = int.from_bytes(data[at + 2 : start], "big")
                opcode = data[at] & _OPCODE
                self._is_data = opcode in _DATA
                self._is_closed |= opcode == _CLOSE
                self._to_receive = size
                at = start
            end = min(len(data), at + self._to_receive)
            if self._is_data:
                payload.append(data[at:end])
            self._to_receive -= end - at
            at = end
        return b"".join(payload)


def _frame_head(length: int) -> bytes:
    """The beginning of a masked binary frame."""
    if length < 126:
        return bytes((_BINARY, _MASKED | length)) + _MASK
    if length < 1 << 16:
        return bytes((_BINARY, _MASKED | 126)) + length.to_bytes(2, "big") + _MASK
    return bytes((_BINARY, _MASKED | 127)) + length.to_bytes(8, "big") + _MASK


Stream = socket.socket | TlsStream | WebSocketStream


def open_stream(
    scheme: str, address: tuple[str, int], path: str, context: ssl.SSLContext | None
) -> Stream:
    """Connect by one of the schemes of `semel.client.address`. Raises OSError.

    `path` is that of a Unix socket, or the resource of a WebSocket; `context` is for mqtts and wss.
    """
    if scheme == "unix":
        made = socket.socket(socket.AF_UNIX)
        try:
            made.settimeout(ANSWER_SECONDS)
            made.connect(path)
        except BaseException:
            made.close()
            raise
        return made
    made = socket.create_connection(address, ANSWER_SECONDS)
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream: socket.socket | TlsStream = made
        if context is not None:
            stream = TlsStream(made, context, address[0])
        if scheme in ("ws", "wss"):
            return WebSocketStream(stream, f"{address[0]}:{address[1]}", path)
    except BaseException:
        made.close()
        raise
    return stream
