"""The metrics of a broker, from a snapshot: complete, valid, and bounded whatever clients do."""

from dataclasses import replace

import pytest

from semel.broker.memory import UNLIMITED
from semel.broker.network.broker_families import ServerSnapshot, server_families
from semel.broker.network.broker_metrics import (
    STUCK_SECONDS,
    BrokerMetrics,
)
from semel.broker.settings import BrokerSettings
from semel.metrics.families import LATENCY_BOUNDS, Histogram, check_families
from semel.metrics.text import OPENMETRICS, TEXT, write_families
from semel.mqtt import RULES, Connect, Properties, Publish
from semel.store.statistics import StoreStatistics, StreamSealing
from semel.store.store import FULL
from semel.store.streams import Stream, Streams
from tests.broker.world import World
from tests.metrics.exposition import Exposition, read_exposition


def times(*seconds: float) -> Histogram:
    made = Histogram(LATENCY_BOUNDS)
    for each in seconds:
        made.observe(each)
    return made


STORE = StoreStatistics(
    commit_seconds=times(0.002, 0.3).read(),
    transaction_seconds=times(0.001).read(),
    transaction_commits=times(2).read(),
    transaction_rows=times(7).read(),
    unwritten_bytes=123,
    unsealed_bytes=456,
    streams=(StreamSealing("plant", 40, 2, 1.5),),
    is_sealer_running=True,
)


def server_snapshot(world: World) -> ServerSnapshot:
    world.now += 1.0
    lag = times(0.001, 0.2)
    return ServerSnapshot(
        world.broker.snapshot(world.now),
        STORE,
        failure=None,
        is_ready=True,
        loop_lag=lag.read(),
        loop_lag_maximum=lag.maximum,
        cpu_seconds=1.5,
        free_bytes=10**9,
        listeners=("default", "tls"),
    )


def read_back(snapshot: ServerSnapshot) -> Exposition:
    """The metrics as text, read again; the same in both formats."""
    families = server_families(snapshot)
    check_families(families)
    found = read_exposition(write_families(families, TEXT).decode(), is_open=False)
    same = read_exposition(write_families(families, OPENMETRICS).decode(), is_open=True)
    assert found.series() == same.series()
    return found


@pytest.fixture
def world() -> World:
    streams = Streams([Stream(1, "plant", "plant/#", 41)])
    return World(BrokerSettings(sys_interval=0.0), streams=streams)


def test_numbers_of_the_core_the_store_and_the_loop(world: World) -> None:
    client = world.connect("a")
    client.subscribe("plant/#", qos=1)
    client.send(Publish("plant/1", b"12345", 1, 1))
    found = read_back(server_snapshot(world))
    assert found["semel_messages_received_total"].values() == {"0": 0, "1": 1, "2": 0}
    assert found["semel_payload_sent_bytes_total"].values() == {"0": 0, "1": 5, "2": 0}
    assert found["semel_connections"].values() == {"default": 1, "tls": 0}
    assert found.value("semel_inflight_messages") == 1
    assert found.value("semel_stream_last_seq", stream="plant") == 42
    assert found.value("semel_stream_sealed_seq", stream="plant") == 40
    assert found.value("semel_stream_unsealed_rows", stream="plant") == 2
    assert found.value("semel_stream_unsealed_seconds", stream="plant") == 1.5
    assert found.value("semel_commit_seconds_count") == 2
    assert found.value("semel_commit_seconds_bucket", le="0.0025") == 1
    assert found.value("semel_loop_lag_maximum_seconds") == 0.2
    assert found.value("semel_store_free_bytes") == 10**9
    assert found.value("semel_sealer_running") == 1
    assert found.value("semel_cpu_seconds_total") == 1.5
    assert found.value("semel_ready") == 1
    assert found["semel_store_condition"].values() == {
        "open": 1,
        "behind": 0,
        "full": 0,
        "failed": 0,
    }


