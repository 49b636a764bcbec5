"""The scenarios that are measured, and their targets.

A target is the ratio of a peer's processor time per delivered message to semel's. Targets are for
Mosquitto 2.0.11 with 3.1.1 clients, and half as high with 5.0 clients. Where `versions_alike` is
set, 5.0 has no target of its own: semel's figure is to be within `ALIKE` of that with 3.1.1.
"""

import argparse
from dataclasses import dataclass
from typing import Final

from bench.broker.configurations import PLAIN, Configuration
from semel.lab.load.description import SCENARIOS as LOADS
from semel.lab.load.description import Load
from semel.lab.load.result import version_name as version_name
from semel.mqtt import MQTT5, MQTT311

AMQTT_TARGET: Final = 10.0
ALIKE: Final = 1.1

# What is measured, and the figures: the first is always processor time.
THROUGHPUT: Final = "throughput"  # µs per message
LATENCY: Final = "latency"  # µs per message, median and p99 of the latency
HALF_LOAD: Final = "half load"  # µs per message at full and at half load, p99 of PUBACK
CONNECTIONS: Final = "connections"  # µs and KB per connection
RECONNECTS: Final = "reconnects"  # s to reconnect and to disconnect all, KB per connection

MANY: Final = 20_000


@dataclass(frozen=True)
class Bound:
    """The most that one of semel's figures should be."""

    figure: int
    most: float
    unit: str


@dataclass(frozen=True)
class Scenario:
    """A load of `semel load`; `versus_mosquitto` and `versus_amqtt` are targets, 0 for none."""

    name: str
    title: str
    load: Load
    versus_mosquitto: float = 0.0
    versus_amqtt: float = 0.0
    kind: str = THROUGHPUT
    bounds: tuple[Bound, ...] = ()
    versions_alike: bool = False
    configuration: Configuration = PLAIN


def _load(name: str, **changes: int) -> Load:
    return LOADS[name].changed(changes)


def _single(
    name: str,
    title: str,
    load: Load,
    versus_mosquitto: float = 0.0,
    *,
    kind: str = THROUGHPUT,
    bounds: tuple[Bound, ...] = (),
    configuration: Configuration = PLAIN,
) -> Scenario:
    """A scenario of one message at a time, or none, on many connections."""
    return Scenario(
        name,
        title,
        load,
        versus_mosquitto,
        kind=kind,
        bounds=bounds,
        versions_alike=True,
        configuration=configuration,
    )


_LATENCY_TITLE: Final = "5,000 messages/s, QoS {}: µs / latency in µs, median / 99 %"
_FLEET_TITLE: Final = (
    "2,000→2 QoS 1, one message under way in each, {}: µs / µs at half load / PUBACK in µs "
    "then, 99 %"
)

SCENARIOS: Final = (
    Scenario("a", "1→1 QoS 0, 16 B, pipelined", _load("one-to-one"), 30.0, AMQTT_TARGET),
    Scenario(
        "b", "1→1 QoS 0, 256 B, pipelined", _load("one-to-one", payload=256), 15.0, AMQTT_TARGET
    ),
    Scenario("c", "1→50 QoS 0, 16 B", _load("fan-out"), 60.0, AMQTT_TARGET),
    Scenario("d", "50→1 QoS 0, 16 B, 10 per write", _load("fan-in"), 8.0, AMQTT_TARGET),
    Scenario("e", "1→1 QoS 1, 16 B, window 200", _load("one-to-one", qos=1), 10.0, AMQTT_TARGET),
    Scenario("f", "1→1 QoS 2, 16 B, window 200", _load("one-to-one", qos=2), 10.0, AMQTT_TARGET),
    Scenario("g", "10,000 topics and wildcards, QoS 0, 110 subscribers", _load("plant"), 15.0),
    Scenario(
        "g1", "10,000 topics and wildcards, QoS 1, 110 subscribers", _load("plant", qos=1), 2.5
    ),
    _single("p50", "50 pairs QoS 0, one message under way in each", _load("pairs"), 1.4),
    _single("p50q1", "50 pairs QoS 1, one message under way in each", _load("pairs", qos=1), 1.4),
    _single("c1", "1→50 QoS 0, one message under way", _load("fan-out", window=1), 1.3),
    _single("d1", "50→1 QoS 0, one message per write", _load("fan-in", window=1), 2.5),
    Scenario(
        "p1000",
        "1,000→1 QoS 1, one message under way in each",
        _load("fan-in", publishers=1_000, window=1, qos=1),
    ),
    _single("l0", _LATENCY_TITLE.format(0), _load("latency"), 1.2, kind=LATENCY),
    _single("l1", _LATENCY_TITLE.format(1), _load("latency", qos=1), 1.2, kind=LATENCY),
    _single("fleet", _FLEET_TITLE.format("in memory"), _load("fleet"), 2.0, kind=HALF_LOAD),
    # Mosquitto has no persistence here, either.
    _single(
        "fleet-durable",
        _FLEET_TITLE.format("semel durable"),
        _load("fleet"),
        1.2,
        kind=HALF_LOAD,
        configuration=Configuration(durable=True),
    ),
    _single(
        "connections",
        "5,000 idle connections: µs / KB of memory each",
        _load("connections"),
        1.0,
        kind=CONNECTIONS,
        bounds=(Bound(1, 3.0, "KB each"),),
    ),
    # semel permits 10,000 connections unless told otherwise.
    _single(
        "connections20k",
        f"{MANY:,} idle connections: s to reconnect all / s to disconnect all / KB of memory each",
        _load("connections", subscribers=MANY),
        kind=RECONNECTS,
        bounds=(Bound(0, 2.0, "s to reconnect all"),),
        configuration=Configuration(connections=MANY),
    ),
)


def parse_scenarios(text: str) -> list[Scenario]:
    """Names of scenarios, comma-separated; empty: all."""
    selected = text.split(",") if text else [scenario.name for scenario in SCENARIOS]
    unknown = set(selected) - {scenario.name for scenario in SCENARIOS}
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no scenario {', '.join(sorted(unknown))}")
    return [scenario for scenario in SCENARIOS if scenario.name in selected]


def parse_versions(text: str) -> list[int]:
    """3.1.1, 5.0, or both."""
    versions = {"3.1.1": [MQTT311], "5.0": [MQTT5], "both": [MQTT311, MQTT5]}
    if text not in versions:
        raise argparse.ArgumentTypeError(f"{text} is none of {', '.join(versions)}")
    return versions[text]
