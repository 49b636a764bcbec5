"""What has to have happened by a time: nobody waits for ever, and nobody is ended too early.

Looked at whenever the broker has swept, from outside: by what clients, ledger and witness know.
"""

from typing import TYPE_CHECKING

from semel.mqtt import MQTT5
from semel.store.store import FULL
from tests.simulation.clock import Broken
from tests.simulation.network import Link

if TYPE_CHECKING:
    from tests.simulation.world import World


class Promptness:
    """Whether a world's broker does in time what is due."""

    def __init__(self, world: "World") -> None:
        self._world = world
        # By link: since when it has been seen to wait for a full disk.
        self._waits_since: dict[int, float] = {}

    def forget(self) -> None:
        """The broker is a new one, and so are all connections."""
        self._waits_since = {}

    def unheard(self) -> list[Link]:
        """Connections that the broker does not read from, for the sake of a reader."""
        links = self._world.links
        return [
            each
            for each in links
            if each.connection.paused_by_reader and not each.connection.closing
        ]

    def check_unheard(self, unheard: list[Link]) -> None:
        """A sweep has closed none of these for its silence."""
        for link in unheard:
            # Over a full disk it may have been told that it waits in vain.
            if link.connection.closing and self._world.store.condition != FULL:
                raise Broken(
                    f"{self._name(link)} is closed for its silence, and nobody has listened to it"
                )

    def check(self, now: float) -> None:
        """Whose time is over has ended; who waits for a full disk is told so."""
        world = self._world
        there, known = set(world.broker.router.sessions), set(world.ledger.sessions)
        if there != known:
            raise Broken(f"there are the sessions {sorted(there)}, and not {sorted(known)}")
        waits: dict[int, float] = {}
        for link in world.links:
            if not link.has_broker or link.connection.closing:
                continue
            self._check_keep_alive(link, now)
            if link.version == MQTT5 and world.store.condition == FULL:
                if world.witness.awaits_answer(link):
                    waits[link.number] = self._check_wait(link, now)
        self._waits_since = waits

    def _check_keep_alive(self, link: Link, now: float) -> None:
        connection = link.connection
        limit = connection.keep_alive * 1.5
        is_read = connection.is_connected and not (
            connection.paused_by_reader or connection.paused_by_store
        )
        if limit and is_read and now - connection.last_packet_at >= limit:
            raise Broken(f"{self._name(link)} was silent for too long, and is connected")

    def _check_wait(self, link: Link, now: float) -> float:
        since = self._waits_since.get(link.number, now)
        if now - since >= self._world.plan.full_disk_timeout:
            raise Broken(f"{self._name(link)} waits for a full disk, and nobody has told it so")
        return since

    def _name(self, link: Link) -> str:
        return self._world.clients[link.who].name
