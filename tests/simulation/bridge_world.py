"""Two brokers with stores, a bridge between them, and publishers; any of the programs crashes.

A seed determines everything: which bytes arrive, which commits happen, when connections are cut,
when a broker or the bridge is killed, and when the operator takes rights of the bridge away and
gives them back. At the end all is repaired, and each message must be in the record of the other
broker: at QoS 2 once, at QoS 1 at least once. Only a message for which the bridge lacked a right
may be missing, and even that is there at most once at QoS 2.
"""

from collections import Counter
from random import Random
from typing import Final

from semel.client.bridge_core import QueueLimits
from semel.client.connect_parameters import ConnectParameters
from semel.client.core import ClientCore
from semel.mqtt import MQTT5, MQTT311, Message, Properties
from semel.mqtt.properties import NO_PROPERTIES
from semel.store.store import Store
from tests.client.bridge_world import CLIENT_IDS, FOREVER, PLENTY, BridgeWorld
from tests.simulation.clock import Broken, Clock
from tests.simulation.stored_broker import BrokerPort, ChangingRights, StoredBroker

ACTIONS: Final = 400
# How many rounds it may take until all is moved.
ROUNDS: Final = 1_000
# Where publishers publish, and where the bridge moves it to.
SOURCES: Final = ("plant", "jobs")
PREFIXES: Final = ("from-a/", "from-b/")
VERSIONS: Final = ((MQTT5, MQTT5), (MQTT5, MQTT311), (MQTT311, MQTT5))

# Faults of a bridge, which the final check must find.
EARLY: Final = "acknowledges messages before its commit"
FORGETFUL: Final = "forgets packet identifiers in a crash"


class StatefulPublisher:
    """A client that never crashes: it repeats what its broker has not acknowledged."""

    def __init__(self, port: BrokerPort, topic: str) -> None:
        self.port = port
        self.topic = topic
        # Topics of all messages, each with its QoS.
        self.sent: dict[str, int] = {}
        properties = Properties(session_expiry_interval=FOREVER)
        parameters = ConnectParameters(
            MQTT5,
            keep_alive=0,
            user_name=None,
            password=None,
            will=None,
            properties=properties,
            session_expiry=FOREVER,
        )
        self.core = ClientCore(parameters, f"of-{topic}", run="r", store=Store(), store_id=0)

    def publish(self, qos: int, now: float) -> None:
        topic = f"{self.topic}/{len(self.sent)}"
        self.sent[topic] = qos
        self.core.publish(Message(topic, topic.encode(), qos=qos, properties=NO_PROPERTIES), now)
        self.core.flush(now, now)

    def step(self, now: float) -> bool:
        """Connect, send and receive. Returns whether anything happened."""
        core, port = self.core, self.port
        if core.connection_end is not None or (port.is_open and port.connection is None):
            self.cut(now)
        if not port.is_open:
            port.open()
            core.connect(not core.has_state, now)
        core.flush(now, now)
        data = core.take_output()
        if data:
            port.receive(data, now)
        received, port.output = port.output, b""
        if received:
            core.receive(received, now)
            core.flush(now, now)
        if core.connack is not None:
            core.connack = None
            core.flush(now, now)
        core.outcomes.clear()
        return bool(data or received)

    def cut(self, now: float) -> None:
        self.port.cut()
        self.core.on_connection_lost(now)
        self.core.flush(now, now)

    @property
    def is_idle(self) -> bool:
        return not len(self.core.session.backlog) and not self.core.session.in_flight


