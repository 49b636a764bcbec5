"""What the metrics endpoint of `semel bridge` serves: the numbers of all bridges of the process.

Labels have names of bridges, which the operator chose, and values that this package defines. A
message never adds a time series.
"""

import platform
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from semel import __version__
from semel.client.bridge_status import (
    RUNNING,
    STATES,
    BridgeSnapshot,
    BridgeStatus,
    DirectionStatus,
    DirectionTraffic,
)
from semel.client.ingest import CONDITIONS
from semel.metrics.families import INFO, MetricFamily, counter, gauge
from semel.mqtt.packet_types import PUBACK, PUBCOMP
from semel.mqtt.reasons import FAILURE, REASONS_5
from semel.store.store import FULL

# Why a message does not reach the destination, as `semel_bridge_messages_dropped_total` names it.
DROP_REASONS: Final = (
    *("not_connected", "no_room", "looped", "unmatched", "expired", "over_limit"),
)
# The reason codes by which a broker refuses a message.
REFUSALS: Final = sorted(code for code in REASONS_5[PUBACK] | REASONS_5[PUBCOMP] if code >= FAILURE)
SIDES: Final = ("local", "remote")
DIRECTIONS: Final = ("to_remote", "to_local")


class BridgeNumbers(Protocol):
    """The part of a bridge that its metrics need."""

    def snapshot(self) -> BridgeSnapshot:
        """All numbers at this time."""


