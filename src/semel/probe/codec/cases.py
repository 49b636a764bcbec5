"""The cases of a codec: each vector as something to decode or to encode, right or wrong.

    bytes that are right       are decoded to the packet that they mean
    bytes that break a rule    are refused
    a packet                   is encoded to bytes that mean the same packet
    a packet that breaks one   is refused, or nothing wrong is written in its place

A wrong case has a control: the right case of the same packet type, version and path that differs
least from it. A codec that refuses that as well has not shown that it knows the rule.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from semel import vectors
from semel.mqtt import MQTT5, MQTT311, PACKET_NAMES, RULES, Rule
from semel.probe.packet_form import DEFAULTS, PacketForm, expand, properties_by_name
from semel.probe.verdicts import DECODE, ENCODE

LEVELS: Final = {"3.1.1": MQTT311, "5.0": MQTT5}
# Larger packets are left out: they show nothing that 65,535 bytes do not show, and take long.
LARGEST: Final = 100_000
# Larger ones are no controls.
LARGEST_CONTROL: Final = 400
_RULES: Final = {rule.name: rule for rule in RULES}
_TYPES: Final = {name.upper(): name for name in DEFAULTS}
_NUMBERS: Final = re.compile(r"^((MQTT-[\d.]+-\d+|U\d-\d\d)(, )?)+: ")
# Repetitions in the notation of the vectors, as in 61*65535.
_TIMES: Final = re.compile(r"\*(\d+)")
# A receiver may check it, and need not [U5-25, U5-57]: the decoder is right either way.
_CHECKED_AT_WILL: Final = "PAYLOAD_IS_UTF8_AS_INDICATED"

# A receiver may refuse control characters, and need not: nothing can break it.
_EITHER_WAY: Final = ("U5-06",)

_ANSWERED_BY_SERVER: Final = (
    "a server answers such a CONNECT with a return code, so its decoder may read it and leave the "
    "refusal to its caller"
)
# Where the standard can be read in two ways: (path, rule) and why a codec may accept it.
ACCEPTED_READINGS: Final = {
    (DECODE, "PROTOCOL_NAME_IS_MQTT"): (
        "a server may go on with another protocol name by another specification, so its decoder "
        "may read it and leave the decision to its caller"
    ),
    (DECODE, "PROTOCOL_LEVEL_SUPPORTED"): _ANSWERED_BY_SERVER,
    (DECODE, "EMPTY_CLIENT_ID_NEEDS_CLEAN_SESSION"): _ANSWERED_BY_SERVER,
    (ENCODE, "PROTOCOL_LEVEL_SUPPORTED"): (
        "the level may belong to another specification, for example MQTT 3.1, which the library "
        "also implements"
    ),
    (ENCODE, _CHECKED_AT_WILL): (
        "a server forwards the payload and the indicator as they are, and need not check them"
    ),
}
_NOT_IN_WORDS: Final = "the standard does not say in words that this property may occur once only"
READINGS_BY_STATEMENT: Final = {"U5-51": _NOT_IN_WORDS, "U5-52": _NOT_IN_WORDS}
READINGS_BY_NAME: Final = {
    "connack: CONNACK with reason code 0x01": (
        "0x01 is how a server of 3.1.1 refuses the version, so a client that speaks both reads it"
    ),
    "disconnect: DISCONNECT with reason code 0x8c": (
        "table 2-6 names DISCONNECT for 0x8C, and the table of section 3.14.2.1 does not have it"
    ),
}


@dataclass(frozen=True)
class CodecCase:
    """One thing to decode or to encode. Right cases have `packet`, wrong ones `rule`."""

    # Unique with the version: "decode publish: Topic Name sensor/#"
    name: str
    version: str
    path: str
    # As "Publish"; empty if the bytes are of a type that the version does not have.
    kind: str
    # None where the standard has no number for the matter: then only a crash is reported.
    statements: tuple[str, ...]
    title: str
    direction: str
    # What is to be decoded; what our own encoder would write, where a right packet is encoded.
    data: bytes
    # What the bytes mean, or the packet to encode, right or wrong.
    form: PacketForm
    rule: Rule | None
    # Why accepting a wrong one can be read as allowed; empty if it cannot.
    reading: str = ""
    request: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def is_right(self) -> bool:
        return self.rule is None

    @property
    def level(self) -> int:
        return LEVELS[self.version]


def codec_cases(version: str) -> list[CodecCase]:
    """All cases of one version of MQTT, in the order of the vectors' files."""
    return list(_cases(version))


