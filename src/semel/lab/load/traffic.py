"""Drives the clients of one process.

Publishers are limited in how far they may be ahead of their subscribers, so that no broker has a
reason to drop messages. Messages that subscribers have skipped do not count. The limits:

    QoS 0                 what the broker delivers in AHEAD_SECONDS, at most AHEAD_BYTES
    QoS 0 with a window   one write of a window per publisher
    QoS 1 and 2           two windows per publisher, besides the unacknowledged window

A `TrafficGroup` has the publishers and subscribers to which a limit applies: all of a load, or one
pair. If a group is spread over processes, it reads the counters of the others in `SharedCounts`.

`step` sends and receives; `finish` receives, and sends only pending bytes.
"""

import ctypes
import select
import time
from collections import OrderedDict
from typing import Final

from semel.lab.load.clients import Publisher, Subscriber
from semel.lab.load.description import PAIRS, Load
from semel.lab.load.links import LinkError, Links
from semel.lab.load.wire import PINGREQ, encode_disconnect
from semel.mqtt import Publish, encode

AHEAD_SECONDS: Final = 0.1
AHEAD_BYTES: Final = 1 << 18
AHEAD_AT_FIRST: Final = 64

# A publisher with a rate catches up with at most this delay.
LATE_SECONDS: Final = 1.0

POLL_SECONDS: Final = 0.01
# The shortest timeout of an epoll.
SHORTEST_WAIT: Final = 0.001
# Up to this rate, in messages per second of a process, a publisher does not sleep before a turn
# that is near, so that messages are evenly spaced. Above it, the turns of a millisecond are taken
# together, so that the load leaves the processor to the broker.
EVEN_RATE: Final = 20_000
# After this time without activity, missing messages are no longer awaited.
DRAIN_TIMEOUT: Final = 5.0
TICK_SECONDS: Final = 0.5

# The columns of SharedCounts.
STATE: Final = 0
CONNECTED: Final = 1
SENT: Final = 2
ACKNOWLEDGED: Final = 3
RECEIVED: Final = 4
MISSING: Final = 5
_WIDTH: Final = 6


class SharedCounts:
    """Counters in shared memory: one row per process, written only by it and read by all."""

    def __init__(self, memory: "ctypes.Array[ctypes.c_uint64]", row: int) -> None:
        self._memory = memory
        self._start = row * _WIDTH

    @staticmethod
    def size(rows: int) -> int:
        """The number of counters."""
        return rows * _WIDTH

    @staticmethod
    def single() -> "SharedCounts":
        """The counters of a single process."""
        return SharedCounts((ctypes.c_uint64 * SharedCounts.size(1))(), 0)

    def put(self, column: int, number: int) -> None:
        self._memory[self._start + column] = number

    def get(self, column: int) -> int:
        """A counter of this process."""
        return self._memory[self._start + column]

    def column(self, column: int) -> list[int]:
        """A counter of all processes."""
        return self._memory[column::_WIDTH]

    def total(self, column: int) -> int:
        return sum(self._memory[column::_WIDTH])


