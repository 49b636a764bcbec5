"""What one tick of a broker's or client's loop wants to last, as values of the standard's room.

Whatever must survive a crash goes into one `Commit` for each tick, and the packets that report it
wait in the same Commit until the store says that it is safe. Sessions are named by numbers that
the store gives out and never gives twice.
"""

from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.delivery import Change
from semel.mqtt.message import Message
from semel.mqtt.packets.connect import Will
from semel.mqtt.packets.subscribe import Subscription
from semel.mqtt.properties import NO_PROPERTIES, Properties, properties_size
from semel.mqtt.session import Outgoing

# About what one change takes beside its message.
CHANGE_BYTES: Final = 100
# The same of a delivery that is queued: the change, and its row until the transaction is written.
# Measured, see tests/broker/test_memory.py.
QUEUED_BYTES: Final = 500

# A payload from this size on is kept once for all who wait for it.
SHARED_PAYLOAD: Final = 4096


@final
@mypyc_attr(acyclic=True)
class RecordedMessage:
    """One row of a stream: a message as it was accepted.

    `properties` are those of its PUBLISH without a Topic Alias, `packet_id` is 0 for QoS 0 and
    for a will. `received` is in microseconds of the wall clock; a record that is not committed yet
    has none, because its Commit has it.
    """

    stream: Final[int]
    seq: Final[int]
    topic_name: Final[str]
    payload: Final[bytes]
    qos: Final[int]
    retain: Final[bool]
    dup: Final[bool]
    client_id: Final[str]
    user_name: Final[str | None]
    packet_id: Final[int]
    version: Final[int]
    properties: Final[Properties]
    received: Final[int]

    def __init__(
        self,
        stream: int,
        seq: int,
        topic_name: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        client_id: str = "",
        user_name: str | None = None,
        packet_id: int = 0,
        version: int = 5,
        properties: Properties = NO_PROPERTIES,
        received: int = 0,
    ) -> None:
        self.stream = stream
        self.seq = seq
        self.topic_name = topic_name
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.dup = dup
        self.client_id = client_id
        self.user_name = user_name
        self.packet_id = packet_id
        self.version = version
        self.properties = properties
        self.received = received


@final
class Commit:
    """All that one tick wants to last, in the order in which it happened.

    A session that ends has no other change in the Commit of its end.
    """

    # Its place among the commits of its owner, who counts them from 1.
    number: int
    # When the tick ended, in seconds of the wall clock: the received time of its records.
    at: float
    # number of the session, change of its exchanges
    changes: Final[list[tuple[int, Change]]]
    # number of the session, client identifier, how long it outlives its connection
    sessions: Final[list[tuple[int, str, int]]]
    # numbers of sessions that are over, with all that is kept for them but their wills
    ended: Final[list[int]]
    # number of the session, filter, subscription (None: given up), its identifier (0: none)
    subscriptions: Final[list[tuple[int, str, Subscription | None, int]]]
    # client identifier, user name, will (None: published or given up), when it is due (None: its
    # connection is open)
    wills: Final[list[tuple[str, str | None, Will | None, float | None]]]
    # topic name, message; None: deleted
    retained: Final[list[tuple[str, Message | None]]]
    records: Final[list[RecordedMessage]]
    # number of the session, filter of its subscription to a stream, the last seq it was sent; less
    # than 0: nothing yet, and it begins at this time, in microseconds with a minus before it
    cursors: Final[list[tuple[int, str, int]]]
    # A client's: number of the session, number and key of a message that its program has not
    # acknowledged yet, the message (its stream and seq are 0); None: acknowledged
    inbox: Final[list[tuple[int, int, str, RecordedMessage | None]]]
    # name and value of what the store is to say of itself
    facts: Final[list[tuple[str, str]]]
    # connection number, packets that leave when all of the above is safe
    packets: Final[list[tuple[int, list[Outgoing]]]]

    def __init__(self) -> None:
        self.number = 0
        self.at = 0.0
        self.changes = []
        self.sessions = []
        self.ended = []
        self.subscriptions = []
        self.wills = []
        self.retained = []
        self.records = []
        self.cursors = []
        self.inbox = []
        self.facts = []
        self.packets = []

    def size(self) -> int:
        """About how many bytes it takes while it waits, a large payload counted once."""
        size = CHANGE_BYTES * len(self.changes)
        large: set[int] = set()
        for _, change in self.changes:
            queued = change.message
            if queued is not None:
                size += QUEUED_BYTES - CHANGE_BYTES + queued.size
                if len(queued.payload) >= SHARED_PAYLOAD:
                    if id(queued.payload) in large:
                        size -= len(queued.payload)
                    else:
                        large.add(id(queued.payload))
        for record in self.records:
            size += CHANGE_BYTES + len(record.payload) + properties_size(record.properties)
        for _, message in self.retained:
            if message is not None:
                size += CHANGE_BYTES + message.size
        for _, _, _, held in self.inbox:
            size += CHANGE_BYTES
            if held is not None:
                size += len(held.payload)
        for _, topic_filter, _, _ in self.subscriptions:
            size += CHANGE_BYTES + len(topic_filter)
        for _, client_id, _ in self.sessions:
            size += CHANGE_BYTES + len(client_id)
        for _, _, will, _ in self.wills:
            size += CHANGE_BYTES
            if will is not None:
                size += len(will.topic_name) + len(will.payload)
        return size

    def is_empty(self) -> bool:
        """Whether there is nothing that has to last."""
        return not (
            self.changes
            or self.records
            or self.sessions
            or self.ended
            or self.subscriptions
            or self.wills
            or self.retained
            or self.cursors
            or self.inbox
            or self.facts
        )
