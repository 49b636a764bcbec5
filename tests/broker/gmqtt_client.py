"""gmqtt in the form that the tests of live clients use.

Where it differs from the standard, and what that means here:

- It sends an unacknowledged PUBLISH again with DUP 0, against [MQTT-3.3.1-1].
- It hands on a QoS 2 PUBLISH that comes again, against [MQTT-4.3.3-10]: with a session that is
  resumed it cannot judge "once" as a receiver.
- It counts the characters of a filter to unsubscribe from, not its bytes, so that the length of an
  UNSUBSCRIBE is wrong where they differ [2.1.4]. The tests hand it bytes.
"""

import asyncio
from typing import Any

import gmqtt
from gmqtt.storage import PersistentStorage

VERSIONS = {"level 3": 3, "3.1.1": 4, "5.0": 5}

# Fewer than none: gmqtt tries once even where it is told not to.
NEVER = {"reconnect_retries": -2}


class Client:
    """One client; gmqtt calls back for what comes, and queues and futures keep it."""

    def __init__(
        self,
        address: tuple[str, int],
        client_id: str,
        version: str,
        *,
        clean: bool = True,
        will: dict[str, Any] | None = None,
        **said: Any,
    ) -> None:
        self.address = address
        self.version = VERSIONS[version]
        self.outbox = PersistentStorage()
        self.client = gmqtt.Client(
            client_id,
            clean_session=clean,
            will_message=gmqtt.Message(**will) if will else None,
            persistent_storage=self.outbox,
            **said,
        )
        self.client.set_config(NEVER)
        self.client.on_message = self.on_message
        self.client.on_subscribe = self.on_suback
        self.client.on_unsubscribe = self.on_suback
        self.client.on_disconnect = self.on_disconnect
        self.inbox: asyncio.Queue[tuple[str, bytes, int, bool, dict[str, Any]]] = asyncio.Queue()
        self.subacks: asyncio.Queue[list[int]] = asyncio.Queue()
        self.end: asyncio.Future[int | None] = asyncio.Future()

    def on_message(
        self, _: Any, topic: str, payload: bytes, qos: int, properties: dict[str, Any]
    ) -> None:
        said = dict(properties)
        retain = bool(said.pop("retain"))
        del said["dup"]
        for name, values in said.items():
            if name not in ("user_property", "subscription_identifier"):
                (said[name],) = values
        self.inbox.put_nowait((topic, payload, qos, retain, said))

    def on_suback(self, _: Any, packet_id: int, codes: tuple[int, ...], *__: Any) -> None:
        self.subacks.put_nowait([*codes])

    def on_disconnect(self, _: Any, packet: bytes, problem: Exception | None = None) -> None:
        # After a DISCONNECT it is called again, for the connection, with nothing.
        if not self.end.done():
            self.end.set_result(packet[0] if packet else None)

    async def open(self) -> int:
        """Connect, or connect again. The code of the CONNACK."""
        self.end = asyncio.Future()
        try:
            await self.client.connect(*self.address, version=self.version)
        except gmqtt.MQTTConnectError as refusal:
            return int(refusal._code)
        return 0

    async def subscribe(
        self, topic_filter: str, qos: int = 2, identifier: int | None = None
    ) -> list[int]:
        """The codes of the SUBACK."""
        said = {} if identifier is None else {"subscription_identifier": identifier}
        self.client.subscribe(topic_filter, qos, **said)
        return await self.subacks.get()

    async def unsubscribe(self, topic_filter: str) -> None:
        self.client.unsubscribe([topic_filter.encode()])
        await self.subacks.get()

    async def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False, **said: Any
    ) -> None:
        """Publish, and wait for the last acknowledgement."""
        self.client.publish(topic, payload, qos, retain, **said)
        if qos:
            await self.outbox.wait_empty()

    async def receive(self) -> tuple[str, bytes, int, bool, dict[str, Any]]:
        """Topic, payload, QoS, RETAIN and properties of the next message."""
        return await self.inbox.get()

    async def ended(self) -> int | None:
        """Wait for the end of the connection: the code of the server's DISCONNECT, or None."""
        return await self.end

    async def cut(self) -> None:
        """Let the connection fail, without a DISCONNECT."""
        self.client._connection._transport.abort()
        await self.ended()

    async def close(self, reason: int = 0) -> None:
        """Disconnect as one should; what is closed already stays so."""
        await self.client.disconnect(reason_code=reason)
