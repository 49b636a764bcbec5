"""Messages for one part of a program: an asynchronous iterator, and what waits in it.

In automatic mode a message is acknowledged when the loop asks for the next one: whatever its body
did is done. Otherwise the program calls `ack` of each message. A message that was not acknowledged
is handed out again, after a restart or by the server, and holds back the acknowledgements of those
that came after it [MQTT-4.6.0-2].
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from semel.client.errors import Refused
from semel.client.events import Answer
from semel.client.received import Incoming, Received
from semel.mqtt.packet_types import SUBACK
from semel.mqtt.packets.subscribe import Subscription
from semel.mqtt.reasons import FAILURE

if TYPE_CHECKING:
    from semel.client.client import Client


class Messages:
    """Iterate over it; `await` it to know that the server has accepted the subscription.

    One task iterates in automatic mode. Several may share an iterator that acknowledges nothing by
    itself: each message goes to one of them.
    """

    def __init__(
        self, client: "Client", subscriptions: Sequence[Subscription], auto_ack: bool
    ) -> None:
        self.subscriptions = tuple(subscriptions)
        # What the server has granted each filter: QoS 0, 1 or 2.
        self.granted: dict[str, int] = {}
        self._client = client
        self._auto_ack = auto_ack
        self._queue: deque[Received] = deque()
        self._last: Received | None = None
        self._problem: Exception | None = None
        self._is_over = False
        self._waiters: list[asyncio.Future[None]] = []

    # --- for the program --------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        if self._last is not None:
            self._last.ack()
            self._last = None
        while not self._queue:
            if self._problem is not None:
                raise self._problem
            if self._is_over:
                raise StopAsyncIteration
            await self._wait()
        received = self._queue.popleft()
        self._client.taken(received)
        if self._auto_ack:
            self._last = received
        return received

    def __await__(self) -> Generator[object, None, Self]:
        return self._until_granted().__await__()

    async def __aenter__(self) -> Self:
        return await self._until_granted()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # What its body did without an exception is done.
        if kind is None and self._last is not None:
            self._last.ack()
        self._last = None
        await self.unsubscribe()

    async def unsubscribe(self) -> None:
        """Ask the server for no more, and end the iteration."""
        if not self._is_over:
            await self._client.unsubscribe(self)

    async def _until_granted(self) -> Self:
        while len(self.granted) < len(self.subscriptions):
            if self._problem is not None:
                raise self._problem
            if self._is_over:
                break
            await self._wait()
        return self

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    # --- for the client ---------------------------------------------------------------------------

    def put(self, incoming: Incoming) -> None:
        """A message for this part of the program."""
        self._queue.append(Received(incoming))
        if self._waiters:
            self._wake()

    def answered(self, answer: Answer) -> None:
        """The server has accepted one of the filters, or refused it."""
        if answer.violation is not None:
            self.fail(answer.violation)
        elif answer.reason >= FAILURE:
            about = f"the subscription to {answer.topic_filter}"
            self.fail(Refused(answer.reason, SUBACK, about=about, properties=answer.properties))
        else:
            self.granted[answer.topic_filter] = answer.reason
            self._wake()

    def fail(self, problem: Exception) -> None:
        """There will be no other message."""
        if self._problem is None:
            self._problem = problem
        self._wake()

    def end(self) -> list[Incoming]:
        """The iteration is over. What was not handed out yet."""
        self._is_over = True
        left = [received.give_back() for received in self._queue]
        self._queue.clear()
        self._wake()
        return left

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Responses:
    """Takes the answers to requests, each for who asked [4.10]."""

    def __init__(self, taken: Callable[[Received], None]) -> None:
        self._taken = taken
        self._asked: dict[bytes, asyncio.Future[Received]] = {}

    def expect(self, correlation: bytes) -> asyncio.Future[Received]:
        """An answer with these Correlation Data will come."""
        answer: asyncio.Future[Received] = asyncio.get_running_loop().create_future()
        self._asked[correlation] = answer
        return answer

    def forget(self, correlation: bytes) -> None:
        """Nobody waits for it any more."""
        self._asked.pop(correlation, None)

    def put(self, incoming: Incoming) -> None:
        """An answer; one that nobody asked for, or that comes too late, is let go."""
        received = Received(incoming)
        self._taken(received)
        received.ack()
        answer = self._asked.get(received.properties.correlation_data or b"")
        if answer is not None and not answer.done():
            answer.set_result(received)
