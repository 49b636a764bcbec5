"""The hot and the plain path of the broker's core, without sockets.

Two brokers in this process get the same bytes, in turn: one as it comes, and one without a route
cache, in which every packet takes the plain path. QoS 0 messages go from one publisher to one
subscriber, and the output of both is compared before anything is timed. Of the time of a message
this leaves out the system calls.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from semel.broker.authority import Authority
from semel.broker.connection import Connection
from semel.broker.core import Broker
from semel.broker.identity import PeerInfo
from semel.broker.settings import BrokerSettings
from semel.mqtt import MQTT5, Connect, Properties, Publish, Subscribe, Subscription, encode
from semel.store.store import Store

# Messages in one piece of received bytes, and pieces per round.
MESSAGES: Final = 100
PIECES: Final = 100

CASES: Final[dict[str, Sequence[Properties]]] = {
    "no properties": [Properties()],
    "content type": [Properties(content_type="application/json")],
    "two user properties": [Properties(user_properties=[("trace", "4bf92f35"), ("unit", "C")])],
    "response topic and correlation data, another in each": [
        Properties(response_topic="answers/7", correlation_data=number.to_bytes(8))
        for number in range(MESSAGES)
    ],
    "message expiry, which counts down": [Properties(message_expiry_interval=60)],
}


@dataclass(frozen=True)
class PathTimes:
    """Nanoseconds per message on both paths, and the share that the hot path has taken."""

    case: str
    hot: float
    plain: float
    taken: float


class CoreBroker:
    """A broker's core with one publisher and one subscriber."""

    def __init__(self, route_cache: int) -> None:
        self.broker = Broker(
            BrokerSettings(route_cache=route_cache),
            authority=Authority(),
            store=Store(),
            new_client_id=lambda: "made",
            log=print,
            log_connection=lambda line: None,
            now=0.0,
            wall=time.time,
        )
        self.subscriber = self._connect("subscriber")
        self._receive(self.subscriber, encode(Subscribe(1, [Subscription("t/1")]), MQTT5))
        self.publisher = self._connect("publisher")
        self.subscriber.take_outgoing()

    def _connect(self, client_id: str) -> Connection:
        connection = self.broker.opened(PeerInfo(client_id), 0.0)
        self._receive(connection, encode(Connect(client_id, keep_alive=0), MQTT5))
        return connection

    def _receive(self, connection: Connection, data: bytes) -> None:
        self.broker.receive(connection, data, 0.0)
        self.broker.flush(0.0)
        while self.broker.has_work():
            self.broker.take_turns(0.0)
            self.broker.flush(0.0)
        self.broker.take_output()

    def publish(self, data: bytes) -> bytes:
        """Publish; returns what the subscriber receives."""
        self._receive(self.publisher, data)
        return self.subscriber.take_outgoing()

    @property
    def taken(self) -> int:
        """How many packets the hot path has taken."""
        return 0 if self.broker.hot_path is None else self.broker.hot_path.taken


def measure_paths(rounds: int) -> list[PathTimes]:
    """The times of all cases: medians of rounds, in which the brokers take turns."""
    found = []
    for case, sections in CASES.items():
        data = b"".join(
            encode(Publish("t/1", b"x" * 16, properties=sections[number % len(sections)]), MQTT5)
            for number in range(MESSAGES)
        )
        hot, plain = CoreBroker(BrokerSettings().route_cache), CoreBroker(0)
        for _ in range(2):
            received = hot.publish(data)
            assert received == plain.publish(data)
            assert len(received) == len(data)
        times: dict[CoreBroker, list[float]] = {hot: [], plain: []}
        before = hot.taken
        for _ in range(rounds):
            for broker, kept in times.items():
                began = time.process_time_ns()
                for _ in range(PIECES):
                    broker.publish(data)
                kept.append((time.process_time_ns() - began) / (PIECES * MESSAGES))
        taken = (hot.taken - before) / (rounds * PIECES * MESSAGES)
        medians = (statistics.median(kept) for kept in times.values())
        found.append(PathTimes(case, *medians, taken=taken))
    return found


def path_lines(times: list[PathTimes]) -> list[str]:
    """A Markdown table."""
    lines = [
        "| ns per message in the core: 1→1 QoS 0, 16 B, 5.0 | as it comes | on the hot path |"
        " all on the plain path |",
        "|---|---:|---:|---:|",
    ]
    for each in times:
        ratio = each.plain / each.hot
        lines.append(
            f"| {each.case} | {each.hot:,.0f} | {each.taken:.0%} | {each.plain:,.0f}"
            f" ({ratio:.1f}×) |"
        )
    return [*lines, ""]


def as_json(times: list[PathTimes]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [vars(each) for each in times]
