"""Where a server listens, and who else can reach that."""

import asyncio
import socket

import pytest

from semel.broker.server import Server
from semel.broker.settings import BrokerSettings


@pytest.mark.parametrize(
    ("addresses", "reachable"),
    [
        (["127.0.0.1"], []),
        (["127.0.0.1", "127.0.0.2"], []),
        (["127.0.0.1", "0.0.0.0"], ["0.0.0.0"]),
        (["0.0.0.0", "127.0.0.1"], ["0.0.0.0"]),
    ],
)
def test_each_address_of_a_host_name_counts(
    addresses: list[str], reachable: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name may lead to several, and the broker listens on all of them."""

    def resolve(*arguments: object, **keywords: object) -> list[tuple[object, ...]]:
        stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*stream, (address, 0)) for address in addresses]

    async def start() -> list[str]:
        server = Server(BrokerSettings(host="plant", port=0))
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        await server.start()
        found = server.reachable_addresses()
        await server.stop()
        return found

    assert asyncio.run(start()) == reachable
