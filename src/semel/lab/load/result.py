"""The result of a load."""

from dataclasses import dataclass, field
from typing import Final

from semel.lab.load.delivery_tracker import Latencies
from semel.lab.load.description import Load

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True)
class SubscriberResult:
    """What one subscriber received, and should have received."""

    subscriber: int
    expected: int
    # Without duplicates.
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
    """The result of a load. `fault` is a sentence that says why it ended early."""

    load: Load
    processes: int
    sent: int = 0
    # QoS 1 and 2.
    acknowledged: int = 0
    subscribers: list[SubscriberResult] = field(default_factory=list)
    # Whether all clients were connected, so that sending began.
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
        """All deliveries: expected minus lost plus duplicated."""
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
    def meets_qos(self) -> bool:
        """Whether the deliveries meet the guarantee of the QoS."""
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
    """The MQTT version as text."""
    return "5.0" if version == 5 else "3.1.1"


def milliseconds(latencies: Latencies) -> dict[str, float] | None:
    """Quantiles and maximum in milliseconds; None without durations."""
    if not latencies.buckets:
        return None
    quantiles = {name: latencies.quantile(fraction) / 1e6 for name, fraction in QUANTILES.items()}
    return {**quantiles, "max": latencies.longest / 1e6}
