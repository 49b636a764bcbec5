"""Messages for one part of a program: an asynchronous iterator, and what waits behind it.

In automatic mode a message is acknowledged when the loop asks for the next one: whatever its body
did is done. Otherwise the program calls `ack` of each message. A message that was not acknowledged
is handed out again, and holds back the acknowledgements of those that came after it
[MQTT-4.6.0-2].
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


class Keeper(Protocol):
    """The client, as its iterators know it."""

    def taken(self, received: Received) -> None:
        """A message has left its queue."""

    async def unsubscribe(self, channel: "Channel") -> None:
        """Ask the server for no more, and end the iteration."""

    def unfinished(self, channel: "Channel") -> None:
        """The program will not finish with the message that it is at."""

    def let_go(self, channel: "Channel") -> None:
        """The program has let go of the iterator. From any thread, at any moment."""


class MessageListener:
    """A part of the program that gets the messages of some filters."""

    def __init__(self, subscriptions: Sequence[Subscription]) -> None:
        self.subscriptions = {each.topic_filter: each for each in subscriptions}
        # What the server has granted each filter: QoS 0, 1 or 2.
        self.granted: dict[str, int] = {}
        self.problem: Exception | None = None
        self.is_over = False
        self._waiters: set[asyncio.Future[None]] = set()

    def put(self, incoming: Incoming) -> None:
        """A message for it."""
        raise NotImplementedError

    def answered(self, answer: SubscriptionAnswer) -> None:
        """The server has accepted one of the filters, or refused it."""
        if answer.violation is not None:
            self.fail(answer.violation)
        elif answer.reason >= FAILURE:
            about = f"the subscription to {answer.topic_filter}"
            self.fail(Refused(answer.reason, SUBACK, about=about, properties=answer.properties))
        else:
            self.granted[answer.topic_filter] = answer.reason
            self.wake()

    def fail(self, problem: Exception) -> None:
        """There will be no other message."""
        if self.problem is None:
            self.problem = problem
        self.wake()

    def close(self) -> None:
        """The client is closed."""
        self.is_over = True
        self.wake()

    def wake(self) -> None:
        """Something has changed."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def change(self) -> None:
        """Wait until something has."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    async def until_granted(self) -> None:
        """Wait for SUBACK. Raises why there is none, or what it says."""
        while len(self.granted) < len(self.subscriptions):
            if self.problem is not None:
                raise self.problem.with_traceback(None)
            if self.is_over:
                raise Disconnected("the subscription was ended before the server had answered it")
            await self.change()


class Channel(MessageListener):
    """What waits behind an iterator. The client has it, whether or not the program has that."""

    def __init__(self, subscriptions: Sequence[Subscription], *, auto_ack: bool) -> None:
        super().__init__(subscriptions)
        self.auto_ack = auto_ack
        self.queue: deque[Received] = deque()
        # In automatic mode, the message that the program is at.
        self.last: Received | None = None

    def put(self, incoming: Incoming) -> None:
        """A message for this part of the program."""
        self.queue.append(Received(incoming))
        if self._waiters:
            self.wake()

    def close(self) -> None:
        """The client is closed: what was not handed out is for its next run."""
        self.queue.clear()
        super().close()

    def acknowledge_last(self) -> None:
        """The program is done with what it had."""
        if self.last is not None:
            self.last.ack()
            self.last = None

    def end(self) -> list[Received]:
        """The iteration is over. What was not handed out yet."""
        self.is_over = True
        left = list(self.queue)
        self.queue.clear()
        self.wake()
        return left


class Messages:
    """Iterate over it; `await` it to know that the server has accepted the subscription.

    One task iterates in automatic mode. Several may share an iterator that acknowledges nothing by
    itself: each message goes to one of them. When the program lets go of it, what it has not
    acknowledged is for another iterator, and the subscription stays.
    """

    def __init__(self, keeper: Keeper, channel: Channel) -> None:
        self._keeper = keeper
        self._channel = channel
        weakref.finalize(self, keeper.let_go, channel).atexit = False

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """What was asked for."""
        return tuple(self._channel.subscriptions.values())

    @property
    def granted(self) -> dict[str, int]:
        """What the server has granted each filter: QoS 0, 1 or 2."""
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
            await channel.change()
        received = queue.popleft()
        self._keeper.taken(received)
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
            # What the body did without an exception is done.
            self._channel.acknowledge_last()
        try:
            await self.unsubscribe()
        finally:
            self._keeper.unfinished(self._channel)

    async def unsubscribe(self) -> None:
        """Ask the server for no more, and end the iteration.

        Messages that were not handed out yet are acknowledged unread, if no other iterator takes
        them.
        """
        if not self._channel.is_over:
            await self._keeper.unsubscribe(self._channel)


class Responses(MessageListener):
    """Takes the answers to requests, each for who asked [4.10]."""

    def __init__(self, topic: str, qos: int, keeper: Keeper) -> None:
        super().__init__([Subscription(topic, qos)])
        self._keeper = keeper
        self._asked: dict[bytes, asyncio.Future[Received]] = {}

    def expect(self, correlation: bytes) -> asyncio.Future[Received]:
        """An answer with these Correlation Data will come."""
        answer: asyncio.Future[Received] = asyncio.get_running_loop().create_future()
        self._asked[correlation] = answer
        return answer

    def forget(self, correlation: bytes) -> None:
        """Nobody waits for it any more, nor wants to know why it did not come."""
        answer = self._asked.pop(correlation)
        if not answer.cancel() and not answer.cancelled():
            answer.exception()

    def put(self, incoming: Incoming) -> None:
        """An answer; one that nobody asked for, or that comes too late, is let go."""
        received = Received(incoming)
        self._keeper.taken(received)
        received.ack()
        answer = self._asked.get(received.properties.correlation_data or b"")
        if answer is not None and not answer.done():
            answer.set_result(received)

    def close(self) -> None:
        """The client is closed."""
        self.fail(Disconnected("the client is closed"))
        super().close()

    def fail(self, problem: Exception) -> None:
        """There will be no other answer."""
        super().fail(problem)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(problem)