@cache
def _cases(version: str) -> tuple[CodecCase, ...]:
    found: list[CodecCase] = []
    for file in vectors.names():
        if file != vectors.EXCHANGE:
            for vector in vectors.load(file):
                found += _vector_cases(file, vector, version)
    for file, vector in _added_vectors():
        found += _vector_cases(file, vector, version)
    names = [case.name for case in found]
    assert len(set(names)) == len(names), "two cases have one name"
    return tuple(found)


def _vector_cases(file: str, vector: dict[str, Any], version: str) -> Iterator[CodecCase]:
    """The cases of one vector: a right one is decoded and encoded."""
    if vector["version"] != version or "maximum_packet_size" in vector:
        return
    statements = tuple(each for each in vector["statements"] if each not in _EITHER_WAY)
    short = _NUMBERS.sub("", vector["name"]).removesuffix(" cannot be written")
    rule = _RULES[vector["rule"]] if "rule" in vector else None
    if any(int(times) > LARGEST for times in _TIMES.findall(str(vector))):
        return
    data = vectors.parse_bytes(vector.get("bytes", ""))
    form = expand(vector.get("build", vector.get("packet")))
    if "packet" in vector and form["type"] == "Connect":
        if form.get("version", MQTT5) != LEVELS[version]:
            # A CONNECT of the other version, which a library need not have.
            return
    if "bytes" in vector and (rule is None or rule.name != _CHECKED_AT_WILL):
        yield _decode_case(f"{file}: {short}", vector, statements, data, rule)
    # Without a number there is nothing to report: an encoder that crashes writes nothing wrong.
    if form is not None and statements:
        yield _encode_case(f"{file}: {short}", vector, statements, form, rule)


def _decode_case(
    name: str,
    vector: dict[str, Any],
    statements: tuple[str, ...],
    data: bytes,
    rule: Rule | None,
) -> CodecCase:
    version = vector["version"]
    kind = _TYPES.get(PACKET_NAMES[data[0] >> 4], "") if data[0] >> 4 else ""
    if kind == "Auth" and version == "3.1.1":
        kind = ""
    title = f"The decoder reads what is right ({name})"
    if rule is not None:
        title = f"The decoder refuses what is wrong ({name}): {rule.sentence}"
    return CodecCase(
        name=f"{DECODE} {name}",
        version=version,
        path=DECODE,
        kind=kind,
        statements=statements,
        title=title,
        direction=vector["direction"],
        data=data,
        form=expand(vector.get("packet", {})),
        rule=rule,
        reading=_reading(DECODE, name, statements, rule),
        request={
            "do": DECODE,
            "version": version,
            "direction": vector["direction"],
            "hex": data.hex(),
        },
    )


def _encode_case(
    name: str,
    vector: dict[str, Any],
    statements: tuple[str, ...],
    form: PacketForm,
    rule: Rule | None,
) -> CodecCase:
    version, kind = vector["version"], str(form["type"])
    title = f"The encoder writes what is right ({name})"
    if rule is not None:
        title = f"The encoder writes nothing wrong ({name}): {rule.sentence}"
    return CodecCase(
        name=f"{ENCODE} {name}",
        version=version,
        path=ENCODE,
        kind="" if kind == "Auth" and version == "3.1.1" else kind,
        statements=statements,
        title=title,
        direction=vector["direction"],
        data=vectors.parse_bytes(vector.get("encodes_to", vector.get("bytes", ""))),
        form=form,
        rule=rule,
        reading=_reading(ENCODE, name, statements, rule),
        request={"do": ENCODE, "version": version, "packet": form},
    )


def _reading(path: str, name: str, statements: tuple[str, ...], rule: Rule | None) -> str:
    if rule is None:
        return ""
    found = ACCEPTED_READINGS.get((path, rule.name), "")
    for pattern, reading in READINGS_BY_NAME.items():
        if name.startswith(pattern):
            found = reading
    for statement in statements:
        found = READINGS_BY_STATEMENT.get(statement, found)
    return found


