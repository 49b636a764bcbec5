"""Protocol versions, packet types and flags, under the names of the standard.

They are plain ints, so that compiled code compares machine words.
"""

from typing import Final

# Protocol levels, as in CONNECT. They also identify the versions in this package.
MQTT311: Final = 4
MQTT5: Final = 5

# [2.1.2] MQTT Control Packet types.
CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15

# [Table 2-2] The low four bits of the first byte, by packet type. Those of PUBLISH vary.
# (Bytes, because compiled code indexes them ten times faster than a tuple.)
VARYING_FLAGS: Final = 255
FIXED_FLAGS: Final = bytes((255, 0, 0, 255, 0, 0, 2, 0, 2, 0, 2, 0, 0, 0, 0, 0))

# [3.3.1] The low four bits of the first byte of a PUBLISH.
DUP_FLAG: Final = 0b1000
QOS_FLAGS: Final = 0b0110
RETAIN_FLAG: Final = 0b0001

# Will Properties are a property section of their own; the tables use type 0 for them.
WILL: Final = 0

PACKET_NAMES: Final = (
    "WILL",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "AUTH",
)


def first_byte(packet_type: int) -> int:
    """The first byte of a packet of this type, which must not be PUBLISH."""
    return packet_type << 4 | FIXED_FLAGS[packet_type]
