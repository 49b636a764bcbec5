"""The status of a bridge, and the file that has it for other programs."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from semel.store.private_files import new_private

STATUS_FILE: Final = "status.json"

# What a bridge does.
STARTING: Final = "starting"
RUNNING: Final = "running"
STOPPING: Final = "stopping"
ENDED: Final = "ended"
FAILED: Final = "failed"
STATES: Final = (STARTING, RUNNING, STOPPING, ENDED, FAILED)


@dataclass(frozen=True)
class SideStatus:
    """The connection to one broker, since the start."""

    is_connected: bool = False
    client_id: str = ""
    reconnects: int = 0
    # How often the broker had lost the session; and messages that were sent again because of that,
    # which may be duplicates.
    sessions_lost: int = 0
    resent: int = 0
    # Why the last connection or attempt ended.
    last_error: str | None = None


@dataclass(frozen=True)
class DirectionStatus:
    """The messages of one direction, since the start but for `queued` and `held`."""

    # Accepted from the source; acknowledged by the destination at QoS 1 or 2.
    moved: int = 0
    delivered: int = 0
    # In the store, not acknowledged by the destination; in memory, waiting for room in the store.
    queued: int = 0
    held: int = 0
    # Not moved: QoS 0 without a connection; back at a broker that it came from; no valid topic.
    dropped: int = 0
    looped: int = 0
    unmatched: int = 0
    # Moved, but not delivered: refused by the destination, or expired in the queue.
    refused: int = 0
    expired: int = 0


@dataclass(frozen=True)
class BridgeStatus:
    """One bridge."""

    bridge: str
    # starting, running, stopping, ended or failed
    state: str = STARTING
    local: SideStatus = SideStatus()
    remote: SideStatus = SideStatus()
    to_remote: DirectionStatus = DirectionStatus()
    to_local: DirectionStatus = DirectionStatus()
    # open; behind or full: nothing is read from the brokers
    store: str = "open"


@dataclass(frozen=True)
class DirectionTraffic:
    """The messages of one direction in more detail, for metrics."""

    # Moved messages and bytes of their payloads, by QoS.
    messages: tuple[int, ...] = (0, 0, 0)
    payload_bytes: tuple[int, ...] = (0, 0, 0)
    # Seconds since the last message was moved; None: none was.
    idle_seconds: float | None = None
    # Bytes of the queued messages that were not sent yet.
    queued_bytes: int = 0
    # QoS 0 messages without a connection, and with too much unsent on it.
    not_connected: int = 0
    no_room: int = 0
    # Beyond a limit that the destination announced; refused by it, by reason code.
    over_limit: int = 0
    refused_by_reason: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class BridgeSnapshot:
    """All numbers of a bridge at one time."""

    status: BridgeStatus
    to_remote: DirectionTraffic = DirectionTraffic()
    to_local: DirectionTraffic = DirectionTraffic()


def status_line(status: BridgeStatus) -> bytes:
    """The status as JSON on one line."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"at": at, **asdict(status)}).encode() + b"\n"


def write_status(folder: Path, status: BridgeStatus) -> None:
    """Replace the status file in the data folder; a reader sees the old or the new one, whole.

    Raises OSError.
    """
    path = folder / STATUS_FILE
    temporary = path.with_suffix(".tmp")
    descriptor = new_private(temporary)
    with os.fdopen(descriptor, "wb") as file:
        file.write(status_line(status))
    temporary.replace(path)
