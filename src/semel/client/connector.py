"""Connects to a server: over TCP, TLS or a Unix socket (`transport`), or WebSocket."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol

from semel.client.address import Address, BadAddress
from semel.client.tls import make_context
from semel.client.transport import CannotConnect, Transport, TransportListener, explain, open_stream
from semel.extras import need

OpenAddress = Callable[
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
    """Connect, with TLS for mqtts and wss. Raises CannotConnect.

    `timeout` seconds cover name resolution, TCP, TLS and the WebSocket handshake together. `tls`
    with mqtt or ws raises BadAddress, because the caller expects encryption. `local_host` is the
    IP address of this machine to connect from; a Unix socket ignores it.
    """
    if tls is not None and not address.secure:
        raise BadAddress(
            f"a TLS context is given, but {address.scheme} has no TLS: use mqtts or wss"
        )
    if address.scheme in ("ws", "wss"):
        need("websockets", extra="client", by=f"a {address.scheme}:// address")
        from semel.client.websocket import open_websocket

        open_address: OpenAddress = open_websocket
    else:
        open_address = open_stream
    if address.secure and tls is None:
        tls = make_context()
    deadline = asyncio.timeout(timeout)
    try:
        async with deadline:
            return await open_address(address, listener, tls, local_host)
    except OSError as problem:
        why = f"no answer within {timeout:g} s" if deadline.expired() else explain(problem)
        raise CannotConnect(f"cannot connect to {address}: {why}") from None


class Connector(Protocol):
    """Connects to a server: `open_transport`, or a function around it."""

    async def __call__(
        self,
        address: Address,
        listener: TransportListener,
        *,
        tls: ssl.SSLContext | None = None,
        timeout: float = 30.0,
    ) -> Transport: ...
