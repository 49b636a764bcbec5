"""Makes a 3.1.1 server discard a session of which the client has no state.

In 3.1.1 CleanSession 1 does two things: it discards the old session, and the new one ends with the
connection [3.1.1 §3.1.2.4]. A client that wants a new session which outlives its connection has to
connect twice. 5.0 has Clean Start and Session Expiry Interval instead.
"""

import asyncio
import ssl

from semel.client.address import Address
from semel.client.connector import Connector, open_transport
from semel.client.errors import Disconnected, Refused
from semel.mqtt.codec import Decoder, encode
from semel.mqtt.packet_types import CONNACK, MQTT311
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.connect import Connect
from semel.mqtt.packets.disconnect import Disconnect
from semel.mqtt.violation import Violation


class ConnackListener:
    """Waits for one CONNACK."""

    def __init__(self) -> None:
        self.decoder = Decoder(MQTT311)
        loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[ConnAck] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()

    def received(self, data: bytes) -> None:
        for packet in self.decoder.receive(data):
            if self.answer.done():
                return
            if isinstance(packet, ConnAck):
                self.answer.set_result(packet)
            elif isinstance(packet, Violation):
                problem = Disconnected(f"the server broke a rule: {packet}", violation=packet)
                self.answer.set_exception(problem)
            else:
                self.answer.set_exception(Disconnected("the server sent no CONNACK"))

    def writable(self, writable: bool) -> None:
        """Ignored: a CONNECT is small."""

    def lost(self, why: str | None) -> None:
        if not self.answer.done():
            self.answer.set_exception(Disconnected(why or "the server closed the connection"))
        if not self.closed.done():
            self.closed.set_result(None)


async def purge(
    address: Address,
    client_id: str,
    *,
    user_name: str | None,
    password: bytes | None,
    tls: ssl.SSLContext | None,
    timeout: float,
    connector: Connector = open_transport,
) -> None:
    """Connect with CleanSession 1 and disconnect. Raises Refused, Disconnected, CannotConnect."""
    listener = ConnackListener()
    transport = await connector(address, listener, tls=tls, timeout=timeout)
    try:
        packet = Connect(
            client_id, version=MQTT311, clean_start=True, user_name=user_name, password=password
        )
        transport.write(encode(packet, MQTT311))
        try:
            async with asyncio.timeout(timeout):
                answer = await listener.answer
        except TimeoutError:
            raise Disconnected(
                f"the server did not answer CONNECT within {timeout:.0f} s"
            ) from None
        if answer.reason:
            about = "the connection"
            raise Refused(answer.reason, CONNACK, version=MQTT311, about=about)
        transport.write(encode(Disconnect(), MQTT311))
        transport.close()
        await listener.closed
    finally:
        transport.abort()
