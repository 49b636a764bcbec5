"""The durable changes of one tick of a broker's or a client's loop, as values of `semel.mqtt`.

Whatever must survive a crash goes into one `Commit` per tick. The packets that report it wait in
the same Commit until the store reports that it is durable. Sessions are identified by numbers that
are never assigned twice.
"""

from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.delivery import Change
from semel.mqtt.message import Message
from semel.mqtt.packets.connect import Will
from semel.mqtt.packets.subscribe import Subscription
from semel.mqtt.properties import NO_PROPERTIES, Properties, properties_size
from semel.mqtt.session import Outgoing

# Approximate memory of one change, without its message.
CHANGE_BYTES: Final = 100
# The same for a queued delivery: the change, and its row until the transaction is written.
# Measured, see tests/broker/live/test_memory.py.
QUEUED_BYTES: Final = 500

# A payload of at least this size is stored once for all deliveries of it.
SHARED_PAYLOAD: Final = 4096

# The longest identity that can be stored, in UTF-8: JSON with the longest user name of MQTT, of
# which an escape makes up to six times as many bytes, and with claims.
MAXIMUM_IDENTITY_BYTES: Final = 512 * 1024


@final
@mypyc_attr(acyclic=True)
class RecordedMessage:
    """One row of a stream: a message as it was accepted.

    `properties` are those of its PUBLISH without a Topic Alias; `packet_id` is 0 for QoS 0 and
    for a will. `received` is in microseconds of the wall clock. It is 0 until the record is
    committed, because `Commit.at` sets it.
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
    """The durable changes of one tick, in the order in which they happened.

    The Commit that ends a session has no other change of this session.
    """

    # The number of the commit, from 1, assigned by its owner.
    number: int
    # When the tick ended, in seconds of the wall clock. This is the received time of its records.
    at: float
    # session, change of its exchanges
    changes: Final[list[tuple[int, Change]]]
    # session, client identifier, Session Expiry Interval, identity of its owner as JSON ("": it is
    # unknown)
    sessions: Final[list[tuple[int, str, int, str]]]
    # sessions to delete, with everything stored for them except their wills
    ended: Final[list[int]]
    # session, topic filter, subscription (None: delete it), its identifier (0: none)
    subscriptions: Final[list[tuple[int, str, Subscription | None, int]]]
    # client identifier, identity of its owner as above, will (None: delete it), when it is due
    # (None: the client is connected)
    wills: Final[list[tuple[str, str, Will | None, float | None]]]
    # topic name, message (None: delete it)
    retained: Final[list[tuple[str, Message | None]]]
    records: Final[list[RecordedMessage]]
    # session, filter of its subscription to a stream, the last seq that was sent; negative: nothing
    # was sent yet, and the replay starts at this time, in negated microseconds
    cursors: Final[list[tuple[int, str, int]]]
    # For a client: session, number and key of a message that the program has not acknowledged; the
    # message, with stream and seq 0 (None: it was acknowledged)
    inbox: Final[list[tuple[int, int, str, RecordedMessage | None]]]
    # name and value
    metadata: Final[list[tuple[str, str]]]
    # connection number, packets to send when all of the above is durable
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
        self.metadata = []
        self.packets = []

    def size(self) -> int:
        """The approximate memory of the commit; a large payload counts once."""
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
        for _, _, _, received in self.inbox:
            size += CHANGE_BYTES
            if received is not None:
                size += len(received.payload)
        for _, topic_filter, _, _ in self.subscriptions:
            size += CHANGE_BYTES + len(topic_filter)
        for _, client_id, _, identity in self.sessions:
            size += CHANGE_BYTES + len(client_id) + len(identity)
        for _, identity, will, _ in self.wills:
            size += CHANGE_BYTES + len(identity)
            if will is not None:
                size += len(will.topic_name) + len(will.payload)
        return size

    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
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
            or self.metadata
        )
