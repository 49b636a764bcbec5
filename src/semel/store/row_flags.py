"""The encoding of the flags of a stored message.

    record, inbox    qos | retain << 2 | dup << 3
    delivery         qos | retain << 2 | 8 if `delivery_extra` has a row for it

After PUBREC a delivery keeps only its QoS (RELEASED_FLAGS). Segments decode whole columns with the
same masks.
"""

from typing import Final

QOS_MASK: Final = 3
RETAIN: Final = 4
DUP: Final = 8
HAS_EXTRA: Final = 8
# The flags of a delivery after its PUBREC.
RELEASED_FLAGS: Final = 2
MAXIMUM_FLAGS: Final = 15


def received_flags(qos: int, *, retain: bool, dup: bool) -> int:
    """The flags of a message as it was received."""
    return qos | retain << 2 | dup << 3


def delivery_flags(qos: int, *, retain: bool, has_extra: bool) -> int:
    """The flags of an outgoing message."""
    return qos | retain << 2 | has_extra << 3
