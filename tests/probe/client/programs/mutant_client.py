"""A small client that is right, or breaks one rule: `--mutant NAME`.

It subscribes, publishes two messages at QoS 0, 1 and 2 each, prints what it receives, keeps its
session in memory and comes back at once when the connection is lost. Written with sockets, and with
the codec and the trace of semel.mqtt, so that it starts quickly.
"""

import argparse
import contextlib
import select
import signal
import socket
import sys
import time
from typing import Any

from semel.mqtt import CLIENT, SERVER, Violation
from semel.mqtt.codec import read_frame
from semel.mqtt.packet_types import (
    CONNACK,
    PINGREQ,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
)
from semel.mqtt.trace import ConnectionTrace, ObservedPacket, SessionTraces
from semel.probe import wire

TOPIC_ALIASES = 5
BACK_SECONDS = 0.05


class Interrupted(BaseException):
    """SIGINT or SIGTERM came."""


class Outgoing:
    """A message that is not acknowledged. `is_released`: PUBREL was sent."""

    def __init__(self, qos: int, payload: bytes) -> None:
        self.qos = qos
        self.payload = payload
        self.is_sent = False
        self.is_released = False


class MutantClient:
    """The session, and one connection at a time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.version = options.level
        self.topic = options.topic.encode()
        self.sessions = SessionTraces()
        self.outgoing: dict[int, Outgoing] = {}
        self.queue = [Outgoing(qos, f"m{qos}{i}".encode()) for qos in (0, 1, 2) for i in (1, 2)]
        self.next_id = 0
        self.received: set[int] = set()
        self.has_session = False
        self.connections = 0

    def breaks(self, name: str) -> bool:
        return bool(self.options.mutant == name)

    # --- one connection ---

    def run_connection(self) -> None:
        self.sock = socket.create_connection((self.options.host, self.options.port), 10)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.trace = ConnectionTrace(self.connections, self.sessions)
        self.connections += 1
        self.unread = b""
        self.is_connected = False
        self.keep_alive = self.options.keep_alive
        self.aliases: dict[int, bytes] = {}
        self.limits: Any = None
        self.pending: list[bytes] = []
        self.sent_at = time.monotonic()
        try:
            self.connect()
            while self.serve():
                pass
        except (ConnectionError, TimeoutError):
            pass
        except Interrupted:
            # A second signal must not interrupt the leave-taking.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self.leave()
            raise
        finally:
            self.trace.end()
            self.sock.close()

    def connect(self) -> None:
        properties = b""
        clean = False
        if self.version == 5:
            clean = not self.has_session
            properties = wire.four_property(0x11, 300)
            properties += wire.two_property(0x22, TOPIC_ALIASES)
        packet = right = wire.connect(
            self.version,
            self.options.client_id.encode(),
            clean=clean,
            keep_alive=self.keep_alive,
            properties=properties,
        )
        if self.breaks("reserved-connect-flag"):
            packet = packet[:9] + bytes([packet[9] | 1]) + packet[10:]
        if self.breaks("pingreq-before-connect"):
            self.send(wire.pingreq())
        self.send(packet, right=right)
        if self.breaks("two-connects"):
            self.sock.sendall(packet)

    def serve(self) -> bool:
        """Wait for the server or the clock. False: the connection has ended."""
        wait = self.sent_at + 0.8 * self.keep_alive - time.monotonic() if self.keep_alive else 9
        if self.breaks("resends-while-connected"):
            wait = min(wait, 1.0)
        ready, _, _ = select.select([self.sock], [], [], max(0.0, wait))
        if not ready:
            if self.breaks("resends-while-connected"):
                self.resend(dup=True)
            if time.monotonic() - self.sent_at >= 0.8 * self.keep_alive and not self.breaks(
                "never-pings"
            ):
                self.send(wire.pingreq())
            elif self.breaks("never-pings"):
                self.sent_at = time.monotonic()
            return True
        data = self.sock.recv(65536)
        if not data:
            return False
        self.unread += data
        while self.unread:
            try:
                _, _, end, _ = read_frame(self.unread, 0)
            except Violation:
                return self.fail()
            if not end or end > len(self.unread):
                break
            packet, self.unread = self.unread[:end], self.unread[end:]
            if not self.handle(packet):
                return False
        self.flush_pending()
        return True

    def handle(self, data: bytes) -> bool:
        kind = data[0] >> 4
        if kind == PINGREQ and self.breaks("answers-pingreq"):
            self.send(b"\xd0\x00")
            return True
        observed = self.trace.read(data)
        if self.is_too_strict(kind, data, observed):
            return self.fail()
        packet: Any = observed.packet
        found = self.trace.check(SERVER, observed)
        if self.breaks("accepts-session-present") and kind == CONNACK:
            found = ()
        if any(violation.rule.closes for violation in found):
            names = {violation.rule.name for violation in found}
            if self.breaks("ignores-malformed") or (
                self.breaks("ignores-flags") and "FIXED_HEADER_FLAGS" in names
            ):
                return True
            return self.fail()
        if kind == CONNACK:
            return self.on_connack(packet)
        if kind == PUBLISH:
            self.on_publish(packet, data)
        elif kind == PUBREC:
            self.on_pubrec(packet)
        elif kind in (PUBACK, PUBCOMP):
            self.outgoing.pop(packet.packet_id, None)
            self.publish_more()
        elif kind == PUBREL:
            self.received.discard(packet.packet_id)
            shift = 1 if self.breaks("pubcomp-with-other-id") else 0
            self.send(wire.pubcomp(packet.packet_id + shift))
        return kind != 14

    def is_too_strict(self, kind: int, data: bytes, observed: ObservedPacket) -> bool:
        packet: Any = observed.packet
        if packet is None:
            return False
        return (
            (self.breaks("refuses-short-puback") and kind == PUBACK and len(data) == 4)
            or (self.breaks("refuses-long-puback") and kind == PUBACK and len(data) > 4)
            or (self.breaks("refuses-star") and kind == PUBLISH and "*" in packet.topic_name)
            or (self.breaks("refuses-unknown-dup") and kind == PUBLISH and packet.dup
                and packet.qos == 2 and packet.packet_id not in self.received)
            or (self.breaks("refuses-repeated-pubrel") and kind == PUBREL
                and packet.packet_id not in self.received)
            or (self.breaks("refuses-user-property") and kind == PUBLISH
                and packet.properties.user_properties)
            or (self.breaks("refuses-unexpected-topic") and kind == PUBLISH
                and "not/subscribed" in packet.topic_name)
            or (self.breaks("refuses-connack-properties") and kind == CONNACK and len(data) > 5)
            or (self.breaks("refuses-long-pubrel") and kind == PUBREL and len(data) > 4)
        )  # fmt: skip

    def fail(self) -> bool:
        """Close because of the server's mistake, in 5.0 with DISCONNECT."""
        if self.version == 5 and self.is_connected:
            self.send(wire.disconnect(5, 0x82))
            if self.breaks("stays-after-error"):
                return True
        return False

    # --- the server's packets ---

    def on_connack(self, packet: Any) -> bool:
        if packet.reason:
            return False
        if packet.session_present and not self.has_session and self.version == 5:
            # [MQTT-3.2.2-4]
            if not self.breaks("accepts-session-present"):
                return self.fail()
        self.is_connected = True
        given = packet.properties
        self.limits = given
        if given.server_keep_alive is not None and not self.breaks("ignores-server-keep-alive"):
            self.keep_alive = given.server_keep_alive
        is_lost = not packet.session_present and self.version == 5
        if is_lost and not self.breaks("ignores-session-lost"):
            # [MQTT-3.2.2-5]
            self.outgoing.clear()
            self.received.clear()
        self.subscribe()
        if self.has_session:
            self.resend(dup=not self.breaks("no-dup-on-resend"))
        if self.breaks("forgets-received"):
            self.received.clear()
        self.has_session = True
        self.publish_more()
        return True

    def on_publish(self, packet: Any, data: bytes) -> None:
        if self.breaks("ignores-unexpected-topic") and "not/subscribed" in packet.topic_name:
            return
        if packet.qos == 2:
            repeated = packet.packet_id in self.received
            if repeated and self.breaks("no-pubrec-for-repeat"):
                return
            self.received.add(packet.packet_id)
            if repeated and not self.breaks("delivers-repeats"):
                return self.answer(PUBREC, packet.packet_id)
        print(packet.payload.decode(errors="replace"), flush=True)
        if packet.qos == 1:
            self.answer(PUBACK, packet.packet_id)
        elif packet.qos == 2:
            self.answer(PUBACK if self.breaks("puback-for-qos-2") else PUBREC, packet.packet_id)
        elif self.breaks("answers-qos-0"):
            self.send(wire.puback(1))

    def answer(self, kind: int, packet_id: int) -> None:
        answer = wire.puback(packet_id) if kind == PUBACK else wire.pubrec(packet_id)
        reversed_kind = {"pubacks-reversed": PUBACK, "pubrecs-reversed": PUBREC}
        if reversed_kind.get(self.options.mutant) == kind:
            self.pending.insert(0, answer)
        elif not self.breaks("no-puback") or kind != PUBACK:
            self.send(answer)

    def flush_pending(self) -> None:
        for packet in self.pending:
            self.send(packet)
        self.pending.clear()

    def on_pubrec(self, packet: Any) -> None:
        message = self.outgoing.get(packet.packet_id)
        if message is None:
            return
        if packet.reason >= 0x80 and not self.breaks("releases-refused"):
            del self.outgoing[packet.packet_id]
            return
        message.is_released = True
        release = wire.pubrel(packet.packet_id)
        if self.breaks("pubrel-without-flags"):
            release = b"\x60" + release[1:]
        if self.breaks("pubrels-reversed"):
            self.pending.insert(0, release)
        else:
            self.send(release, right=wire.pubrel(packet.packet_id))

    # --- the client's packets ---

    def subscribe(self) -> None:
        filters = [(self.topic, 2)]
        properties = b""
        given = self.limits
        if given.wildcard_subscription_available != 0 or self.breaks("wildcard-anyway"):
            filters.append((self.topic + b"/w/+", 1))
        if self.version == 5:
            if given.shared_subscription_available != 0 or self.breaks("shared-anyway"):
                filters.append((b"$share/g/" + self.topic + b"/s", 1))
            if given.subscription_identifiers_available != 0 or self.breaks("identifier-anyway"):
                properties = wire.subscription_identifier(7)
        packet_id = self.take_id()
        if self.breaks("wildcard-in-a-level"):
            filters = [(self.topic + b"/x/#", 1)]
        packet = wire.subscribe(self.version, filters, packet_id=packet_id, properties=properties)
        right = packet
        if self.breaks("subscribe-flags"):
            packet = b"\x80" + packet[1:]
        elif self.breaks("wildcard-in-a-level"):
            packet = packet.replace(b"/x/#", b"/xx#")
        self.send_within_size(packet, right=right)

    def take_id(self) -> int:
        if self.breaks("packet-id-zero"):
            return 0
        if self.breaks("same-id-twice"):
            return 1
        self.next_id += 1
        return self.next_id

    def publish_more(self) -> None:
        most = self.limits.receive_maximum or 65_535
        if self.breaks("exceeds-receive-maximum"):
            most = 65_535
        while self.queue and len(self.outgoing) < most:
            message = self.queue.pop(0)
            most_qos = 2 if self.limits.maximum_qos is None else self.limits.maximum_qos
            if message.qos > most_qos and not self.breaks("qos-anyway"):
                continue
            packet_id = self.take_id() if message.qos else 0
            if message.qos:
                self.outgoing[packet_id] = message
            first_dup = "dup-on-first-send" if message.qos else "dup-at-qos-0"
            self.publish(packet_id, message, dup=self.breaks(first_dup))

    def publish(self, packet_id: int, message: Outgoing, *, dup: bool) -> None:
        properties = b""
        alias = self.limits.topic_alias_maximum or 0
        if self.breaks("alias-above-maximum"):
            alias = min(alias + 1, 65_535)
        if alias and self.version == 5:
            properties = wire.two_property(0x23, alias)
        retain = self.limits.retain_available != 0 or self.breaks("retains-anyway")
        packet = wire.publish(
            self.version,
            self.topic + b"/out",
            message.payload,
            qos=message.qos,
            packet_id=packet_id,
            dup=dup and (message.qos > 0 or self.breaks("dup-at-qos-0")),
            retain=retain,
            properties=properties,
        )
        wrong = packet.replace(b"/out", b"/+/x") if self.breaks("publishes-to-wildcard") else packet
        self.send_within_size(wrong, right=packet)
        message.is_sent = True

    def resend(self, *, dup: bool) -> None:
        if self.breaks("no-resend"):
            self.outgoing.clear()
        if self.breaks("new-id-on-resend"):
            self.outgoing = {packet_id + 100: m for packet_id, m in self.outgoing.items()}
            self.next_id += 100
        items = list(self.outgoing.items())
        if self.breaks("resends-reversed"):
            items.reverse()
        for packet_id, message in items:
            if message.is_released and not self.breaks("publish-after-pubrel"):
                if not self.breaks("no-pubrel-on-resume"):
                    self.send(wire.pubrel(packet_id))
            else:
                self.publish(packet_id, message, dup=dup)

    def send_within_size(self, packet: bytes, *, right: bytes = b"") -> None:
        most = self.limits.maximum_packet_size
        if most is None or len(packet) <= most or self.breaks("exceeds-packet-size"):
            self.send(packet, right=right)

    def send(self, packet: bytes, *, right: bytes = b"") -> None:
        """Send a packet; the trace gets the right one, so that it can check the server's answer."""
        observed = self.trace.read(right or packet)
        if observed.packet is not None and (self.trace.version or packet[0] == 0x10):
            self.trace.check(CLIENT, observed)
        self.sock.sendall(packet)
        self.sent_at = time.monotonic()

    def leave(self) -> None:
        self.send(wire.disconnect(self.version))
        if self.breaks("packet-after-disconnect"):
            self.send(wire.pingreq())
        if self.breaks("stays-after-disconnect"):
            time.sleep(60)
        self.sock.close()


def interrupt(number: int, frame: object) -> None:
    raise Interrupted


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("level", type=int)
    parser.add_argument("client_id")
    parser.add_argument("topic")
    parser.add_argument("keep_alive", type=int)
    parser.add_argument("--mutant", default="")
    client = MutantClient(parser.parse_args())
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        while True:
            with contextlib.suppress(OSError):
                client.run_connection()
            time.sleep(BACK_SECONDS)
    except Interrupted:
        sys.exit(0)


if __name__ == "__main__":
    main()
