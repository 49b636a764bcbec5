"""One run of one case against a broker: connections, names of its own, and what must hold.

A step that prepares the case raises ControlFailed if it fails; `must`, `must_receive`,
`must_refuse` and `must_stay_open` make the claim of the case and raise ClaimRefuted. Between
`with trial.control():` they raise ControlFailed, too: the control arm must succeed.
"""

import ssl
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NoReturn

from semel.client.address import Address
from semel.client.connector import open_transport
from semel.client.transport import CannotConnect
from semel.mqtt import MQTT5, PACKET_NAMES
from semel.mqtt.codec import Packet
from semel.mqtt.packet_types import (
    CONNACK,
    DISCONNECT,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
)
from semel.mqtt.packets.acks import PubAck, PubRec
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.publish import Publish
from semel.mqtt.packets.subscribe import SubAck
from semel.mqtt.trace import ConnectionTrace, SessionTraces
from semel.probe import wire
from semel.probe.broker.control import BrokerControl
from semel.probe.broker.link import ProbeLink
from semel.probe.claims import CaseClaims, CaseInapplicable, ControlFailed
from semel.probe.link_audit import AuditFinding
from semel.probe.recorder import CaseRecorder

# How long a broker gets to close before a PINGREQ asks whether it still answers.
CLOSE_GRACE = 0.1
CONNECT_SECONDS = 10.0
# The largest number of packets that a case takes while it waits for one.
FLOOD = 10_000


@dataclass(frozen=True)
class Subject:
    """The broker that is examined, and how it is used."""

    address: Address
    tls: ssl.SSLContext | None = None
    user_name: bytes | None = None
    password: bytes | None = None
    # Topic names and client identifiers begin with it.
    prefix: str = "semel-probe"
    # How long the broker may take for what it must do.
    timeout: float = 5.0


