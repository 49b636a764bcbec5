"""One run of one case against a client program: a fresh process, a fresh port, and what must hold.

A step that prepares the case raises ControlFailed if it fails; `must`, `must_acknowledge` and
`must_close` make the claim of the case and raise ClaimRefuted. Between `with trial.control():` they
raise ControlFailed, too: the control arm must succeed.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, NoReturn

from semel.mqtt import MQTT5, PACKET_NAMES
from semel.mqtt.packet_types import CONNECT, PUBACK, PUBCOMP, PUBLISH, PUBREC, SUBSCRIBE
from semel.mqtt.packets.connect import Connect
from semel.mqtt.packets.publish import Publish
from semel.probe import wire
from semel.probe.claims import CaseClaims, CaseInapplicable, ClaimArguable, ControlFailed
from semel.probe.client import server_wire
from semel.probe.client.process import KEEP_ALIVE, ClientProcess, substitute
from semel.probe.client.profile import ClientProfile, topic_name_for
from semel.probe.client.server import (
    ANSWERED,
    HOST,
    NO_QOS,
    QOS_1_AND_2,
    SubjectLink,
    SubjectListener,
    first_number,
    packet_list,
)
from semel.probe.link_audit import AuditFinding
from semel.probe.recorder import CaseRecorder

# How long a client gets to close before a PUBLISH asks whether it still answers.
CLOSE_GRACE: Final = 0.25
# How long after an answer that was on its way the connection may still close.
LATE_CLOSE: Final = 0.5
# How long a program may take to start; machines may be busy.
START_SECONDS: Final = 30.0
# A program that comes back sooner is not started again for the next connection.
QUICK_RECONNECT: Final = 0.5
PLACEHOLDER_VERSIONS: Final = {4: "311", 5: "5"}


@dataclass(frozen=True)
class ClientSubject:
    """The program that is examined. `role` names it where a report has several."""

    command: tuple[str, ...]
    role: str = "client"
    # How long it may take for what it must do.
    timeout: float = 5.0


class ClientTrial:
    """One run of a case. `tag` makes its names different from those of every other run."""

    def __init__(
        self, subject: ClientSubject, version: int, tag: str, profile: ClientProfile | None = None
    ) -> None:
        self.subject = subject
        self.version = version
        self.tag = tag
        self.recorder = CaseRecorder()
        self.process = ClientProcess()
        self._claims = CaseClaims(self.recorder)
        self._profile = profile
        self._listener = SubjectListener(self.recorder)
        self._tokens = 0
        self._packet_id = 1000
        self._preludes = 0
        # The client identifiers with which this process was accepted.
        self._known_clients: set[str] = set()

    @property
    def is_5(self) -> bool:
        return self.version == MQTT5

    @property
    def timeout(self) -> float:
        return self.subject.timeout

    @property
    def profile(self) -> ClientProfile:
        assert self._profile is not None, "discovery has ended"
        return self._profile

    @property
    def links(self) -> list[SubjectLink]:
        return self._listener.links

    @property
    def findings(self) -> list[AuditFinding]:
        """Rules that the client broke on any of its connections."""
        return [finding for link in self.links for finding in link.findings]

    def control(self) -> AbstractContextManager[None]:
        """The control arm: what is in it must succeed with every client."""
        return self._claims.control()

    # --- names ---

    def payload(self) -> bytes:
        """A payload that no other message has, so that it can be found in what is printed."""
        self._tokens += 1
        return f"semel-{self.tag}-{self._tokens:03d}-end".encode()

    def next_packet_id(self) -> int:
        """A Packet Identifier that this run has not used."""
        self._packet_id += 1
        return self._packet_id

    # --- the program and its connections ---

    async def start(self) -> None:
        """Listen, and start the program. Raises CommandNotFound."""
        if not self._listener.port:
            await self._listener.start()
        values = {
            "host": HOST,
            "port": self._listener.port,
            "version": PLACEHOLDER_VERSIONS[self.version],
            "level": self.version,
            "client_id": f"semel{self.tag}",
            "topic": f"semel-probe/{self.tag}",
            "keep_alive": KEEP_ALIVE,
        }
        self._preludes = 0 if self._profile is None else self._profile.preludes
        command = substitute(self.subject.command, values)
        self.recorder.note(f"started: {' '.join(command)}")
        await self.process.start(command)

    async def start_again(self) -> None:
        """End the program, which has no connection any more, and start it afresh."""
        await self.process.stop()
        self.process = ClientProcess()
        # What it kept in memory is gone, and so is our side of its session.
        self._known_clients.clear()
        await self.start()

    async def end(self) -> None:
        """Close the connections and the port, and end the program."""
        if self.process.has_ended and self.process.exit_code is not None:
            line = self.process.last_line()
            self.recorder.note(
                f"the program had exited with code {self.process.exit_code}"
                + (f"; its last line: {line}" if line else "")
            )
        # First the connections, so that the evidence does not say that the client closed them.
        for link in self.links:
            link.cut()
        await self.process.stop()
        await self._listener.stop()

    async def accept(self, seconds: float = START_SECONDS) -> SubjectLink:
        """The next connection of the program, with its CONNECT. Raises ControlFailed.

        Connections that the program opens only to end them, as to delete an old session, are
        served and passed over.
        """
        while self._preludes:
            self._preludes -= 1
            link = await self._accept_one(seconds)
            await self.connected(link=link)
            if not await link.wait_closed(self.timeout):
                return link
        return await self._accept_one(seconds)

    async def _accept_one(self, seconds: float) -> SubjectLink:
        link = await self._listener.next_link(seconds)
        if link is None:
            raise ControlFailed(f"the program did not connect within {seconds:g} s")
        if await link.wait_for(CONNECT, max(self.timeout, 5.0)) is None:
            raise ControlFailed(f"no CONNECT came: the program sent {packet_list(link)}")
        return link

    async def next_connection(self) -> SubjectLink:
        """Another connection: of the same process if it comes back at once, or of a fresh one."""
        seconds = self.profile.reconnect_seconds
        is_quick = seconds is not None and seconds < QUICK_RECONNECT and not self.profile.preludes
        deadline = time.monotonic() + 4 * QUICK_RECONNECT
        while is_quick and time.monotonic() < deadline:
            waiting = await self._listener.next_link(0.05)
            if waiting is not None and await waiting.wait_for(CONNECT, self.timeout) is not None:
                return waiting
            if self.process.has_ended:
                break
        if self.links and not all(link.is_closed for link in self.links):
            for link in self.links:
                link.cut()
        await self.start_again()
        while True:
            link = await self.accept()
            # What the old process had opened before it was ended is closed by now.
            if not link.is_closed:
                return link

    async def connected(
        self,
        properties: bytes = b"",
        *,
        session_present: bool | None = None,
        answered: frozenset[int] = ANSWERED,
        withheld: frozenset[int] = NO_QOS,
        link: SubjectLink | None = None,
    ) -> SubjectLink:
        """A connection that we have accepted.

        `answered` are the packet types that we answer, except PUBLISH at the QoS in `withheld`.
        By default we have the session of a process that wants to resume it.
        """
        if link is None:
            link = await self.accept()
        if session_present is None:
            session_present = self._has_session(link)
        if link.connect is not None:
            self._known_clients.add(link.connect.client_id)
        link.answered = answered
        link.withheld = withheld
        link.send(
            server_wire.connack(
                self.version,
                session_present=session_present,
                properties=self.assigned(link) + properties,
            )
        )
        link.answer_earlier()
        return link

    def _has_session(self, link: SubjectLink) -> bool:
        """Whether the process of a connection has a session with us."""
        connect = link.connect
        return (
            connect is not None
            and not connect.clean_start
            and bool(connect.client_id)
            and connect.client_id in self._known_clients
        )

    def assigned(self, link: SubjectLink) -> bytes:
        """[MQTT-3.2.2-16] The property for a client that left its Client Identifier to us."""
        if self.is_5 and isinstance(link.connect, Connect) and not link.connect.client_id:
            return wire.text_property(
                server_wire.ASSIGNED_CLIENT_IDENTIFIER, f"semel{self.tag}".encode()
            )
        return b""

    async def engaged(
        self, properties: bytes = b"", *, link: SubjectLink | None = None
    ) -> SubjectLink:
        """A connection on which the program has done its first work and stays.

        A program that would end once everything is acknowledged gets no acknowledgements.
        """
        withheld = QOS_1_AND_2 if self.profile.ends_by_itself else NO_QOS
        link = await self.connected(properties, withheld=withheld, link=link)
        await self.work_begun(link)
        return link

    async def publication(self, link: SubjectLink, qos: int) -> Publish:
        """The first PUBLISH of the client at this QoS. Raises ControlFailed."""
        await link.wait_until(
            lambda: any(each.qos == qos for each in link.published()), self.timeout
        )
        for each in link.published():
            if each.qos == qos:
                return each
        raise ControlFailed(f"no PUBLISH of QoS {qos} came: {self.state(link)}")

    async def work_begun(self, link: SubjectLink) -> None:
        """Wait until the program has subscribed or published. Raises ControlFailed."""
        expected = 0
        if self.profile.subscriptions:
            expected = SUBSCRIBE
        elif self.profile.qos:
            expected = PUBLISH
        if expected and not await link.wait_until(
            lambda: link.times_received(expected) > 0, self.timeout
        ):
            raise ControlFailed(f"no {PACKET_NAMES[expected]} came: {self.state(link)}")

    # --- messages to the client ---

    def message(
        self,
        link: SubjectLink,
        payload: bytes,
        *,
        qos: int = 1,
        packet_id: int = 1,
        dup: bool = False,
        topic_name: bytes | None = None,
    ) -> bytes:
        """A PUBLISH to a topic that the client has subscribed to."""
        return wire.publish(
            self.version,
            topic_name_for(link) if topic_name is None else topic_name,
            payload,
            qos=qos,
            packet_id=packet_id,
            dup=dup,
        )

    async def must_acknowledge(self, link: SubjectLink, why: str = "") -> None:
        """Claim that the client answers a PUBLISH of QoS 1, so that the connection is open."""
        packet_id = self.next_packet_id()
        link.send(self.message(link, self.payload(), packet_id=packet_id))
        await self.must_answer(link, PUBACK, packet_id, why)

    async def must_answer(
        self, link: SubjectLink, packet_type: int, packet_id: int, why: str = ""
    ) -> None:
        """Claim that the client sends a packet of this type with this Packet Identifier.

        What else is wrong with it is found by the audit.
        """
        observed = await link.wait_for(packet_type, self.timeout)
        name = PACKET_NAMES[packet_type]
        if observed is None:
            self.refute(f"no {name} {packet_id} came{why}: {self.state(link)}")
        found = first_number(observed.data)
        if found != packet_id:
            self.refute(f"{name} has Packet Identifier {found} instead of {packet_id}{why}")

    async def must_complete_qos_2(self, link: SubjectLink, packet_id: int, why: str = "") -> None:
        """Claim that the client answers a PUBREL of ours with PUBCOMP."""
        link.send(wire.pubrel(packet_id))
        await self.must_answer(link, PUBCOMP, packet_id, why)

    async def deliver(self, link: SubjectLink, payload: bytes, qos: int, packet_id: int) -> None:
        """Deliver a message and claim that its handshake is completed."""
        link.send(self.message(link, payload, qos=qos, packet_id=packet_id))
        if qos == 1:
            await self.must_answer(link, PUBACK, packet_id)
        elif qos == 2:
            await self.must_answer(link, PUBREC, packet_id)
            await self.must_complete_qos_2(link, packet_id)

    async def printed(self, payload: bytes, times: int = 1) -> int:
        """How often the program has printed a payload, once it had time to print it `times`."""
        for _ in range(int(self.timeout / 0.05)):
            if self.process.times_printed(payload) >= times:
                break
            await self.pause(0.05)
        return self.process.times_printed(payload)

    async def pause(self, seconds: float) -> None:
        """Let time pass, in which the client may do something."""
        await asyncio.sleep(seconds)

    async def must_reconnect(
        self, *, session_present: bool = True, withheld: frozenset[int] = NO_QOS
    ) -> SubjectLink:
        """The program's next connection, which resumes its session.

        That it comes is no claim of the standard: raises ControlFailed. By default everything is
        acknowledged, because a client may wait for that before it sends the next message again.
        """
        seconds = self.profile.reconnect_seconds or 0.0
        link = await self.accept(max(self.timeout, 3 * seconds) + 5.0)
        assert link.connect is not None
        if link.connect.clean_start:
            raise ControlFailed("the program began a clean session although it had one")
        return await self.connected(session_present=session_present, withheld=withheld, link=link)

    # --- the claim ---

    def must(self, holds: object, sentence: str) -> None:
        """Claim that `holds`; `sentence` says what was found if it does not."""
        self._claims.must(holds, sentence)

    def refute(self, sentence: str) -> NoReturn:
        """End the case: the client is wrong (or, in the control arm, nothing is shown)."""
        self._claims.refute(sentence)

    def not_applicable(self, sentence: str) -> NoReturn:
        """End the case: the program did not do in this run what the statement is about."""
        raise CaseInapplicable(sentence)

    async def must_close(
        self,
        link: SubjectLink,
        *,
        reading: str = "",
        forbidden: Sequence[int] = (),
        what: str = "",
    ) -> None:
        """Claim that the client closes the connection, apart from what it sends before.

        With a `reading`, a connection that stays open is arguable. `forbidden` are packet types
        that the client must not answer with in any case; `what` was sent, for the sentence.
        """
        known = len(link.arrivals)
        if not await link.wait_closed(CLOSE_GRACE):
            packet_id = self.next_packet_id()
            # A client that answers this has not closed; one that is slow to close is given time.
            link.send(self.message(link, self.payload(), packet_id=packet_id), breaks_rule=True)
            await link.wait_until(
                lambda: any(
                    each.observed.packet_type == PUBACK
                    and first_number(each.observed.data) == packet_id
                    for each in link.arrivals[known:]
                ),
                self.timeout,
            )
            await link.wait_closed(LATE_CLOSE)
        for each in link.arrivals[known:]:
            if each.observed.packet_type in forbidden:
                name = PACKET_NAMES[each.observed.packet_type]
                self.refute(f"the client answered {what} with {name}")
        if link.is_closed:
            return
        sentence = f"the client did not close the connection after {what}"
        if reading:
            raise ClaimArguable(f"{sentence}; {reading}")
        self.refute(sentence)

    # --- sentences ---

    def state(self, link: SubjectLink) -> str:
        """What the client did on a connection, for sentences."""
        sent = f"the client sent {packet_list(link)}"
        if link.is_closed:
            return f"{sent} and closed the connection"
        return f"{sent} within {self.timeout:g} s"

    def open_publications(self, link: SubjectLink) -> list[Publish]:
        """What the client has published at QoS 1 and 2 on a connection, in order."""
        return [packet for packet in link.published() if packet.qos]
