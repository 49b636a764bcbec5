"""What came out of a load."""

from dataclasses import dataclass, field
from typing import Final

from semel.lab.load.account import Latencies
from semel.lab.load.description import Load

PARTS: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True)
class Got:
    """What one subscriber has, and should have."""

    subscriber: int
    expected: int
    # Each message once.
    received: int
    duplicated: int
    out_of_order: int

    @property
    def lost(self) -> int:
        return self.expected - self.received

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.duplicated or self.out_of_order)


@dataclass
class Result:
    """All of it. A `fault` is a sentence that says why it ended before its time."""

    load: Load
    processes: int
    sent: int = 0
    # QoS 1 and 2.
    acknowledged: int = 0
    subscribers: list[Got] = field(default_factory=list)
    # Whether all were connected, so that something could be sent.
    started: bool = False
    # From the first message to the last.
    seconds: float = 0.0
    latencies: Latencies = field(default_factory=Latencies)
    connecting: Latencies = field(default_factory=Latencies)
    cpu_seconds: float = 0.0
    interrupted: bool = False
    fault: str = ""

    @property
    def expected(self) -> int:
        return sum(each.expected for each in self.subscribers)

    @property
    def received(self) -> int:
        """All that came: what was expected, less what was lost, and what was duplicated."""
        return sum(each.received + each.duplicated for each in self.subscribers)

    @property
    def lost(self) -> int:
        return sum(each.lost for each in self.subscribers)

    @property
    def duplicated(self) -> int:
        return sum(each.duplicated for each in self.subscribers)

    @property
    def out_of_order(self) -> int:
        return sum(each.out_of_order for each in self.subscribers)

    @property
    def is_kept(self) -> bool:
        """Whether the broker has kept what its QoS promises, as far as the load got."""
        qos = self.load.qos
        if self.fault or (qos and (self.lost or self.acknowledged < self.sent)):
            return False
        return qos < 2 or not self.duplicated

    def per_second(self, count: float) -> float:
        return count / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, object]:
        load = self.load
        megabyte = load.payload / 1e6
        return {
            "mqtt": version_name(load.version),
            "publishers": load.publishers,
            "subscribers": load.subscribers,
            "topics": load.topics,
            "qos": load.qos,
            "payload": load.payload,
            "window": load.limit,
            "rate": load.rate,
            "retain": load.retain,
            "processes": self.processes,
            "seconds": self.seconds,
            "sent": self.sent,
            "acknowledged": self.acknowledged if load.qos else None,
            "received": self.received,
            "expected": self.expected,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "out_of_order": self.out_of_order,
            "sent_per_second": self.per_second(self.sent),
            "received_per_second": self.per_second(self.received),
            "sent_mb_per_second": self.per_second(self.sent * megabyte),
            "received_mb_per_second": self.per_second(self.received * megabyte),
            "latency_ms": milliseconds(self.latencies),
            "connect_ms": milliseconds(self.connecting),
            "cpu_seconds": self.cpu_seconds,
            "unclean_subscribers": [
                {
                    "subscriber": each.subscriber,
                    "expected": each.expected,
                    "received": each.received + each.duplicated,
                    "lost": each.lost,
                    "duplicated": each.duplicated,
                    "out_of_order": each.out_of_order,
                }
                for each in self.subscribers
                if not each.is_clean
            ],
            "interrupted": self.interrupted,
            "fault": self.fault or None,
        }


def version_name(version: int) -> str:
    """As people write it."""
    return "5.0" if version == 5 else "3.1.1"


def milliseconds(latencies: Latencies) -> dict[str, float] | None:
    """What a table shows of durations, None without any."""
    if not latencies.classes:
        return None
    quantiles = {name: latencies.at(part) / 1e6 for name, part in PARTS.items()}
    return {**quantiles, "max": latencies.longest / 1e6}