def test_without_a_store_there_are_no_numbers_of_one(world: World) -> None:
    snapshot = replace(server_snapshot(world), store=None, free_bytes=None)
    found = read_back(snapshot)
    assert "semel_commit_seconds" not in found
    assert "semel_stream_sealed_seq" not in found
    assert "semel_store_free_bytes" not in found
    without_sealer = replace(STORE, is_sealer_running=None, streams=())
    found = read_back(replace(snapshot, store=without_sealer))
    assert "semel_commit_seconds" in found
    assert "semel_sealer_running" not in found


def test_a_store_that_is_full_or_has_failed(world: World) -> None:
    world.broker.store.condition = FULL
    found = read_back(server_snapshot(world))
    assert found["semel_store_condition"].values()["full"] == 1
    found = read_back(replace(server_snapshot(world), failure="disk I/O error"))
    assert found["semel_store_condition"].values() == {
        "open": 0,
        "behind": 0,
        "full": 0,
        "failed": 1,
    }


def test_memory_has_a_limit_only_if_there_is_one(world: World) -> None:
    world.broker.memory.limit = 1_000
    assert read_back(server_snapshot(world)).value("semel_memory_limit_bytes") == 1_000
    world.broker.memory.limit = UNLIMITED // 2
    assert "semel_memory_limit_bytes" not in read_back(server_snapshot(world))


def test_no_client_can_add_a_series(world: World) -> None:
    before = server_snapshot(world)
    # Everything that a client chooses, and several rules that it breaks.
    for number in range(20):
        name = f'evil"\\\n{number}'
        client = world.connect(name, properties=Properties(user_properties=[(name, name)]))
        client.subscribe(f"t/{number}/#", f"$share/g{number}/x")
        client.send(Publish(f"t/{number}", b"x", 1, 1, retain=True))
        client.send(Connect(name))
        world.open().send_bytes(bytes([number << 4 & 0xF0, 0xFF, 0xFF, 0xFF, 0xFF]))
    after = server_snapshot(world)
    assert read_back(before).series() == read_back(after).series()
    samples = [sum(len(f.samples) for f in server_families(each)) for each in (before, after)]
    assert samples[0] == samples[1]
    text = write_families(server_families(after), TEXT)
    assert b"evil" not in text
    assert b"t/1" not in text
    assert len(text) < 30_000


def test_every_rule_has_a_series_from_the_start(world: World) -> None:
    found = read_back(server_snapshot(world))["semel_violations_total"].values()
    assert found == {rule.name: 0 for rule in RULES}
    world.connect("a").send(Connect("a"))
    found = read_back(server_snapshot(world))["semel_violations_total"].values()
    assert sum(found.values()) == 1


def test_an_unknown_reason_code_of_a_hook_is_shown_as_well(world: World) -> None:
    world.broker.counters.refuse_publish(0xF0)
    found = read_back(server_snapshot(world))["semel_publishes_refused_total"].values()
    assert found["0xf0"] == 1
    assert found["0x87"] == 0


# --- health, readiness, and the free space --------------------------------------------------------


class Standing:
    """A server of which only the metrics are wanted."""

    def __init__(self, world: World) -> None:
        self.swept_at = 100.0
        self.unready: str | None = None
        self._world = world

    def snapshot(self, free_bytes: int | None) -> ServerSnapshot:
        return replace(server_snapshot(self._world), free_bytes=free_bytes)

    def readiness(self) -> str | None:
        return self.unready


def test_a_broker_whose_sweep_does_not_run_is_not_healthy(world: World) -> None:
    now = [100.0 + STUCK_SECONDS]
    server = Standing(world)
    metrics = BrokerMetrics(server, clock=lambda: now[0])
    assert metrics.health() is None
    now[0] += 1.0
    assert metrics.health() == ("the sweep, which is due once a second, has not run for 11 seconds")
    assert metrics.readiness() is None
    server.unready = "the broker is stopping"
    assert metrics.readiness() == "the broker is stopping"
    assert {family.name for family in metrics.families() if family.samples} == {
        family.name
        for family in server_families(replace(server_snapshot(world), free_bytes=None))
        if family.samples
    }