class Trial:
    """One run of a case. `tag` makes its names different from those of every other run."""

    def __init__(
        self, subject: Subject, version: int, tag: str, control: BrokerControl | None = None
    ) -> None:
        self.subject = subject
        self.version = version
        self.tag = tag
        self.recorder = CaseRecorder(subject.password)
        self.links: list[ProbeLink] = []
        # Close what a case has opened without a link.
        self.closers: list[Callable[[], None]] = []
        self._claims = CaseClaims(self.recorder)
        self._sessions = SessionTraces()
        self._broker = control

    @property
    def is_5(self) -> bool:
        return self.version == MQTT5

    @property
    def timeout(self) -> float:
        return self.subject.timeout

    @property
    def findings(self) -> list[AuditFinding]:
        """Rules that the broker broke on any of the connections."""
        return [finding for link in self.links for finding in link.findings]

    def control(self) -> AbstractContextManager[None]:
        """The control arm: what is in it must succeed with every broker."""
        return self._claims.control()

    # --- names ---

    def topic(self, name: str = "t") -> bytes:
        """A topic name that no other run uses."""
        return f"{self.subject.prefix}/{self.tag}/{name}".encode()

    def client_id(self, name: str = "a") -> bytes:
        """A client identifier that no other run uses; at most 23 letters and digits, if possible.

        [MQTT-3.1.3-5] A server must accept those; others it may refuse.
        """
        prefix = "".join(c for c in self.subject.prefix if c.isalnum())[:5]
        return f"{prefix}{self.tag}{name}".encode()

    # --- connections ---

    async def open(self) -> ProbeLink:
        """A connection on which nothing was sent yet."""
        number = len(self.links) + 1
        trace = ConnectionTrace(number, self._sessions)
        link = ProbeLink(self.version, trace, self.recorder, self.tag)
        try:
            transport = await open_transport(
                self.subject.address, link, tls=self.subject.tls, timeout=CONNECT_SECONDS
            )
        except CannotConnect as problem:
            raise ControlFailed(f"{problem}") from None
        link.attach(transport)
        self.links.append(link)
        return link

    def connect_bytes(
        self,
        name: str = "a",
        *,
        clean: bool = True,
        keep_alive: int = 60,
        properties: bytes = b"",
        will: tuple[bytes, bytes] | None = None,
        will_qos: int = 0,
        will_retain: bool = False,
        will_properties: bytes = b"",
        client_id: bytes | None = None,
    ) -> bytes:
        """A CONNECT with the credentials of the subject."""
        return wire.connect(
            self.version,
            self.client_id(name) if client_id is None else client_id,
            clean=clean,
            keep_alive=keep_alive,
            properties=properties,
            will=will,
            will_qos=will_qos,
            will_retain=will_retain,
            will_properties=will_properties,
            user_name=self.subject.user_name,
            password=self.subject.password,
        )

    async def connect(
        self,
        name: str = "a",
        *,
        clean: bool = True,
        keep_alive: int = 60,
        properties: bytes = b"",
        will: tuple[bytes, bytes] | None = None,
        will_qos: int = 0,
        will_retain: bool = False,
        will_properties: bytes = b"",
        client_id: bytes | None = None,
    ) -> ProbeLink:
        """A connection that the broker has accepted, as a step that prepares the case.

        `clean=False` in 5.0 is without a Session Expiry Interval: give it in `properties`, or use
        `connect_durable`.
        """
        link = await self.open()
        await link.send(
            self.connect_bytes(
                name,
                clean=clean,
                keep_alive=keep_alive,
                properties=properties,
                will=will,
                will_qos=will_qos,
                will_retain=will_retain,
                will_properties=will_properties,
                client_id=client_id,
            )
        )
        observed = await link.wait_for_observed(CONNACK, self.timeout)
        if observed is None or len(observed.data) < 4:
            raise ControlFailed(self._missing(link, CONNACK))
        # It is at the same place in both versions: [3.1.1 MQTT-3.1.2-2] a server without the
        # version of the CONNECT answers in its own.
        if code := observed.data[3]:
            raise ControlFailed(f"the broker refused a right CONNECT: reason 0x{code:02x}")
        if not isinstance(observed.packet, ConnAck):
            raise ControlFailed(self._missing(link, CONNACK))
        return link

    async def connect_durable(
        self, name: str = "a", *, clean: bool = False, expiry: int = 300, properties: bytes = b""
    ) -> ProbeLink:
        """A connection whose session outlives it, in both versions."""
        if self.is_5:
            properties = wire.four_property(0x11, expiry) + properties
        return await self.connect(name, clean=clean, properties=properties)

    # --- steps that prepare a case ---

    async def expect(self, link: ProbeLink, packet_type: int) -> Packet:
        """Take a packet that must come with every broker. Raises ControlFailed."""
        packet = await link.wait_for(packet_type, self.timeout)
        if packet is None:
            raise ControlFailed(self._missing(link, packet_type))
        return packet

    async def subscribe(
        self,
        link: ProbeLink,
        *filters: tuple[bytes, int],
        packet_id: int = 100,
        properties: bytes = b"",
    ) -> SubAck:
        """Subscribe and wait for the SUBACK; every filter must be granted."""
        await link.send(
            wire.subscribe(self.version, filters, packet_id=packet_id, properties=properties)
        )
        packet = await self.expect(link, SUBACK)
        assert isinstance(packet, SubAck)
        if any(reason >= 0x80 for reason in packet.reasons):
            codes = ", ".join(f"0x{reason:02x}" for reason in packet.reasons)
            raise ControlFailed(f"the broker refused a subscription: SUBACK {codes}")
        return packet

    async def unsubscribe(self, link: ProbeLink, *filters: bytes, packet_id: int = 101) -> Packet:
        """Unsubscribe and wait for the UNSUBACK."""
        await link.send(wire.unsubscribe(self.version, filters, packet_id=packet_id))
        return await self.expect(link, UNSUBACK)

    async def publish(
        self,
        link: ProbeLink,
        topic_name: bytes,
        payload: bytes = b"x",
        *,
        qos: int = 0,
        packet_id: int = 200,
        retain: bool = False,
        properties: bytes = b"",
    ) -> None:
        """Publish a message and complete its handshake; the broker must accept it."""
        await link.send(
            wire.publish(
                self.version,
                topic_name,
                payload,
                qos=qos,
                packet_id=packet_id,
                retain=retain,
                properties=properties,
            )
        )
        if qos:
            answer = await self.expect(link, PUBACK if qos == 1 else PUBREC)
            if isinstance(answer, PubAck | PubRec) and answer.reason >= 0x80:
                raise ControlFailed(f"the broker refused a message: 0x{answer.reason:02x}")
        if qos == 2:
            await link.send(wire.pubrel(packet_id))
            await self.expect(link, PUBCOMP)

    async def acknowledge(self, link: ProbeLink, message: Publish) -> None:
        """Complete the handshake of a message that the broker delivered."""
        if message.qos == 1:
            await link.send(wire.puback(message.packet_id))
        elif message.qos == 2:
            await link.send(wire.pubrec(message.packet_id))
            await self.expect(link, PUBREL)
            await link.send(wire.pubcomp(message.packet_id))

    async def message(self, link: ProbeLink, *, acknowledge: bool = True) -> Publish | None:
        """The next message that the broker delivers within the timeout; None: none came."""
        packet = await link.wait_for(PUBLISH, self.timeout)
        if not isinstance(packet, Publish):
            return None
        if acknowledge:
            await self.acknowledge(link, packet)
        return packet

    async def expect_message(self, link: ProbeLink) -> Publish:
        """Take a message, in which the case claims something. Raises ControlFailed if none comes.

        That it comes is the claim of other cases.
        """
        message = await self.message(link)
        if message is None:
            raise ControlFailed(self._missing(link, PUBLISH))
        return message

    async def messages_until(
        self, link: ProbeLink, topic_name: bytes, publisher: ProbeLink, *, qos: int = 0
    ) -> list[Publish]:
        """What `link` receives before a last message, which `publisher` publishes to the topic.

        `link` must be subscribed to the topic. Messages of one topic, publisher and QoS are
        delivered in order, so that nothing is missing that was published before by `publisher` at
        this QoS; for others it is a time that passes. Raises ControlFailed if the last one is lost.
        """
        # With the tag: a subscriber to `#` also gets those of other runs.
        last = f"the last message of {self.tag}".encode()
        await self.publish(publisher, topic_name, last, qos=qos, packet_id=65_000)
        found: list[Publish] = []
        while len(found) < FLOOD:
            message = await self.message(link)
            if message is None:
                raise ControlFailed(f"the last message did not arrive: {self._state(link)}")
            if message.payload == last:
                return found
            found.append(message)
        raise ControlFailed(f"the broker delivered more than {FLOOD:,} messages")

    # --- the claim ---

    def must(self, holds: object, sentence: str) -> None:
        """Claim that `holds`; `sentence` says what was found if it does not."""
        self._claims.must(holds, sentence)

    def refute(self, sentence: str) -> NoReturn:
        """End the case: the subject is wrong (or, in the control arm, nothing is shown)."""
        self._claims.refute(sentence)

    def not_applicable(self, sentence: str) -> NoReturn:
        """End the case: the subject said in this run that the statement does not apply to it."""
        raise CaseInapplicable(sentence)

    async def must_receive(self, link: ProbeLink, packet_type: int) -> Packet:
        """Claim that the broker sends such a packet, which is taken."""
        packet = await link.wait_for(packet_type, self.timeout)
        if packet is None:
            self.refute_missing(link, packet_type)
        return packet

    def refute_missing(self, link: ProbeLink, packet_type: int) -> NoReturn:
        """End the case: a packet that the subject must send did not come, or was malformed."""
        self.refute(self._missing(link, packet_type))

    async def must_receive_message(self, link: ProbeLink, *, acknowledge: bool = True) -> Publish:
        """Claim that the broker delivers a message."""
        packet = await self.must_receive(link, PUBLISH)
        assert isinstance(packet, Publish)
        if acknowledge:
            await self.acknowledge(link, packet)
        return packet

    async def must_refuse(
        self, link: ProbeLink, *, allowed: Sequence[int] = (DISCONNECT,), why: str = ""
    ) -> None:
        """Claim that the broker closes the connection, and sends nothing but `allowed` before."""
        if not await link.wait_closed(CLOSE_GRACE):
            # A broker that answers this has not closed; one that is slow to close is given time.
            await link.send(wire.pingreq())
            await self._wait_for_pong(link)
        for observed in link.inbox:
            if observed.packet_type not in allowed and observed.packet_type != PINGRESP:
                self.refute(f"the broker answered with {PACKET_NAMES[observed.packet_type]}{why}")
        if not link.is_closed:
            self.refute(f"the broker did not close the connection{why}")

    async def _wait_for_pong(self, link: ProbeLink) -> None:
        pong = await link.wait_for(PINGRESP, self.timeout)
        if pong is not None:
            # [4.13.1] The answer may have been on its way; a connection that is about to be closed
            # gets the time for it.
            await link.wait_closed(CLOSE_GRACE)

    async def must_stay_open(self, link: ProbeLink, why: str = "") -> None:
        """Claim that the connection is open: the broker answers a PINGREQ."""
        await link.send(wire.pingreq())
        if await link.wait_for(PINGRESP, self.timeout) is None:
            self.refute(f"{self._missing(link, PINGRESP)}{why}")

    async def must_close(self, link: ProbeLink, seconds: float | None = None) -> None:
        """Claim that the broker closes the connection within `seconds`, silent until then."""
        if not await link.wait_closed(self.timeout if seconds is None else seconds):
            self.refute("the broker did not close the connection")

    # --- the broker's process ---

    async def restart(self) -> None:
        """Stop the broker in order and start it again (cases with needs=RESTART)."""
        assert self._broker is not None
        self.recorder.note("the broker is stopped and started again")
        await self._broker.stop()
        await self._broker.start()

    async def kill(self) -> None:
        """Kill the broker and start it again (cases with needs=KILL)."""
        assert self._broker is not None
        self.recorder.note("the broker is killed and started again")
        await self._broker.kill()
        await self._broker.start()

    async def end(self) -> None:
        """Close what is still open."""
        for link in self.links:
            await link.cut()
        for close in self.closers:
            close()

    # --- inside ---

    def _missing(self, link: ProbeLink, packet_type: int) -> str:
        if packet_type in link.malformed_types:
            return f"the {PACKET_NAMES[packet_type]} is malformed"
        return f"no {PACKET_NAMES[packet_type]} came: {self._state(link)}"

    def _state(self, link: ProbeLink) -> str:
        names = [PACKET_NAMES[observed.packet_type] for observed in link.inbox]
        received = f"the broker sent {', '.join(names)}" if names else "the broker sent nothing"
        if link.is_closed:
            return f"{received} and closed the connection"
        return f"{received} within {self.timeout:g} s"
