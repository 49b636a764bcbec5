"""What stands between a socket and the broker's core: zero or more layers, outermost first.

    socket ─▶ PROXY header ─▶ TLS ─▶ WebSocket ─▶ core

A layer does no I/O: the network shell gives it the bytes that have arrived, and writes the bytes
that it returns. Plain TCP and Unix sockets have no layer.
"""

from typing import Protocol


class LayerFailed(Exception):
    """The peer broke the protocol of a layer. The text is one sentence for the log.

    Process `received` first: inner bytes that arrived before the failure. Then write
    `take_output`, and close the connection. The layer must not be used for anything else.
    """

    def __init__(self, sentence: str, received: bytes = b"") -> None:
        super().__init__(sentence)
        self.received = received


class Layer(Protocol):
    """Translates between the outer side (the socket, or an outer layer) and the inner side.

    A step that takes much processor time is done by `work`, in another thread. From the moment
    that `has_work` is True until the shell calls `receive(b"")` after `work` has returned, the
    layer only buffers. The buffer is bounded, so the shell should not read from the socket
    meanwhile. The shell calls `work` once each time that `has_work` becomes True.
    """

    @property
    def is_established(self) -> bool:
        """Whether the handshake is complete, so that `send` may be called."""

    @property
    def is_closed(self) -> bool:
        """Whether the peer has ended the layer in order (a close frame, TLS's close_notify).

        Process the bytes that `receive` returned, write `take_output`, and close the connection.
        """

    @property
    def has_work(self) -> bool:
        """Whether `work` must be called in another thread."""

    def receive(self, data: bytes) -> bytes:
        """Take outer bytes. Returns inner bytes, or b"" if there are none yet.

        Raises LayerFailed. Write `take_output` after each call.
        """

    def send(self, data: bytes) -> bytes:
        """Take inner bytes. Returns outer bytes to write; none if the layer is closed.

        Call it only if the layer is established.
        """

    def take_output(self) -> bytes:
        """Outer bytes that the layer itself must send now: handshake, pong, close frame, alert."""

    def work(self) -> None:
        """Do the step that takes much processor time. Never raises.

        If the step failed, the next `receive(b"")` raises LayerFailed.
        """

    def close(self, *, is_shutdown: bool = False) -> bytes:
        """Outer bytes that end the layer in order. `is_shutdown`: because the broker stops.

        Nothing can be sent afterwards. Bytes that still arrive are ignored.
        """
