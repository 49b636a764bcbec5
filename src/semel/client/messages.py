"""Asynchronous iterators over received messages, and the queues behind them.

In automatic mode a message is acknowledged when the loop asks for the next one, because its body
has finished then. Otherwise the program calls `ack` of each message. A message that was not
acknowledged is handed out again, and delays the acknowledgements of later ones [MQTT-4.6.0-2].
"""

import asyncio
import weakref
from collections import deque
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Protocol, Self

from semel.client.errors import Disconnected, Refused
from semel.client.events import SubscriptionAnswer
from semel.client.received import Incoming, Received
from semel.mqtt.packet_types import SUBACK
from semel.mqtt.packets.subscribe import Subscription
from semel.mqtt.reasons import FAILURE


class ChannelOwner(Protocol):
    """The client, as its iterators see it."""

    def on_taken(self, received: Received) -> None:
        """The program has taken a message from its queue."""

    async def unsubscribe_channel(self, channel: "Channel") -> None:
        """Unsubscribe, and end the iteration."""

    def return_unfinished(self, channel: "Channel") -> None:
        """Give the message that the program did not finish to another iterator."""

    def abandon(self, channel: "Channel") -> None:
        """The program has dropped the iterator; may be called in any thread."""


class MessageListener:
    """Receives the messages of some topic filters."""

    def __init__(self, subscriptions: Sequence[Subscription]) -> None:
        self.subscriptions = {each.topic_filter: each for each in subscriptions}
        # The QoS that the server has granted each filter.
        self.granted: dict[str, int] = {}
        self.problem: Exception | None = None
        self.is_over = False
        self._waiters: set[asyncio.Future[None]] = set()

    def put(self, incoming: Incoming) -> None:
        """Deliver a message."""
        raise NotImplementedError

    def on_answered(self, answer: SubscriptionAnswer) -> None:
        """The server has accepted or refused one of the filters."""
        if answer.violation is not None:
            self.fail(answer.violation)
        elif answer.reason >= FAILURE:
            about = f"the subscription to {answer.topic_filter}"
            self.fail(Refused(answer.reason, SUBACK, about=about, properties=answer.properties))
        else:
            self.granted[answer.topic_filter] = answer.reason
            self.wake()

    def fail(self, problem: Exception) -> None:
        """No further message will arrive, for this reason."""
        if self.problem is None:
            self.problem = problem
        self.wake()

    def close(self) -> None:
        """The client is closed."""
        self.is_over = True
        self.wake()

    def wake(self) -> None:
        """Wake the tasks in `wait_for_change`."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_for_change(self) -> None:
        """Wait for the next message or change of state."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    async def until_granted(self) -> None:
        """Wait until the server has granted every filter. Raises if it has not."""
        while len(self.granted) < len(self.subscriptions):
            if self.problem is not None:
                raise self.problem.with_traceback(None)
            if self.is_over:
                raise Disconnected("the subscription was ended before the server answered it")
            await self.wait_for_change()


class Channel(MessageListener):
    """The queue behind an iterator. The client keeps it even if the program drops the iterator."""

    def __init__(self, subscriptions: Sequence[Subscription], *, auto_ack: bool) -> None:
        super().__init__(subscriptions)
        self.auto_ack = auto_ack
        self.queue: deque[Received] = deque()
        # In automatic mode, the message that the program is processing.
        self.last: Received | None = None

    def put(self, incoming: Incoming) -> None:
        """Queue a message."""
        self.queue.append(Received(incoming))
        if self._waiters:
            self.wake()

    def close(self) -> None:
        """The client is closed; messages in the queue are left for its next run."""
        self.queue.clear()
        super().close()

    def acknowledge_last(self) -> None:
        """The program has processed its last message."""
        if self.last is not None:
            self.last.ack()
            self.last = None

    def end(self) -> list[Received]:
        """End the iteration. Returns the messages that were not handed out."""
        self.is_over = True
        left = list(self.queue)
        self.queue.clear()
        self.wake()
        return left


class Messages:
    """An asynchronous iterator; `await` it to wait until the server has accepted the subscription.

    In automatic mode one task may iterate. With `auto_ack=False` several tasks may share the
    iterator: each message goes to one of them. When the program drops the iterator, messages that
    it has not acknowledged go to another one, and the subscription stays.
    """

    def __init__(self, owner: ChannelOwner, channel: Channel) -> None:
        self._owner = owner
        self._channel = channel
        weakref.finalize(self, owner.abandon, channel).atexit = False

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """The subscriptions that were requested."""
        return tuple(self._channel.subscriptions.values())

    @property
    def granted(self) -> dict[str, int]:
        """The QoS that the server has granted each filter."""
        return dict(self._channel.granted)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        channel = self._channel
        if channel.last is not None:
            channel.acknowledge_last()
        queue = channel.queue
        while not queue:
            if channel.problem is not None:
                raise channel.problem.with_traceback(None)
            if channel.is_over:
                raise StopAsyncIteration
            await channel.wait_for_change()
        received = queue.popleft()
        self._owner.on_taken(received)
        if channel.auto_ack:
            channel.last = received
        return received

    def __await__(self) -> Generator[object, None, Self]:
        return self._granted().__await__()

    async def _granted(self) -> Self:
        await self._channel.until_granted()
        return self

    async def __aenter__(self) -> Self:
        return await self._granted()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            # The body has finished without an exception.
            self._channel.acknowledge_last()
        try:
            await self.unsubscribe()
        finally:
            self._owner.return_unfinished(self._channel)

    async def unsubscribe(self) -> None:
        """Unsubscribe, and end the iteration.

        Messages that were not handed out are acknowledged unread, unless another iterator takes
        them.
        """
        if not self._channel.is_over:
            await self._owner.unsubscribe_channel(self._channel)


class Responses(MessageListener):
    """Receives the responses on one topic, and gives each to its request [4.10]."""

    def __init__(self, topic: str, qos: int, owner: ChannelOwner) -> None:
        super().__init__([Subscription(topic, qos)])
        self._owner = owner
        self._asked: dict[bytes, asyncio.Future[Received]] = {}

    def expect(self, correlation: bytes) -> asyncio.Future[Received]:
        """A future of the response with this Correlation Data."""
        answer: asyncio.Future[Received] = asyncio.get_running_loop().create_future()
        self._asked[correlation] = answer
        return answer

    def forget(self, correlation: bytes) -> None:
        """Stop waiting for a response, and ignore its exception."""
        answer = self._asked.pop(correlation)
        if not answer.cancel() and not answer.cancelled():
            answer.exception()

    def put(self, incoming: Incoming) -> None:
        """Complete the request; ignore a response that is late or was not requested."""
        received = Received(incoming)
        self._owner.on_taken(received)
        received.ack()
        answer = self._asked.get(received.properties.correlation_data or b"")
        if answer is not None and not answer.done():
            answer.set_result(received)

    def close(self) -> None:
        """The client is closed."""
        self.fail(Disconnected("the client is closed"))
        super().close()

    def fail(self, problem: Exception) -> None:
        """No further response will arrive."""
        super().fail(problem)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(problem)
