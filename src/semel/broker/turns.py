"""Turns: how much is done for one connection before the others are served.

    bytes arrive ─▶ a turn: packets are worked off until the share is used up
                      │  all done: the connection is read from again at once
                      └▶ not all done: the rest stays in the decoder, the connection is not read
                         from, and it waits for its next turn behind those that wait already

Work is counted where it is done, in units of about a tenth of a microsecond: packets, deliveries,
bytes, nodes of the subscription tree that were visited. A packet is never cut, so that a turn may
exceed its share by one packet; what a single packet can cost has bounds of its own (`packet_items`,
`topic_levels`, `maximum_subscriptions`).

Who has used up a share also waits while the store has much to write: then the disk is shared, too,
and those who send little do not queue behind those who send much.
"""

from collections import OrderedDict
from typing import Final, final

from semel.broker.connection import Connection

# One turn of one connection: about 2 ms. Large enough that a busy connection works off a whole
# read of the socket in one go, small enough that thirty greedy ones delay nobody by 100 ms.
TURN_WORK: Final = 20_000

# Turns given, one after the other, to those that wait, before sockets are read again.
TURNS_PER_TICK: Final = 4

# Rows on their way to the disk beyond which nobody gets a further turn: two of its transactions.
UNWRITTEN_ROWS: Final = 8_000

# --- what things cost -----------------------------------------------------------------------------

# A packet on the plain path, without what it leads to; one on the hot path.
PACKET_WORK: Final = 40
HOT_PACKET_WORK: Final = 1
HOT_PUBLISH_WORK: Final = 12
# One copy of a message: routed, encoded, sent; the same on the hot path.
DELIVERY_WORK: Final = 40
HOT_DELIVERY_WORK: Final = 8
# A session that this tick had not touched before: it is polled, drained, and written to.
SESSION_WORK: Final = 60
# A filter added or removed; a node of a tree; a subscription or a group member looked at.
FILTER_WORK: Final = 40
NODE_WORK: Final = 2
ENTRY_WORK: Final = 2
# Bytes copied and sent for one unit (a power of two, as a shift); bytes decoded item by item.
COPY_SHIFT: Final = 8
ITEM_BYTES_SHIFT: Final = 1


@final
class Turns:
    """Connections that wait for their next turn, in its order."""

    # Counted from 1; a connection's work is that of the turn that it was last served in.
    number: int
    _waiting: Final[OrderedDict[int, Connection]]

    def __init__(self) -> None:
        self.number = 1
        self._waiting = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, connection: Connection) -> None:
        """It has used up its share and is not done."""
        connection.awaits_turn = True
        self._waiting[connection.number] = connection

    def forget(self, connection: Connection) -> None:
        """It is done, or gone."""
        if connection.awaits_turn:
            connection.awaits_turn = False
            del self._waiting[connection.number]

    def take(self) -> list[Connection]:
        """Those that go on now, in this order. Whoever is held back otherwise keeps its place."""
        going: list[Connection] = []
        for connection in self._waiting.values():
            if not connection.paused_by_reader:
                going.append(connection)
                if len(going) == TURNS_PER_TICK:
                    break
        for connection in going:
            self.forget(connection)
        return going

    def has_next(self) -> bool:
        """Whether somebody could go on now."""
        for connection in self._waiting.values():
            if not connection.paused_by_reader:
                return True
        return False
