"""The description of a load: its size, and who publishes what to whom.

Topics are numbered from 0. A publisher writes to its topics in turn, in a shuffled but fixed order;
a subscriber has a contiguous range of topics. The messages of one publisher to one topic are a
*lane*; messages are counted and ordered per lane [4.6]. Lanes are numbered too, and those of a
subscriber are contiguous.

    ALL    every publisher writes to all topics, every subscriber subscribes to each by name
    PAIRS  publisher n writes to the topics of subscriber n
    PLANT  topics are area/line/sensor. Of eleven subscribers, one subscribes to an area by a
           wildcard, and ten to one of its lines each, topic by topic: a message goes to two of them
    FLEET  publisher n writes to topics of its own, every subscriber gets all of them by a wildcard
"""

import random
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final

from semel.mqtt import MQTT5

ALL: Final = "all"
PAIRS: Final = "pairs"
PLANT: Final = "plant"
FLEET: Final = "fleet"

LINES: Final = 10
# Subscribers per area: one for the area, one for each line.
AREA: Final = 1 + LINES

# The default window at QoS 1 and 2: semel's own Receive Maximum.
WINDOW: Final = 200
LARGEST_WINDOW: Final = 65_535
# Every payload has a lane, a counter and a time; see wire.
LEAST_PAYLOAD: Final = 16
MOST_PAYLOAD: Final = 10_000_000
MOST_LANES: Final = 1 << 24
# Each client needs a port.
MOST_CLIENTS: Final = 60_000


class InvalidLoad(ValueError):
    """The numbers of a load contradict each other; the text names the options."""


@dataclass(frozen=True)
class Load:
    """A load. Raises `InvalidLoad` if its numbers contradict each other."""

    shape: str = ALL
    publishers: int = 1
    subscribers: int = 1
    topics: int = 1
    qos: int = 0
    # Bytes.
    payload: int = 16
    # QoS 0: messages per write of a publisher, with one write in transit; None: as many as the
    # broker accepts. QoS 1 and 2: incomplete messages of a publisher; None: WINDOW.
    window: int | None = None
    # Messages per second of each publisher; None: as fast as the window allows.
    rate: float | None = None
    version: int = MQTT5
    retain: bool = False

    def __post_init__(self) -> None:
        if self.publishers + self.subscribers < 1:
            raise InvalidLoad(
                "--publishers and --subscribers are both 0: at least one client is needed"
            )
        if self.publishers + self.subscribers > MOST_CLIENTS:
            raise InvalidLoad(f"--publishers plus --subscribers must be at most {MOST_CLIENTS:,}")
        if self.shape == PAIRS:
            if self.publishers != self.subscribers:
                raise InvalidLoad("with pairs, --publishers must equal --subscribers")
            if self.topics % self.publishers:
                raise InvalidLoad("--topics must be a multiple of the number of pairs")
        if self.shape == FLEET and self.topics % max(1, self.publishers):
            raise InvalidLoad("--topics of a fleet must be a multiple of --publishers")
        if self.shape == PLANT:
            if self.subscribers < AREA or self.subscribers % AREA:
                raise InvalidLoad(f"--subscribers of a plant must be a multiple of {AREA}")
            lines = self.subscribers // AREA * LINES
            if self.topics % lines:
                raise InvalidLoad(
                    f"--topics must be a multiple of {lines}, the number of lines of this plant"
                )
        if self.topics * self.writers > MOST_LANES:
            raise InvalidLoad(f"--topics times --publishers must be at most {MOST_LANES:,}")

    @property
    def writers(self) -> int:
        """The number of publishers per topic."""
        return 1 if self.shape in (PAIRS, FLEET) else self.publishers

    @property
    def fan_out(self) -> int:
        """The number of subscribers that get each message."""
        if self.shape == PAIRS:
            return 1
        return 2 if self.shape == PLANT else self.subscribers

    @property
    def acknowledgements(self) -> int:
        """How many unacknowledged messages a publisher may have at QoS 1 and 2."""
        return self.window or WINDOW

    @property
    def limit(self) -> int | None:
        """The effective window."""
        return self.acknowledgements if self.qos else self.window

    @property
    def receive_maximum(self) -> int:
        """The Receive Maximum of 5.0 clients; a subscriber may have many publishers."""
        return max(self.acknowledgements, WINDOW)

    def written_by(self, publisher: int) -> list[int]:
        """The topics of a publisher, in the order in which it writes to them."""
        topics = range(self.topics)
        if self.shape in (PAIRS, FLEET):
            each = self.topics // self.publishers
            topics = range(publisher * each, (publisher + 1) * each)
        return random.Random(1).sample(topics, len(topics))  # nosec B311 # simulated data

    def read_by(self, subscriber: int) -> range:
        """The topics of a subscriber."""
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
        return topic if self.shape in (PAIRS, FLEET) else topic * self.writers + publisher

    def lanes(self, subscriber: int) -> range:
        """The lanes of a subscriber's topics."""
        topics = self.read_by(subscriber)
        return range(topics.start * self.writers, topics.stop * self.writers)

    def topic_name(self, prefix: str, topic: int) -> str:
        """The name of a topic; all names of a load have the same length."""
        if self.shape == PLANT:
            lines = self.subscribers // AREA * LINES
            each = self.topics // lines
            line, sensor = divmod(topic, each)
            area = f"{line // LINES:0{len(str(lines // LINES - 1))}}"
            return f"{prefix}/{area}/{line % LINES}/{sensor:0{len(str(each - 1))}}"
        return f"{prefix}/{topic:0{len(str(self.topics - 1))}}"

    def topic_filters(self, prefix: str, subscriber: int) -> list[str]:
        """The topic filters of a subscriber."""
        topics = self.read_by(subscriber)
        if self.shape == PLANT and subscriber % AREA == 0:
            area = self.topic_name(prefix, topics.start).rsplit("/", 2)[0]
            return [f"{area}/+/#"]
        if self.shape == FLEET:
            return [f"{prefix}/+"]
        return [self.topic_name(prefix, topic) for topic in topics]

    def expected(self, sent: list[int]) -> list[int]:
        """How many messages each subscriber should get, by the number that each publisher sent."""
        by_topic = [0] * self.topics
        for publisher, count in enumerate(sent):
            topics = self.written_by(publisher)
            turns, rest = divmod(count, len(topics))
            for position, topic in enumerate(topics):
                by_topic[topic] += turns + (position < rest)
        until = [0, *accumulate(by_topic)]
        reads = map(self.read_by, range(self.subscribers))
        return [until[topics.stop] - until[topics.start] for topics in reads]


