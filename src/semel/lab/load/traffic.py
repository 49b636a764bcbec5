"""The clients of one process, driven.

Nobody is sent more than is received again soon, so that no broker has a reason to drop. How far
the publishers may be ahead of their subscribers, who do not wait for what was passed over:

    QoS 0             what the broker delivers in AHEAD_SECONDS, no more than AHEAD_BYTES
    QoS 0, a window   one write of a window for each publisher
    QoS 1 and 2       two windows for each publisher, besides the window that is not acknowledged

Publishers and subscribers that are ahead or behind together are a `TrafficGroup`: all of a load,
or a pair. A group that is spread over processes knows by `Counts` how far the others are.

`step` does what can be done now, `finish` sends what was begun and nothing new.
"""

import ctypes
import select
import time
from typing import Final

from semel.lab.load.clients import Publisher, Subscriber
from semel.lab.load.description import PAIRS, Load
from semel.lab.load.links import LinkError, Links
from semel.lab.load.wire import PINGREQ, encode_disconnect
from semel.mqtt import Publish, encode

AHEAD_SECONDS: Final = 0.1
AHEAD_BYTES: Final = 1 << 18
AHEAD_AT_FIRST: Final = 64

# A publisher with a rate may be so late; what it could not send before is not made up for.
LATE_SECONDS: Final = 1.0

POLL_SECONDS: Final = 0.01
# What an epoll can wait for at the least.
SHORTEST: Final = 0.001
# Without a word for so long, what is missing is not waited for any more.
DRAIN_TIMEOUT: Final = 5.0
TICK_SECONDS: Final = 0.5

# The columns of Counts.
STATE: Final = 0
CONNECTED: Final = 1
SENT: Final = 2
ACKNOWLEDGED: Final = 3
RECEIVED: Final = 4
MISSING: Final = 5
_WIDTH: Final = 6


class Counts:
    """Numbers of all processes: a row for each, written by that process alone and read by all."""

    def __init__(self, memory: "ctypes.Array[ctypes.c_uint64]", row: int) -> None:
        self._memory = memory
        self._start = row * _WIDTH

    @staticmethod
    def size(rows: int) -> int:
        """How many numbers there are."""
        return rows * _WIDTH

    @staticmethod
    def alone() -> "Counts":
        """Those of a process that has no others."""
        return Counts((ctypes.c_uint64 * Counts.size(1))(), 0)

    def put(self, column: int, number: int) -> None:
        self._memory[self._start + column] = number

    def get(self, column: int) -> int:
        """The own number."""
        return self._memory[self._start + column]

    def every(self, column: int) -> list[int]:
        """The numbers of all."""
        return self._memory[column::_WIDTH]

    def total(self, column: int) -> int:
        return sum(self._memory[column::_WIDTH])