class BridgeMetrics:
    """The metrics of the bridges of a process, for its endpoint."""

    def __init__(
        self, bridges: Sequence[BridgeNumbers], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bridges = bridges
        self._clock = clock
        self._started_at = clock()

    def families(self) -> list[MetricFamily]:
        """All metrics at this time."""
        snapshots = [bridge.snapshot() for bridge in self._bridges]
        return [
            MetricFamily("semel_bridge_build", INFO, "Versions of the bridge").add(
                1, version=__version__, python=platform.python_version()
            ),
            gauge("semel_bridge_uptime_seconds", "Time since semel bridge was started").add(
                self._clock() - self._started_at
            ),
            *_state_families(snapshots),
            *_side_families(snapshots),
            *_traffic_families(snapshots, self._clock() - self._started_at),
            *_loss_families(snapshots),
        ]

    def health(self) -> str | None:
        """None: the process works. A bridge that fails does not make the others unhealthy."""
        return None

    def readiness(self) -> str | None:
        """Why a bridge does not move messages now; None: all of them do."""
        for bridge in self._bridges:
            problem = _readiness(bridge.snapshot().status)
            if problem is not None:
                return problem
        return None


def _readiness(status: BridgeStatus) -> str | None:
    if status.state != RUNNING:
        return f"bridge {status.bridge} is not running: {status.state}"
    for name, side in (("local", status.local), ("remote", status.remote)):
        if not side.is_connected:
            # An error may have the address of the broker, and nothing protects this answer.
            return f"bridge {status.bridge} is not connected to the {name} broker: its log says why"
    if status.store == CONDITIONS[FULL]:
        return f"the disk of bridge {status.bridge} is full"
    return None


def _state_families(snapshots: Sequence[BridgeSnapshot]) -> list[MetricFamily]:
    ready = gauge(
        "semel_bridge_ready", "1 while a bridge runs, is connected to both brokers, and can store"
    )
    state = gauge("semel_bridge_state", "The state of a bridge: 1 for the current one")
    condition = gauge(
        "semel_bridge_store_condition",
        "The condition of the store of a bridge: 1 for the current one",
    )
    for each in snapshots:
        status = each.status
        ready.add(int(_readiness(status) is None), bridge=status.bridge)
        for name in STATES:
            state.add(int(status.state == name), bridge=status.bridge, state=name)
        for name in CONDITIONS.values():
            condition.add(int(status.store == name), bridge=status.bridge, condition=name)
    return [ready, state, condition]


def _side_families(snapshots: Sequence[BridgeSnapshot]) -> list[MetricFamily]:
    connected = gauge(
        "semel_bridge_connected", "1 while a bridge is connected to the broker of this side"
    )
    reconnects = counter("semel_bridge_reconnects", "Attempts to connect after the first, by side")
    lost = counter(
        "semel_bridge_sessions_lost", "How often the broker of this side had lost the session"
    )
    resent = counter(
        "semel_bridge_messages_resent",
        "Messages sent again because the broker of this side had lost the session",
    )
    for each in snapshots:
        bridge = each.status.bridge
        for name, side in zip(SIDES, (each.status.local, each.status.remote), strict=True):
            connected.add(int(side.is_connected), bridge=bridge, side=name)
            reconnects.add(side.reconnects, bridge=bridge, side=name)
            lost.add(side.sessions_lost, bridge=bridge, side=name)
            resent.add(side.resent, bridge=bridge, side=name)
    return [connected, reconnects, lost, resent]


Direction = tuple[str, str, DirectionStatus, DirectionTraffic]


def _directions(snapshots: Sequence[BridgeSnapshot]) -> list[Direction]:
    """Both directions of all bridges: the names of bridge and direction, and the numbers."""
    found: list[Direction] = []
    for each in snapshots:
        bridge = each.status.bridge
        found.append((bridge, DIRECTIONS[0], each.status.to_remote, each.to_remote))
        found.append((bridge, DIRECTIONS[1], each.status.to_local, each.to_local))
    return found


def _traffic_families(snapshots: Sequence[BridgeSnapshot], uptime: float) -> list[MetricFamily]:
    messages = counter(
        "semel_bridge_messages_moved",
        "Messages accepted from the source and stored or sent, by direction and QoS",
    )
    payloads = counter(
        "semel_bridge_payload_moved_bytes", "Payloads of the moved messages, by direction and QoS"
    )
    delivered = counter(
        "semel_bridge_messages_delivered",
        "Messages that the destination has acknowledged at QoS 1 or 2, by direction",
    )
    idle = gauge(
        "semel_bridge_idle_seconds",
        "Time since the last message was moved, or since the start if none was, by direction",
    )
    queued = gauge(
        "semel_bridge_queued_messages",
        "Messages in the store that the destination has not acknowledged, by direction",
    )
    queued_bytes = gauge(
        "semel_bridge_queued_bytes", "Size of the queued messages that were not sent yet"
    )
    held = gauge(
        "semel_bridge_held_messages",
        "Received messages in memory that wait for room in the queue, by direction",
    )
    for bridge, direction, status, traffic in _directions(snapshots):
        for qos, number in enumerate(traffic.messages):
            messages.add(number, bridge=bridge, direction=direction, qos=str(qos))
        for qos, size in enumerate(traffic.payload_bytes):
            payloads.add(size, bridge=bridge, direction=direction, qos=str(qos))
        delivered.add(status.delivered, bridge=bridge, direction=direction)
        seconds = uptime if traffic.idle_seconds is None else traffic.idle_seconds
        idle.add(seconds, bridge=bridge, direction=direction)
        queued.add(status.queued, bridge=bridge, direction=direction)
        queued_bytes.add(traffic.queued_bytes, bridge=bridge, direction=direction)
        held.add(status.held, bridge=bridge, direction=direction)
    return [messages, payloads, delivered, idle, queued, queued_bytes, held]


def _loss_families(snapshots: Sequence[BridgeSnapshot]) -> list[MetricFamily]:
    dropped = counter(
        "semel_bridge_messages_dropped",
        "Messages that were not moved or not delivered, by direction and reason",
    )
    refused = counter(
        "semel_bridge_messages_refused",
        "Messages that the destination refused, by direction and reason code",
    )
    for bridge, direction, status, traffic in _directions(snapshots):
        numbers = (
            *(traffic.not_connected, traffic.no_room, status.looped, status.unmatched),
            *(status.expired, traffic.over_limit),
        )
        for reason, number in zip(DROP_REASONS, numbers, strict=True):
            dropped.add(number, bridge=bridge, direction=direction, reason=reason)
        for code in REFUSALS:
            number = traffic.refused_by_reason.get(code, 0)
            refused.add(number, bridge=bridge, direction=direction, reason=f"0x{code:02x}")
    return [dropped, refused]
