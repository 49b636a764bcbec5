"""The metrics of a process with two bridges, one of which has moved messages."""

from semel.client.bridge_metrics import BridgeMetrics
from semel.client.bridge_status import (
    RUNNING,
    BridgeSnapshot,
    BridgeStatus,
    DirectionStatus,
    DirectionTraffic,
    SideStatus,
)
from semel.metrics.text import TEXT, write_families
from tests.metrics.exposition import Exposition, read_exposition


class FixedBridge:
    """A bridge with the numbers that a test gives it."""

    def __init__(self, found: BridgeSnapshot) -> None:
        self.found = found

    def snapshot(self) -> BridgeSnapshot:
        return self.found


class SteppedClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def new_bridge(name: str = "new") -> FixedBridge:
    """One that has just been made."""
    return FixedBridge(BridgeSnapshot(BridgeStatus(name)))


def busy_bridge(name: str = "busy", *, store: str = "open") -> FixedBridge:
    """One that is connected to both brokers, and has seen everything."""
    return FixedBridge(
        BridgeSnapshot(
            BridgeStatus(
                name,
                RUNNING,
                local=SideStatus(is_connected=True, reconnects=1),
                remote=SideStatus(is_connected=True, reconnects=2, sessions_lost=3, resent=4),
                to_remote=DirectionStatus(
                    *(6, 5, 7, 8),
                    dropped=3,
                    looped=9,
                    unmatched=10,
                    refused=33,
                    expired=11,
                ),
                store=store,
            ),
            to_remote=DirectionTraffic(
                messages=(1, 2, 3),
                payload_bytes=(10, 20, 30),
                idle_seconds=1.5,
                queued_bytes=70,
                not_connected=1,
                no_room=2,
                over_limit=12,
                refused_by_reason={0x87: 20, 0x92: 1},
            ),
        )
    )


def bridge_metrics(*bridges: FixedBridge, clock: SteppedClock | None = None) -> BridgeMetrics:
    return BridgeMetrics(bridges or (busy_bridge(),), clock=clock or SteppedClock())


def exposition_of(metrics: BridgeMetrics) -> Exposition:
    """The same, as a program reads them."""
    return read_exposition(write_families(metrics.families(), TEXT).decode(), is_open=False)
