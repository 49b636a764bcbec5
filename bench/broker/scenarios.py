"""What is measured, and what is asked of it.

Targets are against Mosquitto 2.0.11 with clients of 3.1.1; with clients of 5.0 half of each is
asked for. They say how many times semel's processor time a peer takes for one delivered message.
"""

import argparse
import socket
import time
from dataclasses import dataclass
from typing import Final

from bench.broker.contenders import Process
from bench.broker.load import FanIn, Flood, Links, Load, Paced, Pairs, Window, connect
from bench.broker.wire import encode_stream
from semel.mqtt import MQTT5, MQTT311

AMQTT_TARGET: Final = 10.0
IDLE_KB_TARGET: Final = 8.0

CONNECTIONS: Final = "connections"
LATENCY: Final = "latency"

FAN: Final = 50
PER_WRITE: Final = 10
PAIRS: Final = 50
IDLE: Final = 5_000
RATE: Final = 5_000


@dataclass(frozen=True)
class Scenario:
    """`versus_mosquitto` and `versus_amqtt` are targets, 0 for none."""

    name: str
    title: str
    qos: int = 0
    versus_mosquitto: float = 0.0
    versus_amqtt: float = 0.0


SCENARIOS: Final = (
    Scenario("a", "1→1 QoS 0, 16 B, pipelined", 0, 30.0, AMQTT_TARGET),
    Scenario("b", "1→1 QoS 0, 256 B, pipelined", 0, 15.0, AMQTT_TARGET),
    Scenario("c", f"1→{FAN} QoS 0, 16 B", 0, 60.0, AMQTT_TARGET),
    Scenario("d", f"{FAN}→1 QoS 0, 16 B, {PER_WRITE} per write", 0, 8.0, AMQTT_TARGET),
    Scenario("e", "1→1 QoS 1, 16 B, window 200", 1, 10.0, AMQTT_TARGET),
    Scenario("f", "1→1 QoS 2, 16 B, window 200", 2, 10.0, AMQTT_TARGET),
    Scenario("g", "10,000 topics and wildcards, QoS 0, 110 subscribers", 0, 15.0),
    Scenario("g1", "10,000 topics and wildcards, QoS 1, 110 subscribers", 1, 2.5),
    Scenario("p50", f"{PAIRS} pairs QoS 0, one message under way in each", 0, 0.9),
    Scenario(CONNECTIONS, f"{IDLE:,} idle connections: µs / KB of memory each"),
    Scenario(LATENCY, f"latency at {RATE:,} messages/s, QoS 0: µs median / 99 %"),
)


def parse_scenarios(text: str) -> list[Scenario]:
    """Those with these names, parted by commas; all for none."""
    wanted = text.split(",") if text else [scenario.name for scenario in SCENARIOS]
    unknown = set(wanted) - {scenario.name for scenario in SCENARIOS}
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no scenario {', '.join(sorted(unknown))}")
    return [scenario for scenario in SCENARIOS if scenario.name in wanted]


def parse_versions(text: str) -> list[int]:
    """3.1.1, 5.0, or both."""
    versions = {"3.1.1": [MQTT311], "5.0": [MQTT5], "both": [MQTT311, MQTT5]}
    if text not in versions:
        raise argparse.ArgumentTypeError(f"{text} is none of {', '.join(versions)}")
    return versions[text]


def version_name(version: int) -> str:
    """As people write it."""
    return "3.1.1" if version == MQTT311 else "5.0"


# plant/<area>/<line>/<sensor>
_AREAS: Final = range(10)
_LINES: Final = range(10)
_SENSORS: Final = range(100)


def _line_topics(area: int, line: int) -> tuple[str, ...]:
    return tuple(f"plant/{area}/{line}/{sensor:02}" for sensor in _SENSORS)


def build(scenario: Scenario, links: Links) -> Load:
    """The clients of a scenario, connected and subscribed, and what they are to do."""
    name, qos, version = scenario.name, scenario.qos, links.version
    if name == "p50":
        topic_names = [f"pair/{number:02}" for number in range(PAIRS)]
        for topic_name in topic_names:
            links.add_publisher()
            links.add_subscriber((topic_name,), qos)
        return Pairs(links, [encode_stream(version, (topic,), 16, qos) for topic in topic_names])
    for _ in range(FAN if name == "d" else 1):
        links.add_publisher()
    if name in ("g", "g1"):
        return _build_plant(links, qos)
    topic_names = ["bench/topic"]
    stream = encode_stream(version, tuple(topic_names), 256 if name == "b" else 16, qos)
    fan_out = FAN if name == "c" else 1
    for _ in range(fan_out):
        links.add_subscriber(tuple(topic_names), qos)
    if name == "d":
        return FanIn(links, stream, PER_WRITE)
    if name == LATENCY:
        return Paced(links, stream, RATE)
    return Window(links, stream, fan_out) if qos else Flood(links, stream, fan_out)


def _build_plant(links: Links, qos: int) -> Load:
    """Ten subscribers have an area each, by a wildcard; a hundred have a line, topic by topic.

    So every message goes to two of them, and there are 10,010 subscriptions.
    """
    topic_names: tuple[str, ...] = ()
    for area in _AREAS:
        links.add_subscriber((f"plant/{area}/+/#",), qos)
        for line in _LINES:
            links.add_subscriber(_line_topics(area, line), qos)
            topic_names += _line_topics(area, line)
    stream = encode_stream(links.version, topic_names, 16, qos)
    return Window(links, stream, 2) if qos else Flood(links, stream, 2)


def idle_connections(process: Process, version: int) -> tuple[float, float]:
    """Microseconds for accepting a connection, and KB of memory while it is there."""
    # The first ones fill what a broker keeps for all.
    idle: list[socket.socket] = []
    try:
        for number in range(100):
            idle.append(connect(process.port, version, f"early-{number}"))
        time.sleep(0.2)
        cpu, resident = process.cpu_ns(), process.resident_kb()
        for number in range(IDLE):
            idle.append(connect(process.port, version, f"idle-{number}"))
        time.sleep(0.2)
        used = process.cpu_ns() - cpu
        return used / IDLE / 1e3, (process.resident_kb() - resident) / IDLE
    finally:
        for link in idle:
            link.close()
