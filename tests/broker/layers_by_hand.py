"""Layers and transports that a test controls, for the code between sockets and layers."""

import asyncio

from semel.broker.network.layer import LayerFailed


class Shift:
    """A layer that adds a prefix to what it sends, and demands it of what it receives.

    It is established by a hello, which it answers; with `works`, the answer is made by `work`.
    """

    def __init__(self, mark: bytes, *, works: bool = False) -> None:
        self.mark = mark
        self.works = works
        self.is_established = False
        self.is_closed = False
        self.has_work = False
        self.steps = 0
        self.failure: LayerFailed | None = None
        self._output = b""
        self._waiting = b""
        self._is_working = False

    def receive(self, data: bytes) -> bytes:
        if self.failure is not None:
            raise self.failure
        new = data
        data = self._waiting + data
        self._waiting = b""
        if self._is_working and (new or not self.steps):
            self._waiting = data
            return b""
        self._is_working = False
        if not self.is_established and self.works and not self.steps:
            self.has_work = self._is_working = True
            self._waiting = data
            return b""
        if not self.is_established:
            if not data.startswith(self.mark + b"hello"):
                self._output = self.mark + b"refused"
                raise LayerFailed(f"no hello in {data!r}")
            data = data[len(self.mark) + 5 :]
            self.is_established = True
            self._output += self.mark + b"welcome"
        inner = b""
        for piece in data.split(self.mark)[1:]:
            if piece == b"bye":
                self.is_closed = True
                self._output += self.mark + b"bye"
            elif piece == b"bad":
                raise LayerFailed("a bad piece", inner)
            else:
                inner += piece
        return inner

    def send(self, data: bytes) -> bytes:
        assert self.is_established
        return self.mark + data

    def take_output(self) -> bytes:
        output, self._output = self._output, b""
        return output

    def work(self) -> None:
        self.has_work = False
        self.steps += 1

    def close(self, *, is_shutdown: bool = False) -> bytes:
        return self.mark + (b"shutdown" if is_shutdown else b"close")


class Wire(asyncio.Transport):
    """The transport of a socket: keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 5)})
        self.written = b""
        self.reading: list[str] = []
        self.is_closed = False
        self.is_aborted = False
        self.limits: tuple[int | None, int | None] = (None, None)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def taken(self) -> bytes:
        written, self.written = self.written, b""
        return written

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_closed or self.is_aborted

    def pause_reading(self) -> None:
        self.reading.append("pause")

    def resume_reading(self) -> None:
        self.reading.append("resume")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = (high, low)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.written += b"(end)"

    def get_write_buffer_size(self) -> int:
        return len(self.written)
