"""The MQTT client of one page: what it publishes and subscribes to, with the rights of its user."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from semel.client import Client
from semel.client.address import BadAddress
from semel.client.errors import Refused
from semel.client.messages import Messages
from semel.mqtt.violation import Violation
from semel.web.control_link import BrokerUnavailable, CommandRefused, ControlLink
from semel.web.payloads import describe_payload
from semel.web.sign_in import PageSession

CONNECT_SECONDS: Final = 10.0
MAXIMUM_SUBSCRIPTIONS: Final = 20
# Messages per second that a page is sent; others are counted.
SHOWN_PER_SECOND: Final = 100

Values = dict[str, Any]
Send = Callable[[Values], None]


class ClientFailed(Exception):
    """Why the broker did not do what the page asked for, in a sentence."""


async def broker_address(given: str | None, link: ControlLink) -> str:
    """The address at which users of the page are clients of the broker. Raises ClientFailed."""
    if given is not None:
        return given
    try:
        _, status = await link.call("status")
    except (BrokerUnavailable, CommandRefused) as problem:
        raise ClientFailed(str(problem)) from None
    for each in status.get("listeners", []):
        if each.get("transport") == "tcp" and "port" in each:
            host = each["host"]
            # Compared, not bound.
            host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # nosec B104
            return (
                f"mqtt://[{host}]:{each['port']}"
                if ":" in host
                else f"mqtt://{host}:{each['port']}"
            )
    raise ClientFailed("the broker has no listener for plain MQTT over TCP: set [web] broker")


async def check_password(address: str, user: str, password: str) -> bool:
    """Whether the broker accepts a user. Raises ClientFailed."""
    try:
        client = _client(address, user, password)
        async with asyncio.timeout(CONNECT_SECONDS), client:
            return True
    except Refused:
        return False
    except (BadAddress, Violation, OSError, TimeoutError) as problem:
        raise ClientFailed(f"the broker at {address} does not answer: {problem}") from None


def _client(address: str, user: str | None, password: str | None) -> Client:
    return Client(address, user_name=user, password=password, reconnect=False, keep_alive=30)


class PageClient:
    """One connection to the broker, opened when the page first publishes or subscribes."""

    def __init__(self, locate: Callable[[], Any], session: PageSession, send: Send) -> None:
        """`locate` returns an awaitable address of the broker."""
        self._locate = locate
        self._session = session
        self._send = send
        self._client: Client | None = None
        # By filter: the task that forwards its messages, and their iterator.
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._messages: dict[str, Messages] = {}
        self._opening = asyncio.Lock()
        self._second = 0
        self._shown = 0
        self._skipped = 0

    async def publish(self, topic: str, payload: bytes, *, qos: int, retain: bool) -> None:
        """Publish a message. Raises ClientFailed."""
        client = await self._connected()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await client.publish(topic, payload, qos=qos, retain=retain)
        except Violation as problem:
            raise ClientFailed(str(problem)) from None
        except TimeoutError:
            raise ClientFailed("the broker has not acknowledged the message yet") from None
        except (Refused, OSError) as problem:
            await self._lost()
            raise ClientFailed(str(problem)) from None

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        """Send the messages of a filter to the page. Raises ClientFailed."""
        if topic_filter in self._tasks:
            await self.unsubscribe(topic_filter)
        if len(self._tasks) >= MAXIMUM_SUBSCRIPTIONS:
            raise ClientFailed(f"a page has at most {MAXIMUM_SUBSCRIPTIONS} subscriptions")
        client = await self._connected()
        try:
            messages = client.subscribe(topic_filter, qos=qos)
            async with asyncio.timeout(CONNECT_SECONDS):
                await messages
        except (Violation, Refused, OSError, TimeoutError) as problem:
            raise ClientFailed(str(problem) or "the broker does not answer") from None
        self._messages[topic_filter] = messages
        self._tasks[topic_filter] = asyncio.create_task(self._forward(topic_filter, messages))

    async def unsubscribe(self, topic_filter: str) -> None:
        """End a subscription."""
        task = self._tasks.pop(topic_filter, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            messages = self._messages.pop(topic_filter, None)
            if messages is not None:
                with suppress(Violation, Refused, OSError, TimeoutError):
                    async with asyncio.timeout(CONNECT_SECONDS):
                        await messages.unsubscribe()

    async def _forward(self, topic_filter: str, messages: Messages) -> None:
        try:
            async for message in messages:
                if not self._may_show():
                    continue
                self._send(
                    {
                        "type": "message",
                        "filter": topic_filter,
                        "topic": message.topic,
                        "payload": describe_payload(bytes(message.payload)),
                        "qos": message.qos,
                        "retain": message.retain,
                        "at": time.time(),
                        "properties": None,
                    }
                )
        except (Violation, Refused, OSError) as problem:
            self._send({"type": "error", "about": "subscribe", "text": str(problem)})
            self._send({"type": "unsubscribed", "filter": topic_filter})
            self._tasks.pop(topic_filter, None)
            self._messages.pop(topic_filter, None)

    def _may_show(self) -> bool:
        """Whether a message may be sent to the page; otherwise it is counted."""
        second = int(time.monotonic())
        if second != self._second:
            if self._skipped:
                self._send({"type": "skipped", "count": self._skipped})
            self._second, self._shown, self._skipped = second, 0, 0
        if self._shown >= SHOWN_PER_SECOND:
            self._skipped += 1
            return False
        self._shown += 1
        return True

    async def _connected(self) -> Client:
        async with self._opening:
            if self._client is not None and self._client.connected:
                return self._client
            await self._lost()
            address = await self._locate()
            session = self._session
            try:
                client = _client(address, session.user, session.password)
                async with asyncio.timeout(CONNECT_SECONDS):
                    await client.connect()
            except Refused as problem:
                raise ClientFailed(str(problem)) from None
            except (BadAddress, Violation, OSError, TimeoutError) as problem:
                raise ClientFailed(f"the broker at {address} does not answer: {problem}") from None
            self._client = client
            return client

    async def _lost(self) -> None:
        client, self._client = self._client, None
        self._messages = {}
        for topic_filter in list(self._tasks):
            task = self._tasks.pop(topic_filter)
            task.cancel()
            self._send({"type": "unsubscribed", "filter": topic_filter})
        if client is not None:
            with suppress(Violation, Refused, OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_SECONDS):
                    await client.close()

    async def close(self) -> None:
        """End the connection."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._lost()