@dataclass(frozen=True)
class Scenario:
    """A named load, whose numbers may be changed."""

    line: str
    load: Load

    def changed(self, given: dict[str, Any]) -> Load:
        """The load with other numbers.

        For pairs, one number sets all of them; in a fleet, each publisher has one topic.
        """
        if self.load.shape == PAIRS:
            pairs = given.get("publishers", given.get("subscribers", self.load.publishers))
            numbers = dict.fromkeys(("publishers", "subscribers", "topics"), pairs)
            given = {**numbers, **given}
        elif self.load.shape == FLEET:
            given = {"topics": max(1, given.get("publishers", self.load.publishers)), **given}
        return replace(self.load, **given)


# The numbers are those of bench/broker.
SCENARIOS: Final = {
    "one-to-one": Scenario("One publisher, one subscriber, one topic.", Load()),
    "fan-out": Scenario("One publisher, 50 subscribers to one topic.", Load(subscribers=50)),
    "fan-in": Scenario(
        "50 publishers to one topic, one subscriber; ten messages per write.",
        Load(publishers=50, window=10),
    ),
    "pairs": Scenario(
        "50 pairs with a topic each; one message in transit per pair.",
        Load(PAIRS, publishers=50, subscribers=50, topics=50, window=1),
    ),
    "plant": Scenario(
        "One publisher to 10,000 topics; 110 subscribers, by name and by wildcard.",
        Load(PLANT, subscribers=110, topics=10_000),
    ),
    "fleet": Scenario(
        "2,000 publishers with a topic each at QoS 1, one message in transit per publisher; two "
        "subscribers by wildcard.",
        Load(FLEET, publishers=2_000, subscribers=2, topics=2_000, qos=1, window=1),
    ),
    "latency": Scenario("One to one at 5,000 messages per second.", Load(rate=5_000)),
    "connections": Scenario(
        "5,000 clients that connect, subscribe and do nothing.",
        Load(publishers=0, subscribers=5_000),
    ),
}
