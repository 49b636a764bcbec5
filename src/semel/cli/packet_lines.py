"""The lines of -d: one for each packet that is sent or received, as Mosquitto's tools print them.

    Client c1 sending PUBLISH (d0, q1, r0, m1, 'plant/1/temp', ... (4 bytes))
    Client c1 received PUBACK (Mid: 1, RC:0)

They contain neither passwords nor payloads.
"""

import ssl
from collections.abc import Callable
from typing import Final

from semel.cli.safe_text import shown_text
from semel.client.address import Address
from semel.client.connector import Connector
from semel.client.transport import Transport, TransportListener
from semel.mqtt import (
    PACKET_NAMES,
    ConnAck,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Violation,
    packet_type_of,
)

SENDING: Final = "sending"
RECEIVED: Final = "received"


def describe_packet(packet: Packet) -> str:
    """The name of a packet, and what identifies it."""
    name = PACKET_NAMES[packet_type_of(packet)]
    if isinstance(packet, Publish):
        return (
            f"{name} (d{packet.dup:d}, q{packet.qos}, r{packet.retain:d}, m{packet.packet_id},"
            f" '{shown_text(packet.topic_name)}', ... ({len(packet.payload)} bytes))"
        )
    if isinstance(packet, PubAck | PubRec | PubRel | PubComp):
        return f"{name} (Mid: {packet.packet_id}, RC:{packet.reason})"
    if isinstance(packet, Subscribe):
        requests = ", ".join(
            f"Topic: {shown_text(each.topic_filter)}, QoS: {each.qos}"
            for each in packet.subscriptions
        )
        return f"{name} (Mid: {packet.packet_id}, {requests})"
    if isinstance(packet, Unsubscribe):
        topics = ", ".join(shown_text(each) for each in packet.topic_filters)
        return f"{name} (Mid: {packet.packet_id}, Topic: {topics})"
    if isinstance(packet, SubAck | UnsubAck):
        codes = ", ".join(map(str, packet.reasons))
        return f"{name} (Mid: {packet.packet_id}{f', RC: {codes}' if codes else ''})"
    if isinstance(packet, ConnAck | Disconnect):
        return f"{name} ({packet.reason})"
    return name


class PacketLines:
    """Decodes both directions of a connection, and prints a line for each packet."""

    def __init__(self, version: int, print_line: Callable[[str], None]) -> None:
        self._client_id = "(no id)"
        self._version = version
        self._print_line = print_line
        self._sent = Decoder(version)
        self._received = Decoder(version)

    def begin(self) -> None:
        """Reset the decoders for a new connection."""
        self._sent = Decoder(self._version)
        self._received = Decoder(self._version)

    def sent(self, data: bytes) -> None:
        self._read(SENDING, self._sent, data)

    def received(self, data: bytes) -> None:
        self._read(RECEIVED, self._received, data)

    def _read(self, direction: str, decoder: Decoder, data: bytes) -> None:
        for item in decoder.receive(data):
            if isinstance(item, Violation):
                self._print_line(f"Client {self._client_id} {direction} a violation: {item}")
                continue
            if isinstance(item, Connect):
                self._client_id = shown_text(item.client_id or self._client_id)
            elif isinstance(item, ConnAck):
                assigned = item.properties.assigned_client_identifier
                self._client_id = shown_text(assigned or self._client_id)
            self._print_line(f"Client {self._client_id} {direction} {describe_packet(item)}")


class TappedTransport:
    """A Transport whose packets are printed."""

    def __init__(self, transport: Transport, lines: PacketLines) -> None:
        self._transport = transport
        self._lines = lines
        self.peer = transport.peer
        self.close = transport.close
        self.abort = transport.abort
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading

    def write(self, data: bytes) -> None:
        self._lines.sent(data)
        self._transport.write(data)


class TappedListener:
    """A TransportListener whose packets are printed."""

    def __init__(self, listener: TransportListener, lines: PacketLines) -> None:
        self._listener = listener
        self._lines = lines
        self.writable = listener.writable
        self.lost = listener.lost

    def received(self, data: bytes) -> None:
        self._lines.received(data)
        self._listener.received(data)


def tapped(opening: Connector, lines: PacketLines) -> Connector:
    """A Connector that prints a line for each packet."""

    async def open_tapped(
        address: Address,
        listener: TransportListener,
        *,
        tls: ssl.SSLContext | None = None,
        timeout: float = 30.0,
    ) -> Transport:
        lines.begin()
        tap = TappedListener(listener, lines)
        return TappedTransport(await opening(address, tap, tls=tls, timeout=timeout), lines)

    return open_tapped
