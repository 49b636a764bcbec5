"""`Rule`, one requirement of the standard, and `Violation`, a broken rule.

A `Rule` has a name that states the requirement, the numbers of the statements that it covers in
each version, one sentence in our words, the reason code that is sent when a peer breaks it, and the
boundaries at which it is checked:

    encode     a caller cannot build or encode such a packet (constructor or `encode` raises)
    decode     received bytes that break it are refused, and the audit reports them
    exchange   `Exchange` refuses the packet in the current state, whichever side sends it
    limit      a limit of ours, which the owner sets; the standard has none


Statement numbers are those of OASIS without the `MQTT-`; keys `U3-nn` and `U5-nn` are unnumbered
requirements, listed in `semel/standard`. A number that concerns one packet type only is written
`PUBACK:3.4.2-1`.
"""

from typing import Final, final

from semel.mqtt.packet_types import MQTT5, MQTT311, PACKET_NAMES
from semel.mqtt.reasons import SUCCESS


@final
class Rule:
    """One requirement of the standard. `return_code` is its CONNACK code in 3.1.1, 0 if none."""

    name: Final[str]
    sentence: Final[str]
    mqtt311: Final[tuple[str, ...]]
    mqtt5: Final[tuple[str, ...]]
    boundaries: Final[tuple[str, ...]]
    reason: Final[int]
    return_code: Final[int]

    def __init__(
        self,
        name: str,
        sentence: str,
        *,
        mqtt311: str = "",
        mqtt5: str = "",
        at: str,
        reason: int,
        return_code: int = 0,
    ) -> None:
        self.name = name
        self.sentence = sentence
        self.mqtt311 = tuple(mqtt311.split())
        self.mqtt5 = tuple(mqtt5.split())
        self.boundaries = tuple(at.split())
        self.reason = reason
        self.return_code = return_code

    @property
    def closes(self) -> bool:
        """Whether a violation closes the connection."""
        return self.reason != SUCCESS

    def statements(self, version: int = 0, packet_type: int = 0) -> tuple[str, ...]:
        """The statement numbers of one version (0: both), for one packet type (0: all).

        They are returned without the packet type: keys such as `U3-01` unchanged, others with the
        prefix `MQTT-`, as the standard prints them.
        """
        numbers: list[str] = []
        if version != MQTT5:
            numbers.extend(self.mqtt311)
        if version != MQTT311:
            numbers.extend(self.mqtt5)
        result: list[str] = []
        for number in numbers:
            packet_name, colon, bare = number.partition(":")
            if not colon:
                bare = number
            elif packet_type and packet_name != PACKET_NAMES[packet_type]:
                continue
            full = bare if bare.startswith("U") else "MQTT-" + bare
            if full not in result:
                result.append(full)
        return tuple(result)

    def __repr__(self) -> str:
        return self.name


class Violation(Exception):
    """A broken rule, and what was seen (never a payload or a password).

    Raised if our caller breaks the rule, returned as an event if the peer does. `version` and
    `packet_type` are 0 until a function that knows them sets them.
    """

    def __init__(self, rule: Rule, seen: str, packet_type: int = 0) -> None:
        super().__init__(rule.name)
        self.rule = rule
        self.seen = seen
        self.packet_type = packet_type
        self.version = 0

    @property
    def statements(self) -> tuple[str, ...]:
        """The statement numbers for this version and packet type."""
        return self.rule.statements(self.version, self.packet_type)

    def __str__(self) -> str:
        numbers = self.statements
        shown = ", ".join(numbers[:3]) + (", …" if len(numbers) > 3 else "")
        where = f" [{shown}]" if numbers else ""
        # Will Properties are part of CONNECT; 0 also means unknown.
        packet = f"{PACKET_NAMES[self.packet_type]}: " if self.packet_type else ""
        return f"{packet}{self.rule.name}{where}: {self.rule.sentence} Seen: {self.seen}."


def report(found: list[Violation] | None, violation: Violation) -> None:
    """Raise `violation`, or append it to `found` if the caller collects violations."""
    if found is None:
        raise violation
    found.append(violation)
