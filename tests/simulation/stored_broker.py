"""A real broker with a simulated store, which clients reach by ports and which crashes at any time.

    client's core ─▶ BrokerPort.up ─▶ Broker ─▶ store: pending ─ apply ─▶ applied ─ report ─▶ Broker
                  ◀─ BrokerPort.output ◀──┘

Unlike `world.World` it has no witness that checks every packet: tests compare what was published
with the record of a stream that has everything.
"""

from random import Random

from semel.broker.authority import Authority
from semel.broker.connection import Connection
from semel.broker.core import Broker
from semel.broker.identity import Identity, PeerInfo
from semel.broker.settings import BrokerSettings
from semel.mqtt import MQTT311, Connect, encode
from semel.mqtt.reasons import NOT_AUTHORIZED, SUCCESS
from semel.store.streams import Stream, Streams
from tests.simulation.clock import Broken, Clock
from tests.simulation.ledger import Ledger
from tests.simulation.rights import Rights
from tests.simulation.store import SimulatedStore, empty_database

STREAM = "all"


class ChangingRights(Authority):
    """Everybody may do everything, except one client whose rights are taken away at times.

    They are the operator's, so they survive a crash of the broker.
    """

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.may_publish = True
        self.may_receive = True
        self.may_subscribe = True
        # Topics for which it was refused to publish, or to receive.
        self.refused: set[str] = set()
        self.withheld: set[str] = set()

    @property
    def has_all(self) -> bool:
        """Whether the client may do everything now."""
        return self.may_publish and self.may_receive

    def change(self, *, may_publish: bool, may_receive: bool) -> None:
        self.may_publish, self.may_receive = may_publish, may_receive
        self.generation += 1

    def rights(self, identity: Identity) -> str:
        return identity.client_id

    def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
        if identity.client_id != self.client_id or self.may_publish:
            return SUCCESS
        self.refused.add(topic_name)
        return NOT_AUTHORIZED

    def change_subscribe(self, *, may_subscribe: bool) -> None:
        """Take the right to subscribe away, which ends subscriptions, or give it back."""
        self.may_subscribe = may_subscribe
        self.generation += 1

    def subscribe(self, identity: Identity, topic_filter: str, *, qos: int) -> int:
        is_allowed = identity.client_id != self.client_id or self.may_subscribe
        return qos if is_allowed else NOT_AUTHORIZED

    def receive(self, identity: Identity, topic_name: str) -> bool:
        if identity.client_id != self.client_id or self.may_receive:
            return True
        self.withheld.add(topic_name)
        return False


class BrokerPort:
    """The connections of one client to a broker, one at a time."""

    def __init__(self, server: "StoredBroker") -> None:
        self.is_open = False
        # Bytes that the client gets; and bytes that the broker does not read yet.
        self.output = b""
        self.up = b""
        self.connection: Connection | None = None
        self._server = server

    def open(self) -> None:
        self.connection = self._server.open(self)
        self.is_open = True
        self.output = self.up = b""

    def cut(self) -> None:
        """The connection is lost, with what was on its way."""
        connection, self.connection = self.connection, None
        self.is_open = False
        self.output = self.up = b""
        if connection is not None:
            self._server.lose(connection)

    def receive(self, data: bytes, now: float) -> None:
        """The client has sent bytes."""
        assert self.is_open
        self.up += data
        self._server.read(self)
        self._server.flush()


