"""What the tests of Bridge have in common: one at work."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from semel.client.bridge import Bridge
from semel.client.bridge_plan import make_bridge_plan
from semel.client.bridge_settings import BridgeSettings
from tests.client.ingests import until, url_of


def bridge_of(folder: Path, local: int | str, remote: int | str, **keys: object) -> BridgeSettings:
    """A bridge between two ports, or two addresses."""
    given: dict[str, object] = {
        "name": "site",
        "data": folder / "bridge",
        "local": local if isinstance(local, str) else url_of(local),
        "remote": remote if isinstance(remote, str) else url_of(remote),
        "durability": "os",
        "longest_wait": 0.05,
        **keys,
    }
    return BridgeSettings(**given)  # type: ignore[arg-type]


@asynccontextmanager
async def bridging(settings: BridgeSettings, *, start_clean: bool = False) -> AsyncIterator[Bridge]:
    """One at work, with all its subscriptions. What ends it before its time comes out."""
    work = Bridge(make_bridge_plan(settings), start_clean=start_clean)
    running = asyncio.get_running_loop().create_task(work.run())
    try:
        yield work
    finally:
        work.stop()
        await running


async def is_ready(work: Bridge) -> None:
    """Wait until both sides are connected and subscribed."""

    def reached() -> bool:
        return bool(work._sides) and all(
            side.link.is_connected and side.core.subscriptions.has_no_open_request
            for side in work._sides
        )

    await until(reached)
