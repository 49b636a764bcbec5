"""Turns: how much is done for one connection before the others are served.

    bytes arrive ─▶ a turn: packets are processed until the work of a turn is used up
                      │  all done: the connection is read from again at once
                      └▶ not all done: the rest stays in the decoder, the connection is not read
                         from, and it awaits its next turn behind those that wait already

Work is counted where it is done, in units of about a tenth of a microsecond: packets, deliveries,
bytes, visited nodes of the subscription tree. A packet is never split, so a turn may be exceeded by
one packet; the cost of a single packet has bounds of its own (`packet_items`, `topic_levels`,
`maximum_subscriptions`).

Wills that are due and sessions that end have a share of their own in each tick; what does not fit
is done in the next ones.

A connection that has used up its turn also waits while the store has much to write. That shares the
disk fairly, too: connections that send little do not queue behind those that send much.
"""

from collections import OrderedDict
from typing import Final, final

from semel.broker.connection import Connection

# One turn of one connection: about 2 ms. Large enough that a busy connection processes a whole read
# of the socket at once, small enough that thirty busy ones delay nobody by 100 ms.
TURN_WORK: Final = 20_000

# Waiting connections that are continued before sockets are read again.
TURNS_PER_TICK: Final = 4

# Searches for retained messages at the end of a tick have one turn's work together; one session
# gets at most this much of it.
SEARCH_WORK: Final = TURN_WORK // 8

# Messages from backlogs, or sent again, in one tick; one session sends at most SEND_SHARE of them,
# and a single one when the tick has sent them all.
TICK_MESSAGES: Final = 4_000
SEND_SHARE: Final = 500

# Rows on their way to the disk beyond which no connection is continued. They delay the commits of
# all others: 3,000 take 15 to 30 ms.
UNWRITTEN_ROWS: Final = 3_000

# --- costs ----------------------------------------------------------------------------------------

# A packet on the plain path, without its deliveries; one on the hot path.
PACKET_WORK: Final = 40
HOT_PACKET_WORK: Final = 1
HOT_PUBLISH_WORK: Final = 12
# One copy of a message: routed, encoded, sent; the same on the hot path.
DELIVERY_WORK: Final = 40
HOT_DELIVERY_WORK: Final = 8
# The first change of a session in a tick: it is polled, drained, and written to.
SESSION_WORK: Final = 60
# A session that ends: what it has in the store is read and deleted.
END_WORK: Final = 200
# A filter added or removed; a visited node of a tree; a visited subscription or group member.
FILTER_WORK: Final = 40
NODE_WORK: Final = 2
ENTRY_WORK: Final = 2
# A message in flight when its client comes back: the new connection has to know of it.
RESUME_WORK: Final = 8
# Bytes copied and sent per unit (as a shift); bytes decoded item by item.
COPY_SHIFT: Final = 8
ITEM_BYTES_SHIFT: Final = 1


@final
class Turns:
    """Connections that await their next turn, in order."""

    # The round, from 1; a connection's work is that of the round in which it was last served.
    number: int
    _waiting: Final[OrderedDict[int, Connection]]

    def __init__(self) -> None:
        self.number = 1
        self._waiting = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, connection: Connection) -> None:
        """It has used up its turn and is not done."""
        connection.awaits_turn = True
        self._waiting[connection.number] = connection

    def forget(self, connection: Connection) -> None:
        """It is continued or closed."""
        if connection.awaits_turn:
            connection.awaits_turn = False
            del self._waiting[connection.number]

    def take(self) -> list[Connection]:
        """The connections to continue now. One that is paused by a reader stays in the queue."""
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
        for connection in self._waiting.values():
            if not connection.paused_by_reader:
                return True
        return False
