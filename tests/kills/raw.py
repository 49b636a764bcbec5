"""A client on a raw socket that keeps what MQTT wants kept, whatever happens to the broker.

It knows MQTT by `wire.py` alone. Of its own sending it keeps each PUBLISH until the PUBACK or
PUBREC, and each PUBREL until the PUBCOMP; after a cut it comes back at once and sends them again,
in their order, with DUP and the same packet identifiers [4.4]. Of what it receives at QoS 2 it
keeps the packet identifiers from the first PUBLISH until the PUBREL [4.3.3]. What it sees that no
broker may do, it reports as a fault.
"""

import socket
from collections import deque
from random import Random
from typing import TYPE_CHECKING

from tests.kills import wire
from tests.kills.account import DUE, Key, Named, Taker, read_payload
from tests.kills.wire import PUBACK, PUBCOMP, PUBREC, PUBREL, V5

if TYPE_CHECKING:
    from tests.kills.driver import Driver

# States of a connection.
AWAY, ASKING, OPEN = "away", "asking", "open"

# Only ends what would hang: a loopback connection is made or refused at once.
CONNECT_SECONDS = 20.0
NEVER_EXPIRES = 0xFFFFFFFF
# Reason codes from here on are failures.
FAILURE = 0x80
# Packet identifiers of SUBSCRIBE and UNSUBSCRIBE, far from those of messages.
SUBSCRIBE_ID = 60_000


class Flight:
    """A message that is not acknowledged to its end."""

    __slots__ = ("key", "payload", "properties", "qos", "released", "retain", "topic")

    def __init__(
        self, key: Key | None, topic: str, payload: bytes, qos: int, retain: bool, properties: bytes
    ) -> None:
        # None: a message that has no payload, and so no name.
        self.key = key
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        # Whether its PUBREC has come: from then on its PUBREL is sent, never its PUBLISH.
        self.released = False