class TrafficGroup:
    """Publishers that share a limit for how far they are ahead of their subscribers."""

    def __init__(
        self,
        load: Load,
        publishers: list[Publisher],
        counts: SharedCounts,
        *,
        pair: Subscriber | None,
        size: int,
        publishing_processes: int,
    ) -> None:
        self.publishers = publishers
        # Of a pair: the subscriber.
        self.pair = pair
        self.counts = counts
        self.fan_out = load.fan_out
        self.size = size
        # The number of processes that have publishers of this group.
        self.publishing_processes = publishing_processes
        everybody = 1 if pair else load.publishers
        # Messages per write, and in transit; 0: as many as the broker accepts.
        self.write = 0 if load.qos else load.window or 0
        self.limit = 2 * load.acknowledgements * everybody if load.qos else self.write * everybody
        # Messages that are no longer awaited.
        self.written_off = 0
        # The publishers that may be permitted to send, in turn. Of thousands, most wait for an
        # acknowledgement.
        self._ready = OrderedDict.fromkeys(publishers)
        self.began = time.monotonic()

    def delivered(self) -> int:
        """Messages that all their subscribers have received or skipped."""
        if self.pair is not None:
            return self.pair.received + self.pair.missing
        return (self.counts.total(RECEIVED) + self.counts.total(MISSING)) // self.fan_out

    def under_way(self) -> int:
        """Messages that are sent but not delivered."""
        sent = self.publishers[0].sent if self.pair is not None else self.counts.total(SENT)
        return sent - self.delivered()

    def write_off(self) -> None:
        """Stop waiting for the messages that are in transit now."""
        self.written_off = self.under_way() if self.fan_out else 0

    def wake(self, publisher: Publisher) -> None:
        """Let a publisher send again: it has received something, sent pending bytes, or its turn
        has come."""
        self._ready[publisher] = None

    def send(self) -> int:
        """Send what the limits permit, and return the number of messages."""
        if not self._ready:
            return 0
        allowance, minimum = self._allowance()
        if allowance < minimum:
            return 0
        allowance = left = max(1, allowance // self.publishing_processes)
        share = self.write or -(-allowance // len(self.publishers))
        for _ in range(len(self._ready)):
            publisher, _ = self._ready.popitem(last=False)
            left -= publisher.send(min(share, left))
            if publisher.permitted(1):
                self._ready[publisher] = None
            if not left:
                break
        return allowance - left

    def _allowance(self) -> tuple[int, int]:
        """How many more messages may be sent, and how many are worth a write."""
        by_size = max(1, AHEAD_BYTES // self.size)
        if not self.fan_out:
            return by_size * len(self.publishers), 1
        limit, minimum = self.limit, self.write or 1
        if not limit:
            rate = self.delivered() / (time.monotonic() - self.began)
            limit = min(by_size, max(AHEAD_AT_FIRST, int(rate * AHEAD_SECONDS)))
            # Do not send a few messages at a time: that would be a different load.
            minimum = -(-limit // 4)
        return min(limit, limit - self.under_way() + self.written_off), minimum


class TrafficPace:
    """Lets publishers take turns at an even rate. A turn is one message of one publisher."""

    def __init__(self, publishers: list[Publisher], rate: float) -> None:
        self._publishers = publishers
        self._per_second = rate * len(publishers)
        self._most_allowed = max(1, int(rate * LATE_SECONDS))
        self._turns = 0
        self.began = time.monotonic()
        for publisher in publishers:
            publisher.allowed = 0

    def allow(self) -> list[Publisher]:
        """Permit a message to each publisher whose turn has come, and return these publishers."""
        elapsed = time.monotonic() - self.began
        late = int((elapsed - LATE_SECONDS) * self._per_second)
        first = max(self._turns, late)
        self._turns = max(first, int(elapsed * self._per_second))
        count = len(self._publishers)
        chosen = [self._publishers[turn % count] for turn in range(first, self._turns)]
        for publisher in chosen:
            publisher.allowed = min(self._most_allowed, (publisher.allowed or 0) + 1)
        return chosen

    def wait(self) -> float:
        """Seconds until the next turn; 0 if that is too short for an epoll and turns are even."""
        if self._per_second > EVEN_RATE:
            return SHORTEST_WAIT
        seconds = self.began + (self._turns + 1) / self._per_second - time.monotonic()
        return seconds if seconds >= 2 * SHORTEST_WAIT else 0.0


class Traffic:
    """All clients of one process."""

    def __init__(
        self,
        load: Load,
        links: Links,
        publishers: dict[int, Publisher],
        subscribers: dict[int, Subscriber],
        counts: SharedCounts,
        *,
        size: int,
        publishing_processes: int = 1,
        timeout: float = DRAIN_TIMEOUT,
    ) -> None:
        """Clients are numbered as in the load; both clients of a pair are in one process.

        `size` is the packet size, `publishing_processes` the number of processes with publishers.
        """
        self.load = load
        self.links = links
        self.publishers = publishers
        self.subscribers = subscribers
        self.counts = counts
        self.fan_out = load.fan_out
        self.timeout = timeout
        self.sent = 0
        self.acknowledged = 0
        # Deliveries without duplicates; there should be `fan_out` of each message.
        self.received = 0
        # Deliveries that were skipped: a later message has arrived.
        self.missing = 0
        self._groups: list[TrafficGroup] = []
        # By file descriptor: the client, and the group of a publisher or of a pair.
        self._publishers = {each.link.number: each for each in publishers.values()}
        self._subscribers = {each.link.number: each for each in subscribers.values()}
        self._group_of: dict[int, TrafficGroup] = {}
        if load.shape == PAIRS:
            for number, publisher in publishers.items():
                pair = subscribers[number]
                group = TrafficGroup(
                    load, [publisher], counts, pair=pair, size=size, publishing_processes=1
                )
                self._group_of[publisher.link.number] = self._group_of[pair.link.number] = group
                self._groups.append(group)
        elif publishers:
            everybody = list(publishers.values())
            self._groups = [
                TrafficGroup(
                    load,
                    everybody,
                    counts,
                    pair=None,
                    size=size,
                    publishing_processes=publishing_processes,
                )
            ]
            self._group_of = dict.fromkeys(self._publishers, self._groups[0])
        # Pairs that may be able to send.
        self._ready_pairs = dict.fromkeys(self._groups)
        self._pace: TrafficPace | None = None
        if load.rate is not None and publishers:
            self._pace = TrafficPace(list(publishers.values()), load.rate)
        # Without subscribers, no event wakes a publisher at QoS 0: do not wait. If subscribers are
        # in other processes, no event wakes this process when they receive: wait only briefly.
        self._wait = POLL_SECONDS if self.fan_out or load.qos else 0.0
        if len(subscribers) < load.subscribers:
            self._wait = SHORTEST_WAIT
        # When this process last sent or received, and whether all processes have been idle for
        # `timeout`.
        self.last_activity = 0.0
        self.is_idle = False
        self._done_count = 0
        self._last_totals: tuple[int, ...] = ()
        self.start()

    def start(self) -> None:
        """Start the clock."""
        self.began = self.last_activity = self._ticked = self._totals_changed_at = time.monotonic()
        for group in self._groups:
            group.began = self.began
        if self._pace is not None:
            self._pace.began = self.began

    def step(self) -> None:
        """Send and receive what can be sent and received now."""
        wait = self._wait
        if self._pace is not None:
            for publisher in self._pace.allow():
                self._wake(publisher.link.number)
            wait = min(wait, self._pace.wait())
        groups = self._groups
        if self.load.shape == PAIRS:
            groups, self._ready_pairs = list(self._ready_pairs), {}
        for group in groups:
            self.sent += group.send()
        self._exchange(wait)

    def _wake(self, number: int) -> None:
        """Let a client's group send again, if it is a publisher or one of a pair."""
        group = self._group_of.get(number)
        if group is None:
            return
        if number in self._publishers:
            group.wake(self._publishers[number])
        if group.pair is not None:
            self._ready_pairs[group] = None

    def finish(self) -> None:
        """Receive, and send pending bytes."""
        self._exchange(POLL_SECONDS)

    def end(self) -> None:
        """Nothing new will be sent: the idle time counts from now."""
        self._totals_changed_at, self.is_idle = time.monotonic(), False

    def _exchange(self, wait: float) -> None:
        """Wait for events, and process them."""
        publishers, subscribers = self._publishers, self._subscribers
        for number, events in self.links.epoll.poll(wait):
            if events & select.EPOLLOUT:
                self.links.by_number[number].flush()
            if events & ~select.EPOLLOUT:
                if number in subscribers:
                    subscriber = subscribers[number]
                    before = subscriber.missing
                    self.received += subscriber.receive()
                    self.missing += subscriber.missing - before
                else:
                    self.acknowledged += publishers[number].receive()
            self._wake(number)
        self.counts.put(SENT, self.sent)
        self.counts.put(ACKNOWLEDGED, self.acknowledged)
        self.counts.put(RECEIVED, self.received)
        self.counts.put(MISSING, self.missing)
        now = time.monotonic()
        done = self.sent + self.acknowledged + self.received
        if done != self._done_count:
            self._done_count, self.last_activity = done, now
        if now - self._ticked >= TICK_SECONDS:
            self._ticked = now
            self._tick(now)

    def _tick(self, now: float) -> None:
        """Send keep-alive pings, and check for activity."""
        for link in self.links.by_number.values():
            # [MQTT-3.2.2-21] Pending bytes keep a connection alive, too.
            if link.keep_alive and now - link.pinged >= link.keep_alive / 2 and not link.is_full:
                link.pinged = now
                link.send(PINGREQ)
        totals = tuple(self.counts.total(column) for column in (SENT, ACKNOWLEDGED, RECEIVED))
        if totals != self._last_totals:
            self._last_totals, self._totals_changed_at, self.is_idle = totals, now, False
        elif now - self._totals_changed_at >= self.timeout:
            self._totals_changed_at, self.is_idle = now, True
            self._handle_idle()

    def _handle_idle(self) -> None:
        """After `timeout` without activity: raise if the broker has stalled; else write off."""
        if any(link.is_full for link in self.links.by_number.values()):
            raise LinkError(f"has read nothing for {self.timeout:g} s")
        if self.load.qos and self.acknowledged < self.sent:
            raise LinkError(f"has acknowledged nothing for {self.timeout:g} s")
        for group in self._groups:
            group.write_off()
        self._ready_pairs = dict.fromkeys(self._groups)

    def disconnect(self, prefix: str) -> None:
        """Delete retained messages, receive what is still in transit, and disconnect.

        A PINGRESP arrives after everything that the broker sent before it.
        """
        for number, publisher in self.publishers.items():
            if self.load.retain and (self.load.writers == 1 or number == 0):
                for topic in self.load.written_by(number):
                    empty = Publish(self.load.topic_name(prefix, topic), b"", retain=True)
                    publisher.link.send(encode(empty, self.load.version))
        clients: list[Publisher | Subscriber]
        clients = [*self.publishers.values(), *self.subscribers.values()]
        for client in clients:
            client.has_received = False
            client.link.send(PINGREQ)
        deadline = time.monotonic() + self.timeout
        while time.monotonic() < deadline and not all(client.has_received for client in clients):
            self.finish()
        for client in clients:
            client.link.send(encode_disconnect(self.load.version))
