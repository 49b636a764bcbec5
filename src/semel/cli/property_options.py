"""-D of `semel pub` and `semel sub`: properties of MQTT 5.0 on the command line.

    -D packet property value            -D publish content-type text/plain
    -D packet user-property name value

Names are those of the standard, in lowercase with hyphens. `Properties` validates the values, as
everywhere, and an error names the broken rule.
"""

import os
from collections.abc import Sequence
from typing import Final

import click

from semel.mqtt import Properties, Violation
from semel.mqtt.packet_types import CONNECT, DISCONNECT, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, WILL
from semel.mqtt.properties import PropertyItem, check_properties_allowed, property_identifier

# Packets that can be given properties.
PACKETS: Final = {
    "connect": CONNECT,
    "publish": PUBLISH,
    "will": WILL,
    "subscribe": SUBSCRIBE,
    "unsubscribe": UNSUBSCRIBE,
    "disconnect": DISCONNECT,
}
USER_PROPERTY: Final = "user-property"
# Properties whose name here is not the standard's with underscores.
OUR_NAMES: Final = {
    USER_PROPERTY: "user_properties",
    "subscription-identifier": "subscription_identifiers",
}
TEXTS: Final = (
    "assigned_client_identifier",
    "authentication_method",
    "content_type",
    "reason_string",
    "response_information",
    "response_topic",
    "server_reference",
)
BINARIES: Final = ("authentication_data", "correlation_data")


def take_properties(
    args: Sequence[str], values: dict[str, int]
) -> tuple[list[str], list[tuple[str, ...]]]:
    """The arguments without -D, and the words of each -D. Raises click.UsageError."""
    rest: list[str] = []
    properties: list[tuple[str, ...]] = []
    at = 0
    while at < len(args):
        word = args[at]
        at += 1
        if word == "--":
            rest += args[at - 1 :]
            break
        if word in ("-D", "--property"):
            size = 4 if args[at + 1 : at + 2] == [USER_PROPERTY] else 3
            words = tuple(args[at : at + size])
            if len(words) < size:
                raise click.UsageError(
                    "-D needs a packet, a property and a value, such as"
                    " -D publish content-type text/plain; a user property has a name and a value"
                )
            properties.append(words)
            at += size
            continue
        rest.append(word)
        size = words_after(word, values)
        rest += args[at : at + size]
        at += size
    return rest, properties


def words_after(word: str, values: dict[str, int]) -> int:
    """How many of the following words belong to this one."""
    if word in values:
        return values[word]
    if word.startswith("--") or not word.startswith("-"):
        return 0
    # Combined short options: the last one may take the next word, an earlier one takes the rest.
    for position, letter in enumerate(word[1:], 2):
        if values.get(f"-{letter}", 0):
            return values[f"-{letter}"] if position == len(word) else 0
    return 0


def parse_properties(given: Sequence[tuple[str, ...]]) -> dict[int, Properties]:
    """The properties of all -D, by packet type. Raises click.UsageError with the broken rule."""
    items: dict[int, list[PropertyItem]] = {}
    for packet, name, *words in given:
        packet_type = PACKETS.get(packet.lower())
        if packet_type is None:
            known = ", ".join(PACKETS)
            raise click.UsageError(f"-D {packet}: properties can be given to {known}")
        ours = OUR_NAMES.get(name, name.replace("-", "_"))
        identifier = 0 if "_" in name else property_identifier(ours)
        if not identifier:
            raise click.UsageError(f"-D {packet} {name}: MQTT 5.0 has no property of that name")
        option = f"-D {packet} {name}"
        item: PropertyItem
        if name == USER_PROPERTY:
            item = (identifier, (words[0], words[1]))
        elif ours in TEXTS:
            item = (identifier, words[0])
        elif ours in BINARIES:
            item = (identifier, os.fsencode(words[0]))
        else:
            item = (identifier, parse_number(option, words[0]))
        try:
            check_properties_allowed(packet_type, Properties([item]).present, None)
            Properties([*items.get(packet_type, ()), item])
        except Violation as violation:
            raise click.UsageError(f"{option}: {violation}") from None
        items.setdefault(packet_type, []).append(item)
    return {packet_type: Properties(found) for packet_type, found in items.items()}


def parse_number(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise click.UsageError(f"{option} needs a number, not {text!r}") from None
