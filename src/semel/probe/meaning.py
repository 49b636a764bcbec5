"""What bytes mean, in words, for evidence: "PUBLISH QoS 1, packet_id 7, topic_name 'a'"."""

from semel.mqtt import PACKET_NAMES, observe
from semel.mqtt.packet_types import PUBLISH

# Longer values are shortened.
MAXIMUM_SHOWN = 60


def describe(data: bytes, version: int) -> str:
    """The packets in `data`, with the rules that they break."""
    parts = []
    start = 0
    while start < len(data):
        observation = observe(data, version, start=start)
        if observation is None:
            parts.append("the beginning of a packet")
            break
        kind = observation.packet_type
        words = [PACKET_NAMES[kind] if kind else "packet type 0"]
        if kind == PUBLISH:
            bits = observation.flags
            words[0] += f" QoS {bits >> 1 & 3}{' DUP' if bits & 8 else ''}"
            words[0] += " RETAIN" if bits & 1 else ""
        words += [f"{name} {shown(value)}" for name, value in observation.fields]
        broken = "; ".join(f"breaks {violation.rule.name}" for violation in observation.violations)
        parts.append(", ".join(words) + (f" ({broken})" if broken else ""))
        version = observation.version or version
        start = observation.end
    return " | ".join(parts)


def shown(value: object) -> str:
    """A field for people: escaped, and shortened if it is long."""
    text = value.hex() if isinstance(value, bytes) else ascii(value)
    return text if len(text) <= MAXIMUM_SHOWN else f"{text[:MAXIMUM_SHOWN]}…"
