"""The packets of a bench, encoded before anything is measured.

A `Stream` is a block of PUBLISH packets of one length that is sent repeatedly. All payloads in a
block differ. At QoS 1 and 2 the identifiers in a block are 1, 2, 3, …: a block is longer than
any window, so an identifier is free before it is used again.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final

from semel.lab.load.description import WINDOW
from semel.lab.load.wire import BLOCK, PacketLayout, layout_of
from semel.lab.load.wire import encode_connect as encode_connect_with
from semel.mqtt import Publish, encode

# First bytes of PUBLISH by QoS.
PUBLISH: Final = (0x30, 0x32, 0x34)
# Packets in a block that has packet identifiers, unless there are many blocks.
CYCLE: Final = 10_000


@dataclass(frozen=True)
class Stream:
    """Complete packets of one length."""

    block: bytes
    layout: PacketLayout


class Prepared:
    """The packets of a stream, for one publisher."""

    def __init__(self, stream: Stream) -> None:
        self.cycle = len(stream.block) // stream.layout.size
        self._view = memoryview(stream.block)
        self._size = stream.layout.size
        self._at = 0

    def take(self, most: int) -> tuple[memoryview, int]:
        """The next packets, at most up to the end of the block."""
        count = min(most, self.cycle - self._at)
        start = self._at * self._size
        self._at = (self._at + count) % self.cycle
        return self._view[start : start + count * self._size], count


def encode_connect(version: int, client_id: str) -> bytes:
    """CONNECT with a clean session and without keep alive."""
    return encode_connect_with(version, client_id, WINDOW)


@cache
def encode_stream(
    version: int, topic_names: tuple[str, ...], payload_size: int, qos: int, *, cycle: int = CYCLE
) -> Stream:
    """PUBLISH to each topic in turn, with at least `cycle` packet identifiers."""
    layout = layout_of(version, topic_names[0], payload_size, qos)
    payload = f"{{:0{payload_size}}}"
    enough = cycle if qos else -(-BLOCK // layout.size)
    names = topic_names * -(-enough // len(topic_names))
    packets = [
        encode(Publish(name, payload.format(number).encode(), qos, number if qos else 0), version)
        for number, name in enumerate(names, 1)
    ]
    block = b"".join(packets)
    assert len(block) == layout.size * len(packets), "packets differ in length"
    return Stream(block, layout)
