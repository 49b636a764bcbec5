"""The conformance vectors as packets that a client or a server could send on a connection.

Left out is what a receiver may accept or refuse: limits of its own, packets that are larger than
others can handle, and a payload against its Payload Format Indicator [3.3.2.3.2].
"""

import re
from dataclasses import dataclass
from typing import Final

from semel import vectors
from semel.mqtt import RULES, Rule
from semel.mqtt.observation import observe
from semel.mqtt.packet_types import CONNECT, PUBLISH
from semel.mqtt.reasons import PAYLOAD_FORMAT_INVALID

# Who sends a packet, in the words of the vectors.
CLIENT_TO_SERVER: Final = "C>S"
SERVER_TO_CLIENT: Final = "S>C"
BOTH: Final = "both"
# A receiver may limit the size of packets: larger ones are left out.
LARGEST: Final = 100_000
# Rules that only our own limits state.
LIMIT: Final = "limit"
_VERSIONS: Final = {"3.1.1": 4, "5.0": 5}
_RULES: Final = {rule.name: rule for rule in RULES}


@dataclass(frozen=True)
class WireVector:
    """One packet. `rule` is None if it is right."""

    file: str
    name: str
    version: int
    statements: tuple[str, ...]
    data: bytes
    rule: Rule | None
    # Whether it has characters that a receiver may refuse.
    is_refusable: bool
    # Whether it has a text that begins with $.
    has_dollar_name: bool

    @property
    def packet_type(self) -> int:
        return self.data[0] >> 4

    @property
    def client_id(self) -> str | None:
        """The client identifier of a CONNECT that is right or wrong; None: it has none."""
        observation = observe(self.data, 0) if self.packet_type == CONNECT else None
        if observation is not None:
            for name, value in observation.fields:
                if name == "client_id" and isinstance(value, str):
                    return value
        return None

    @property
    def is_qos_2_publish(self) -> bool:
        return self.data[0] & 0xF6 == PUBLISH << 4 | 4


def load_wire_vectors(direction: str) -> list[WireVector]:
    """The packets that are sent in a direction, in the order of the vectors' files."""
    found = []
    for file in vectors.names():
        for entry in vectors.load(file):
            if "bytes" not in entry or entry["direction"] not in (direction, BOTH):
                continue
            if "maximum_packet_size" in entry:
                continue
            data = vectors.parse_bytes(str(entry["bytes"]))
            rule = _RULES[str(entry["rule"])] if "rule" in entry else None
            if len(data) > LARGEST or (rule is not None and is_optional(rule)):
                continue
            statements = entry["statements"]
            assert isinstance(statements, list)
            found.append(
                WireVector(
                    file,
                    str(entry["name"]),
                    _VERSIONS[str(entry["version"])],
                    tuple(str(statement) for statement in statements),
                    data,
                    rule,
                    has_refusable_text(entry.get("packet")),
                    has_dollar_name(entry.get("packet")),
                )
            )
    return found


def has_refusable_text(value: object) -> bool:
    """Whether a text in the description of a packet has a character that may be refused.

    [1.5.4] U+0001 to U+001F, U+007F to U+009F, and the non-characters of Unicode.
    """
    if isinstance(value, dict):
        return any(has_refusable_text(each) for each in value.values())
    if isinstance(value, list):
        return any(has_refusable_text(each) for each in value)
    if not isinstance(value, str):
        return False
    return any(
        0 < ord(c) < 0x20
        or 0x7F <= ord(c) <= 0x9F
        or 0xFDD0 <= ord(c) <= 0xFDEF
        or ord(c) & 0xFFFE == 0xFFFE
        for c in value
    )


def has_dollar_name(value: object) -> bool:
    """Whether a text in the description of a packet begins with $, as names of servers do."""
    if isinstance(value, dict):
        return any(has_dollar_name(each) for each in value.values())
    if isinstance(value, list):
        return any(has_dollar_name(each) for each in value)
    return isinstance(value, str) and value.startswith("$")


def is_optional(rule: Rule) -> bool:
    """Whether a receiver need not check a rule."""
    return LIMIT in rule.boundaries or rule.reason == PAYLOAD_FORMAT_INVALID


def short_title(name: str) -> str:
    """The name of a vector without the statements before it."""
    return re.sub(r"^((MQTT-[\d.]+-\d+|U\d-\d+)(, )?)+: ", "", name)


def slug(text: str) -> str:
    """A text as part of a case's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:70].rstrip("-")
