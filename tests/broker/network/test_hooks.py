"""A hook that raises, behind a real socket."""

import asyncio
import logging

import pytest

from semel.broker.network.server import Server
from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    ConnAck,
    Packet,
)
from tests.broker.core.test_hooks import PLACES, Hook, observed


def test_a_hooks_exception_closes_its_connection_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Class 14, on a real socket: logged once each, and a right client passes afterwards"""

    async def serve() -> dict[str, list[Packet | None]]:
        server = Server(BrokerSettings(port=0), Hook())
        address = await server.start()
        try:
            return await observed(address)
        finally:
            await server.stop()

    with caplog.at_level(logging.ERROR, logger="semel.broker"):
        seen = asyncio.run(serve())
    assert [seen[place][-1] for place in (*PLACES, "again")] == [None] * 5
    assert isinstance(seen["right"][-1], ConnAck)
    failures = [record for record in caplog.records if "Traceback" in record.getMessage()]
    assert len(failures) == len(PLACES) + 1
