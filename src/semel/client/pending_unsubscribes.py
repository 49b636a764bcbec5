"""The UNSUBSCRIBE requests that the program awaits."""

import asyncio

from semel.client.errors import Refused
from semel.client.events import SubscriptionAnswer
from semel.mqtt.packet_types import UNSUBACK
from semel.mqtt.reasons import FAILURE


class PendingUnsubscribes:
    """The tasks that await an UNSUBACK, by topic filter."""

    def __init__(self) -> None:
        self.by_filter: dict[str, list[asyncio.Future[None]]] = {}

    def add(self, topic_filter: str, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """A future that is done when the filter is unsubscribed."""
        answer: asyncio.Future[None] = loop.create_future()
        self.by_filter.setdefault(topic_filter, []).append(answer)
        return answer

    def on_answered(self, answer: SubscriptionAnswer) -> None:
        """UNSUBACK has arrived."""
        problem = None
        if answer.reason >= FAILURE:
            about = f"to end the subscription to {answer.topic_filter}"
            problem = Refused(answer.reason, UNSUBACK, about=about, properties=answer.properties)
        self.end(answer.topic_filter, problem)

    def end(self, topic_filter: str, problem: Exception | None = None) -> None:
        """End the wait for one filter; `problem` is raised there."""
        for answer in self.by_filter.pop(topic_filter, ()):
            if answer.done():
                continue
            if problem is None:
                answer.set_result(None)
            else:
                answer.set_exception(problem)

    def end_all(self) -> None:
        """End the wait for every filter."""
        for topic_filter in tuple(self.by_filter):
            self.end(topic_filter)
