"""paho-mqtt in the form that the tests of live clients use: its network loop in a thread."""

import itertools
import socket
from queue import Queue
from typing import Any, Literal, Protocol

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from tests.broker.broker_process import PATIENCE

VERSIONS = {"3.1.1": mqtt.MQTTv311, "5.0": mqtt.MQTTv5}

# Topic, payload, QoS, RETAIN.
Facts = tuple[str, bytes, int, bool]

number = itertools.count()


def properties(kind: int, values: dict[str, Any]) -> Properties | None:
    """paho's own object; None for nothing, which is all that it takes with 3.1.1."""
    if not values:
        return None
    made = Properties(kind)
    for name, value in values.items():
        setattr(made, name, value)
    return made


def topic_of(received: Facts) -> str:
    return received[0]


def facts(message: mqtt.MQTTMessage) -> Facts:
    return message.topic, bytes(message.payload), message.qos, message.retain


def seen(message: mqtt.MQTTMessage) -> dict[str, Any]:
    """The properties of a message, by their names in paho."""
    assert message.properties is not None
    return seen_in(message.properties)


def seen_in(found: Properties) -> dict[str, Any]:
    names = [name.replace(" ", "") for name in found.names]
    return {name: getattr(found, name) for name in names if hasattr(found, name)}


class Reachable(Protocol):
    """A broker with an address: host and port, or the path of a Unix socket and any port."""

    @property
    def address(self) -> tuple[str, int]: ...


class Client:
    """A paho client, and what it was told, in queues."""

    def __init__(
        self,
        broker: Reachable,
        client_id: str,
        version: str,
        *,
        clean: bool = True,
        will: dict[str, Any] | None = None,
        will_properties: dict[str, Any] | None = None,
        transport: Literal["tcp", "websockets", "unix"] = "tcp",
        **connect_properties: Any,
    ) -> None:
        self.broker = broker
        self.client_id = client_id
        self.is_5 = version == "5.0"
        self.clean = clean
        self.connect_properties = connect_properties
        self.inbox: Queue[mqtt.MQTTMessage] = Queue()
        self.connacks: Queue[tuple[bool, int]] = Queue()
        self.subacks: Queue[list[int]] = Queue()
        self.published: Queue[int] = Queue()
        self.ends: Queue[tuple[bool, int]] = Queue()
        self.paho = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=None if self.is_5 else clean,
            protocol=VERSIONS[version],
            transport=transport,
            reconnect_on_failure=False,
        )
        if will is not None:
            said = properties(PacketTypes.WILLMESSAGE, will_properties or {})
            self.paho.will_set(**will, properties=said)
        self.paho.on_message = lambda _c, _u, message: self.inbox.put(message)
        self.paho.on_connect = lambda _c, _u, flags, reason, _p: self.connacks.put(
            (flags.session_present, reason.value)
        )
        self.paho.on_subscribe = lambda _c, _u, _m, reasons, _p: self.subacks.put(
            [reason.value for reason in reasons]
        )
        self.paho.on_unsubscribe = self.paho.on_subscribe
        self.paho.on_publish = lambda _c, _u, _m, reason, _p: self.published.put(reason.value)
        self.paho.on_disconnect = lambda _c, _u, flags, reason, _p: self.ends.put(
            (flags.is_disconnect_packet_from_server, reason.value)
        )

    def open(self) -> tuple[bool, int]:
        """Connect, or connect again: Session Present and the reason code."""
        if self.is_5:
            said = properties(PacketTypes.CONNECT, self.connect_properties)
            self.paho.connect(*self.broker.address, clean_start=self.clean, properties=said)
        else:
            self.paho.connect(*self.broker.address)
        # paho makes a pair of sockets at each start of its loop, and leaves the last one open.
        self.paho._reset_sockets(sockpair_only=True)
        self.paho.loop_start()
        return self.connacks.get(timeout=PATIENCE)

    def subscribe(self, topic_filter: str, qos: int = 2, **said: Any) -> list[int]:
        """The codes of the SUBACK."""
        self.paho.subscribe(topic_filter, qos, properties=properties(PacketTypes.SUBSCRIBE, said))
        return self.subacks.get(timeout=PATIENCE)

    def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False, **said: Any
    ) -> int:
        """Publish, and wait until paho has done all of it. The code of the acknowledgement."""
        info = self.paho.publish(topic, payload, qos, retain, properties(PacketTypes.PUBLISH, said))
        info.wait_for_publish(PATIENCE)
        assert info.is_published()
        return self.published.get(timeout=PATIENCE)

    def receive(self, count: int = 1) -> list[Facts]:
        """The next messages, without their properties."""
        return [facts(self.inbox.get(timeout=PATIENCE)) for _ in range(count)]

    def others(self, sender: "Client | None" = None) -> list[Facts]:
        """What comes before a message that the sender, or the client itself, now sends to it.

        At QoS 2, so that nothing that was on its way to the client is overtaken.
        """
        topic = f"last/{next(number)}"
        self.subscribe(topic)
        (sender or self).publish(topic, qos=2)
        received = self.receive()
        while received[-1][0] != topic:
            received += self.receive()
        return received[:-1]

    def cut(self) -> None:
        """Let the connection fail, without a DISCONNECT."""
        connection = self.paho.socket()
        assert isinstance(connection, socket.socket)
        connection.shutdown(socket.SHUT_RDWR)
        self.ends.get(timeout=PATIENCE)
        self.paho.loop_stop()

    def close(self, reason: int = 0) -> None:
        """Disconnect as one should; what is cut or closed already stays so."""
        said = ReasonCode(PacketTypes.DISCONNECT, identifier=reason) if self.is_5 else None
        if self.paho.disconnect(said) == mqtt.MQTT_ERR_SUCCESS:
            self.ends.get(timeout=PATIENCE)
        self.paho.loop_stop()
