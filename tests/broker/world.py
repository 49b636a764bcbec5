"""The broker's core with a clock of its own and clients that are byte strings."""

from dataclasses import dataclass, field

from semel.broker.authority import Authority
from semel.broker.connection import Connection
from semel.broker.core import Broker
from semel.broker.identity import PeerInfo
from semel.broker.lifetimes import WINDOW
from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    ConnAck,
    Connect,
    Decoder,
    Packet,
    Properties,
    Subscribe,
    Subscription,
    Violation,
    Will,
    encode,
)
from semel.store.store import Store
from semel.store.streams import Streams


@dataclass
class Client:
    """One connection, and what the broker has sent on it."""

    world: "World"
    connection: Connection
    version: int
    decoder: Decoder
    inbox: list[Packet] = field(default_factory=list)
    # Bytes that its network has not taken, as far as the broker is told.
    unread: int = 0

    def send(self, *packets: Packet) -> list[Packet]:
        """Send packets in one piece; what the broker answers in that tick."""
        return self.send_bytes(b"".join(encode(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> list[Packet]:
        self.world.broker.receive(self.connection, data, self.world.now)
        self.world.tick()
        return self.take()

    def take(self) -> list[Packet]:
        """What has come since the last time."""
        packets, self.inbox = self.inbox, []
        return packets

    def subscribe(self, *filters: str, qos: int = 0, packet_id: int = 1) -> list[Packet]:
        """Subscribe, and give what came besides the SUBACK."""
        _, *others = self.send(Subscribe(packet_id, [Subscription(f, qos) for f in filters]))
        return others

    def cut(self) -> None:
        """The network fails."""
        self.world.broker.lost(self.connection, self.world.now)
        self.world.clients.remove(self)
        self.world.tick()

    def is_closed(self) -> bool:
        """Whether the broker closes the connection."""
        return self.connection.closing


class World:
    """A broker and its clients."""

    def __init__(
        self,
        settings: BrokerSettings | None = None,
        authority: Authority | None = None,
        store: Store | None = None,
        streams: Streams | None = None,
        *,
        window: int = WINDOW,
        now: float = 1_000.0,
    ) -> None:
        self.now = now
        self.log: list[str] = []
        self.assigned = 0
        self.broker = Broker(
            settings or BrokerSettings(),
            authority=authority or Authority(),
            store=store or Store(),
            new_client_id=self._assign,
            log=self.log.append,
            now=self.now,
            streams=streams,
            wall=lambda: self.now,
            window=window,
        )
        self.clients: list[Client] = []

    def _assign(self) -> str:
        self.assigned += 1
        return f"assigned-{self.assigned}"

    def open(self, version: int = MQTT5, *, peer: str = "test:1") -> Client:
        """A connection that has said nothing yet."""
        connection = self.broker.opened(PeerInfo(peer), self.now)
        client = Client(self, connection, version, Decoder(version))
        self.clients.append(client)
        return client

    def connect(
        self,
        client_id: str = "a",
        version: int = MQTT5,
        *,
        clean_start: bool = True,
        keep_alive: int = 0,
        will: Will | None = None,
        properties: Properties | None = None,
        present: bool = False,
        peer: str = "test:1",
    ) -> Client:
        """A client whose CONNECT was accepted; other packets of that tick stay in its inbox."""
        client = self.open(version, peer=peer)
        connack, *others = client.send(
            Connect(
                client_id,
                version=version,
                clean_start=clean_start,
                keep_alive=keep_alive,
                will=will,
                properties=properties or Properties(),
            )
        )
        assert isinstance(connack, ConnAck)
        assert (connack.reason, connack.session_present) == (0, present)
        client.inbox = others
        return client

    def tick(self) -> None:
        """The end of a tick: everything that is ready reaches its client, turn by turn."""
        self.flush()
        while self.broker.has_turns():
            self.broker.take_turns(self.now)
            self.flush()

    def flush(self) -> None:
        self.broker.flush(self.now)
        self.broker.take_output()
        for client in self.clients:
            data = client.connection.take_outgoing()
            self.broker.written(client.connection, client.unread)
            for item in client.decoder.receive(data):
                assert not isinstance(item, Violation), item
                client.inbox.append(item)

    def wait(self, seconds: float) -> None:
        """Time passes, a sweep each second."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 1.0)
            self.broker.sweep(self.now)
            self.tick()
