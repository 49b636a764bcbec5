"""Timing guarantees: nobody waits forever, and nobody is disconnected too early.

Checked after each sweep of the broker, from what clients, ledger and witness know.
"""

from typing import TYPE_CHECKING

from semel.mqtt import MQTT5
from semel.store.store import FULL
from tests.simulation.clock import Broken
from tests.simulation.network import Link

if TYPE_CHECKING:
    from tests.simulation.world import World


class Promptness:
    """Checks whether the broker acts in time."""

    def __init__(self, world: "World") -> None:
        self._world = world
        # By link: since when it waits because the disk is full.
        self._waiting_since: dict[int, float] = {}

    def forget(self) -> None:
        """Start over with a new broker."""
        self._waiting_since = {}

    def unread_links(self) -> list[Link]:
        """Connections from which the broker does not read because a subscriber is slow."""
        links = self._world.links
        return [
            each
            for each in links
            if each.connection.paused_by_reader and not each.connection.closing
        ]

    def check_unread(self, unread_links: list[Link]) -> None:
        """The sweep has not closed these connections by their keep alive."""
        for link in unread_links:
            # On a full disk it may be closed after its timeout.
            if link.connection.closing and self._world.store.condition != FULL:
                raise Broken(
                    f"{self._name(link)} was closed by its keep alive while it was not read from"
                )

    def check(self, now: float) -> None:
        """Expired sessions have ended, and publishers on a full disk were told."""
        world = self._world
        actual, expected = set(world.broker.router.sessions), set(world.ledger.sessions)
        if actual != expected:
            raise Broken(f"the sessions are {sorted(actual)} instead of {sorted(expected)}")
        waiting: dict[int, float] = {}
        for link in world.links:
            if not link.has_broker or link.connection.closing:
                continue
            self._check_keep_alive(link, now)
            if link.version == MQTT5 and world.store.condition == FULL:
                if world.witness.awaits_answer(link):
                    waiting[link.number] = self._check_wait(link, now)
        self._waiting_since = waiting

    def _check_keep_alive(self, link: Link, now: float) -> None:
        connection = link.connection
        limit = connection.keep_alive * 1.5
        is_read = connection.is_connected and not (
            connection.paused_by_reader or connection.paused_by_store
        )
        if limit and is_read and now - connection.last_packet_at >= limit:
            raise Broken(f"{self._name(link)} exceeded its keep alive, but is still connected")

    def _check_wait(self, link: Link, now: float) -> float:
        since = self._waiting_since.get(link.number, now)
        if now - since >= self._world.plan.full_disk_timeout:
            raise Broken(f"{self._name(link)} waits on a full disk beyond the timeout")
        return since

    def _name(self, link: Link) -> str:
        return self._world.clients[link.who].name
