"""A set of packet identifiers in at most 8 KiB: 3.1.1 lets a peer keep all 65,535 in use."""

from typing import final

from mypy_extensions import i64, mypyc_attr


@final
@mypyc_attr(acyclic=True)
class PacketIds:
    """One bit for each identifier, up to the highest one in the set."""

    _bits: bytearray
    _count: int

    def __init__(self) -> None:
        self._bits = bytearray()
        self._count = 0

    def add(self, packet_id: int) -> None:
        """Add an identifier."""
        at: i64 = packet_id >> 3
        missing = at + 1 - len(self._bits)
        if missing > 0:
            self._bits += bytes(missing)
        old: i64 = self._bits[at]
        new = old | 1 << (packet_id & 7)
        if new != old:
            self._bits[at] = new
            self._count += 1

    def discard(self, packet_id: int) -> None:
        """Remove an identifier if it is in the set."""
        if packet_id in self:
            self._bits[packet_id >> 3] &= ~(1 << (packet_id & 7)) & 255
            self._count -= 1
            if self._count == 0:
                self._bits = bytearray()

    def __contains__(self, packet_id: int) -> bool:
        at = packet_id >> 3
        return at < len(self._bits) and bool(self._bits[at] >> (packet_id & 7) & 1)

    def __len__(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """The size of the set in bytes."""
        return len(self._bits)

    def copy(self) -> "PacketIds":
        """An independent copy."""
        copied = PacketIds()
        copied._bits = bytearray(self._bits)
        copied._count = self._count
        return copied

    def first(self, count: int) -> list[int]:
        """The lowest identifiers, at most `count`."""
        found: list[int] = []
        for at in range(len(self._bits)):
            for bit in range(8):
                if len(found) >= count:
                    return found
                if self._bits[at] >> bit & 1:
                    found.append(at << 3 | bit)
        return found

    def listed(self) -> list[int]:
        """All identifiers in ascending order."""
        return [
            at << 3 | bit
            for at in range(len(self._bits))
            for bit in range(8)
            if self._bits[at] >> bit & 1
        ]


def has_id(ids: PacketIds | None, packet_id: int) -> bool:
    """Whether an identifier is in the set; None is an empty set."""
    return ids is not None and packet_id in ids


def with_id(ids: PacketIds | None, packet_id: int) -> PacketIds:
    """The set, which is changed, with this identifier; None is an empty set."""
    if ids is None:
        ids = PacketIds()
    ids.add(packet_id)
    return ids


def without_id(ids: PacketIds | None, packet_id: int) -> PacketIds | None:
    """The set, which is changed, without this identifier; None is an empty set."""
    if ids is None:
        return None
    ids.discard(packet_id)
    return ids if len(ids) else None
