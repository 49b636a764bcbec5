"""aiomqtt in the form that the tests of live clients use. It is paho-mqtt on an asyncio loop."""

import asyncio
import contextlib
import socket
from typing import Any

import aiomqtt
from aiomqtt.exceptions import MqttCodeError
from paho.mqtt.client import MQTT_CLEAN_START_FIRST_ONLY
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from tests.broker.broker_process import PATIENCE
from tests.broker.paho_client import properties, seen_in

VERSIONS = {"3.1.1": aiomqtt.ProtocolVersion.V311, "5.0": aiomqtt.ProtocolVersion.V5}

# The names of properties in the tests, and in paho.
NAMES = {
    "payload_format_id": "PayloadFormatIndicator",
    "content_type": "ContentType",
    "response_topic": "ResponseTopic",
    "correlation_data": "CorrelationData",
    "user_property": "UserProperty",
    "message_expiry_interval": "MessageExpiryInterval",
    "topic_alias": "TopicAlias",
    "subscription_identifier": "SubscriptionIdentifier",
    "session_expiry_interval": "SessionExpiryInterval",
    "auth_method": "AuthenticationMethod",
}


def named(said: dict[str, Any]) -> dict[str, Any]:
    return {NAMES[name]: value for name, value in said.items()}


def code_of(problem: MqttCodeError) -> int:
    assert isinstance(problem.rc, ReasonCode)
    return problem.rc.value


class Client:
    """One client, whose messages are gathered by a task for as long as it is connected."""

    def __init__(
        self,
        address: tuple[str, int],
        client_id: str,
        version: str,
        *,
        clean: bool = True,
        will: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        **said: Any,
    ) -> None:
        """`options` are further ones of aiomqtt; `said` are properties of CONNECT."""
        self.client = aiomqtt.Client(
            *address,
            identifier=client_id,
            protocol=VERSIONS[version],
            clean_session=None if version == "5.0" else clean,
            clean_start=clean if version == "5.0" else MQTT_CLEAN_START_FIRST_ONLY,
            will=aiomqtt.Will(**will) if will else None,
            properties=properties(PacketTypes.CONNECT, named(said)),
            timeout=PATIENCE,
            **(options or {}),
        )
        self.inbox: asyncio.Queue[aiomqtt.Message] = asyncio.Queue()
        self.end: asyncio.Task[int | None] | None = None

    async def open(self) -> int:
        """Connect, or connect again. The code of the CONNACK."""
        try:
            await self.client.__aenter__()
        except MqttCodeError as refusal:
            return code_of(refusal)
        self.end = asyncio.create_task(self.gather())
        return 0

    async def gather(self) -> int | None:
        """Put messages into the inbox. The code of the DISCONNECT that ends it, if there is one."""
        try:
            async for message in self.client.messages:
                self.inbox.put_nowait(message)
        except aiomqtt.MqttError as problem:
            cause = problem.__cause__
            # paho says 0x80 where a connection ended without a DISCONNECT.
            if isinstance(cause, MqttCodeError) and code_of(cause) != 0x80:
                return code_of(cause)
        return None

    async def subscribe(
        self, topic_filter: str, qos: int = 2, identifier: int | None = None
    ) -> list[int]:
        """The codes of the SUBACK."""
        said = {} if identifier is None else {"SubscriptionIdentifier": identifier}
        codes = await self.client.subscribe(
            topic_filter, qos, properties=properties(PacketTypes.SUBSCRIBE, said)
        )
        return [code.value if isinstance(code, ReasonCode) else code for code in codes]

    async def unsubscribe(self, topic_filter: str) -> None:
        await self.client.unsubscribe(topic_filter)

    async def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False, **said: Any
    ) -> None:
        """Publish, and wait for the last acknowledgement."""
        in_paho = properties(PacketTypes.PUBLISH, named(said))
        await self.client.publish(topic, payload, qos, retain, in_paho)

    async def receive(self) -> tuple[str, bytes, int, bool, dict[str, Any]]:
        """Topic, payload, QoS, RETAIN and properties of the next message."""
        message = await self.inbox.get()
        found = seen_in(message.properties) if message.properties else {}
        said = {name: found[theirs] for name, theirs in NAMES.items() if theirs in found}
        return str(message.topic), message.payload, message.qos, message.retain, said

    async def ended(self) -> int | None:
        """Wait for the end of the connection: the code of the server's DISCONNECT, or None."""
        assert self.end is not None
        return await self.end

    async def cut(self) -> None:
        """Let the connection fail, without a DISCONNECT."""
        connection = self.client._client.socket()
        assert isinstance(connection, socket.socket)
        connection.shutdown(socket.SHUT_RDWR)
        await self.ended()
        await self.client.__aexit__(None, None, None)

    async def close(self) -> None:
        """Disconnect as one should; what is closed already stays so."""
        if self.end is not None:
            # The server may be quicker.
            with contextlib.suppress(MqttCodeError):
                await self.client.__aexit__(None, None, None)
            await self.end
