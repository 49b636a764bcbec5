"""Packets as JSON, the form in which the vectors have them and in which adapters speak.

A packet is an object with its `type` and its fields; those left out have their default. Binary data
is "hex:" and hexadecimal digits. `properties` is an object by name, or a list of [name or
identifier, value] where order or repetition matters.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from semel.mqtt import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
)
from semel.mqtt.properties import is_property, property_identifier
from semel.vectors import parse_bytes

PacketForm = Mapping[str, Any]

BINARY: Final = "hex:"
REPEATED_TEXT: Final = "text:"
# A difference between packets that have the same user properties.
ORDER_IS_LOST: Final = "their order is lost"

# The fields of each packet type and the values that they have where they are left out.
_REASONED: Final = {"packet_id": 0, "reason": 0}
DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "Connect": {
        "client_id": "",
        "version": 5,
        "clean_start": True,
        "keep_alive": 0,
        "user_name": None,
        "password": None,  # nosec B105 # absent by default
        "will": None,
    },
    "ConnAck": {"reason": 0, "session_present": False},
    "Publish": {
        "topic_name": "",
        "payload": BINARY,
        "qos": 0,
        "packet_id": 0,
        "retain": False,
        "dup": False,
    },
    "PubAck": _REASONED,
    "PubRec": _REASONED,
    "PubRel": _REASONED,
    "PubComp": _REASONED,
    "Subscribe": {"packet_id": 0, "subscriptions": []},
    "SubAck": {"packet_id": 0, "reasons": []},
    "Unsubscribe": {"packet_id": 0, "topic_filters": []},
    "UnsubAck": {"packet_id": 0, "reasons": []},
    "PingReq": {},
    "PingResp": {},
    "Disconnect": {"reason": 0},
    "Auth": {"reason": 0},
}
_WILL: Final = {"topic_name": "", "payload": BINARY, "qos": 0, "retain": False}
_SUBSCRIPTION: Final = {
    "topic_filter": "",
    "qos": 0,
    "no_local": False,
    "retain_as_published": False,
    "retain_handling": 0,
}
# [3.1.2.11, 3.2.2.3, 3.3.2.3] what the absence of a property means, where it means a value: many
# libraries cannot tell the two apart.
_ABSENT: Final = {
    "payload_format_indicator": 0,
    "session_expiry_interval": 0,
    "receive_maximum": 65_535,
    "topic_alias_maximum": 0,
    "request_problem_information": 1,
    "request_response_information": 0,
    "will_delay_interval": 0,
    "maximum_qos": 2,
    "retain_available": 1,
    "wildcard_subscription_available": 1,
    "subscription_identifiers_available": 1,
    "shared_subscription_available": 1,
}
# A CONNACK or DISCONNECT without it leaves the value of the CONNECT: absence is no value there.
_KEEPS_SESSION_EXPIRY: Final = ("ConnAck", "Disconnect")
_REPEATABLE: Final = {
    "user_properties": "user_properties",
    "subscription_identifier": "subscription_identifiers",
    "subscription_identifiers": "subscription_identifiers",
    "user_property": "user_properties",
}
# [1.5.3, 1.5.4] a receiver may refuse them: control characters and non-characters.
_DISCOURAGED: Final = re.compile("[\x01-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]")
_PLAIN_CLIENT_ID: Final = re.compile("[0-9a-zA-Z]{1,23}")


class BadForm(ValueError):
    """An answer that is not a packet in this form: what is wrong, in one sentence."""


def expand(value: Any) -> Any:
    """A description of a vector without the abbreviations for long texts and bytes."""
    if isinstance(value, dict):
        return {key: expand(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [expand(entry) for entry in value]
    if isinstance(value, str) and value.startswith(BINARY):
        return BINARY + parse_bytes(value.removeprefix(BINARY)).hex()
    if isinstance(value, str) and value.startswith(REPEATED_TEXT):
        text, _, times = value.removeprefix(REPEATED_TEXT).rpartition("*")
        return text * int(times)
    return value


def shorten(form: object, most: int = 300) -> str:
    """A packet or value as text for people, cut where it is long. Lone surrogates are escaped."""
    clipped = _clip(form, most)
    if isinstance(clipped, dict) and "type" in clipped:
        fields = [f"{name} {value!r}" for name, value in clipped.items() if name != "type"]
        text = " with ".join([str(clipped["type"]).upper(), *([", ".join(fields)] * bool(fields))])
    else:
        text = repr(clipped)
    text = text.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= most else f"{text[:most]}…"


def _clip(value: Any, most: int) -> Any:
    """A description whose texts have at most so many characters, and a few more."""
    if isinstance(value, dict):
        return {key: _clip(entry, most) for key, entry in value.items()}
    if isinstance(value, list):
        return [_clip(entry, most) for entry in value[:most]]
    if isinstance(value, str) and len(value) > most:
        return f"{value[:most]}… ({len(value)} characters)"
    return value


def texts_of(value: Any) -> Iterator[str]:
    """Every text in a description; binary data is none."""
    if isinstance(value, dict):
        for entry in value.values():
            yield from texts_of(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from texts_of(entry)
    elif isinstance(value, str) and not value.startswith(BINARY):
        yield value


def has_lone_surrogate(form: PacketForm) -> bool:
    return any("\ud800" <= sign <= "\udfff" for text in texts_of(form) for sign in text)


def has_discouraged_character(form: PacketForm) -> bool:
    """Whether a text has a character that receivers may refuse and senders should not send."""
    return any(_DISCOURAGED.search(text) for text in texts_of(form))


def has_unusual_client_id(form: PacketForm) -> bool:
    """Whether a server may refuse the ClientId of a CONNECT [3.1.3-5, 3.1.3-6]."""
    return form["type"] == "Connect" and not _PLAIN_CLIENT_ID.fullmatch(form.get("client_id", ""))


def has_topic_alias(form: PacketForm) -> bool:
    """Whether a PUBLISH has a Topic Alias, which needs a Topic Alias Maximum of its receiver."""
    properties = form.get("properties", {})
    pairs = properties if isinstance(properties, list) else properties.items()
    return any(name in ("topic_alias", 0x23) for name, _ in pairs)


# --- from packets of ours ---


def describe_packet(packet: Packet) -> dict[str, Any]:
    """All that a packet of semel says, in this form."""
    form: dict[str, Any] = {"type": type(packet).__name__}
    if isinstance(packet, PingReq | PingResp):
        return form
    form["properties"] = describe_properties(packet.properties)
    if isinstance(packet, Publish):
        for name in ("topic_name", "qos", "packet_id", "retain", "dup"):
            form[name] = getattr(packet, name)
        form["payload"] = BINARY + packet.payload.hex()
    elif isinstance(packet, Connect):
        for name in ("client_id", "version", "clean_start", "keep_alive", "user_name"):
            form[name] = getattr(packet, name)
        form["password"] = None if packet.password is None else BINARY + packet.password.hex()
        form["will"] = None if packet.will is None else _describe_will(packet.will)
    elif isinstance(packet, ConnAck):
        form["reason"] = packet.reason
        form["session_present"] = packet.session_present
    elif isinstance(packet, Subscribe):
        form["packet_id"] = packet.packet_id
        form["subscriptions"] = [
            {name: getattr(entry, name) for name in _SUBSCRIPTION} for entry in packet.subscriptions
        ]
    elif isinstance(packet, Unsubscribe):
        form["packet_id"] = packet.packet_id
        form["topic_filters"] = list(packet.topic_filters)
    elif isinstance(packet, SubAck | UnsubAck):
        form["packet_id"] = packet.packet_id
        form["reasons"] = list(packet.reasons)
    elif isinstance(packet, Disconnect | Auth):
        form["reason"] = packet.reason
    else:
        form["packet_id"] = packet.packet_id
        form["reason"] = packet.reason
    return form


def _describe_will(will: Will) -> dict[str, Any]:
    return {
        "topic_name": will.topic_name,
        "payload": BINARY + will.payload.hex(),
        "qos": will.qos,
        "retain": will.retain,
        "properties": describe_properties(will.properties),
    }


_PROPERTY_NAMES: Final = {
    property_identifier(name): name
    for name in (
        *_ABSENT,
        *("message_expiry_interval", "content_type", "response_topic", "correlation_data"),
        *("assigned_client_identifier", "server_keep_alive", "authentication_method"),
        *("authentication_data", "response_information", "server_reference", "reason_string"),
        *("topic_alias", "maximum_packet_size"),
    )
} | {
    property_identifier("user_properties"): "user_properties",
    property_identifier("subscription_identifiers"): "subscription_identifiers",
}


def describe_properties(properties: Properties) -> list[list[Any]]:
    """Properties as a list of [name, value], in their order."""
    return [
        [
            _PROPERTY_NAMES[identifier],
            BINARY + value.hex()
            if isinstance(value, bytes)
            else list(value)
            if isinstance(value, tuple)
            else value,
        ]
        for identifier, value in properties.items
    ]


# --- comparison ---


def differences(expected: PacketForm, returned: PacketForm) -> list[str]:
    """How a returned packet differs from the expected one, as sentences; raises BadForm.

    Fields that the answer leaves out are not compared, because not every library shows every
    field. If it has `properties`, those are complete.
    """
    kind = returned.get("type")
    if kind not in DEFAULTS:
        raise BadForm(f"the packet of the answer has the type {kind!r}")
    if kind != expected["type"]:
        return [f"the type is {kind}, not {expected['type']}"]
    found = _compare_fields(expected, returned, DEFAULTS[kind], "")
    found += _compare_properties(expected, returned, kind, "")
    will, other = expected.get("will"), returned.get("will")
    if isinstance(will, dict) and isinstance(other, dict):
        found += _compare_fields(will, other, _WILL, "will ")
        found += _compare_properties(will, other, "Connect", "will ")
    return found


def _compare_fields(
    expected: PacketForm, returned: PacketForm, defaults: Mapping[str, Any], prefix: str
) -> list[str]:
    found = []
    for name, default in defaults.items():
        if name not in returned:
            continue
        value, other = expected.get(name, default), returned[name]
        if name == "subscriptions":
            found += _compare_subscriptions(value, other)
        elif name == "will":
            if (value is None) != (other is None):
                found.append(f"a will is {'absent' if other is None else 'present'}")
        elif other is None and default in (0, False) and value == default:
            # A library has None for a Packet Identifier that is not there.
            continue
        elif not _is_same(value, other):
            found.append(f"{prefix}{name} is {shorten(other, 80)}, not {shorten(value, 80)}")
    return found


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(value, str) and value.startswith(BINARY) and other is not None:
        if not isinstance(other, str) or not other.startswith(BINARY):
            raise BadForm(f"binary data is given as {shorten(other, 80)}, not as hex:…")
        return value.lower() == other.lower().replace(" ", "")
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(_is_same, value, other))
    return bool(value == other)


def _compare_subscriptions(value: Sequence[PacketForm], other: object) -> list[str]:
    if not isinstance(other, list) or not all(isinstance(entry, dict) for entry in other):
        raise BadForm("subscriptions is not a list of objects")
    if len(value) != len(other):
        return [f"the number of subscriptions is {len(other)}, not {len(value)}"]
    found = []
    for entry, returned in zip(value, other, strict=True):
        found += _compare_fields(entry, returned, _SUBSCRIPTION, "subscription ")
    return found


def _compare_properties(
    expected: PacketForm, returned: PacketForm, kind: str, prefix: str
) -> list[str]:
    if returned.get("properties") is None:
        return []
    values = properties_by_name(expected.get("properties", {}), kind)
    others = properties_by_name(returned["properties"], kind)
    found = []
    for name in sorted(values.keys() | others.keys()):
        value, other = values.get(name), others.get(name)
        if _is_same(value, other):
            continue
        if name == "user_properties" and value and other and sorted(value) == sorted(other):
            found.append(f"{prefix}property {name}: {ORDER_IS_LOST}")
        else:
            found.append(
                f"{prefix}property {name} is {shorten(other, 80)}, not {shorten(value, 80)}"
            )
    return found


def properties_by_name(value: object, kind: str) -> dict[str, Any]:
    """Properties by name; repeated ones as lists; what means the same as absence is left out."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        for key, entry in value.items():
            name = _name_of(key)
            several = name in _REPEATABLE.values() and isinstance(entry, list)
            pairs += [(name, each) for each in entry] if several else [(name, entry)]
    elif isinstance(value, list) and all(isinstance(e, list) and len(e) == 2 for e in value):
        pairs = [(_name_of(key), entry) for key, entry in value]
    else:
        raise BadForm("properties is neither an object nor a list of pairs")
    found: dict[str, Any] = {}
    for name, entry in pairs:
        if name in _REPEATABLE.values():
            found.setdefault(name, []).append(entry)
        elif entry is not None and not _means_absence(name, entry, kind):
            found[name] = int(entry) if isinstance(entry, bool) else entry
    return found


def _name_of(key: object) -> str:
    if isinstance(key, int):
        return _PROPERTY_NAMES[key] if is_property(key) else f"{key:#04x}"
    return _REPEATABLE.get(str(key), str(key))


def _means_absence(name: str, value: object, kind: str) -> bool:
    if name == "session_expiry_interval" and kind in _KEEPS_SESSION_EXPIRY:
        return False
    return name in _ABSENT and value == _ABSENT[name]
