"""Where a server listens, and who else can reach that."""

import asyncio
import socket

import pytest

from semel.broker.network.listeners import CannotListen
from semel.broker.network.server import Server
from semel.broker.settings import BrokerSettings


@pytest.mark.parametrize(
    ("addresses", "reachable"),
    [
        (["127.0.0.1"], False),
        (["127.0.0.1", "127.0.0.2"], False),
        (["127.0.0.1", "0.0.0.0"], True),
        (["0.0.0.0", "127.0.0.1"], True),
    ],
)
def test_each_address_of_a_host_name_counts(
    addresses: list[str], reachable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name may lead to several, and the broker listens on all of them."""

    def resolve(*arguments: object, **keywords: object) -> list[tuple[object, ...]]:
        stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*stream, (address, 0)) for address in addresses]

    async def start(*, anonymous: bool | None) -> None:
        server = Server(BrokerSettings(host="plant", port=0, anonymous=anonymous))
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        try:
            await server.start()
        finally:
            await server.stop()

    asyncio.run(start(anonymous=True))
    if reachable:
        with pytest.raises(CannotListen, match=r"would let strangers in: .* can reach 0\.0\.0\.0"):
            asyncio.run(start(anonymous=None))
    else:
        asyncio.run(start(anonymous=None))