def _added_vectors() -> Iterator[tuple[str, dict[str, Any]]]:
    """What the vectors do not have: the origin's packets on the encoder's path, and more U+FEFF."""
    for version, wildcard in (("3.1.1", "MQTT-4.7.1-1"), ("5.0", "MQTT-4.7.0-1")):
        five = version == "5.0"
        for topic in ("sensor/#", "sensor/+", "#", "+", "+/value", "sensor#"):
            for qos in (0, 1):
                yield (
                    "origin",
                    {
                        "name": f"a PUBLISH to {topic} at QoS {qos}",
                        "statements": ["MQTT-3.3.2-2", wildcard],
                        "version": version,
                        "direction": "both",
                        "build": _publish(topic, qos),
                        "rule": "TOPIC_NAME_WITHOUT_WILDCARDS",
                    },
                )
        for qos in (0, 1, 2):
            yield (
                "origin",
                {
                    "name": f"a PUBLISH with an empty Topic Name at QoS {qos}",
                    "statements": ["MQTT-4.7.3-1", *(["U5-50"] if five else [])],
                    "version": version,
                    "direction": "both",
                    "build": _publish("", qos),
                    "rule": "TOPIC_NAME_NOT_EMPTY",
                },
            )
        yield (
            "origin",
            {
                "name": "a PUBLISH with DUP 1 at QoS 0",
                "statements": ["MQTT-3.3.1-2", "MQTT-4.3.1-1"],
                "version": version,
                "direction": "both",
                "build": {**_publish("a", 0), "dup": True},
                "rule": "DUP_NEEDS_QOS",
            },
        )
        yield (
            "origin",
            {
                "name": "a PUBLISH to sensor/value",
                "statements": ["MQTT-3.3.2-2", wildcard],
                "version": version,
                "direction": "both",
                "bytes": f"30{16 if five else 15:02x}000c73656e736f722f76616c7565"
                f"{'00' if five else ''}78",
                "packet": _publish("sensor/value", 0),
            },
        )
    yield (
        "connack",
        {
            "name": "a Reason String with U+FEFF, which is kept",
            "statements": ["MQTT-1.5.4-3"],
            "version": "5.0",
            "direction": "S>C",
            "bytes": "2009000006 1f0003efbbbf",
            "packet": {"type": "ConnAck", "properties": {"reason_string": "\ufeff"}},
        },
    )


def _publish(topic: str, qos: int) -> dict[str, Any]:
    form: dict[str, Any] = {"type": "Publish", "topic_name": topic, "payload": "hex:78"}
    return {**form, "qos": qos, "packet_id": 7} if qos else form


# --- what is near ---


def distance(data: bytes, other: bytes) -> int:
    """How much two packets differ: what is left without a common start and end."""
    # The Remaining Length differs with every added byte, so it does not count.
    left, right = data[:1] + data[2:], other[:1] + other[2:]
    shorter = min(len(left), len(right))
    start = 0
    while start < shorter and left[start] == right[start]:
        start += 1
    end = 0
    while end < shorter - start and left[-1 - end] == right[-1 - end]:
        end += 1
    return len(left) + len(right) - 2 * (start + end)


def controls(case: CodecCase) -> tuple[CodecCase, ...]:
    """The right cases of the same path and type, those that differ least from `case` first."""
    return _controls(case.version, case.name)


@cache
def _controls(version: str, name: str) -> tuple[CodecCase, ...]:
    case = _cases_by_name(version)[name]
    possible = _possible_controls(version, case.path, case.kind)
    if not case.kind or all(each is case for each, _ in possible):
        possible = _possible_controls(version, case.path, "")
    if case.path == DECODE:
        ranked = [(distance(case.data, each.data), each) for each, _ in possible]
    else:
        mine = _fields(case.form).items()
        ranked = [(len(mine ^ fields.items()), each) for each, fields in possible]
    ranked.sort(key=lambda entry: (entry[0], len(entry[1].data), entry[1].name))
    return tuple(each for _, each in ranked if each is not case)


@cache
def _cases_by_name(version: str) -> dict[str, CodecCase]:
    return {case.name: case for case in _cases(version)}


@cache
def _possible_controls(
    version: str, path: str, kind: str
) -> tuple[tuple[CodecCase, dict[str, str]], ...]:
    """The right cases of a path, of one packet type or all, with their fields."""
    return tuple(
        (each, _fields(each.form))
        for each in _cases(version)
        if each.is_right
        and each.path == path
        and len(each.data) <= LARGEST_CONTROL
        and kind in ("", each.kind)
    )


def _fields(form: PacketForm) -> dict[str, str]:
    """The fields of a packet as texts, one for each property."""
    fields = {name: repr(value) for name, value in form.items() if name != "properties"}
    for name, value in properties_by_name(form.get("properties", {}), form["type"]).items():
        fields[f"property {name}"] = repr(value)
    return fields


def blamed_statements(rule: Rule, data: bytes, version: str) -> tuple[str, ...]:
    """The statements that bytes break which break this rule.

    A rule such as "a property occurs once" claims a statement for each property; the vector that
    differs least from the bytes and breaks the same rule names the right one.
    """
    known = [
        case
        for case in _cases(version)
        if case.rule is rule
        and case.path == DECODE
        and case.statements
        and case.data[0] >> 4 == data[0] >> 4
    ]
    if known:
        nearest = min(known, key=lambda case: distance(case.data, data))
        return nearest.statements
    return rule.statements(LEVELS[version], data[0] >> 4)
