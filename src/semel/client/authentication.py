"""Enhanced authentication [5.0 §4.12] by a method of the program."""

from collections.abc import Awaitable


class ClientAuthentication:
    """One authentication method, such as SCRAM-SHA-256: subclass it. Methods may be coroutines.

    `begin` is called for each connection, and for each re-authentication.
    """

    def __init__(self, method: str) -> None:
        self.method = method

    def begin(self) -> bytes | Awaitable[bytes | None] | None:
        """The first Authentication Data, for CONNECT or AUTH 0x19."""
        return None

    def respond(self, data: bytes | None) -> bytes | Awaitable[bytes | None] | None:
        """The Authentication Data with which to answer the server's AUTH 0x18."""
        raise NotImplementedError

    def finish(self, data: bytes | None) -> Awaitable[None] | None:
        """Verify the Authentication Data with which the server accepted. Raise to reject it."""
        return None
