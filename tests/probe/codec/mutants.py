"""Codecs with one fault each, as adapters: semel's own, with one rule off, or one too many.

    python tests/probe/codec/mutants.py "decode accepts TEXT_WITHOUT_NUL"

A lax decoder accepts bytes whose only fault is the rule. A lax encoder writes, byte by byte and
without a check, what our own encoder refuses because of the rule. `test_mutants.py` states
what each must be blamed for.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from semel.mqtt import MQTT5, PACKET_NAMES, Violation, encode, observe
from semel.mqtt.properties import property_identifier
from semel.probe import wire
from semel.probe.adapters.adapter import CodecLibrary, answer_request, property_pairs, serve
from semel.probe.adapters.semel_codec import LEVELS, SemelLibrary, build_packet
from semel.probe.packet_form import DEFAULTS, properties_by_name

Answer = dict[str, Any]
Request = Mapping[str, Any]
Change = Callable[[CodecLibrary, Request], Answer]
Form = Mapping[str, Any]

KINDS = {name.upper(): name for name in DEFAULTS}
FIRST_BYTES = {"PubAck": 0x40, "PubRec": 0x50, "PubRel": 0x62, "PubComp": 0x70}
NUMBER_SIZES = {
    **dict.fromkeys((0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A), 1),
    **dict.fromkeys((0x13, 0x21, 0x22, 0x23), 2),
    **dict.fromkeys((0x02, 0x11, 0x18, 0x27), 4),
}


# --- an encoder that checks nothing ---


def raw_text(value: Any) -> bytes:
    return wire.text(value.encode("utf-8", "surrogatepass"))


def raw_binary(value: Any) -> bytes:
    return bytes.fromhex((value or "hex:").removeprefix("hex:"))


def raw_properties(holder: Form, level: int) -> bytes:
    written = b""
    for key, value in property_pairs(holder):
        identifier = property_identifier(key) if isinstance(key, str) else key
        written += bytes([identifier])
        if identifier == 0x26:
            written += raw_text(value[0]) + raw_text(value[1])
        elif identifier == 0x0B:
            written += wire.number(value)
        elif isinstance(value, bytes):
            written += wire.text(value)
        elif isinstance(value, str):
            written += raw_text(value)
        else:
            written += int(value).to_bytes(NUMBER_SIZES.get(identifier, 1), "big")
    return wire.section(level, written)


def raw_encode(form: Form, level: int) -> bytes:
    """The bytes of a packet, right or wrong. What does not fit its field raises."""
    kind = form["type"]
    section = raw_properties(form, level)
    packet_id = wire.two(form.get("packet_id", 0)) if "packet_id" in form else b""
    reason = bytes([form.get("reason", 0)])
    if kind == "Publish":
        qos = form.get("qos", 0)
        first = 0x30 | form.get("dup", False) << 3 | qos << 1 | form.get("retain", False)
        identifier = wire.two(form.get("packet_id", 0)) if qos else b""
        return wire.frame(
            first,
            raw_text(form["topic_name"]),
            identifier,
            section,
            raw_binary(form.get("payload")),
        )
    if kind == "Connect":
        return raw_connect(form, section)
    if kind == "ConnAck":
        return wire.frame(0x20, bytes([form.get("session_present", False)]), reason, section)
    if kind == "Subscribe":
        entries = b"".join(
            raw_text(each["topic_filter"])
            + bytes(
                [
                    each.get("qos", 0)
                    | each.get("no_local", False) << 2
                    | each.get("retain_as_published", False) << 3
                    | each.get("retain_handling", 0) << 4
                ]
            )
            for each in form["subscriptions"]
        )
        return wire.frame(0x82, packet_id, section, entries)
    if kind == "Unsubscribe":
        filters = b"".join(raw_text(each) for each in form["topic_filters"])
        return wire.frame(0xA2, packet_id, section, filters)
    if kind in ("SubAck", "UnsubAck"):
        first = 0x90 if kind == "SubAck" else 0xB0
        return wire.frame(first, packet_id, section, bytes(form.get("reasons", [])))
    if kind in ("Disconnect", "Auth"):
        return wire.frame(0xE0 if kind == "Disconnect" else 0xF0, reason, section)
    rest = reason + section if level == MQTT5 else b""
    return wire.frame(FIRST_BYTES[kind], packet_id, rest)


def raw_connect(form: Form, section: bytes) -> bytes:
    level, will = form.get("version", 5), form.get("will")
    flags = form.get("clean_start", True) << 1
    payload = raw_text(form.get("client_id", ""))
    if will is not None:
        flags |= 4 | will.get("qos", 0) << 3 | will.get("retain", False) << 5
        payload += raw_properties(will, level) + raw_text(will["topic_name"])
        payload += wire.text(raw_binary(will.get("payload")))
    if form.get("user_name") is not None:
        flags |= 0x80
        payload += raw_text(form["user_name"])
    if form.get("password") is not None:
        flags |= 0x40
        payload += wire.text(raw_binary(form["password"]))
    keep_alive = wire.two(form.get("keep_alive", 0))
    return wire.frame(0x10, raw_text("MQTT"), bytes([level, flags]), keep_alive, section, payload)


# --- faults ---


def accepts(rule: str) -> Change:
    """A decoder that does not check a rule."""

    def change(library: CodecLibrary, request: Request) -> Answer:
        answer = answer_request(library, request)
        if request["do"] != "decode" or "refused" not in answer:
            return answer
        observed = observe(bytes.fromhex(request["hex"]), LEVELS[request["version"]])
        if observed is None or {each.rule.name for each in observed.violations} != {rule}:
            return answer
        name = PACKET_NAMES[observed.packet_type] if observed.packet_type else "PUBLISH"
        return {"packet": {"type": KINDS[name]}}

    return change


def writes(rule: str) -> Change:
    """An encoder that does not check a rule."""

    def change(library: CodecLibrary, request: Request) -> Answer:
        answer = answer_request(library, request)
        if request["do"] != "encode" or "refused" not in answer:
            return answer
        level = LEVELS[request["version"]]
        try:
            data = raw_encode(request["packet"], level)
        except (ValueError, OverflowError, KeyError):
            return answer
        observed = observe(data, level)
        if not is_refused_for(rule, request):
            return answer
        if observed is None or {each.rule.name for each in observed.violations} != {rule}:
            return answer
        return {"hex": data.hex()}

    return change


def is_refused_for(rule: str, request: Request) -> bool:
    """Whether our encoder refuses a packet because of this rule."""
    try:
        encode(build_packet(request["packet"]), LEVELS[request["version"]])
    except Violation as violation:
        return violation.rule.name == rule
    return False


def refuses(path: str, is_odd: Callable[[Form, bytes], bool]) -> Change:
    """A codec that refuses something right."""

    def change(library: CodecLibrary, request: Request) -> Answer:
        answer = answer_request(library, request)
        if request["do"] != path or "refused" in answer:
            return answer
        if path == "decode":
            form, data = answer["packet"], bytes.fromhex(request["hex"])
        else:
            form, data = request["packet"], bytes.fromhex(answer["hex"])
        return {"refused": "too odd"} if is_odd(form, data) else answer

    return change


def alters(path: str, alter: Callable[[Answer, Request], Answer]) -> Change:
    """A codec whose answers are wrong."""

    def change(library: CodecLibrary, request: Request) -> Answer:
        answer = answer_request(library, request)
        return (
            alter(answer, request) if request["do"] == path and "refused" not in answer else answer
        )

    return change


def alters_bytes(alter: Callable[[bytearray, str], bytes]) -> Change:
    """An encoder that writes other bytes."""

    def replace(answer: Answer, request: Request) -> Answer:
        written = alter(bytearray.fromhex(answer["hex"]), request["version"])
        return {"hex": bytes(written).hex()}

    return alters("encode", replace)


def properties_of(form: Form) -> dict[str, Any]:
    return properties_by_name(form.get("properties") or {}, form["type"])


def has_character(form: Any, low: int, high: int) -> bool:
    if isinstance(form, dict):
        return any(has_character(each, low, high) for each in form.values())
    if isinstance(form, list):
        return any(has_character(each, low, high) for each in form)
    return isinstance(form, str) and any(low <= ord(sign) <= high for sign in form)


def repeats_user_property(form: Form) -> bool:
    names = [pair[0] for pair in properties_of(form).get("user_properties", [])]
    return len(names) > len(set(names))


def is_password_alone(form: Form, data: bytes) -> bool:
    return form.get("password") is not None and form.get("user_name") is None


def strip_feff(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: strip_feff(each) for key, each in value.items()}
    if isinstance(value, list):
        return [strip_feff(each) for each in value]
    return value.removeprefix("\ufeff") if isinstance(value, str) else value


def with_field(answer: Answer, kind: str, name: str, value: Any) -> Answer:
    packet = answer["packet"]
    if packet["type"] != kind:
        return answer
    return {**answer, "packet": {**packet, name: value}}


def set_bits(data: bytearray, kind: int, at: int, bits: int) -> bytes:
    if data[0] >> 4 == kind and data[1] < 128:
        data[at] |= bits
    return bytes(data)


def long_remaining_length(data: bytearray, version: str) -> bytes:
    """The Remaining Length with a byte more than needed: wrong in 5.0 only."""
    return bytes([data[0], data[1] | 128, 0]) + data[2:] if data[1] < 128 else bytes(data)


def dup_at_qos_0(data: bytearray, version: str) -> bytes:
    return bytes([data[0] | 8]) + data[1:] if data[0] >> 1 == 0x30 >> 1 else bytes(data)


def pubrel_without_flags(data: bytearray, version: str) -> bytes:
    return bytes([0x60]) + data[1:] if data[0] == 0x62 else bytes(data)


def without_property_length(data: bytearray, version: str) -> bytes:
    """An UNSUBACK whose section of properties is missing where it is empty."""
    if version == "5.0" and data[0] == 0xB0 and data[1] == 4 and data[4] == 0:
        return bytes([0xB0, 3]) + data[2:4] + data[5:]
    return bytes(data)


def share_filter(form: Form, data: bytes) -> bool:
    return any(each["topic_filter"].startswith("$share/") for each in form.get("subscriptions", []))


LAX_DECODERS = (
    "TEXT_WITHOUT_NUL",
    "TEXT_WELL_FORMED",
    "TOPIC_NAME_WITHOUT_WILDCARDS",
    "TOPIC_NAME_NOT_EMPTY",
    "TOPIC_FILTER_NOT_EMPTY",
    "DUP_NEEDS_QOS",
    "QOS_NOT_3",
    "PACKET_ID_NOT_ZERO",
    "FIXED_HEADER_FLAGS",
    "HASH_IS_LAST_LEVEL",
    "PLUS_FILLS_ITS_LEVEL",
    "SHARE_NAME_NOT_EMPTY",
    "SHARE_NAME_WITHOUT_WILDCARDS",
    "PROPERTY_ONCE",
    "PROPERTY_IN_ITS_PACKET",
    "PROPERTY_NOT_ZERO",
    "REASON_CODE_IN_TABLE",
    "CONNECT_RESERVED_FLAG",
    "SUBSCRIBE_NOT_EMPTY",
    "VARIABLE_BYTE_INTEGER_SHORTEST",
    "SESSION_PRESENT_NEEDS_SUCCESS",
    "PASSWORD_NEEDS_USER_NAME",
    "AUTH_HAS_METHOD",
)
LAX_ENCODERS = (
    "TOPIC_NAME_WITHOUT_WILDCARDS",
    "TOPIC_NAME_NOT_EMPTY",
    "DUP_NEEDS_QOS",
    "QOS_NOT_3",
    "PACKET_ID_NOT_ZERO",
    "TEXT_WITHOUT_NUL",
    "TEXT_WELL_FORMED",
    "PLUS_FILLS_ITS_LEVEL",
    "NO_LOCAL_NOT_SHARED",
    "RETAIN_HANDLING_NOT_3",
    "PROPERTY_ONCE",
    "UNSUBSCRIBE_NOT_EMPTY",
    "WILL_QOS_NOT_3",
)
MUTANTS: dict[str, Change] = {
    **{f"decode accepts {rule}": accepts(rule) for rule in LAX_DECODERS},
    **{f"encode writes {rule}": writes(rule) for rule in LAX_ENCODERS},
    # Too strict: all of this is right.
    "decode refuses a password without a user name": refuses("decode", is_password_alone),
    "encode refuses a password without a user name": refuses("encode", is_password_alone),
    "decode refuses U+FEFF": refuses("decode", lambda f, d: has_character(f, 0xFEFF, 0xFEFF)),
    "decode refuses DUP": refuses("decode", lambda f, d: bool(f.get("dup"))),
    "decode refuses the short form of a PUBACK": refuses(
        "decode", lambda f, d: f["type"] == "PubAck" and d[1] == 2 and "reason" in f
    ),
    "decode refuses an empty payload": refuses(
        "decode", lambda f, d: f["type"] == "Publish" and f["payload"] == "hex:"
    ),
    "decode refuses a repeated user property": refuses(
        "decode", lambda f, d: repeats_user_property(f)
    ),
    "decode refuses a Packet Identifier of 65535": refuses(
        "decode", lambda f, d: f.get("packet_id") == 65_535
    ),
    "decode refuses the longest topics": refuses(
        "decode", lambda f, d: f["type"] == "Publish" and len(f["topic_name"]) > 60_000
    ),
    "decode refuses reason 0x10 in PUBACK": refuses(
        "decode", lambda f, d: f["type"] == "PubAck" and f.get("reason") == 0x10
    ),
    "decode refuses shared subscriptions": refuses("decode", share_filter),
    "encode refuses the longest topics": refuses(
        "encode", lambda f, d: f["type"] == "Publish" and len(f["topic_name"]) > 60_000
    ),
    "encode refuses a will that is retained": refuses(
        "encode", lambda f, d: bool((f.get("will") or {}).get("retain"))
    ),
    "encode refuses a repeated user property": refuses(
        "encode", lambda f, d: repeats_user_property(f)
    ),
    # Wrong values and wrong bytes.
    "decode strips U+FEFF": alters(
        "decode", lambda answer, _: {**answer, "packet": strip_feff(answer["packet"])}
    ),
    "decode reads DUP as 0": alters(
        "decode", lambda answer, _: with_field(answer, "Publish", "dup", False)
    ),
    "decode reads Session Present as 0": alters(
        "decode", lambda answer, _: with_field(answer, "ConnAck", "session_present", False)
    ),
    "encode writes DUP at QoS 0": alters_bytes(dup_at_qos_0),
    "encode writes long lengths": alters_bytes(long_remaining_length),
    "encode writes PUBREL without its flags": alters_bytes(pubrel_without_flags),
    "encode writes UNSUBACK without Property Length": alters_bytes(without_property_length),
    "encode writes the reserved flag of CONNECT": alters_bytes(
        lambda data, _: set_bits(data, 1, 9, 1)
    ),
    "encode writes reserved flags of CONNACK": alters_bytes(
        lambda data, _: set_bits(data, 2, 2, 2)
    ),
}

if __name__ == "__main__":
    serve(SemelLibrary(), MUTANTS[sys.argv[1]])