class BridgedWorld:
    """The whole system. `play` executes the schedule of a seed, and checks the result."""

    def __init__(self, seed: int, fault: str = "") -> None:
        self.chance = Random(seed)
        self.fault = fault
        # With the fault EARLY: commits that the bridge knows of, and that have not happened.
        self._reported = 0
        self.clock = Clock()
        self.tally: Counter[str] = Counter()
        self.brokers = [
            StoredBroker(self.clock, self.chance, ChangingRights(client_id))
            for client_id in CLIENT_IDS
        ]
        self.ports = [BrokerPort(broker) for broker in self.brokers]
        self.bridge = BridgeWorld(
            out=[f"{SOURCES[0]}/# remote {PREFIXES[0]}"],
            inward=[f"{SOURCES[1]}/# local {PREFIXES[1]}"],
            versions=self.chance.choice(VERSIONS),
            limits=self.chance.choice((PLENTY, QueueLimits(2, 1 << 30, 1 << 30))),
            receive_maximum=3,
            peers=(self.ports[0], self.ports[1]),
        )
        self.bridge.now = self.clock.now
        self.publishers = [
            StatefulPublisher(BrokerPort(broker), topic)
            for broker, topic in zip(self.brokers, SOURCES, strict=True)
        ]

    def play(self) -> None:
        """Execute the schedule. Raises Broken."""
        self.finish("the bridge has subscribed")
        self.bridge.hold()
        for _ in range(ACTIONS):
            self._act(self.chance.randrange(100), self.chance.randrange(2))
            # Most of what is published should be moved, so rights are soon given back.
            for broker in self.brokers:
                if not broker.rights.has_all and self.chance.randrange(10) == 0:
                    self._change_rights(broker)
        for broker in self.brokers:
            broker.rights.change(may_publish=True, may_receive=True)
        for index in (0, 1):
            self._cut(index)
        self.finish("all is moved")
        self._check()

    def close(self) -> None:
        """Close the databases."""
        for broker in self.brokers:
            broker.store.database.close()
        self.bridge.database.close()

    # --- actions ----------------------------------------------------------------------------------

    def _act(self, what: int, index: int) -> None:
        broker, now = self.brokers[index], self.clock.now
        if what < 20:
            self.publishers[index].publish(self.chance.choice((1, 2)), now)
        elif what < 35:
            self.publishers[index].step(now)
        elif what < 47:
            self._send(index)
        elif what < 62:
            self._receive(index, self.chance.choice((1, 3, 20, None)))
        elif what < 74:
            self._commit_bridge()
        elif what < 86:
            broker.commit(self.chance.randint(1, 3))
        elif what < 90:
            self._connect(index)
        elif what < 92:
            self._cut(index)
        elif what < 93:
            self.publishers[index].cut(now)
        elif what < 94:
            self.crash_bridge()
        elif what < 95:
            self._crash_broker(index)
        elif what < 98:
            self._change_rights(broker)
        else:
            self.clock.now += self.chance.choice((0.1, 1.0, 5.0))
            self.bridge.now = self.clock.now
            broker.notice_lost()
            broker.sweep()

    def _change_rights(self, broker: StoredBroker) -> None:
        rights = broker.rights
        if rights.has_all:
            takes_publish = self.chance.randrange(3) > 0
            rights.change(may_publish=not takes_publish, may_receive=takes_publish)
            self.tally["rights taken away"] += 1
        else:
            rights.change(may_publish=True, may_receive=True)
        # The broker notices in its next tick, which may be much later.
        if self.chance.randrange(2):
            broker.flush()

    def _connect(self, index: int) -> bool:
        """The bridge connects, if it is not connected. Returns whether it had to."""
        core, _ = self.bridge.sides[index]
        port = self.ports[index]
        if core.connection_end is not None or (port.is_open and port.connection is None):
            self._cut(index)
        if port.is_open:
            return False
        clean = not core.has_state
        if clean and core.version != MQTT5:
            # As a link does: with CleanSession 1 the session would end with the connection.
            self.brokers[index].purge(CLIENT_IDS[index])
            core.is_session_purged = True
            clean = False
        port.open()
        core.connect(clean, self.bridge.now)
        self.bridge.flush()
        return True

    def _send(self, index: int) -> bool:
        if self.fault == EARLY:
            self._report_early()
        return self.ports[index].is_open and self.bridge.send(index)

    def _receive(self, index: int, count: int | None) -> bool:
        return self.ports[index].is_open and self.bridge.receive(index, count)

    def _cut(self, index: int) -> None:
        self.tally["cuts"] += self.ports[index].is_open
        self.bridge.cut(index)

    def _commit_bridge(self) -> bool:
        """The next commit of the bridge happens. Returns whether there was one."""
        bridge = self.bridge
        if self.fault != EARLY:
            return bridge.commit()
        if not bridge.store.held:
            return False
        self._report_early()
        bridge.database.apply([bridge.store.held.pop(0)])
        self._reported -= 1
        return True

    def _report_early(self) -> None:
        """Tell the bridge about commits that have not happened."""
        while self._reported < len(self.bridge.store.held):
            self._reported += 1
            self.bridge.core.on_committed(1, self.bridge.now)
            self.bridge.flush()
            self.bridge.use_connections()

    def crash_bridge(self) -> None:
        """kill -9 of the bridge, before or after its next commit; it is started again."""
        self.tally["crashes of the bridge"] += 1
        bridge = self.bridge
        self._reported = 0
        if bridge.store.held and self.chance.randrange(2):
            bridge.database.apply([bridge.store.held[0]])
        bridge.crash()
        if self.fault == FORGETFUL:
            bridge.database.connection.execute("DELETE FROM inbound")
            bridge.start()

    def _crash_broker(self, index: int) -> None:
        self.tally["crashes of a broker"] += 1
        self.brokers[index].crash()
        self._cut(index)
        self.publishers[index].cut(self.clock.now)

    # --- the end ----------------------------------------------------------------------------------

    def finish(self, what: str) -> None:
        """Connect everybody, and go on until nothing more happens."""
        for _ in range(ROUNDS):
            happened = False
            for index, broker in enumerate(self.brokers):
                broker.notice_lost()
                broker.flush()
                happened |= self.publishers[index].step(self.clock.now)
                happened |= self._connect(index)
                happened |= self._send(index)
                happened |= self._receive(index, None)
                happened |= broker.commit(10)
                core, _ = self.bridge.sides[index]
                core.outcomes.clear()
                core.answers.clear()
            happened |= self._commit_bridge()
            if not happened and self._is_idle:
                return
        raise Broken(f"never: {what}")

    @property
    def _is_idle(self) -> bool:
        core = self.bridge.core
        return (
            all(broker.is_idle for broker in self.brokers)
            and all(publisher.is_idle for publisher in self.publishers)
            and not (core.to_remote.queued or core.to_local.queued)
            and not (core.to_remote.held or core.to_local.held)
            and not self.bridge.store.held
        )

    def _check(self) -> None:
        core = self.bridge.core
        if core.local.sessions_lost or core.remote.sessions_lost:
            raise Broken("a broker has lost the session of the bridge")
        for index, publisher in enumerate(self.publishers):
            source, destination = self.brokers[index], self.brokers[1 - index]
            accepted = Counter(topic for topic, _ in source.recorded())
            moved = Counter(topic for topic, _ in destination.recorded())
            for topic, qos in publisher.sent.items():
                moved_topic = PREFIXES[index] + topic
                count = moved[moved_topic]
                is_excused = (
                    moved_topic in destination.rights.refused or topic in source.rights.withheld
                )
                self.tally[f"messages at QoS {qos}"] += 1
                self.tally["refused or withheld for lack of a right"] += not count
                if accepted[topic] < 1 or (qos == 2 and accepted[topic] > 1):
                    raise Broken(f"{topic} was accepted {accepted[topic]} times at QoS {qos}")
                if qos == 2 and count > 1:
                    raise Broken(f"{moved_topic} arrived {count} times at QoS 2")
                if count == 0 and not is_excused:
                    raise Broken(f"{moved_topic} was lost at QoS {qos}")
            strange = {topic for topic in moved if topic.startswith(PREFIXES[index])} - {
                PREFIXES[index] + topic for topic in publisher.sent
            }
            if strange:
                raise Broken(f"never published: {min(strange)}")
