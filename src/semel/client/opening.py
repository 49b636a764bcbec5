"""Connect to a server: over TCP, TLS or a unix socket (`transport`), or WebSocket (`websocket`)."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol

from semel.client.address import Address, BadAddress
from semel.client.tls import make_context
from semel.client.transport import CannotConnect, Transport, TransportListener, explain, open_stream
from semel.extras import need

Connecting = Callable[
    [Address, TransportListener, ssl.SSLContext | None, str | None], Awaitable[Transport]
]


async def open_transport(
    address: Address,
    listener: TransportListener,
    *,
    tls: ssl.SSLContext | None = None,
    timeout: float = 30.0,
    local_host: str | None = None,
) -> Transport:
    """Connect, with TLS if the address asks for it. Raises CannotConnect.

    `timeout` seconds bound the whole: the name, TCP, TLS and the handshake of WebSocket. `tls` is
    for mqtts and wss, and with mqtt or ws a BadAddress: who gives one means to be encrypted.
    `local_host` is an IP address of this machine to connect from; a unix socket has no such.
    """
    if tls is not None and not address.secure:
        raise BadAddress(
            f"a context for TLS is given, but {address.scheme} is without: use mqtts or wss"
        )
    if address.scheme in ("ws", "wss"):
        need("websockets", extra="client", by=f"a {address.scheme}:// address")
        from semel.client.websocket import open_websocket

        connecting: Connecting = open_websocket
    else:
        connecting = open_stream
    if address.secure and tls is None:
        tls = make_context()
    deadline = asyncio.timeout(timeout)
    try:
        async with deadline:
            return await connecting(address, listener, tls, local_host)
    except OSError as problem:
        why = f"no answer within {timeout:g} s" if deadline.expired() else explain(problem)
        raise CannotConnect(f"cannot connect to {address}: {why}") from None


class Opening(Protocol):
    """A way to connect: `open_transport`, or one that does more."""

    async def __call__(
        self,
        address: Address,
        listener: TransportListener,
        *,
        tls: ssl.SSLContext | None = None,
        timeout: float = 30.0,
    ) -> Transport: ...
