"""The packets of one tick, until they are sent or added to the tick's commit."""

from typing import Final, final

from semel.broker.connection import Connection
from semel.broker.durability import CommitGate
from semel.broker.faults import fault_report
from semel.broker.session_state import SessionState
from semel.mqtt.session import Outgoing
from semel.store.commit import Commit


@final
class SendQueue:
    """The packets of one tick in order, each list with the number of its connection."""

    # Connections whose packets could not be split, and why. The owner must close them.
    failed: list[tuple[Connection, str]]
    _gate: Final[CommitGate]
    _connections: Final[dict[int, Connection]]
    _packets: list[tuple[int, list[Outgoing]]]

    def __init__(self, connections: dict[int, Connection], gate: CommitGate) -> None:
        self.failed = []
        self._gate = gate
        self._connections = connections
        self._packets = []

    def add(self, number: int, packets: list[Outgoing]) -> None:
        """Queue packets for a connection."""
        self._packets.append((number, packets))

    def take(self) -> list[tuple[int, list[Outgoing]]]:
        """Take all packets."""
        packets = self._packets
        self._packets = []
        return packets

    def put_first(self, packets: list[tuple[int, list[Outgoing]]]) -> None:
        """Return packets that were taken, before any that were queued meanwhile."""
        packets.extend(self._packets)
        self._packets = packets

    def split(self, commit: Commit) -> list[tuple[int, list[Outgoing]]]:
        """Add packets that await the commit to it. Returns the packets to send at once."""
        leaving: list[tuple[int, list[Outgoing]]] = []
        for number, packets in self.take():
            connection = self._connections.get(number)
            if connection is None:
                continue
            try:
                if self._gate.delays(connection, connection.state):
                    self._split_packets(connection, packets, commit, leaving)
                else:
                    leaving.append((number, packets))
            except Exception as problem:
                # The packets of other connections must still be sent.
                self.failed.append((connection, fault_report(problem)))
        return leaving

    def delays(self, state: SessionState) -> bool:
        """Whether packets for a connected session await the commit of this tick."""
        return self._gate.delays(self._connections[state.connection], state)

    def _split_packets(
        self,
        connection: Connection,
        packets: list[Outgoing],
        commit: Commit,
        leaving: list[tuple[int, list[Outgoing]]],
    ) -> None:
        delayed: list[Outgoing] = []
        free: list[Outgoing] = []
        for packet in packets:
            if self._gate.delays_packet(connection, packet):
                delayed.append(packet)
            else:
                free.append(packet)
        if free:
            leaving.append((connection.number, free))
        if delayed:
            self._gate.add_packets(connection)
            commit.packets.append((connection.number, delayed))
