"""The scenarios that are measured, and their targets.

A target is the ratio of a peer's processor time per delivered message to semel's. Targets are for
Mosquitto 2.0.11 with 3.1.1 clients, and half as high with 5.0 clients.
"""

import argparse
import socket
import time
from dataclasses import dataclass
from typing import Final

from bench.broker.contenders import Process
from bench.broker.load import connect
from semel.lab.load.description import SCENARIOS as LOADS
from semel.lab.load.description import Load
from semel.lab.load.result import version_name as version_name
from semel.mqtt import MQTT5, MQTT311

AMQTT_TARGET: Final = 10.0
IDLE_KB_TARGET: Final = 8.0

CONNECTIONS: Final = "connections"
LATENCY: Final = "latency"

IDLE: Final = LOADS[CONNECTIONS].load.subscribers


@dataclass(frozen=True)
class Scenario:
    """A load of `semel load`; `versus_mosquitto` and `versus_amqtt` are targets, 0 for none."""

    name: str
    title: str
    load: Load
    versus_mosquitto: float = 0.0
    versus_amqtt: float = 0.0


def _load(name: str, **changes: int) -> Load:
    return LOADS[name].changed(changes)


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
    Scenario("p50", "50 pairs QoS 0, one message under way in each", _load("pairs"), 0.9),
    Scenario(CONNECTIONS, f"{IDLE:,} idle connections: µs / KB of memory each", _load(CONNECTIONS)),
    Scenario(LATENCY, "latency at 5,000 messages/s, QoS 0: µs median / 99 %", _load(LATENCY)),
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


def idle_connections(process: Process, version: int) -> tuple[float, float]:
    """Microseconds to accept a connection, and KB of memory while it is open."""
    # The first ones fill memory that the broker keeps anyway.
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
