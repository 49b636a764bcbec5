"""One limit for the memory of the whole process, in addition to all other bounds.

Each other bound limits one thing; together, and multiplied by clients, they can exceed the memory
of the machine. So the server measures the process once a second and after many received bytes.
Above the limit memory is *short*, until it is 5 % below the limit: the broker continues with what
it has, and accepts nothing new that it would have to keep in memory.

    short ─▶ a client without a session is refused             one with a session may return
          ─▶ a message for a queue in memory is dropped        durable sessions still queue it
          ─▶ a message for a new topic is not retained         an existing one may be replaced
          ─▶ another subscription is refused
          ─▶ less is kept for a slow reader                    see ROOM_WHEN_SHORT
          ─▶ idle sessions in memory are discarded             each second, the largest first
"""

import os
from collections.abc import Sequence
from typing import Final, final

# No limit: more than any machine has.
UNLIMITED: Final = 1 << 60

# Bytes kept for one slow client while memory is short.
ROOM_WHEN_SHORT: Final = 64 * 1024

_RESIDENT: Final = "/proc/self/statm"
# The memory of the machine, and the limit of the container in cgroups v2 and v1.
_SYSTEM: Final = "/proc/meminfo"
_CONTAINER: Final = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


@final
class Memory:
    """Whether memory is short."""

    limit: int
    is_short: bool
    # The resident bytes of the process when they were last measured, and the most so far.
    resident: int
    most_resident: int

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.is_short = False
        self.resident = 0
        self.most_resident = 0

    def update(self, resident: int) -> bool:
        """Update from the resident bytes of the process. Returns whether `is_short` changed."""
        self.resident = resident
        self.most_resident = max(self.most_resident, resident)
        was_short = self.is_short
        if resident > self.limit:
            self.is_short = True
        elif resident < self.limit - self.limit // 20:
            self.is_short = False
        return self.is_short != was_short


def resident_bytes(path: str = _RESIDENT) -> int:
    """The resident memory of the process; 0 if unknown."""
    fields = _read(path).split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def available_bytes(system: str = _SYSTEM, container: Sequence[str] = _CONTAINER) -> int:
    """The memory of the machine, or the limit of the container if lower; 0 if unknown."""
    least = 0
    for line in _read(system).splitlines():
        if line.startswith("MemTotal:"):
            least = int(line.split()[1]) * 1024
    for path in container:
        text = _read(path).strip()
        # Without a limit this is "max", or a number above the memory of the machine.
        if text.isdigit() and (not least or int(text) < least):
            least = int(text)
    return least


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
