"""The format -F of `semel sub`, as mosquitto_sub has it.

A format is text with three kinds of sequences: `%` and a letter stands for a part of the message,
`@` and a letter for a part of the time (strftime), `\\` and a letter for a character. It is parsed
once, when the command starts, and errors are reported then.

    >>> MessageFormat("%q %-8t|%5l|").text
    '%q %-8t|%5l|'

Everything is bytes: a payload is printed unchanged, and widths count bytes, as in C.
"""

import json
import math
import re
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from semel.cli.safe_text import shown_text
from semel.counts import count
from semel.mqtt import Properties
from semel.mqtt.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MESSAGE_EXPIRY_INTERVAL,
    PAYLOAD_FORMAT_INDICATOR,
    RESPONSE_TOPIC,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    USER_PROPERTY,
)

# A % sequence without the %: flags, width, precision and letter.
FIELD: Final = re.compile(
    r"(?P<left>-?)(?P<zero>0?)(?P<width>[0-9]*)(?P<dot>\.?)(?P<most>[0-9]*)(?P<letter>.)",
    re.DOTALL | re.ASCII,
)
LETTERS: Final = "%ACDdEFfIJjlmPpqRrStUXx"
ESCAPES: Final = {
    "\\": b"\\",
    "0": b"\0",
    "a": b"\a",
    "e": b"\x1b",
    "n": b"\n",
    "r": b"\r",
    "t": b"\t",
    "v": b"\v",
}
# Wider than any line: a larger width is a mistake, and would only fill the memory.
MOST_WIDTH: Final = 65_535
NANOSECONDS: Final = 1_000_000_000
# The names of properties in JSON.
PROPERTY_NAMES: Final = {
    PAYLOAD_FORMAT_INDICATOR: "payload-format-indicator",
    MESSAGE_EXPIRY_INTERVAL: "message-expiry-interval",
    CONTENT_TYPE: "content-type",
    RESPONSE_TOPIC: "response-topic",
    CORRELATION_DATA: "correlation-data",
    SUBSCRIPTION_IDENTIFIER: "subscription-identifier",
    TOPIC_ALIAS: "topic-alias",
    USER_PROPERTY: "user-properties",
}


class BadFormat(ValueError):
    """What is wrong with a format, in one sentence."""


class NotJson(Exception):
    """A payload that should be printed as JSON is not JSON."""


class Shown(Protocol):
    """The printed parts of a message: a Received, or an object with the same attributes."""

    @property
    def topic(self) -> str: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def qos(self) -> int: ...
    @property
    def retain(self) -> bool: ...
    @property
    def dup(self) -> bool: ...
    @property
    def packet_id(self) -> int: ...
    @property
    def properties(self) -> Properties: ...


@dataclass(frozen=True)
class Field:
    """A % sequence."""

    letter: str
    left: bool = False
    zero: bool = False
    width: int = 0
    # The most bytes of a string; None: all.
    most: int | None = None


@dataclass(frozen=True)
class Time:
    """An @ sequence: a letter for strftime."""

    letter: str


Part = bytes | Field | Time


class FormattedTime:
    """A time in nanoseconds, and in the local time zone."""

    def __init__(self, nanoseconds: int) -> None:
        self.seconds, self.rest = divmod(nanoseconds, NANOSECONDS)
        self._local = time.localtime(self.seconds)

    def text(self, form: str) -> str:
        """The time formatted by strftime."""
        return time.strftime(form, self._local)

    @property
    def iso(self) -> str:
        return self.text("%Y-%m-%dT%H:%M:%S%z")

    @property
    def iso_with_fraction(self) -> str:
        return self.text(f"%Y-%m-%dT%H:%M:%S.{self.rest // 1000:06d}%z")


def as_it_is(data: bytes) -> bytes:
    return data


def safely(data: bytes) -> bytes:
    """Escape bytes, so that they cannot control a terminal."""
    text = data.decode("utf-8", "backslashreplace")
    return shown_text(text).encode("utf-8")


