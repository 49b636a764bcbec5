"""The metrics of bridges: every number, all series from the start, and when a process is ready."""

import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from semel.client.bridge_metrics import DROP_REASONS
from semel.client.bridge_status import BridgeSnapshot, BridgeStatus, SideStatus
from semel.metrics.families import check_families
from tests.metrics.bridges import (
    FixedBridge,
    SteppedClock,
    bridge_metrics,
    busy_bridge,
    exposition_of,
    new_bridge,
)
from tests.metrics.exposition import Exposition


@pytest.fixture(autouse=True)
def _switch_interval() -> Iterator[None]:
    interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)


def values(exposition: Exposition, name: str, **labels: str) -> dict[str, float]:
    """The values of the samples with these labels, by the value of the last other label."""
    return {
        found[-1][1]: value
        for (sample, pairs), value in exposition[name].samples.items()
        if sample == name
        and {*labels.items()} <= {*pairs}
        and (found := [pair for pair in pairs if pair[0] not in labels])
    }


def test_every_number_of_a_bridge_is_a_metric() -> None:
    clock = SteppedClock()
    metrics = bridge_metrics(new_bridge(), busy_bridge(), clock=clock)
    check_families(metrics.families())
    clock.now += 30.0
    found = exposition_of(metrics)
    assert found.value("semel_bridge_uptime_seconds") == 30.0
    assert found.value("semel_bridge_ready", bridge="busy") == 1
    assert found.value("semel_bridge_ready", bridge="new") == 0
    assert found.value("semel_bridge_state", bridge="busy", state="running") == 1
    assert found.value("semel_bridge_state", bridge="busy", state="failed") == 0
    assert found.value("semel_bridge_store_condition", bridge="busy", condition="open") == 1
    remote = {"bridge": "busy", "side": "remote"}
    assert found.value("semel_bridge_connected", **remote) == 1
    assert found.value("semel_bridge_connected", bridge="new", side="remote") == 0
    assert found.value("semel_bridge_reconnects_total", **remote) == 2
    assert found.value("semel_bridge_sessions_lost_total", **remote) == 3
    assert found.value("semel_bridge_messages_resent_total", **remote) == 4
    way = {"bridge": "busy", "direction": "to_remote"}
    moved = values(found, "semel_bridge_messages_moved_total", **way)
    assert moved == {"0": 1, "1": 2, "2": 3}
    payloads = values(found, "semel_bridge_payload_moved_bytes_total", **way)
    assert payloads == {"0": 10, "1": 20, "2": 30}
    assert found.value("semel_bridge_messages_delivered_total", **way) == 5
    assert found.value("semel_bridge_queued_messages", **way) == 7
    assert found.value("semel_bridge_queued_bytes", **way) == 70
    assert found.value("semel_bridge_held_messages", **way) == 8
    assert found.value("semel_bridge_idle_seconds", **way) == 1.5
    dropped = values(found, "semel_bridge_messages_dropped_total", **way)
    assert dropped == dict(zip(DROP_REASONS, (1, 2, 9, 10, 11, 12), strict=True))
    refused = values(found, "semel_bridge_messages_refused_total", **way)
    assert {code: number for code, number in refused.items() if number} == {"0x87": 20, "0x92": 1}
    # A direction that has moved nothing is idle since the start.
    assert found.value("semel_bridge_idle_seconds", bridge="busy", direction="to_local") == 30.0


def test_all_series_exist_from_the_start() -> None:
    before = exposition_of(bridge_metrics(new_bridge("x")))
    after = exposition_of(bridge_metrics(busy_bridge("x")))
    names = [{each for family in of.values() for each in family.samples} for of in (before, after)]
    assert names[0] == names[1]


def with_status(**changes: object) -> FixedBridge:
    found = busy_bridge().found
    status: BridgeStatus = replace(found.status, **changes)  # type: ignore[arg-type]
    return FixedBridge(BridgeSnapshot(status))


@pytest.mark.parametrize(
    ("bridge", "problem"),
    [
        (busy_bridge(), None),
        (busy_bridge(store="behind"), None),
        (busy_bridge(store="full"), "the disk of bridge busy is full"),
        (with_status(state="failed"), "bridge busy is not running: failed"),
        (new_bridge(), "bridge new is not running: starting"),
        (
            with_status(remote=SideStatus(last_error="cannot reach secret.example")),
            "bridge busy is not connected to the remote broker: its log says why",
        ),
        (
            with_status(local=SideStatus()),
            "bridge busy is not connected to the local broker: its log says why",
        ),
    ],
)
def test_a_process_is_ready_while_all_its_bridges_are(
    bridge: FixedBridge, problem: str | None
) -> None:
    metrics = bridge_metrics(busy_bridge("other"), bridge)
    assert metrics.readiness() == problem
    # A restart would not cure it, and would interrupt the other bridges.
    assert metrics.health() is None
    name = bridge.found.status.bridge
    ready = exposition_of(metrics).value("semel_bridge_ready", bridge=name)
    assert ready == (problem is None)
