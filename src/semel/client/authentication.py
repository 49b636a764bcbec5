"""Enhanced authentication (5.0, section 4.12): what a program brings for a method of its own."""

from collections.abc import Awaitable


class ClientAuthentication:
    """One method, such as SCRAM-SHA-256: subclass it. Each answer may be a coroutine's, too.

    `begin` is called for each connection, and whenever the client authenticates anew.
    """

    def __init__(self, method: str) -> None:
        self.method = method

    def begin(self) -> bytes | Awaitable[bytes | None] | None:
        """The first Authentication Data, for CONNECT or for AUTH 0x19."""
        return None

    def respond(self, data: bytes | None) -> bytes | Awaitable[bytes | None] | None:
        """The server has sent AUTH 0x18 with these data: what to answer."""
        raise NotImplementedError

    def finish(self, data: bytes | None) -> Awaitable[None] | None:
        """The server has accepted, and sent these data. Raise if it is not who it should be."""
        return None
