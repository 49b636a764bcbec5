"""`semel decode`: print packets given in hexadecimal, and the rules that they break."""

import json
import sys
from collections.abc import Iterator

import click

from semel.cli.flags import ONE_OBJECT, mqtt_version_option
from semel.cli.option_groups import SemelCommand
from semel.counts import count
from semel.mqtt import MQTT5, MQTT311, PACKET_NAMES, Observation, Violation, observe
from semel.mqtt.packet_types import CONNECT, PUBLISH

NAMES = {MQTT311: "3.1.1", MQTT5: "5.0"}


def parse_hex(parts: tuple[str, ...]) -> bytes:
    """Bytes from hexadecimal words, which may have spaces, colons and 0x."""
    try:
        words = [sys.stdin.read()] if parts == ("-",) else list(parts)
    except UnicodeError:
        raise click.BadParameter(
            "standard input is not text, so not hexadecimal bytes", param_hint="HEX"
        ) from None
    digits = "".join(words).replace("0x", "").replace(":", "").replace("-", "")
    digits = "".join(digits.split())
    try:
        return bytes.fromhex(digits)
    except ValueError:
        odd = " (an odd number of digits)" if len(digits) % 2 else ""
        raise click.BadParameter(f"not hexadecimal bytes{odd}", param_hint="HEX") from None


def observe_all(data: bytes, version: int) -> Iterator[Observation]:
    """The packets of `data`, each in the version of the last CONNECT before it."""
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
    """A field as text for people. Text of a peer is escaped."""
    if isinstance(value, bytes):
        return f"{count(len(value), 'byte')} {value.hex()}".rstrip()
    return ascii(value) if isinstance(value, str) else str(value)


def flags(observation: Observation) -> str:
    """The flags of a PUBLISH."""
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
    title = f"{observation.start:>6}  {click.style(name, bold=True)}  {size}, MQTT {version}"
    click.echo(title + (f", {flags(observation)}" if kind == PUBLISH else ""))
    for field, value in observation.fields:
        click.echo(f"        {field:<24} {shown(value)}")
    for violation in observation.violations:
        numbers = ", ".join(violation.statements)
        mark = click.style(f"✗ {violation.rule.name}", fg="red")
        click.echo(f"        {mark}{f' [{numbers}]' if numbers else ''}")
        click.echo(f"          {violation.rule.sentence} Seen: {violation.seen}.")


@click.command(
    cls=SemelCommand,
    examples=(
        'semel decode -V 3.1.1 "30 0B 00 08 73 65 6E 73 6F 72 2F 23 78"',
        "xxd -p capture.bin | semel decode --json -",
    ),
)
@click.argument("hex_bytes", metavar="HEX...", nargs=-1, required=True)
@mqtt_version_option("The version of MQTT before the first CONNECT. By default 5.")
@ONE_OBJECT
def command(hex_bytes: tuple[str, ...], mqtt_version: int | None, is_json: bool) -> None:
    """Print MQTT packets field by field, and every rule that they break.

    HEX is one or more packets in hexadecimal, or - for standard input. Exits with 1 if a rule is
    broken or the last packet is incomplete.
    """
    data = parse_hex(hex_bytes)
    observations = list(observe_all(data, mqtt_version or MQTT5))
    end = observations[-1].end if observations else 0
    broken = any(observation.violations for observation in observations)
    if is_json:
        packets = [as_json(observation, data) for observation in observations]
        click.echo(json.dumps({"packets": packets, "incomplete": data[end:].hex()}))
    else:
        for observation in observations:
            print_packet(observation)
        if end < len(data):
            click.echo(f"{end:>6}  {count(len(data) - end, 'byte')} of an incomplete packet")
    if broken or end < len(data):
        sys.exit(1)
