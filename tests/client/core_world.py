"""The client's core with a clock of its own, a server that is a byte string, and tables in memory.

`Tables` applies commits at once, or, while `holding`, when it is told to. A crash is a new core on
the same tables: what was not applied is lost, and the connection is.
"""

from semel.client.connect_parameters import ConnectParameters
from semel.client.core import ClientCore
from semel.client.events import PublishOutcome
from semel.client.received import Incoming
from semel.mqtt import (
    MQTT5,
    ConnAck,
    Connect,
    Decoder,
    Message,
    Packet,
    Properties,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Violation,
    encode,
)
from semel.mqtt.delivery import Delivery
from semel.mqtt.packets.publish import Publish
from semel.mqtt.properties import NO_PROPERTIES
from semel.store.commit import Commit, RecordedMessage
from semel.store.database import Database
from semel.store.store import RestoredState, Store
from semel.store.streams import Stream

# The number of the client's session in its store.
SESSION = 1
# The server's packets use identifiers of their own.
EXPIRY = 1_000


class Tables(Store):
    """The real tables, and commits that are applied at once, or only when `holding` ends."""

    def __init__(self, database: Database) -> None:
        super().__init__(is_durable=True)
        self.database = database
        self.holding = False
        self.held: list[Commit] = []

    def write(self, commit: Commit) -> bool:
        if self.holding:
            self.held.append(commit)
            return False
        self.database.apply([commit])
        return True

    def restore(self) -> RestoredState:
        return self.database.restore()

    def exchanges(self, session: int) -> tuple[list[Delivery], list[int]]:
        return self.database.exchanges(session)

    def inbox(self, session: int) -> list[tuple[int, str, RecordedMessage]]:
        return self.database.inbox(session)

    def queue(self, session: int, first: int, limit: int) -> list[Delivery]:
        return self.database.queue(session, first, limit)