class StoredBroker:
    """One broker, its store, and the ports of its clients."""

    def __init__(self, clock: Clock, chance: Random, rights: ChangingRights) -> None:
        self.rights = rights
        self.restarts = 0
        self._clock = clock
        self._chance = chance
        # The store wants snapshots of a ledger; this one stays empty.
        ledger = Ledger(["#"], Rights())
        self.store = SimulatedStore(empty_database(), lambda _, number: ledger.snapshot(number))
        self._ports: dict[int, BrokerPort] = {}
        # Connections whose end the broker has not noticed yet.
        self._half_open: list[Connection] = []
        self._opened = 0
        self.broker = self._start()

    def _start(self) -> Broker:
        row = self.store.database.stream(STREAM)
        return Broker(
            BrokerSettings(
                inflight_window=5, receive_maximum=5, maximum_queued_messages=10_000, sys_interval=0
            ),
            authority=self.rights,
            store=self.store,
            new_client_id=lambda: "nobody",
            log=self._check_log,
            now=self._clock.now,
            streams=Streams([Stream(row.id, STREAM, "#", row.last_seq)]),
            wall=lambda: self._clock.now,
            window=3,
        )

    def _check_log(self, line: str) -> None:
        if "broke a rule" in line or "failed" in line:
            raise Broken(f"the broker logged: {line}")

    # --- the network ------------------------------------------------------------------------------

    def open(self, port: BrokerPort) -> Connection:
        self._opened += 1
        connection = self.broker.opened(PeerInfo(f"net:{self._opened}"), self._clock.now)
        self._ports[connection.number] = port
        return connection

    def lose(self, connection: Connection) -> None:
        """A connection is lost. Sometimes the broker notices only when it was taken over."""
        self._ports.pop(connection.number, None)
        if self._chance.random() < 0.3:
            self._half_open.append(connection)
        else:
            self.broker.lost(connection, self._clock.now)
            self.flush()

    def notice_lost(self) -> None:
        """The broker notices the end of all lost connections."""
        for connection in self._half_open:
            self.broker.lost(connection, self._clock.now)
        self._half_open = []
        self.flush()

    def read(self, port: BrokerPort) -> None:
        """The broker reads what has arrived, unless it is paused."""
        connection = port.connection
        if connection is None or connection.closing or not port.up:
            return
        if not (connection.paused_by_reader or connection.paused_by_store):
            data, port.up = port.up, b""
            self.broker.receive(connection, data, self._clock.now)

    def flush(self) -> None:
        """A tick ends."""
        for port in list(self._ports.values()):
            self.read(port)
        self.broker.flush(self._clock.now)
        self._collect()

    def _collect(self) -> None:
        while self.broker.has_output():
            for number, connection in self.broker.take_output().items():
                data = connection.take_outgoing()
                port = self._ports.get(number)
                if port is not None:
                    port.output += data
                self.broker.written(connection, 0)
                if connection.closing:
                    self._ports.pop(number, None)
                    if connection in self._half_open:
                        self._half_open.remove(connection)
                    if port is not None:
                        port.connection = None
                    self.broker.lost(connection, self._clock.now)
        self.broker.pressure.released = []
        self.broker.resumed = []

    # --- the store --------------------------------------------------------------------------------

    def commit(self, count: int = 1) -> bool:
        """Commits happen, and the broker is notified. Returns whether there were any."""
        if self.store.apply(count) is None:
            return False
        while self.store.applied:
            commit = self.store.report()
            assert commit is not None
            self.broker.committed(commit, self._clock.now)
        self._collect()
        self.flush()
        return True

    def purge(self, client_id: str) -> None:
        """A separate connection of 3.1.1 makes the broker discard a session."""
        connection = self.broker.opened(PeerInfo("net:purge"), self._clock.now)
        packet = encode(Connect(client_id, version=MQTT311, clean_start=True), MQTT311)
        self.broker.receive(connection, packet, self._clock.now)
        self.flush()
        # It waits for CONNACK, and so for the commit.
        while self.commit():
            pass
        self.broker.lost(connection, self._clock.now)
        self.flush()

    def sweep(self) -> None:
        self.broker.sweep(self._clock.now)
        self.flush()

    def crash(self) -> None:
        """kill -9 before, during or after a commit. The caller cuts what clients see of it."""
        self.restarts += 1
        how = self._chance.randrange(3)
        if how == 1:
            self.store.apply_and_crash(self._chance.randint(1, 3), self._chance.randrange(200))
        elif how == 2:
            self.store.apply(self._chance.randint(1, 3))
        for port in self._ports.values():
            port.connection = None
        self._ports = {}
        self._half_open = []
        self.store.crash()
        self.broker = self._start()

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits for a commit, a client or an acknowledgement."""
        if self.store.pending or self.store.applied or self.broker.router.dirty:
            return False
        return not any(
            len(state.session.backlog) or state.session.in_flight
            for state in self.broker.router.sessions.values()
        )

    def recorded(self) -> list[tuple[str, bytes]]:
        """Topic and payload of every message that the broker has accepted, in order."""
        rows = self.store.database.connection.execute(
            "SELECT topic, payload FROM record ORDER BY seq"
        )
        return [(topic, payload) for topic, payload in rows]
