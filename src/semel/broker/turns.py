"""Turns: how much work is done for one connection before others are served.

    bytes arrive ─▶ a turn: packets are processed until the work of a turn is used up
                      │  all processed: the socket is read again at once
                      └▶ some are left: they stay in the decoder, the socket is not read, and the
                         connection queues for its next turn


Work is counted where it is done, in units of about a tenth of a microsecond: packets, deliveries,
bytes, visited nodes of the subscription tree. A packet is never split, so a turn may be exceeded by
one packet; the cost of a single packet has bounds of its own (`packet_items`, `topic_levels`,
`maximum_subscriptions`).

Wills that are due and sessions that end have their own share of each tick; what does not fit is
done in the next ticks.

A connection that has used up its turn also waits while the store has much to write. So the disk is
shared fairly, too: connections that send little do not wait behind those that send much.
"""

from collections import OrderedDict
from typing import Final, final

from semel.broker.connection import Connection

# The work of one turn: about 2 ms. It is large enough for all bytes of one read of a socket, and
# small enough that thirty busy connections delay others by less than 100 ms.
TURN_WORK: Final = 20_000

# How many waiting connections are continued before sockets are read again.
TURNS_PER_TICK: Final = 4

# All searches for retained messages at the end of a tick share the work of one turn; one session
# gets at most this much of it.
SEARCH_WORK: Final = TURN_WORK // 8

# How many messages one tick sends from backlogs or resends. One session sends at most SEND_SHARE,
# and only one message after the tick's total is used up.
TICK_MESSAGES: Final = 4_000
SEND_SHARE: Final = 500

# No connection is continued while more rows than this wait to be written, because they delay the
# commits of all others: 3,000 rows take 15 to 30 ms.
UNWRITTEN_ROWS: Final = 3_000

# --- costs ----------------------------------------------------------------------------------------

# A packet without its deliveries: on the plain path, on the hot path, and a QoS 1 or 2 PUBLISH on
# the hot path.
PACKET_WORK: Final = 40
HOT_PACKET_WORK: Final = 1
HOT_PUBLISH_WORK: Final = 12
# One copy of a message, routed, encoded and sent: on the plain path, and on the hot path.
DELIVERY_WORK: Final = 40
HOT_DELIVERY_WORK: Final = 3
# The first change of a session in a tick, which has to be polled, drained and written.
SESSION_WORK: Final = 60
# A session that ends, whose rows in the store are read and deleted.
END_WORK: Final = 200
# A filter added or removed; a visited node of a tree; a visited subscription or group member.
FILTER_WORK: Final = 40
NODE_WORK: Final = 2
ENTRY_WORK: Final = 2
# A message in flight when its client reconnects, which the Exchange of the connection starts with.
RESUME_WORK: Final = 8
# Bytes per unit of work, as shifts: bytes that are copied and sent, bytes decoded item by item.
COPY_SHIFT: Final = 8
ITEM_BYTES_SHIFT: Final = 1


@final
class Turns:
    """Connections that await their next turn, in order."""

    # The number of the round, from 1. `Connection.work` counts the work of one round.
    number: int
    _waiting: Final[OrderedDict[int, Connection]]

    def __init__(self) -> None:
        self.number = 1
        self._waiting = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, connection: Connection) -> None:
        """Queue a connection that has used up its turn, and has more packets."""
        connection.awaits_turn = True
        self._waiting[connection.number] = connection

    def forget(self, connection: Connection) -> None:
        """Remove a connection that is continued or closed."""
        if connection.awaits_turn:
            connection.awaits_turn = False
            del self._waiting[connection.number]

    def take(self) -> list[Connection]:
        """Take the connections to continue now. Those paused by a reader stay in the queue."""
        next_turns: list[Connection] = []
        for connection in self._waiting.values():
            if not connection.paused_by_reader:
                next_turns.append(connection)
                if len(next_turns) == TURNS_PER_TICK:
                    break
        for connection in next_turns:
            self.forget(connection)
        return next_turns

    def has_next(self) -> bool:
        """Whether a connection could be continued now."""
        if not self._waiting:
            return False
        for connection in self._waiting.values():
            if not connection.paused_by_reader:
                return True
        return False
