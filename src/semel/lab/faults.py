"""What a proxy does to the packets that pass it, other than passing them on.

A `Fault` says which packets it is for and how many of them. Of several that are for a packet, the
oldest has it; delays come on top. One that has had its packets is over.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Final

from semel import counts
from semel.lab.growing import TIMEOUT_SECONDS, Growing, block, follow
from semel.lab.recording import Recorded
from semel.mqtt import PACKET_NAMES
from semel.mqtt.side import SIDES

# What can happen to a packet.
CUT_BEFORE: Final = "cut before it"
CUT_AFTER: Final = "cut after it"
DROP: Final = "dropped"
REPEAT: Final = "repeated"
DELAY: Final = "delayed"
REFUSE: Final = "refused"
# What happens to others because of it.
LOST: Final = "lost with the connection"
# What can happen without one: nothing is read from a side; no connection is taken.
STALL: Final = "stalled"
CLOSED: Final = "closed"


class Fault:
    """Something that is going to happen, or happens until it is ended.

    As a context it ends with its block. `hits` has the packets that it had.
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
            raise ValueError(f"count is {count}: at least one packet, or None for all")
        if not seconds >= 0:
            raise ValueError(f"seconds is {seconds}: a delay is not negative")
        self.action = action
        self.kind = kind
        self.sender = sender
        self.client_id = client_id
        # How many packets it is still for; None: for all, until it is ended.
        self.left = count
        self.seconds = seconds
        self.reason = reason
        self.hits: Growing[Recorded] = Growing(most_items=1_000)
        self._count = count
        self._end = end

    def __repr__(self) -> str:
        kind = PACKET_NAMES[self.kind] if self.kind else "every packet"
        sender = "" if self.sender is None else f" of the {SIDES[self.sender]}"
        who = "" if self.client_id is None else f", client {self.client_id!r}"
        return (
            f"<{kind}{sender}{who}: {self.action}, {counts.count(len(self.hits), 'time')} so far>"
        )

    def may_concern(self, sender: int, kind: int, client_id: str | None) -> bool:
        """Whether it is for such a packet; a client identifier of None is not known yet."""
        if self.left == 0:
            return False
        if self.sender is not None and self.sender != sender:
            return False
        if self.kind and self.kind != kind:
            return False
        return self.client_id is None or client_id is None or self.client_id == client_id

    def take(self) -> None:
        """It has a packet more."""
        if self.left is not None:
            self.left -= 1

    def wait(self, count: int | None = None, *, timeout: float = TIMEOUT_SECONDS) -> Recorded:
        """Wait until it has had so many packets: all that it is for, or the first if it is for
        any number. The last of them. Raises TimeoutError."""
        future = self.hits.watch(_any, count=count or self._count or 1)
        return block(future, timeout, self._unmet, "wait_async")

    async def wait_async(
        self, count: int | None = None, *, timeout: float = TIMEOUT_SECONDS
    ) -> Recorded:
        """The same for a coroutine."""
        future = self.hits.watch(_any, count=count or self._count or 1)
        return await follow(future, timeout, self._unmet)

    def _unmet(self) -> str:
        return f"it has not happened: {self!r}"

    def end(self) -> None:
        """Let it happen no more."""
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


def _any(recorded: Recorded) -> bool:
    return True


class Faults:
    """Those that are under way, the oldest first."""

    def __init__(self) -> None:
        self.active: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """From now on."""
        self.active.append(fault)

    def remove(self, fault: Fault) -> None:
        """No more; it may be over already."""
        fault.left = 0
        if fault in self.active:
            self.active.remove(fault)

    def may_concern(self, sender: int, kind: int, client_id: str | None) -> bool:
        """Whether anything may happen to such a packet, so that it has to be looked at whole."""
        return any(
            fault.may_concern(sender, kind, client_id)
            for fault in self.active
            if fault.action not in (STALL, CLOSED)
        )

    def of(self, sender: int, kind: int, client_id: str) -> tuple[Fault | None, list[Fault]]:
        """What happens to this packet, and by what it is delayed."""
        main: Fault | None = None
        delays: list[Fault] = []
        for fault in list(self.active):
            if fault.action in (STALL, CLOSED) or not fault.may_concern(sender, kind, client_id):
                continue
            if fault.action == DELAY:
                delays.append(fault)
            elif main is None:
                main = fault
            else:
                continue
            fault.take()
            if fault.left == 0:
                self.active.remove(fault)
        return main, delays

    def is_stalled(self, sender: int, client_id: str) -> bool:
        """Whether nothing is read from this side of the connection of this client."""
        return any(
            fault.action == STALL and fault.may_concern(sender, 0, client_id)
            for fault in self.active
        )

    def are_closed(self) -> bool:
        """Whether connections are refused."""
        return any(fault.action == CLOSED for fault in self.active)
