"""One limit for the memory of the whole process, whatever takes it: the last guard of all bounds.

Each bound counts one thing; together, and multiplied by clients, they can be more than there is. So
the shell measures what the process has, once a second and whenever much has come in. Above the
limit the broker is *short*: it takes nothing new that it would have to keep in memory, and goes on
with what it has, until a twentieth below the limit.

    short ─▶ a client without a session is refused             one with a session may come back
          ─▶ a message that would wait in memory is dropped    what a store keeps goes on
          ─▶ a message for a new topic is not retained         a topic that has one may get another
          ─▶ a further subscription is refused
          ─▶ a slow reader is kept little                      see ROOM_WHEN_SHORT
          ─▶ idle sessions in memory are discarded             each second, the largest first
"""

import os
from collections.abc import Sequence
from typing import Final, final

# More than there is: no limit.
UNLIMITED: Final = 1 << 60

# Bytes that wait for one client that reads slowly, while memory is short.
ROOM_WHEN_SHORT: Final = 64 * 1024

_RESIDENT: Final = "/proc/self/statm"
# What the system has, and what a container may have of it, by either version of control groups.
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

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.is_short = False

    def update(self, resident: int) -> bool:
        """The process has so many bytes. Whether that makes a difference."""
        was_short = self.is_short
        if resident > self.limit:
            self.is_short = True
        elif resident < self.limit - self.limit // 20:
            self.is_short = False
        return self.is_short != was_short


def resident_bytes(path: str = _RESIDENT) -> int:
    """What the process has of the memory; 0 where the system does not say."""
    fields = _read(path).split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def available_bytes(system: str = _SYSTEM, container: Sequence[str] = _CONTAINER) -> int:
    """The memory that the machine has, or the container if that is less; 0: nobody says."""
    least = 0
    for line in _read(system).splitlines():
        if line.startswith("MemTotal:"):
            least = int(line.split()[1]) * 1024
    for path in container:
        text = _read(path).strip()
        # A container without a limit says "max", or a number beyond all memory.
        if text.isdigit() and (not least or int(text) < least):
            least = int(text)
    return least


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
