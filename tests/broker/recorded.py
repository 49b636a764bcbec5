"""A broker whose streams are in the real tables, and readers of them."""

from semel.broker.authority import Authority
from semel.broker.identity import Identity
from semel.broker.lifetimes import WINDOW
from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    Packet,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
)
from semel.mqtt.delivery import Delivery
from semel.store.commit import Commit, RecordedMessage
from semel.store.database import Database
from semel.store.record import committed_records, committed_since
from semel.store.store import RestoredState, Store
from semel.store.streams import Stream, Streams
from tests.broker.world import Client, World

KEPT = Properties(session_expiry_interval=1_000)
ALL = "$stream/plant/#"


class Tables(Store):
    """The real tables. Commits are applied at once, or when `holding` ends; records are given at
    once, or, while it is `late`, after `answer`. Rows before `begins` are not kept any more."""

    def __init__(self, database: Database) -> None:
        super().__init__(is_durable=True)
        self.database = database
        self.holding = False
        self.held: list[Commit] = []
        self.late = False
        self.asked: set[tuple[str, int, int]] = set()
        self.answered: set[tuple[str, int, int]] = set()
        self.begins = 1
        self.problem: Exception | None = None

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

    def queue(self, session: int, first: int, limit: int) -> list[Delivery]:
        return self.database.queue(session, first, limit)

    def expired(self, session: int, first: int, now: float) -> list[tuple[int, int]]:
        return self.database.expired(session, first, now)

    def next_expiry(self, session: int, first: int, now: float) -> float | None:
        return self.database.next_expiry(session, first, now)

    def _is_late(self, *wanted: object) -> bool:
        key = (str(wanted[0]), int(str(wanted[1])), int(str(wanted[2])))
        if self.late and key not in self.answered:
            self.asked.add(key)
            return True
        self.answered.discard(key)
        return False

    def records(self, stream: int, first: int, limit: int) -> list[RecordedMessage] | None:
        if self.problem is not None:
            raise self.problem
        if self._is_late("records", stream, first):
            return None
        first = max(first, self.begins)
        return committed_records(self.database.connection, stream, first, limit)

    def seek(self, stream: int, received: int) -> int | None:
        if self.problem is not None:
            raise self.problem
        if self._is_late("seek", stream, received):
            return None
        return committed_since(self.database.connection, stream, received)


class Plant(World):
    """A world with a stream `plant` of `plant/#`, or with others, that can crash."""

    def __init__(
        self,
        settings: BrokerSettings | None = None,
        authority: Authority | None = None,
        *,
        streams: dict[str, str] | None = None,
        window: int = WINDOW,
    ) -> None:
        self.given = settings
        self.window = window
        self.authority = authority
        self.named = streams or {"plant": "plant/#"}
        self.database = Database.open(":memory:")
        self.store = self.new_store()
        super().__init__(settings, authority, self.store, self._streams(), window=window)

    def new_store(self) -> Tables:
        """What a broker is given that starts."""
        return Tables(self.database)

    def _streams(self) -> Streams:
        rows = [(self.database.stream(name), each) for name, each in self.named.items()]
        return Streams([Stream(row.id, row.name, each, row.last_seq) for row, each in rows])

    def crash(self) -> None:
        """All that is not in the tables is gone."""
        begins = self.store.begins
        self.database = Database(self.database.connection)
        self.store = self.new_store()
        self.store.begins = begins
        super().__init__(
            self.given,
            self.authority,
            self.store,
            self._streams(),
            window=self.window,
            now=self.now,
        )
        self.settle()

    def settle(self) -> None:
        """Ticks, until nobody has anything for the next."""
        self.tick()
        while self.broker.router.dirty:
            self.tick()

    def hold(self) -> None:
        """Nothing is safe until `let_go`."""
        self.store.holding = True

    def let_go(self, count: int | None = None) -> None:
        """The first commits that are held, or all, are safe."""
        commits, self.store.held = self.store.held[:count], self.store.held[count or 1_000_000 :]
        self.database.apply(commits)
        for commit in commits:
            self.broker.committed(commit, self.now)
        if count is None:
            self.store.holding = False
        self.settle()

    def answer(self) -> None:
        """What was asked for has been read."""
        asked, self.store.asked = self.store.asked, set()
        self.store.answered |= asked
        for _, stream, _ in asked:
            self.broker.replays.read(stream)
        self.settle()

    def trim(self, begins: int) -> None:
        """Rows before this one are deleted."""
        self.store.begins = begins
        self.database.connection.execute("DELETE FROM record WHERE seq < ?", (begins,))

    def publish(self, *payloads: bytes, topic: str = "plant/a", qos: int = 1) -> None:
        """Messages of a publisher that is there for them alone; each in a second of its own."""
        publisher = self.connect("publisher")
        for at, payload in enumerate(payloads, 1):
            publisher.send(Publish(topic, payload, qos, at if qos else 0))
            self.now += 1.0
        publisher.cut()
        self.settle()

    def fill(self, count: int, *, first: int = 1, qos: int = 1) -> None:
        """So many messages, whose payloads are their numbers."""
        self.publish(*[b"%d" % number for number in range(first, first + count)], qos=qos)

    def reader(
        self,
        client_id: str = "r",
        *,
        durable: bool = False,
        present: bool = False,
        receive_maximum: int | None = None,
        maximum_packet_size: int | None = None,
        topic_alias_maximum: int | None = None,
    ) -> Client:
        """A client of MQTT 5.0."""
        kept = 1_000 if durable else None
        return self.connect(
            client_id,
            MQTT5,
            clean_start=not durable,
            present=present,
            properties=Properties(
                session_expiry_interval=kept,
                receive_maximum=receive_maximum,
                maximum_packet_size=maximum_packet_size,
                topic_alias_maximum=topic_alias_maximum,
            ),
        )

    def rows(self, question: str) -> list[tuple[object, ...]]:
        return self.database.connection.execute(question).fetchall()


