"""The live stream of the page: one WebSocket per page, fed once a second.

What is sent is made once for all pages: a sample of the broker's numbers, and the entries of each
branch of topics that a page has open. A page that reads too slowly misses samples, and never delays
another.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from semel.up.status_file import read_status
from semel.web.broker_numbers import Numbers
from semel.web.control_link import BrokerUnavailable, CommandRefused, ControlLink
from semel.web.page_client import ClientFailed, PageClient
from semel.web.record_topics import RecordTopics, RecordUnreadable, describe_topic
from semel.web.settings import ADMIN
from semel.web.sign_in import PageSession
from semel.web.topic_tree import TopicTree

LOG: Final = logging.getLogger("semel.web")

INTERVAL_SECONDS: Final = 1.0
# Topics are read at most this rarely, and this many times as rarely as reading them takes.
LONGEST_SECONDS: Final = 5.0
FOLLOW_FACTOR: Final = 100
MAXIMUM_PAGES: Final = 200
# Messages that wait for a page.
WAITING_MESSAGES: Final = 500
OPEN_BRANCHES: Final = 50
SEARCH_CHARACTERS: Final = 500
PAYLOAD_BYTES: Final = 1024 * 1024

Values = dict[str, Any]


class LivePage:
    """One open page: what it watches, and what waits to be sent to it."""

    def __init__(self, session: PageSession, locate: Callable[[], Awaitable[str]]) -> None:
        self.session = session
        self.branches: list[str] = []
        self.search = ""
        # What was last sent of each branch, to send only what has changed.
        self.sent: dict[str, str] = {}
        self.client = PageClient(locate, session, self.send)
        self._waiting: asyncio.Queue[str] = asyncio.Queue(WAITING_MESSAGES)

    def send(self, values: Values) -> None:
        """Send an object, or drop the oldest that waits."""
        self.send_text(json.dumps(values))

    def send_text(self, text: str) -> None:
        """Send the text of an object, or drop the oldest that waits."""
        if self._waiting.full():
            self._waiting.get_nowait()
        self._waiting.put_nowait(text)

    async def next(self) -> str:
        """The next text to send."""
        return await self._waiting.get()

    async def take(self, request: Values) -> None:
        """Do what the page asks for. Answers are sent."""
        try:
            if request.get("watch") == "topics":
                branches = request.get("branches", [])
                self.branches = [str(each) for each in branches][:OPEN_BRANCHES]
                self.sent = {key: text for key, text in self.sent.items() if key in self.branches}
            elif "search" in request:
                self.search = str(request["search"])[:SEARCH_CHARACTERS]
                self.sent.pop(_SEARCH, None)
            elif "subscribe" in request:
                topic_filter, qos = str(request["subscribe"]), _qos(request)
                await self.client.subscribe(topic_filter, qos)
                self.send({"type": "subscribed", "filter": topic_filter, "qos": qos})
            elif "unsubscribe" in request:
                topic_filter = str(request["unsubscribe"])
                await self.client.unsubscribe(topic_filter)
                self.send({"type": "unsubscribed", "filter": topic_filter})
            elif "publish" in request:
                await self._publish(request["publish"])
        except ClientFailed as problem:
            answer: Values = {"type": "error", "text": str(problem)}
            if "publish" in request:
                given = request["publish"]
                number = given.get("id") if isinstance(given, dict) else None
                answer |= {"about": "publish", "id": number}
            else:
                answer |= {"about": "subscribe", "filter": str(request.get("subscribe", ""))}
            self.send(answer)

    async def _publish(self, given: Any) -> None:
        if not isinstance(given, dict):
            raise ClientFailed("publish is not an object")
        if self.session.role != ADMIN:
            raise ClientFailed("only an admin may publish from the page")
        text = str(given.get("payload", ""))
        try:
            is_hex = given.get("encoding") == "hex"
            payload = bytes.fromhex(text) if is_hex else text.encode("utf-8")
        except ValueError:
            raise ClientFailed("the payload is not hexadecimal") from None
        if len(payload) > PAYLOAD_BYTES:
            raise ClientFailed(f"the page publishes at most {PAYLOAD_BYTES} bytes")
        topic, retain = str(given.get("topic", "")), given.get("retain") is True
        await self.client.publish(topic, payload, qos=_qos(given), retain=retain)
        self.send({"type": "published", "id": given.get("id")})


# The key of a search among what was sent.
_SEARCH: Final = "\0search"


def _qos(request: Values) -> int:
    qos = request.get("qos", 0)
    if qos not in (0, 1, 2):
        raise ClientFailed("the QoS is 0, 1 or 2")
    return int(qos)


class LiveFeed:
    """Feeds all pages."""

    def __init__(
        self,
        link: ControlLink,
        *,
        data: Path | None,
        stream: str | None,
        topics: RecordTopics | None,
        locate: Callable[[], Awaitable[str]],
    ) -> None:
        self.numbers = Numbers()
        self._link = link
        self._data = data
        self._stream = stream
        self._topics = topics
        self._locate = locate
        self._pages: set[LivePage] = set()
        # The record is read by one thread, one request after the other.
        self.reading = ThreadPoolExecutor(1, "record")

    def open(self, session: PageSession) -> LivePage | None:
        """A new page; None: there are too many."""
        if len(self._pages) >= MAXIMUM_PAGES:
            return None
        page = LivePage(session, self._locate)
        page.send({"type": "hello", "history": list(self.numbers.samples)})
        self._pages.add(page)
        return page

    async def close(self, page: LivePage) -> None:
        """A page was closed."""
        self._pages.discard(page)
        await page.client.close()

    async def run(self) -> None:
        """Feed the pages until cancelled."""
        # Apart, because a record in an object store may be slow.
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(self._send_numbers))
            tasks.create_task(self._repeat(self._send_topics))

    async def _repeat(self, step: Callable[[], Awaitable[float]]) -> None:
        """Run a step again and again. It returns how many seconds later it is due again."""
        due = time.monotonic()
        while True:
            seconds = INTERVAL_SECONDS
            try:
                seconds = await step()
            except Exception:
                # One sample is missing; the next one may succeed.
                LOG.exception("the page cannot be fed")
            due = max(due + seconds, time.monotonic() + INTERVAL_SECONDS / 2)
            await asyncio.sleep(due - time.monotonic())

    async def _send_numbers(self) -> float:
        metrics, problem = None, ""
        try:
            _, metrics = await self._link.call("metrics")
        except (BrokerUnavailable, CommandRefused) as failure:
            problem = str(failure)
        up = None if self._data is None else read_status(self._data)
        sample = self.numbers.take(metrics, up, self._stream, time.time())
        if metrics is None:
            sample["parts"][0]["text"] = sample["parts"][0]["text"] or problem
        text = json.dumps(sample)
        for page in self._pages:
            page.send_text(text)
        return INTERVAL_SECONDS

    async def _send_topics(self) -> float:
        pages = [page for page in self._pages if page.branches or page.search]
        if not pages or self._topics is None:
            return INTERVAL_SECONDS
        loop = asyncio.get_running_loop()
        try:
            tree = await loop.run_in_executor(self.reading, self._topics.follow)
        except RecordUnreadable as problem:
            for page in pages:
                page.send({"type": "error", "about": "topics", "text": str(problem)})
            return LONGEST_SECONDS
        made: dict[str, str] = {}
        for page in pages:
            for branch in page.branches:
                if branch not in made:
                    made[branch] = json.dumps(_branch_values(tree, branch))
                _send_if_changed(page, branch, made[branch])
            if page.search:
                key = f"{_SEARCH}{page.search}"
                if key not in made:
                    made[key] = json.dumps(_search_values(tree, page.search))
                _send_if_changed(page, _SEARCH, made[key])
        # The more messages there are, the less often, so that it takes one percent of a core.
        rare = self._topics.follow_seconds * FOLLOW_FACTOR
        return min(LONGEST_SECONDS, max(INTERVAL_SECONDS, rare))


def _send_if_changed(page: LivePage, key: str, text: str) -> None:
    if page.sent.get(key) != text:
        page.sent[key] = text
        page.send_text(text)


def _branch_values(tree: TopicTree, key: str) -> Values:
    found = tree.branch(key)
    entries, more = ([], 0) if found is None else tree.entries(found)
    return {
        "type": "topics",
        "branch": key,
        "entries": [describe_topic(each) for each in entries],
        "more": more,
        "total_topics": tree.root.topics,
        "messages": tree.root.messages,
    }


def _search_values(tree: TopicTree, text: str) -> Values:
    entries, more = tree.search(text)
    return {
        "type": "found",
        "search": text,
        "entries": [describe_topic(each) for each in entries],
        "more": more,
    }
