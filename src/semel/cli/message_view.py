"""How `semel sub` prints a message.

To a pipe or file it writes the payload and a newline, byte for byte what mosquitto_sub writes. On a
terminal it prints a line for people, in which text of a peer cannot control the terminal. With
--json it prints one object per line, and with -F the format of the user (`message_format`).
"""

import base64
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import click

from semel.cli.message_format import (
    PROPERTY_NAMES,
    FormattedTime,
    MessageFormat,
    Shown,
    encoded,
    safely,
)
from semel.cli.safe_text import shown_text
from semel.mqtt import NO_PROPERTIES, Properties
from semel.mqtt.properties import SUBSCRIPTION_IDENTIFIER, USER_PROPERTY

# Returns the output for a message, and a sentence if a part of it could not be printed.
Print = Callable[[Shown], tuple[bytes, str | None]]


@dataclass(frozen=True)
class MessageStyle:
    """The flags about the output."""

    form: str | None
    verbose: bool
    end_of_line: bool
    pretty: bool
    json: bool
    is_terminal: bool
    color: bool
    # Whether -D gives the subscriptions an identifier.
    identifiers: bool
    quiet: bool


@dataclass(frozen=True)
class Stripped:
    """A message without the subscription identifiers that the client chose."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    properties: Properties


def stripped(message: Shown) -> Shown:
    """The message without subscription identifiers, for a user who gave none."""
    properties = message.properties
    if not properties.has(SUBSCRIPTION_IDENTIFIER):
        return message
    left = [item for item in properties.items if item[0] != SUBSCRIPTION_IDENTIFIER]
    return Stripped(
        message.topic,
        message.payload,
        message.qos,
        message.retain,
        message.dup,
        message.packet_id,
        Properties(left) if left else NO_PROPERTIES,
    )


def use_color(is_terminal: bool) -> bool:
    """Whether to print in color: on a terminal, unless NO_COLOR is set (no-color.org)."""
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def make_printer(style: MessageStyle) -> Print:
    """The function that formats a message in this style. Raises BadFormat."""
    clean = safely if style.is_terminal else None
    if style.json:
        return lambda message: (json_line(message, plain=style.is_terminal), None)
    if style.form is not None:
        form = MessageFormat(style.form, pretty=style.pretty, clean=clean)
        end = b"\n" if style.end_of_line else b""

        def with_form(message: Shown) -> tuple[bytes, str | None]:
            text, problem = form.render(message, time.time_ns())
            return text + end, problem

        return with_form
    if style.is_terminal and not style.verbose and style.end_of_line:
        return lambda message: (terminal_line(message, color=style.color), None)
    return lambda message: (
        plain(message, style.verbose, style.end_of_line, clean),
        None,
    )


def plain(
    message: Shown, verbose: bool, end_of_line: bool, clean: Callable[[bytes], bytes] | None
) -> bytes:
    """The payload, with -v after the topic. An empty payload prints nothing without -v."""
    end = b"\n" if end_of_line else b""
    topic = encoded(message.topic)
    payload = message.payload
    if clean is not None:
        topic, payload = clean(topic), clean(payload)
    if not verbose:
        return payload + end if payload else b""
    if not payload:
        # As mosquitto_sub does.
        return topic + b" (null)" + end if end else b""
    return topic + b" " + payload + end


# --- for people -----------------------------------------------------------------------------------


def shown_bytes(data: bytes) -> str:
    """Bytes as text if they are UTF-8, else in hexadecimal."""
    if not data:
        return "(empty)"
    try:
        return shown_text(data.decode("utf-8"))
    except UnicodeDecodeError:
        return f"0x{data.hex()}"


def shown_properties(properties: Properties) -> list[str]:
    found = []
    for identifier, value in properties.items:
        if isinstance(value, tuple):
            found.append(f"{shown_text(value[0])}={shown_text(value[1])}")
            continue
        shown = shown_bytes(value) if isinstance(value, bytes) else shown_text(str(value))
        found.append(f"{PROPERTY_NAMES[identifier]}={shown}")
    return found


def terminal_line(message: Shown, *, color: bool) -> bytes:
    """Time, QoS, topic, payload, and the properties in brackets."""

    def style(text: str, **how: object) -> str:
        return click.style(text, **how) if color else text  # type: ignore[arg-type]

    moment = FormattedTime(time.time_ns()).text("%H:%M:%S")
    words = [
        style(moment, dim=True),
        f"q{message.qos}",
        style(shown_text(message.topic), fg="cyan"),
    ]
    if message.retain:
        words.append(style("retained", fg="yellow"))
    if message.dup:
        words.append(style("dup", fg="yellow"))
    payload = shown_bytes(message.payload)
    words.append(style(payload, dim=True) if not message.payload else payload)
    others = shown_properties(message.properties)
    if others:
        words.append(style(f"[{', '.join(others)}]", dim=True))
    return ("  ".join(words) + "\n").encode("utf-8")


# --- for programs ---------------------------------------------------------------------------------


def bytes_fields(name: str, data: bytes) -> dict[str, object]:
    """Bytes in JSON: as text if they are UTF-8, else as Base64 in a second field."""
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {name: None, f"{name}_base64": base64.b64encode(data).decode("ascii")}


def json_line(message: Shown, *, plain: bool) -> bytes:
    """One object on a line; `plain` makes it ASCII."""
    seconds, rest = divmod(time.time_ns(), 1_000_000_000)
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    found: dict[str, object] = {
        "received": f"{moment}.{rest // 1000:06d}Z",
        "topic": message.topic,
        "qos": message.qos,
        "retain": message.retain,
        "dup": message.dup,
        **bytes_fields("payload", message.payload),
        "properties": json_properties(message.properties),
    }
    return json.dumps(found, ensure_ascii=plain).encode("utf-8") + b"\n"


def json_properties(properties: Properties) -> dict[str, object]:
    """The properties by their names in the standard; those that may be repeated are lists."""
    found: dict[str, object] = {}
    for identifier, value in properties.items:
        name = PROPERTY_NAMES[identifier].replace("-", "_")
        if identifier == USER_PROPERTY:
            found["user_properties"] = [list(pair) for pair in properties.user_properties]
        elif identifier == SUBSCRIPTION_IDENTIFIER:
            found["subscription_identifiers"] = list(properties.subscription_identifiers)
        elif isinstance(value, bytes):
            found |= bytes_fields(name, value)
        else:
            found[name] = value
    return found
