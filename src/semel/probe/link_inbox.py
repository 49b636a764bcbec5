"""What has come on one connection, and waiting for more of it or for the end of the connection."""

import asyncio
import time
from collections.abc import Callable

from semel.mqtt.trace import ObservedPacket


class LinkInbox:
    """The packets that no case has taken yet, in order, and whether the connection has ended."""

    def __init__(self) -> None:
        self.packets: list[ObservedPacket] = []
        self.is_closed = False
        # By the monotonic clock.
        self.closed_at = 0.0
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Let those who wait look again: something has come."""
        self._changed.set()

    def close(self) -> None:
        """The connection has ended."""
        self.is_closed = True
        self.closed_at = time.monotonic()
        self._changed.set()

    async def wait_for(self, packet_type: int, seconds: float) -> ObservedPacket | None:
        """Take the first packet of a type, leaving others there.

        None if none comes within `seconds`, or the connection ends before it comes.
        """
        await self.wait_until(
            lambda: any(each.packet_type == packet_type for each in self.packets), seconds
        )
        for index, observed in enumerate(self.packets):
            if observed.packet_type == packet_type:
                return self.packets.pop(index)
        return None

    async def wait_closed(self, seconds: float) -> bool:
        """Whether the connection ends within `seconds`."""
        return await self.wait_until(lambda: self.is_closed, seconds)

    async def wait_until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until something holds, which packets or the end of the connection can change."""
        deadline = time.monotonic() + seconds
        while not holds():
            if self.is_closed or not await self._wait(deadline):
                # On a busy machine it may have come at the last moment.
                return holds()
        return True

    async def wait_for_change(self, seconds: float) -> None:
        """Wait until something is received or the connection ends."""
        await self._wait(time.monotonic() + seconds)

    async def _wait(self, deadline: float) -> bool:
        """Wait for a change; False if the deadline has passed."""
        self._changed.clear()
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return False
        try:
            async with asyncio.timeout(remaining):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True
