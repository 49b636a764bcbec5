"""What a load is: numbers, and who publishes what to whom.

Topics are numbered from 0. A publisher writes to its topics in turn, in an order that looks random
and is always the same; a subscriber has topics that follow each other. What one publisher sends to
one topic is a *lane*, and it is in a lane that messages are counted and have an order [4.6]: lanes
have numbers too, and those that a subscriber has follow each other.

    ALL    every publisher writes to all topics, every subscriber has all of them, by name
    PAIRS  publisher n writes to the topics that subscriber n has
    PLANT  topics are area/line/sensor. Of eleven subscribers one has an area, by a wildcard, and
           ten have a line of it each, topic by topic: every message goes to two of them
"""

import random
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final

from semel.mqtt import MQTT5

ALL: Final = "all"
PAIRS: Final = "pairs"
PLANT: Final = "plant"

LINES: Final = 10
# An area and its lines.
AREA: Final = 1 + LINES

# QoS 1 and 2 messages of a publisher that are not complete, unless a load says otherwise: semel's
# own Receive Maximum.
WINDOW: Final = 200
LARGEST_WINDOW: Final = 65_535
# Lane, counter and time are in every payload; see wire.
LEAST_PAYLOAD: Final = 16
MOST_PAYLOAD: Final = 10_000_000
MOST_LANES: Final = 1 << 24
# Each of them keeps a port busy.
MOST_CLIENTS: Final = 60_000


class Unfit(ValueError):
    """Numbers that do not go together; the sentence names them as options."""


@dataclass(frozen=True)
class Load:
    """A load. Numbers that do not go together raise `Unfit`."""

    shape: str = ALL
    publishers: int = 1
    subscribers: int = 1
    topics: int = 1
    qos: int = 0
    # Bytes.
    payload: int = 16
    # QoS 0: messages in one write of a publisher, which has one write under way; None: as much as
    # the broker takes. QoS 1 and 2: messages of a publisher that are not complete; None: WINDOW.
    window: int | None = None
    # Messages per second of each publisher; None: as fast as the window allows.
    rate: float | None = None
    version: int = MQTT5
    retain: bool = False

    def __post_init__(self) -> None:
        if self.publishers + self.subscribers < 1:
            raise Unfit("--publishers 0 and --subscribers 0 leave nobody")
        if self.publishers + self.subscribers > MOST_CLIENTS:
            raise Unfit(f"--publishers and --subscribers may be {MOST_CLIENTS:,} together")
        if self.shape == PAIRS:
            if self.publishers != self.subscribers:
                raise Unfit("in pairs there are as many --publishers as --subscribers")
            if self.topics % self.publishers:
                raise Unfit("--topics has to be a multiple of the number of pairs")
        if self.shape == PLANT:
            if self.subscribers < AREA or self.subscribers % AREA:
                raise Unfit(f"--subscribers of a plant has to be a multiple of {AREA}")
            lines = self.subscribers // AREA * LINES
            if self.topics % lines:
                raise Unfit(f"--topics has to be a multiple of {lines}, the lines of this plant")
        if self.topics * self.writers > MOST_LANES:
            raise Unfit(f"--topics times --publishers may be {MOST_LANES:,} at the most")

    @property
    def writers(self) -> int:
        """How many publishers write to one topic."""
        return 1 if self.shape == PAIRS else self.publishers

    @property
    def fan_out(self) -> int:
        """To how many subscribers every message goes."""
        if self.shape == PAIRS:
            return 1
        return 2 if self.shape == PLANT else self.subscribers

    @property
    def acknowledgements(self) -> int:
        """How many messages of a publisher may be without an answer, at QoS 1 and 2."""
        return self.window or WINDOW

    @property
    def limit(self) -> int | None:
        """The window that is in force."""
        return self.acknowledgements if self.qos else self.window

    @property
    def receive_maximum(self) -> int:
        """What clients of 5.0 tell the broker; a subscriber may have many publishers."""
        return max(self.acknowledgements, WINDOW)

    def written_by(self, publisher: int) -> list[int]:
        """Its topics, in the order in which it writes to them."""
        topics = range(self.topics)
        if self.shape == PAIRS:
            each = self.topics // self.publishers
            topics = range(publisher * each, (publisher + 1) * each)
        return random.Random(1).sample(topics, len(topics))

    def read_by(self, subscriber: int) -> range:
        """The topics whose messages it gets."""
        if self.shape == PAIRS:
            each = self.topics // self.subscribers
            return range(subscriber * each, (subscriber + 1) * each)
        if self.shape == PLANT:
            area, line = divmod(subscriber, AREA)
            each = self.topics // (self.subscribers // AREA * LINES)
            if line == 0:
                return range(area * LINES * each, (area + 1) * LINES * each)
            first = area * LINES + line - 1
            return range(first * each, (first + 1) * each)
        return range(self.topics)

    def lane(self, topic: int, publisher: int) -> int:
        """The number of a lane."""
        return topic if self.shape == PAIRS else topic * self.writers + publisher

    def lanes(self, subscriber: int) -> range:
        """The lanes of the topics that it reads."""
        topics = self.read_by(subscriber)
        return range(topics.start * self.writers, topics.stop * self.writers)

    def topic_name(self, prefix: str, topic: int) -> str:
        """All names of a load have one length."""
        if self.shape == PLANT:
            lines = self.subscribers // AREA * LINES
            each = self.topics // lines
            line, sensor = divmod(topic, each)
            area = f"{line // LINES:0{len(str(lines // LINES - 1))}}"
            return f"{prefix}/{area}/{line % LINES}/{sensor:0{len(str(each - 1))}}"
        return f"{prefix}/{topic:0{len(str(self.topics - 1))}}"

    def topic_filters(self, prefix: str, subscriber: int) -> list[str]:
        """What a subscriber asks for."""
        topics = self.read_by(subscriber)
        if self.shape == PLANT and subscriber % AREA == 0:
            area = self.topic_name(prefix, topics.start).rsplit("/", 2)[0]
            return [f"{area}/+/#"]
        return [self.topic_name(prefix, topic) for topic in topics]

    def expected(self, sent: list[int]) -> list[int]:
        """How many messages each subscriber should have, when each publisher has sent so many."""
        by_topic = [0] * self.topics
        for publisher, count in enumerate(sent):
            topics = self.written_by(publisher)
            turns, rest = divmod(count, len(topics))
            for place, topic in enumerate(topics):
                by_topic[topic] += turns + (place < rest)
        until = [0, *accumulate(by_topic)]
        reads = map(self.read_by, range(self.subscribers))
        return [until[topics.stop] - until[topics.start] for topics in reads]


