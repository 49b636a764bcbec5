"""The faults that a proxy injects into the packets that pass through it.

A `Fault` selects packets, and limits how many it applies to. If several faults select a packet, the
oldest applies; delays apply in addition. A fault ends after its last packet.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Final

from semel import counts
from semel.lab.append_log import TIMEOUT_SECONDS, AppendLog, await_future, wait_blocking
from semel.lab.recording import RecordedPacket
from semel.mqtt import PACKET_NAMES
from semel.mqtt.side import SIDES

# Actions on a packet.
CUT_BEFORE: Final = "cut before it"
CUT_AFTER: Final = "cut after it"
DROP: Final = "dropped"
REPEAT: Final = "repeated"
DELAY: Final = "delayed"
REFUSE: Final = "refused"
# What happens to other packets because of an action.
LOST: Final = "lost with the connection"
# Actions without a packet: nothing is read from a side; new connections are refused.
STALL: Final = "stalled"
CLOSED: Final = "closed"


class Fault:
    """A fault that is planned for some packets, or in effect until it is ended.

    As a context manager it ends with its block. `hits` are the packets it was applied to.
    """

    def __init__(
        self,
        action: str,
        *,
        kind: int = 0,
        sender: int | None = None,
        client_id: str | None = None,
        count: int | None = None,
        seconds: float = 0.0,
        reason: int = 0,
        end: Callable[["Fault"], None],
    ) -> None:
        if count is not None and count < 1:
            raise ValueError(f"count is {count}: it must be at least 1, or None for all packets")
        if not seconds >= 0:
            raise ValueError(f"seconds is {seconds}: a delay must not be negative")
        self.action = action
        self.kind = kind
        self.sender = sender
        self.client_id = client_id
        # How many more packets it applies to; None: all, until it is ended.
        self.remaining = count
        self.seconds = seconds
        self.reason = reason
        self.hits: AppendLog[RecordedPacket] = AppendLog(most_items=1_000)
        self._count = count
        self._end = end

    def __repr__(self) -> str:
        kind = PACKET_NAMES[self.kind] if self.kind else "every packet"
        sender = "" if self.sender is None else f" of the {SIDES[self.sender]}"
        who = "" if self.client_id is None else f", client {self.client_id!r}"
        return (
            f"<{kind}{sender}{who}: {self.action}, {counts.count(len(self.hits), 'time')} so far>"
        )

    def may_apply_to(self, sender: int, kind: int, client_id: str | None) -> bool:
        """Whether it selects such a packet; a client identifier of None is not known yet."""
        if self.remaining == 0:
            return False
        if self.sender is not None and self.sender != sender:
            return False
        if self.kind and self.kind != kind:
            return False
        return self.client_id is None or client_id is None or self.client_id == client_id

    def count_down(self) -> None:
        """Count a packet that it applies to."""
        if self.remaining is not None:
            self.remaining -= 1

    def wait(self, count: int | None = None, *, timeout: float = TIMEOUT_SECONDS) -> RecordedPacket:
        """Wait until it was applied to `count` packets, and return the last of them.

        By default: all its packets, or the first one if it has no limit. Raises TimeoutError.
        """
        future = self.hits.watch(_any, count=count or self._count or 1)
        return wait_blocking(future, timeout, self._describe_timeout, "wait_async")

    async def wait_async(
        self, count: int | None = None, *, timeout: float = TIMEOUT_SECONDS
    ) -> RecordedPacket:
        """Like `wait`, for a coroutine."""
        future = self.hits.watch(_any, count=count or self._count or 1)
        return await await_future(future, timeout, self._describe_timeout)

    def _describe_timeout(self) -> str:
        return f"the fault did not occur in time: {self!r}"

    def end(self) -> None:
        """End the fault."""
        self._end(self)

    def __enter__(self) -> "Fault":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()


def _any(recorded: RecordedPacket) -> bool:
    return True


class Faults:
    """The faults that are in effect, oldest first."""

    def __init__(self) -> None:
        self.active: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Put a fault into effect."""
        self.active.append(fault)

    def remove(self, fault: Fault) -> None:
        """End a fault; it may have ended already."""
        fault.remaining = 0
        if fault in self.active:
            self.active.remove(fault)

    def may_apply_to(self, sender: int, kind: int, client_id: str | None) -> bool:
        """Whether a fault may select such a packet, so that the proxy must buffer all of it."""
        return any(
            fault.may_apply_to(sender, kind, client_id)
            for fault in self.active
            if fault.action not in (STALL, CLOSED)
        )

    def take_for(self, sender: int, kind: int, client_id: str) -> tuple[Fault | None, list[Fault]]:
        """The fault and the delays that apply to this packet; counts the packet for each."""
        main: Fault | None = None
        delays: list[Fault] = []
        for fault in list(self.active):
            if fault.action in (STALL, CLOSED) or not fault.may_apply_to(sender, kind, client_id):
                continue
            if fault.action == DELAY:
                delays.append(fault)
            elif main is None:
                main = fault
            else:
                continue
            fault.count_down()
            if fault.remaining == 0:
                self.active.remove(fault)
        return main, delays

    def is_stalled(self, sender: int, client_id: str) -> bool:
        """Whether nothing is read from this side of this client's connection."""
        return any(
            fault.action == STALL and fault.may_apply_to(sender, 0, client_id)
            for fault in self.active
        )

    def refuses_connections(self) -> bool:
        """Whether new connections are refused."""
        return any(fault.action == CLOSED for fault in self.active)
