"""Layers whose work is done in a thread."""

import asyncio

from tests.broker.core.test_layered_transport import World, until
from tests.broker.layers_by_hand import Shift


def test_work_is_done_in_a_thread_while_nothing_is_read() -> None:
    async def run() -> None:
        world = World(Shift(b"|", works=True)).connect()
        world.protocol.data_received(b"|hel")
        assert world.wire.reading == ["pause"]
        # What was already on its way.
        world.protocol.data_received(b"lo|data")
        await until(lambda: world.inner.transport is not None)
        assert world.wire.reading == ["pause", "resume"]
        assert world.inner.received == b"data"
        assert world.wire.taken() == b"|welcome"
        world.handshakes.close()

    asyncio.run(run())
