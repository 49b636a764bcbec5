"""The metrics of a broker that need another thread."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from semel.broker.network.broker_metrics import (
    SPACE_SECONDS,
    BrokerMetrics,
    FreeSpace,
    free_bytes,
)
from tests.broker.core.test_broker_families import Standing
from tests.broker.world import World


def test_the_free_space_is_measured_in_another_thread_and_not_often(tmp_path: Path) -> None:
    now = [0.0]

    async def measure() -> None:
        folder = tmp_path / "data"
        folder.mkdir()
        space = FreeSpace(folder, executor=executor, clock=lambda: now[0])
        first = space.last_measured()
        assert first is not None
        assert first > 0
        folder.rmdir()
        now[0] += SPACE_SECONDS - 1
        assert space.last_measured() == first
        now[0] += 1
        # The old number stays until the other thread has measured.
        assert space.last_measured() == first
        while space.last_measured() is not None:
            await asyncio.sleep(0.001)
        # A server that stops cancels what it has not measured.
        folder.mkdir()
        now[0] += SPACE_SECONDS
        space.last_measured()
        measuring = space._measuring
        assert measuring is not None
        measuring.cancel()
        await asyncio.sleep(0)
        assert space.last_measured() is None
        assert BrokerMetrics(Standing(World()), space).families()

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(measure())
    assert free_bytes(tmp_path / "gone") is None