class World:
    """One client over connections and crashes. What leaves it is read as its server would."""

    def __init__(
        self,
        version: int = MQTT5,
        *,
        lasts: bool = True,
        session_expiry: int = EXPIRY,
        receive_maximum: int | None = None,
        stream: str = "",
        keep_alive: int = 0,
    ) -> None:
        self.keep_alive = keep_alive
        self.version = version
        self.now = 1_000.0
        self.runs = 0
        self.session_expiry = session_expiry
        self.receive_maximum = receive_maximum
        self.database = Database.open(":memory:")
        self.lasts = lasts
        self.stream = stream
        # All outcomes, messages handed out and publications stored, of all runs.
        self.outcomes: list[PublishOutcome] = []
        self.handed_out: list[Incoming] = []
        self.stored: list[int] = []
        self.again: list[Incoming] = []
        self._begin()

    def _begin(self, *, keep: bool = True) -> None:
        self.runs += 1
        # Nothing that the object remembers may survive.
        self.database = Database(self.database.connection)
        self.store = Tables(self.database)
        properties = NO_PROPERTIES
        if self.version == MQTT5:
            properties = Properties(
                session_expiry_interval=self.session_expiry, receive_maximum=self.receive_maximum
            )
        parameters = ConnectParameters(
            self.version,
            keep_alive=self.keep_alive,
            user_name=None,
            password=None,
            will=None,
            properties=properties,
            session_expiry=self.session_expiry,
        )
        recorded = None
        if self.stream:
            row = self.database.stream(self.stream)
            recorded = Stream(row.id, row.name, "#", row.last_seq)
        self.core = ClientCore(
            parameters,
            "c",
            run=f"run{self.runs}",
            store=self.store if self.lasts else Store(),
            store_id=SESSION if self.lasts else 0,
            stream=recorded,
        )
        self.again = self.core.restore() if self.lasts else []
        if keep:
            self.core.subscriptions.adopt_session()
        self.decoder = Decoder(self.version)
        self.tick()

    # --- what happens to it -----------------------------------------------------------------------

    def tick(self) -> list[Packet]:
        """The end of a turn of the loop: what has left."""
        self.core.flush(self.now, self.now)
        return self.take()

    def take(self) -> list[Packet]:
        """What has left, and what there is to tell."""
        core = self.core
        left: list[Packet] = []
        for item in self.decoder.receive(core.take_output()):
            assert not isinstance(item, Violation), item
            left.append(item)
        self.outcomes += core.outcomes
        core.outcomes = []
        self.handed_out += core.arrived
        core.arrived = []
        self.stored += core.stored
        core.stored = []
        return left

    def open(self, *, clean_start: bool | None = None) -> Connect:
        """A network connection: the CONNECT."""
        clean = not self.core.has_state if clean_start is None else clean_start
        self.decoder = Decoder(self.version)
        self.core.connect(clean, self.now)
        (packet,) = self.take()
        assert isinstance(packet, Connect)
        return packet

    def connect(
        self,
        *,
        present: bool | None = None,
        clean_start: bool | None = None,
        properties: Properties = NO_PROPERTIES,
    ) -> list[Packet]:
        """A connection that the server accepts, with the session if it is not said: what leaves."""
        connect = self.open(clean_start=clean_start)
        if present is None:
            present = not connect.clean_start
        return self.receive(ConnAck(0, session_present=present, properties=properties))

    def receive(self, *packets: Packet) -> list[Packet]:
        """Packets of the server, in one piece: what leaves in that turn, and in the next one."""
        return self.receive_bytes(b"".join(encode(packet, self.version) for packet in packets))

    def receive_bytes(self, data: bytes) -> list[Packet]:
        # As a link does: what came when the connection was over is not looked at.
        if self.core.connection_end is None:
            self.core.receive(data, self.now)
        return self.tick() + self.tick()

    def cut(self) -> None:
        """The network connection is gone."""
        self.core.on_connection_lost(self.now)
        assert self.tick() == []

    def crash(self, *, keep: bool = True) -> list[Incoming]:
        """All that is not on disk is gone: what a new run hands out again.

        Without `keep` the new run wants none of the subscriptions that its session has.
        """
        self._begin(keep=keep)
        return self.again

    @property
    def is_connected(self) -> bool:
        return self.core.is_connected

    # --- its store --------------------------------------------------------------------------------

    def hold(self) -> None:
        self.store.holding = True

    def settle(self, count: int | None = None) -> list[Packet]:
        """The first commits, or all, are safe: what leaves."""
        commits = self.store.held[:count]
        del self.store.held[:count]
        if commits:
            self.database.apply(commits)
            self.core.on_committed(len(commits), self.now)
        return self.tick()

    def rows(self, question: str) -> list[tuple[object, ...]]:
        return self.database.connection.execute(question).fetchall()

    # --- what its program does --------------------------------------------------------------------

    def publish(self, payload: bytes, qos: int = 1, topic: str = "t") -> list[Packet]:
        """One message: what leaves in that turn."""
        self.core.publish(Message(topic, payload, qos=qos), self.now)
        return self.tick()

    def acknowledge(self, incoming: Incoming) -> list[Packet]:
        self.core.acknowledge(incoming)
        return self.tick()

    def subscribe(self, *filters: str, qos: int = 2) -> None:
        """Subscriptions that the server grants."""
        for each in filters:
            self.core.subscribe(Subscription(each, qos), NO_PROPERTIES)
        self.grant(self.tick())

    def grant(self, packets: list[Packet]) -> None:
        """The server answers all requests with yes."""
        for packet in packets:
            if isinstance(packet, Subscribe):
                reasons = [each.qos for each in packet.subscriptions]
                self.receive(SubAck(packet.packet_id, reasons))
            elif isinstance(packet, Unsubscribe):
                codes = [0] * len(packet.topic_filters) if self.version == MQTT5 else []
                self.receive(UnsubAck(packet.packet_id, codes))


def publishes(packets: list[Packet]) -> list[tuple[bytes, int, bool]]:
    """Payload, identifier and DUP of the PUBLISH packets among them."""
    return [
        (packet.payload, packet.packet_id, packet.dup)
        for packet in packets
        if isinstance(packet, Publish)
    ]
