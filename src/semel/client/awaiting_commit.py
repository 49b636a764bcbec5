"""What a client sends and hands out once the store has one commit."""

from typing import Final, final

from semel.client.received import Incoming
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.session import Outgoing


@final
class AwaitingCommit:
    """The packets and events that await one commit."""

    # Counts connections: the packets are sent on no other.
    connection: Final[int]
    packets: Final[list[Outgoing]]
    arrivals: Final[list[Incoming]]
    # Numbers of the publications that the commit stores.
    stored: Final[list[int]]
    # The CONNACK, if the commit has the state with which the connection starts.
    connack: Final[ConnAck | None]

    def __init__(
        self,
        connection: int,
        packets: list[Outgoing],
        arrivals: list[Incoming],
        stored: list[int],
        connack: ConnAck | None,
    ) -> None:
        self.connection = connection
        self.packets = packets
        self.arrivals = arrivals
        self.stored = stored
        self.connack = connack

    def add(self, packets: list[Outgoing], arrivals: list[Incoming], stored: list[int]) -> None:
        """Let these await the commit as well, after the others."""
        self.packets.extend(packets)
        self.arrivals.extend(arrivals)
        self.stored.extend(stored)