@dataclass(frozen=True)
class Scenario:
    """A load with a name, whose numbers may be changed."""

    line: str
    load: Load

    def changed(self, given: dict[str, Any]) -> Load:
        """With other numbers. Who changes one number of pairs has changed them all."""
        if self.load.shape == PAIRS:
            pairs = given.get("publishers", given.get("subscribers", self.load.publishers))
            numbers = dict.fromkeys(("publishers", "subscribers", "topics"), pairs)
            given = {**numbers, **given}
        return replace(self.load, **given)


# The numbers are those of bench/broker.
SCENARIOS: Final = {
    "one-to-one": Scenario("One publisher, one subscriber, one topic.", Load()),
    "fan-out": Scenario("One publisher, 50 subscribers to one topic.", Load(subscribers=50)),
    "fan-in": Scenario(
        "50 publishers to one topic, one subscriber; ten messages in a write.",
        Load(publishers=50, window=10),
    ),
    "pairs": Scenario(
        "50 pairs with a topic each; in each pair one message is under way.",
        Load(PAIRS, publishers=50, subscribers=50, topics=50, window=1),
    ),
    "plant": Scenario(
        "One publisher to 10,000 topics; 110 subscribers, by name and by wildcard.",
        Load(PLANT, subscribers=110, topics=10_000),
    ),
    "latency": Scenario("One to one at 5,000 messages per second.", Load(rate=5_000)),
    "connections": Scenario(
        "5,000 clients that connect, subscribe and do nothing.",
        Load(publishers=0, subscribers=5_000),
    ),
}
