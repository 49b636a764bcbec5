"""The topics under $SYS: as Mosquitto names and formats them."""

import re
import subprocess
import time
from math import exp

import pytest

from semel import __version__
from semel.broker.settings import BrokerSettings
from semel.broker.sys_topics import PREFIX, LoadAverages, SysTopics
from semel.mqtt import Properties, Publish
from tests.broker.world import World


def report(world: World, topics: SysTopics) -> dict[str, str]:
    found = topics.report(world.broker.snapshot(world.now), world.now)
    assert len(found) == len(dict(found))
    assert all(name.startswith(PREFIX) for name, _ in found)
    return {name.removeprefix(PREFIX): value for name, value in found}


def test_every_value_agrees_with_what_has_happened() -> None:
    world = World(BrokerSettings(sys_interval=0.0))
    topics = SysTopics(world.now)
    kept = Properties(session_expiry_interval=5)
    away = world.connect("away", clean_start=False, properties=kept)
    away.subscribe("t", "$share/g/x", qos=1)
    away.cut()
    client = world.connect("c")
    client.send(Publish("t", b"123", 1, 1), Publish("r", b"12345", retain=True))
    world.broker.memory.update(5_000)
    world.broker.memory.update(4_000)
    world.now += 4.0
    found = report(world, topics)
    assert found["version"] == f"semel version {__version__}"
    assert found["uptime"] == "4 seconds"
    for kind, count in {
        "connected": 1,
        "active": 1,
        "disconnected": 1,
        "inactive": 1,
        "total": 2,
        "maximum": 1,
        "expired": 0,
    }.items():
        assert found[f"clients/{kind}"] == str(count)
    assert found["subscriptions/count"] == "2"
    assert found["shared_subscriptions/count"] == "1"
    assert found["retained messages/count"] == "1"
    # One is queued, and one retained.
    assert found["messages/stored"] == found["store/messages/count"] == "2"
    assert int(found["store/messages/bytes"]) >= 4 + 6
    assert found["publish/messages/received"] == "2"
    assert found["publish/messages/sent"] == found["publish/messages/dropped"] == "0"
    assert (found["publish/bytes/received"], found["publish/bytes/sent"]) == ("8", "0")
    assert (found["heap/current"], found["heap/maximum"]) == ("4000", "5000")
    assert int(found["messages/received"]) == 5
    assert int(found["bytes/received"]) > 40
    world.wait(2)
    assert report(world, topics)["clients/expired"] == "1"


def test_loads_are_moving_averages_per_minute() -> None:
    load = LoadAverages()
    load.update(10, 10.0)
    first = [60.0 * (1 - exp(-10.0 / seconds)) for seconds in (60, 300, 900)]
    assert load.averages == pytest.approx(first)
    load.update(10, 10.0)
    decayed = [value * exp(-10.0 / at) for value, at in zip(first, (60, 300, 900), strict=True)]
    assert load.averages == pytest.approx(decayed)
    for number in range(1, 1_000):
        load.update(10 + number * 10, 10.0)
    assert load.averages == pytest.approx([60.0] * 3, rel=0.01)


def test_a_report_without_time_since_the_last_one_changes_no_load() -> None:
    world = World(BrokerSettings(sys_interval=0.0))
    topics = SysTopics(world.now)
    world.connect("c")
    assert report(world, topics)["load/connections/1min"] == "0.00"
    world.now += 10.0
    found = report(world, topics)
    assert found["load/connections/1min"] == found["load/sockets/1min"] == "0.92"
    assert found["load/connections/5min"] == "0.20"
    assert found["load/messages/received/15min"] == "0.07"
    assert report(world, topics) == found


def listen(port: int) -> dict[str, str]:
    """What a Mosquitto publishes under $SYS, once it has published its averages."""
    found: dict[str, str] = {}
    end = time.monotonic() + 60
    while not any(name.startswith("load/") for name in found):
        assert time.monotonic() < end, found
        # A Mosquitto that does not listen yet refuses the connection.
        time.sleep(0.1)
        lines = subprocess.run(
            ["mosquitto_sub", "-p", str(port), "-t", "$SYS/#", "-v", "-W", "2"],
            capture_output=True,
            text=True,
        ).stdout
        for line in lines.splitlines():
            match = re.fullmatch(rf"{re.escape(PREFIX)}(retained messages/count|\S+) (.*)", line)
            assert match, line
            found[match[1]] = match[2]
    return found


def shape(value: str) -> str:
    """A value with a 0 for each number."""
    return re.sub(r"\d+", "0", value)
