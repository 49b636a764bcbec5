"""Conformance vectors: bytes and their meaning in the standard, as JSON, one file per packet type.

A vector is an object with these keys:

    name         a sentence
    statements   the statements it exercises; none where the standard has no number for the matter
    version      "3.1.1" or "5.0": what is spoken on the connection
    direction    "C>S", "S>C" or "both": who may send such a packet
    bytes        one packet, in the notation of `parse_bytes`

and one of

    packet       the bytes are right and mean this packet; `encodes_to` gives our own form of it
                 where that is another
    rule         the bytes break this rule, by its name in semel.mqtt

A vector with `build` in the place of `bytes` is a packet that cannot be built or encoded: it breaks
`rule`. `maximum_packet_size`, where present, is what the receiver takes.

A packet is an object with its `type` and the arguments of its constructor, those left out that
have their default. Binary data is "hex:" and the notation of `parse_bytes`; "text:a*65536" is a
text of 65,536 a's. `properties` is an object with the arguments of `Properties`, or, where order
matters or a property is repeated, a list of [name or identifier, value].

The file "exchange" holds traces instead: `steps` are [direction, bytes] on one connection. With
`rule`, the last step breaks it and all others are right; without, all are right. `carried` lists
[who sent the PUBLISH, packet identifier, how far it got] of what the session had open before: for
PUBLISH_QOS_1 and PUBLISH_QOS_2 nothing was answered yet, for PUBREC that had come, for PUBREL that
had been sent. Where it is absent, it is unknown what was open.
"""

import json
from importlib.resources import files

EXCHANGE = "exchange"


def names() -> list[str]:
    """The files by name, in alphabetical order."""
    entries = files(__name__).iterdir()
    return sorted(e.name.removesuffix(".json") for e in entries if e.name.endswith(".json"))


def load(name: str) -> list[dict[str, object]]:
    """The vectors of one file, in its order."""
    text = files(__name__).joinpath(f"{name}.json").read_text(encoding="ascii")
    vectors: list[dict[str, object]] = json.loads(text)
    return vectors


def parse_bytes(text: str) -> bytes:
    """Bytes from hexadecimal pieces with spaces between; `61*3` stands for 616161."""
    pieces = []
    for piece in text.split():
        digits, _, times = piece.partition("*")
        pieces.append(bytes.fromhex(digits) * int(times or 1))
    return b"".join(pieces)