class TrafficGroup:
    """Publishers that are no further ahead of their subscribers than they should be."""

    def __init__(
        self,
        load: Load,
        publishers: list[Publisher],
        counts: Counts,
        *,
        pair: Subscriber | None,
        size: int,
        sharers: int,
    ) -> None:
        self.publishers = publishers
        # Their only subscriber, if its messages are theirs and no one else's.
        self.pair = pair
        self.counts = counts
        self.fan_out = load.fan_out
        self.size = size
        # How many processes have publishers of this group.
        self.sharers = sharers
        everybody = 1 if pair else load.publishers
        # Messages in a write and messages under way, 0 for as many as the broker takes.
        self.write = 0 if load.qos else load.window or 0
        self.limit = 2 * load.acknowledgements * everybody if load.qos else self.write * everybody
        # Messages that will not be waited for any more.
        self.forgiven = 0
        self.turn = 0
        self.began = time.monotonic()

    def delivered(self) -> int:
        """Messages that have come to all their subscribers, or were passed over."""
        if self.pair is not None:
            return self.pair.received + self.pair.missing
        return (self.counts.total(RECEIVED) + self.counts.total(MISSING)) // self.fan_out

    def under_way(self) -> int:
        """Messages that have not."""
        sent = self.publishers[0].sent if self.pair is not None else self.counts.total(SENT)
        return sent - self.delivered()

    def forgive(self) -> None:
        """What is under way now will not come."""
        self.forgiven = self.under_way() if self.fan_out else 0

    def send(self) -> int:
        """Send what may be sent; how many messages that was."""
        room, least = self._room()
        if room < least:
            return 0
        room = left = max(1, room // self.sharers)
        share = self.write or -(-room // len(self.publishers))
        for _ in self.publishers:
            publisher = self.publishers[self.turn]
            self.turn = (self.turn + 1) % len(self.publishers)
            left -= publisher.send(min(share, left))
            if not left:
                break
        return room - left

    def _room(self) -> tuple[int, int]:
        """How many more messages may be under way, and how many are worth a write."""
        most = max(1, AHEAD_BYTES // self.size)
        if not self.fan_out:
            return most * len(self.publishers), 1
        limit, least = self.limit, self.write or 1
        if not limit:
            rate = self.delivered() / (time.monotonic() - self.began)
            limit = min(most, max(AHEAD_AT_FIRST, int(rate * AHEAD_SECONDS)))
            # A few at a time would be another load.
            least = -(-limit // 4)
        return min(limit, limit - self.under_way() + self.forgiven), least


class TrafficPace:
    """Turns at an even rate. A turn is one message of one publisher; they take turns."""

    def __init__(self, publishers: list[Publisher], rate: float) -> None:
        self._publishers = publishers
        self._per_second = rate * len(publishers)
        self._most_allowed = max(1, int(rate * LATE_SECONDS))
        self._turns = 0
        self.began = time.monotonic()
        for publisher in publishers:
            publisher.allowed = 0

    def allow(self) -> list[Publisher]:
        """Those whose turn has come since the last time; they may send now."""
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
        """Seconds to the next turn that an epoll can wait for; below that nobody sleeps."""
        seconds = self.began + (self._turns + 1) / self._per_second - time.monotonic()
        return seconds if seconds >= 2 * SHORTEST else 0.0


class Traffic:
    """All clients of one process."""

    def __init__(
        self,
        load: Load,
        links: Links,
        publishers: dict[int, Publisher],
        subscribers: dict[int, Subscriber],
        counts: Counts,
        *,
        size: int,
        sharers: int = 1,
        timeout: float = DRAIN_TIMEOUT,
    ) -> None:
        """Clients have the numbers that the load gives them; both ends of a pair are here.

        `size` is that of a packet, `sharers` the number of processes that have publishers.
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
        # Deliveries, each once; there should be `fan_out` of each message.
        self.received = 0
        # Deliveries that were passed over: later messages came before them, or in their place.
        self.missing = 0
        self._groups: list[TrafficGroup] = []
        # By the number of the connection: who it is, and the pair it belongs to.
        self._publishers = {each.link.number: each for each in publishers.values()}
        self._subscribers = {each.link.number: each for each in subscribers.values()}
        self._pairs: dict[int, TrafficGroup] = {}
        if load.shape == PAIRS:
            for number, publisher in publishers.items():
                pair = subscribers[number]
                group = TrafficGroup(load, [publisher], counts, pair=pair, size=size, sharers=1)
                self._pairs[publisher.link.number] = self._pairs[pair.link.number] = group
                self._groups.append(group)
        elif publishers:
            everybody = list(publishers.values())
            self._groups = [
                TrafficGroup(load, everybody, counts, pair=None, size=size, sharers=sharers)
            ]
        # Pairs of which something may be sent; of a group that has no pair that is always so.
        self._awake = dict.fromkeys(self._pairs.values())
        self._pace: TrafficPace | None = None
        if load.rate is not None and publishers:
            self._pace = TrafficPace(list(publishers.values()), load.rate)
        # Nobody tells a publisher at QoS 0 without subscribers when to go on, and nobody wakes us
        # when others receive what was sent here.
        self._wait = POLL_SECONDS if self.fan_out or load.qos else 0.0
        if len(subscribers) < load.subscribers:
            self._wait = SHORTEST
        # When the last message was sent, acknowledged or received here, and whether everybody
        # has waited long enough for the next.
        self.moved = 0.0
        self.is_still = False
        self._done = 0
        self._seen: tuple[int, ...] = ()
        self.start()

    def start(self) -> None:
        """Time begins now."""
        self.began = self.moved = self._ticked = self._seen_at = time.monotonic()
        for group in self._groups:
            group.began = self.began
        if self._pace is not None:
            self._pace.began = self.began

    def step(self) -> None:
        """Send and receive what can be sent and received now."""
        wait = self._wait
        if self._pace is not None:
            for publisher in self._pace.allow():
                if self._pairs:
                    self._awake[self._pairs[publisher.link.number]] = None
            wait = min(wait, self._pace.wait())
        if self._pairs:
            awake, self._awake = self._awake, {}
            for group in awake:
                self.sent += group.send()
        elif self._groups:
            self.sent += self._groups[0].send()
        self._exchange(wait)

    def finish(self) -> None:
        """Receive, and send what was begun."""
        self._exchange(POLL_SECONDS)

    def end(self) -> None:
        """Nothing new will be sent: only from now on it matters how long nothing comes."""
        self._seen_at, self.is_still = time.monotonic(), False

    def _exchange(self, wait: float) -> None:
        """Wait for something to come, and take it."""
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
            if self._pairs:
                self._awake[self._pairs[number]] = None
        self.counts.put(SENT, self.sent)
        self.counts.put(ACKNOWLEDGED, self.acknowledged)
        self.counts.put(RECEIVED, self.received)
        self.counts.put(MISSING, self.missing)
        now = time.monotonic()
        done = self.sent + self.acknowledged + self.received
        if done != self._done:
            self._done, self.moved = done, now
        if now - self._ticked >= TICK_SECONDS:
            self._ticked = now
            self._tick(now)

    def _tick(self, now: float) -> None:
        """From time to time: keep connections alive, and see whether anything goes on."""
        for link in self.links.by_number.values():
            # [MQTT-3.2.2-21] What waits to be sent is a sign of life, too.
            if link.keep_alive and now - link.pinged >= link.keep_alive / 2 and not link.is_full:
                link.pinged = now
                link.send(PINGREQ)
        seen = tuple(self.counts.total(column) for column in (SENT, ACKNOWLEDGED, RECEIVED))
        if seen != self._seen:
            self._seen, self._seen_at, self.is_still = seen, now, False
        elif now - self._seen_at >= self.timeout:
            self._seen_at, self.is_still = now, True
            self._stand_still()

    def _stand_still(self) -> None:
        """Nothing has moved for long: see whether the broker owes something."""
        if any(link.is_full for link in self.links.by_number.values()):
            raise LinkError(f"has read nothing for {self.timeout:g} s")
        if self.load.qos and self.acknowledged < self.sent:
            raise LinkError(f"has acknowledged nothing for {self.timeout:g} s")
        for group in self._groups:
            group.forgive()
        self._awake = dict.fromkeys(self._pairs.values())

    def part(self, prefix: str) -> None:
        """Delete what is retained, hear all that is still to come, and say goodbye.

        What the broker has sent before its PINGRESP comes before it.
        """
        for number, publisher in self.publishers.items():
            if self.load.retain and (self.load.shape == PAIRS or number == 0):
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
