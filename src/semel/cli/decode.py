"""`semel decode`: what packets in hexadecimal say, and which rules they break."""

import json
import sys
from collections.abc import Iterator

import click

from semel.counts import count
from semel.mqtt import MQTT5, MQTT311, PACKET_NAMES, Observation, Violation, observe
from semel.mqtt.packet_types import CONNECT, PUBLISH

VERSIONS = {"3.1.1": MQTT311, "5.0": MQTT5}
NAMES = {level: name for name, level in VERSIONS.items()}


def parse_hex(parts: tuple[str, ...]) -> bytes:
    """Bytes from hexadecimal words; spaces, colons and 0x are how people write them."""
    try:
        words = [sys.stdin.read()] if parts == ("-",) else list(parts)
    except UnicodeError:
        raise click.BadParameter(
            "not hexadecimal bytes, nor text at all", param_hint="HEX"
        ) from None
    digits = "".join(words).replace("0x", "").replace(":", "").replace("-", "")
    digits = "".join(digits.split())
    try:
        return bytes.fromhex(digits)
    except ValueError:
        odd = " (an odd number of digits)" if len(digits) % 2 else ""
        raise click.BadParameter(f"not hexadecimal bytes{odd}", param_hint="HEX") from None


def observed(data: bytes, version: int) -> Iterator[Observation]:
    """The packets of `data`, each under the version that the last CONNECT set."""
    start = 0
    while True:
        observation = observe(data, version, start=start)
        if observation is None:
            return
        yield observation
        start = observation.end
        if observation.packet_type == CONNECT:
            version = observation.version


def shown(value: int | str | bytes) -> str:
    """A field for people. Text of a peer is escaped."""
    if isinstance(value, bytes):
        return f"{count(len(value), 'byte')} {value.hex()}".rstrip()
    return ascii(value) if isinstance(value, str) else str(value)


def flags(observation: Observation) -> str:
    """What the first byte of a PUBLISH says."""
    bits = observation.flags
    dup, qos, retain = bits >> 3, bits >> 1 & 3, bits & 1
    return f"QoS {qos}{', DUP' if dup else ''}{', RETAIN' if retain else ''}"


def as_json(observation: Observation, data: bytes) -> dict[str, object]:
    return {
        "packet": PACKET_NAMES[observation.packet_type] if observation.packet_type else None,
        "mqtt": NAMES.get(observation.version),
        "start": observation.start,
        "end": observation.end,
        "bytes": data[observation.start : observation.end].hex(),
        "flags": observation.flags,
        "fields": [
            [name, {"hex": value.hex()} if isinstance(value, bytes) else value]
            for name, value in observation.fields
        ],
        "violations": [violation_json(violation) for violation in observation.violations],
    }


def violation_json(violation: Violation) -> dict[str, object]:
    return {
        "rule": violation.rule.name,
        "statements": list(violation.statements),
        "sentence": violation.rule.sentence,
        "seen": violation.seen,
    }


def print_packet(observation: Observation) -> None:
    kind = observation.packet_type
    name = PACKET_NAMES[kind] if kind else "no packet type"
    size = count(observation.end - observation.start, "byte")
    version = NAMES.get(observation.version, "?")
    head = f"{observation.start:>6}  {click.style(name, bold=True)}  {size}, MQTT {version}"
    click.echo(head + (f", {flags(observation)}" if kind == PUBLISH else ""))
    for field, value in observation.fields:
        click.echo(f"        {field:<24} {shown(value)}")
    for violation in observation.violations:
        numbers = ", ".join(violation.statements)
        mark = click.style(f"✗ {violation.rule.name}", fg="red")
        click.echo(f"        {mark}{f' [{numbers}]' if numbers else ''}")
        click.echo(f"          {violation.rule.sentence} Seen: {violation.seen}.")


@click.command
@click.argument("hex_bytes", metavar="HEX...", nargs=-1, required=True)
@click.option(
    "--mqtt",
    type=click.Choice(list(VERSIONS)),
    default="5.0",
    show_default=True,
    help="The version spoken, until a CONNECT among the packets says otherwise.",
)
@click.option("--json", "json_wanted", is_flag=True, help="Print one JSON object.")
def command(hex_bytes: tuple[str, ...], mqtt: str, json_wanted: bool) -> None:
    """Show what MQTT packets say, field by field, and every rule that they break.

    HEX is one or more packets in hexadecimal, or - for standard input. Exits with 1 if a rule is
    broken or the last packet is not complete.

    \b
        semel decode --mqtt 3.1.1 "30 0B 00 08 73 65 6E 73 6F 72 2F 23 78"
    """
    data = parse_hex(hex_bytes)
    observations = list(observed(data, VERSIONS[mqtt]))
    end = observations[-1].end if observations else 0
    broken = any(observation.violations for observation in observations)
    if json_wanted:
        packets = [as_json(observation, data) for observation in observations]
        click.echo(json.dumps({"packets": packets, "incomplete": data[end:].hex()}))
    else:
        for observation in observations:
            print_packet(observation)
        if end < len(data):
            click.echo(
                f"{end:>6}  {count(len(data) - end, 'byte')} of a packet that is not complete"
            )
    if broken or end < len(data):
        sys.exit(1)