class Raw:
    """One client; what it does besides keeping the protocol is in `clients.py`."""

    def __init__(
        self, driver: "Driver", name: str, version: int, *, durable: bool = True, window: int = 20
    ) -> None:
        self.driver = driver
        self.ledger = driver.ledger
        self.name = name
        self.version = version
        self.durable = durable
        self.window = window
        # The user as which it connects; nothing: it is anonymous.
        self.user = driver.user
        self.random = Random(f"{driver.seed} {name}")

        self.socket: socket.socket | None = None
        self.state = AWAY
        self.next_attempt = 0.0
        self.connections = 0
        # The life of the broker in which the connection was made.
        self.life = 0
        self.splitter = wire.Splitter()
        self.out = b""
        # Acknowledgements that wait for a moment, and until when.
        self.held: list[bytes] = []
        self.held_until = 0.0
        # Of 1: how often this client thinks before it acknowledges; and for how many seconds, at
        # most.
        self.laziness = 0.0
        self.thinking = 0.03
        self.cut_at = 0.0

        # Whether the broker has ever said that it knows us.
        self.known = False
        self.flights: dict[int, Flight] = {}
        self.free = list(range(1, 2 * window + 1))
        self.receive_maximum = window
        self.counter = 0
        # Identifiers whose acknowledgement is due on this connection, in the order it must have.
        self.awaited: dict[int, deque[int]] = {}

        # QoS 2 identifiers received, until their PUBREL: the message, and on which connection.
        self.inbound: dict[int, tuple[Named, int]] = {}
        self.recs: deque[int] = deque()
        # Identifiers of PUBLISH packets of this connection that are not answered to the end.
        self.unanswered: set[int] = set()
        self.aliases: dict[bytes, str] = {}
        self.taker: Taker | None = None
        # Whether a message is taken at its PUBLISH (method A of 4.3.3), or at its PUBREL.
        self.at_once = True

    # --- what the others override --------------------------------------------------------------

    def will(self) -> wire.Will | None:
        """The will of the connection that is made now."""
        return None

    def begin(self, present: bool) -> None:
        """The connection is open, and what was in flight is sent again."""

    def work(self, now: float) -> None:
        """A chance to do something; the connection is open."""

    def left(self) -> None:
        """The connection is gone; `state` still says how far it had come."""

    def returns(self, now: float) -> bool:
        """Whether to connect again."""
        return now >= self.next_attempt

    def settled(self, flight: Flight) -> None:
        """A message was acknowledged to its end."""

    def expects(self, message: wire.Message) -> bool:
        """Whether a PUBLISH is looked at."""
        return True

    def answered(self, packet_id: int, codes: bytes, kind: int) -> None:
        """A SUBACK or UNSUBACK has come."""

    def decided(self, key: Key, reason: int) -> None:
        """A message was answered to its end, with this reason code."""
        if reason >= FAILURE:
            self.fault("message refused", f"{key} with {reason:#x}")
        else:
            self.ledger.mark(key, "accepted", self.life, DUE)

    def may_be_refused(self, code: int) -> bool:
        """Whether a CONNACK or DISCONNECT with this code is no fault of the broker."""
        return False

    def is_done(self) -> bool:
        """Whether nothing is left to be acknowledged."""
        return not self.flights

    # --- the connection ------------------------------------------------------------------------

    def note(self, text: str) -> None:
        self.driver.write(self, text)

    def fault(self, kind: str, text: str) -> None:
        self.note(f"FAULT {kind}: {text}")
        self.ledger.fault(kind, f"{self.name}: {text}")

    def turn(self, now: float) -> None:
        """What is to do now, whether anything has come or not."""
        if self.state == AWAY:
            if self.returns(now):
                self._connect(now)
        elif self.state == OPEN:
            self.work(now)
            if self.held and now >= self.held_until:
                self.out += b"".join(self.held)
                self.held.clear()
            # Its work may have been to leave.
            if self.socket is not None and self.cut_at and now >= self.cut_at:
                self.cut()
        self.flush()

    def _connect(self, now: float) -> None:
        self.next_attempt = now + 0.005
        made = socket.socket()
        made.settimeout(CONNECT_SECONDS)
        try:
            made.connect(self.driver.address)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            made.close()
            return
        made.setblocking(False)
        self.socket = made
        self.state = ASKING
        self.life = self.ledger.life
        self.connections += 1
        self.splitter = wire.Splitter()
        self.out = b""
        self.held.clear()
        self.recs.clear()
        self.unanswered.clear()
        self.aliases.clear()
        self.awaited = {PUBACK: deque(), PUBREC: deque(), PUBCOMP: deque()}
        rate = self.driver.cut_rate
        self.cut_at = now + self.random.expovariate(rate) if rate else 0.0
        self.driver.watch(self, made)
        said = b""
        if self.version == V5:
            said = wire.number(wire.RECEIVE_MAXIMUM, self.window)
            if self.durable:
                said += wire.number(wire.SESSION_EXPIRY, NEVER_EXPIRES)
            if self.random.random() < 0.5:
                said += wire.number(wire.TOPIC_ALIAS_MAXIMUM, 3)
        self.note("connects")
        self.out += wire.connect(
            self.name,
            self.version,
            clean=not self.durable,
            properties=said,
            will=self.will(),
            user=self.user,
        )

    def flush(self) -> None:
        """Write what the system takes now."""
        if self.socket is not None and self.out:
            try:
                self.out = self.out[self.socket.send(self.out) :]
            except BlockingIOError:
                pass
            except OSError:
                # What came before the end is read first.
                self.out = b""

    def read(self) -> None:
        """Something has come, or the end."""
        assert self.socket is not None
        try:
            data = self.socket.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        for first, body in self.splitter.feed(data):
            self.receive(first, body)
        self.flush()

    def close(self) -> None:
        assert self.socket is not None
        self.driver.forget(self.socket)
        self.socket.close()
        self.socket = None
        self.note("is cut off")
        self.left()
        self.state = AWAY

    def cut(self) -> None:
        """End the connection from this side, in the middle of a packet if there is one."""
        if self.out:
            self.out = self.out[: self.random.randrange(len(self.out))]
            self.flush()
        self.close()

    # --- what comes ----------------------------------------------------------------------------

    def receive(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind == wire.PUBLISH:
            self._publish(wire.read_publish(first, body, self.version))
        elif kind == wire.CONNACK:
            self._connack(*wire.read_connack(body, self.version))
        elif kind in (PUBACK, PUBREC, PUBCOMP):
            self._acknowledged(kind, *wire.read_acknowledgement(body))
        elif kind == PUBREL:
            self._pubrel(wire.read_acknowledgement(body)[0])
        elif kind in (wire.SUBACK, wire.UNSUBACK):
            packet_id, codes = wire.read_codes(body, self.version)
            self.note(f"< {wire.NAMES[kind]} {packet_id} {codes.hex()}")
            self.answered(packet_id, codes, kind)
        elif kind == wire.DISCONNECT:
            self.note(f"< DISCONNECT {body.hex()}")
            # 0x8B: the server is shutting down. Any other is a complaint about us.
            if body[:1] not in (b"\x8b", b"") and not self.may_be_refused(body[0]):
                self.fault("disconnected", f"by the broker with {body.hex()}")
        else:
            self.fault("strange packet", f"{first:#x} {body.hex()}")

    def _connack(self, present: bool, code: int, values: wire.Values) -> None:
        self.note(f"< CONNACK present={present} {code}")
        if code:
            if not self.may_be_refused(code):
                self.fault("refused", f"CONNACK with {code:#x}")
            return
        if self.known and self.durable and not present:
            self.fault("session lost", f"connection {self.connections} finds no session")
            self.inbound.clear()
        if values.get(wire.RECEIVE_MAXIMUM):
            told = int.from_bytes(values[wire.RECEIVE_MAXIMUM][0], "big")
            self.receive_maximum = min(self.window, told)
        self.known = True
        self.state = OPEN
        for packet_id, flight in self.flights.items():
            if flight.released:
                self._release(packet_id)
            else:
                self._transmit(packet_id, flight, dup=True)
        self.begin(present)

    def _publish(self, message: wire.Message) -> None:
        topic = message.topic
        alias = message.properties.get(wire.TOPIC_ALIAS)
        if alias and topic:
            self.aliases[alias[0]] = topic
        elif alias:
            topic = self.aliases[alias[0]]
        packet_id, payload = message.packet_id, message.payload
        dup = " DUP" if message.dup else ""
        self.note(f"< PUBLISH {packet_id} QoS {message.qos}{dup} {topic} {payload[:40]!r}")
        if not self.expects(message):
            return
        try:
            named = read_payload(payload)
        except ValueError as problem:
            self.fault("spoiled", f"{topic}: {problem}: {payload[:40]!r}")
            return
        self.arrived(message, topic, named)
        if message.qos:
            self.unanswered.add(packet_id)
            if self.version == V5 and len(self.unanswered) > self.window:
                # [MQTT-3.3.4-9]
                self.fault("receive maximum exceeded", f"{len(self.unanswered)} > {self.window}")
        if message.qos == 0:
            self.take(named, None)
        elif message.qos == 1:
            self.take(named, message.dup)
            self.acknowledge(PUBACK, packet_id)
        else:
            self._publish_2(message, named)
            self.acknowledge(PUBREC, packet_id)
            self.recs.append(packet_id)

    def _publish_2(self, message: wire.Message, named: Named) -> None:
        packet_id = message.packet_id
        before = self.inbound.get(packet_id)
        self.inbound[packet_id] = (named, self.connections)
        if before is None:
            if self.at_once:
                self.take(named, message.dup)
        elif before[0] != named:
            was = f"{before[0].key[0]} {before[0].key[1]}"
            now = f"{named.key[0]} {named.key[1]}"
            self.fault("identifier reused", f"{packet_id} is {now} before {was} is over")
        elif not message.dup:
            self.fault("sent again without DUP", f"{packet_id}: {named.key}")
        elif before[1] == self.connections:
            self.fault("sent twice", f"on one connection, {packet_id}: {named.key}")

    def _pubrel(self, packet_id: int) -> None:
        self.note(f"< PUBREL {packet_id}")
        before = self.inbound.pop(packet_id, None)
        if before is not None and not self.at_once:
            self.take(before[0], None)
        if packet_id in self.recs:
            # [MQTT-4.6.0-4]
            if self.recs[0] != packet_id:
                self.fault("PUBREL out of order", f"{packet_id} before {self.recs[0]}")
            self.recs.remove(packet_id)
        self.acknowledge(PUBCOMP, packet_id)

    def arrived(self, message: wire.Message, topic: str, named: Named) -> None:
        """Look at a PUBLISH before it is taken, or seen to be a repeat."""
        sent = self.ledger.sent.get(named.key)
        if sent is not None and sent.topic != topic:
            self.fault("spoiled", f"{named.key} came as {topic}, sent as {sent.topic}")
        assert self.taker is not None
        if message.qos != min(named.qos, self.taker.qos):
            self.fault("wrong QoS", f"{named.key} at QoS {message.qos}")
        # A 5.0 publisher says the counter twice.
        said = message.properties.get(wire.USER_PROPERTY)
        if said and said != [b"n=%d" % named.key[1]]:
            self.fault("spoiled", f"{named.key} has {said}")

    def take(self, named: Named, dup: bool | None) -> None:
        assert self.taker is not None
        self.driver.taken(self.taker, named, dup=dup)

    def acknowledge(self, kind: int, packet_id: int) -> None:
        """Now, or after a moment's thought; in order either way."""
        self.note(f"> {wire.NAMES[kind]} {packet_id}")
        if kind in (PUBACK, PUBCOMP):
            self.unanswered.discard(packet_id)
        data = wire.acknowledge(kind, packet_id)
        if not self.held and self.random.random() >= self.laziness:
            self.out += data
            return
        if not self.held:
            self.held_until = self.driver.now + self.random.random() * self.thinking
        self.held.append(data)

    # --- what is sent --------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        *,
        key: Key | None,
        retain: bool = False,
    ) -> Flight:
        """A new message. There must be room for it."""
        said = b""
        if self.version == V5 and key is not None and self.random.random() < 0.3:
            said = wire.user_property("n", str(key[1]))
        flight = Flight(key, topic, payload, qos, retain, said)
        packet_id = 0
        if qos:
            # Of few, at random: identifiers come back soon, and in any order.
            at = self.random.randrange(len(self.free))
            self.free[at], self.free[-1] = self.free[-1], self.free[at]
            packet_id = self.free.pop()
            self.flights[packet_id] = flight
        self._transmit(packet_id, flight, dup=False)
        return flight

    def has_room(self) -> bool:
        return len(self.flights) < self.receive_maximum

    def _transmit(self, packet_id: int, flight: Flight, *, dup: bool) -> None:
        self.note(f"> PUBLISH {packet_id} QoS {flight.qos} {dup} {flight.payload[:40]!r}")
        if flight.key is not None:
            self.ledger.sent[flight.key].tries += 1
        if flight.qos:
            self.awaited[PUBACK if flight.qos == 1 else PUBREC].append(packet_id)
        self.out += wire.publish(
            flight.topic,
            flight.payload,
            self.version,
            qos=flight.qos,
            packet_id=packet_id,
            dup=dup,
            retain=flight.retain,
            properties=flight.properties,
        )

    def _release(self, packet_id: int) -> None:
        self.awaited[PUBCOMP].append(packet_id)
        self.acknowledge(PUBREL, packet_id)

    def _acknowledged(self, kind: int, packet_id: int, reason: int) -> None:
        self.note(f"< {wire.NAMES[kind]} {packet_id} {reason}")
        awaited = self.awaited[kind]
        if not awaited or awaited[0] != packet_id:
            # [MQTT-4.6.0-2], [MQTT-4.6.0-3]: in the order of what they answer.
            due = awaited[0] if awaited else "nothing"
            self.fault("acknowledged out of order", f"{wire.NAMES[kind]} {packet_id}, due: {due}")
            if packet_id not in awaited:
                return
        awaited.remove(packet_id)
        flight = self.flights[packet_id]
        if kind == PUBREC and reason < FAILURE:
            flight.released = True
            if flight.key is not None:
                self.ledger.mark(flight.key, "PUBREC", self.life)
            self._release(packet_id)
            return
        # 0x92 in a PUBCOMP: the broker had finished, and its first PUBCOMP was lost with it.
        if kind == PUBCOMP and reason == 0x92:
            reason = 0
        if flight.key is not None:
            self.ledger.mark(flight.key, wire.NAMES[kind], self.life)
            self.decided(flight.key, reason)
        elif reason >= FAILURE:
            self.fault("message refused", f"{flight.topic} with {reason:#x}")
        del self.flights[packet_id]
        self.free.append(packet_id)
        self.settled(flight)