class Guarded(Authority):
    """`r` may not have `b`, and may not subscribe to `plant/#` by its stream; `s` may."""

    def __init__(self) -> None:
        self.fails = False

    def subscribe(self, identity: Identity, topic_filter: str, *, qos: int) -> int:
        return (
            0x87 if identity.client_id == "r" and topic_filter.endswith("/plant/plant/#") else qos
        )

    def receive(self, identity: Identity, topic_name: str) -> bool:
        if self.fails and topic_name == "plant/c":
            raise RuntimeError("the authority is broken")
        return identity.client_id != "r" or topic_name != "plant/b"


def subscribe(
    topic_filter: str = ALL,
    offset: str | None = "earliest",
    *,
    qos: int = 2,
    identifier: int = 0,
    packet_id: int = 900,
) -> Subscribe:
    """A SUBSCRIBE to a stream."""
    return Subscribe(
        packet_id,
        [Subscription(topic_filter, qos)],
        properties=Properties(
            subscription_identifiers=[identifier] if identifier else [],
            user_properties=[] if offset is None else [("stream-offset", offset)],
        ),
    )


def follow(client: Client, *arguments: object, **keywords: object) -> list[Publish]:
    """Subscribe to a stream, which must be granted; what comes of it until all is quiet."""
    suback, *others = client.send(subscribe(*arguments, **keywords))  # type: ignore[arg-type]
    assert isinstance(suback, SubAck)
    assert suback.reasons[0] <= 2, suback
    client.inbox = others
    client.world.settle()  # type: ignore[attr-defined]
    return messages(client.take())


def messages(packets: list[Packet]) -> list[Publish]:
    """The messages, where there should be nothing else."""
    assert all(isinstance(packet, Publish) for packet in packets), packets
    return [packet for packet in packets if isinstance(packet, Publish)]


def seq(packet: Publish) -> int:
    """Its place in the record, as the first user property says."""
    name, value = packet.properties.user_properties[0]
    assert name == "stream-seq"
    return int(value)


def seqs(packets: list[Publish]) -> list[int]:
    return [seq(packet) for packet in packets]


def answers(packets: list[Packet]) -> list[Packet]:
    """What a client owes for these packets."""
    owed: list[Packet] = []
    for packet in packets:
        if isinstance(packet, Publish) and packet.qos:
            owed.append((PubAck if packet.qos == 1 else PubRec)(packet.packet_id))
        elif isinstance(packet, PubRel):
            owed.append(PubComp(packet.packet_id))
    return owed


def read_all(client: Client, packets: list[Packet] | None = None) -> list[Publish]:
    """Acknowledge whatever comes until nothing does; the messages in their order."""
    found: list[Publish] = []
    packets = client.take() if packets is None else packets
    while packets:
        found += [packet for packet in packets if isinstance(packet, Publish)]
        owed = answers(packets)
        packets = client.send(*owed) if owed else []
        client.world.settle()  # type: ignore[attr-defined]
        packets += client.take()
    return found