class MessageFormat:
    """A parsed format. Raises BadFormat.

    `clean` is applied to everything that a peer chose. With `pretty`, JSON takes several lines.
    """

    def __init__(
        self,
        text: str,
        *,
        pretty: bool = False,
        clean: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self.text = text
        self._pretty = pretty
        self._clean = clean or as_it_is
        self._parts = parse_format(text)

    def render(self, message: Shown, nanoseconds: int) -> tuple[bytes, str | None]:
        """The formatted message, and a sentence if a part of it could not be printed."""
        moment = FormattedTime(nanoseconds)
        problem = None
        found = []
        for part in self._parts:
            if isinstance(part, bytes):
                found.append(part)
            elif isinstance(part, Time):
                found.append(time_part(part.letter, moment))
            else:
                try:
                    found.append(self._field(part, message, moment))
                except NotJson:
                    problem = f"the payload is not JSON, on topic {shown_text(message.topic)}"
                except struct.error:
                    size = count(struct.calcsize(part.letter), "byte")
                    problem = (
                        f"%{part.letter} needs a payload of {size}, and this one on topic"
                        f" {shown_text(message.topic)} has {len(message.payload)}"
                    )
        return b"".join(found), problem

    def _field(self, field: Field, message: Shown, moment: FormattedTime) -> bytes:
        letter = field.letter
        if letter == "%":
            return b"%"
        if letter == "t":
            return fit(field, self._clean(encoded(message.topic)))
        if letter in "pxX":
            return payload_part(field, message.payload, self._clean)
        if letter == "q":
            return b"%d" % message.qos
        if letter == "r":
            return b"%d" % message.retain
        if letter == "l":
            return number(field, len(message.payload))
        if letter == "m":
            return number(field, message.packet_id)
        if letter == "I":
            return fit(field, moment.iso.encode())
        if letter == "U":
            return f"{moment.seconds}.{moment.rest:09d}".encode()
        if letter in "jJ":
            value = describe(message, moment, payload_is_json=letter == "J")
            try:
                return json_bytes(value, pretty=self._pretty, plain=self._clean is not as_it_is)
            except RecursionError:
                raise NotJson from None
        if letter in "fd":
            return float_part(field, message.payload)
        return self._property(field, message.properties)

    def _property(self, field: Field, properties: Properties) -> bytes:
        letter = field.letter
        if letter == "A":
            return number(field, properties.topic_alias)
        if letter == "E":
            return number(field, properties.message_expiry_interval)
        if letter == "F":
            return number(field, properties.payload_format_indicator)
        if letter == "S":
            identifiers = properties.subscription_identifiers
            return number(field, identifiers[0] if identifiers else None)
        if letter == "C":
            return fit(field, self._clean(encoded(properties.content_type or "")))
        if letter == "R":
            # Unlike a missing content type, a missing response topic has no width.
            topic = properties.response_topic
            return b"" if topic is None else fit(field, self._clean(encoded(topic)))
        if letter == "D":
            return self._clean(properties.correlation_data or b"")
        pairs = [encoded(f"{name}:{value}") for name, value in properties.user_properties]
        return self._clean(b" ".join(pairs))


def parse_format(text: str) -> list[Part]:
    """The parts of a format. Raises BadFormat."""
    parts: list[Part] = []
    at = 0
    while at < len(text):
        sign = text[at]
        if sign not in "%@\\":
            end = at + 1
            while end < len(text) and text[end] not in "%@\\":
                end += 1
            parts.append(encoded(text[at:end]))
            at = end
            continue
        if at + 1 == len(text):
            raise BadFormat(f"the {sign} at the end is not followed by a letter")
        letter = text[at + 1]
        if sign == "%":
            found = FIELD.match(text, at + 1)
            if found is None:
                raise BadFormat(f"{text[at:]!r} at the end is not followed by a letter")
            parts.append(parse_field(found))
            at = found.end()
            continue
        if sign == "\\" and letter not in ESCAPES:
            known = " ".join("\\" + each for each in ESCAPES)
            raise BadFormat(f"unknown sequence \\{letter}; known: {known}")
        if sign == "\\":
            parts.append(ESCAPES[letter])
        else:
            parts.append(b"@" if letter == "@" else Time(letter))
        at += 2
    return parts


def parse_field(found: re.Match[str]) -> Field:
    letter = found["letter"]
    if letter not in LETTERS:
        known = " ".join(f"%{each}" for each in LETTERS)
        raise BadFormat(f"unknown sequence %{letter}; known: {known}")
    width = int(found["width"] or 0)
    most = int(found["most"] or 0) if found["dot"] else None
    if max(width, most or 0) > MOST_WIDTH:
        raise BadFormat(f"%{found[0]}: a field has at most {MOST_WIDTH} characters")
    return Field(letter, bool(found["left"]), bool(found["zero"]), width, most)


# --- fields ---------------------------------------------------------------------------------------


def encoded(text: str) -> bytes:
    """Encoded like the arguments of a program: bytes that are not UTF-8 are restored."""
    return text.encode("utf-8", "surrogateescape")


def fit(field: Field, text: bytes) -> bytes:
    """A string in its field."""
    cut = text[: field.most]
    return cut.ljust(field.width) if field.left else cut.rjust(field.width)


def number(field: Field, value: int | None) -> bytes:
    """A number in its field; an empty field if there is none."""
    filling = b"0" if field.zero else b" "
    if value is None:
        return filling * field.width
    if field.left:
        return (b"%d" % value).ljust(field.width)
    return (b"%d" % value).rjust(field.width, filling)


def payload_part(field: Field, payload: bytes, clean: Callable[[bytes], bytes]) -> bytes:
    """A payload. Its width is that of a column: what does not fit is cut."""
    width = field.width
    if field.letter == "p":
        text = clean(payload[:width] if width else payload)
    else:
        # Whole bytes, two digits each.
        text = (payload[: width // 2] if width else payload).hex().encode()
        text = text.upper() if field.letter == "X" else text
    if field.left:
        return text.ljust(width)
    return text.rjust(width, b"0" if field.zero else b" ")


def float_part(field: Field, payload: bytes) -> bytes:
    """A payload that is a float (%f) or a double (%d) in the byte order of this machine."""
    (value,) = struct.unpack(field.letter, payload)
    text = f"{value:.{6 if field.most is None else field.most}f}".encode()
    if field.left:
        return text.ljust(field.width)
    return text.rjust(field.width, b"0" if field.zero else b" ")


def time_part(letter: str, moment: FormattedTime) -> bytes:
    if letter == "N":
        return b"%09d" % moment.rest
    return encoded(moment.text(f"%{letter}"))


# --- JSON -----------------------------------------------------------------------------------------


class Pairs:
    """A JSON object with its members in order; a name may occur twice."""

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        self.pairs = pairs


def describe(message: Shown, moment: FormattedTime, *, payload_is_json: bool) -> Pairs:
    """The object of %j and %J. Raises NotJson."""
    found: list[tuple[str, object]] = [
        ("tst", moment.iso_with_fraction),
        ("topic", message.topic),
        ("qos", message.qos),
        ("retain", int(message.retain)),
        ("payloadlen", len(message.payload)),
    ]
    if message.qos:
        found.append(("mid", message.packet_id))
    if message.properties.present:
        found.append(("properties", described_properties(message.properties)))
    found.append(("payload", json_payload(message.payload, parsed=payload_is_json)))
    return Pairs(found)


def described_properties(properties: Properties) -> Pairs:
    """The properties in the order of the packet; user properties are one object."""
    found: dict[str, object] = {}
    for identifier, value in properties.items:
        shown: object = value
        if identifier == USER_PROPERTY:
            shown = Pairs(list(properties.user_properties))
        elif isinstance(value, bytes):
            shown = value.decode("utf-8", "surrogateescape")
        found.setdefault(PROPERTY_NAMES[identifier], shown)
    return Pairs(list(found.items()))


def json_payload(payload: bytes, *, parsed: bool) -> object:
    if not payload:
        return None
    if not parsed:
        return payload.decode("utf-8", "surrogateescape")
    try:
        return json.loads(
            payload.decode("utf-8"),
            object_pairs_hook=Pairs,
            parse_int=Verbatim,
            parse_constant=refuse_constant,
        )
    except (ValueError, RecursionError):
        raise NotJson from None


class Verbatim(str):
    """An integer as it was written, however long."""


def refuse_constant(name: str) -> object:
    """Refuse NaN and Infinity, which Python accepts as JSON."""
    raise ValueError(name)


def json_bytes(value: object, *, pretty: bool, plain: bool = False) -> bytes:
    """JSON as mosquitto_sub prints it: on one line without spaces, or with tabs.

    Bytes that are not UTF-8 are kept, unless `plain` asks for ASCII.
    """
    return encoded(json_text(value, 1 if pretty else 0, plain))


def json_text(value: object, depth: int, plain: bool) -> str:
    """`depth` is the number of tabs before members; 0: everything is on one line."""
    inner = depth + 1 if depth else 0
    if isinstance(value, Verbatim):
        return value
    if isinstance(value, Pairs):
        colon = ":\t" if depth else ":"
        members = [
            json.dumps(name, ensure_ascii=plain) + colon + json_text(each, inner, plain)
            for name, each in value.pairs
        ]
        if not depth:
            return "{" + ",".join(members) + "}"
        lines = ",\n".join("\t" * depth + each for each in members)
        return "{\n" + lines + "\n" * bool(lines) + "\t" * (depth - 1) + "}"
    if isinstance(value, list):
        comma = ", " if depth else ","
        return "[" + comma.join(json_text(each, inner, plain) for each in value) + "]"
    if isinstance(value, float):
        return float_text(value)
    return json.dumps(value, ensure_ascii=plain)


def float_text(value: float) -> str:
    """A number in 15 digits if they are exact, else in 17, without a needless point."""
    if not math.isfinite(value):
        return "null"
    short = f"{value:.15g}"
    return short if float(short) == value else f"{value:.17g}"
