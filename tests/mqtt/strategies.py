"""Hypothesis strategies: every packet that is legal under a version, and bytes that are not.

`packets(version)` draws from all that the standard permits, with a leaning to the small; what may
stand where comes from standard_tables.py, not from the package. Strategies are made once: making
them anew for each example costs more than the examples.
"""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

from hypothesis import strategies as st

from semel.mqtt import (
    MQTT5,
    MQTT311,
    NO_PROPERTIES,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
)
from semel.mqtt.properties import PropertyItem
from semel.mqtt.property_values import PropertyValue
from tests.mqtt.standard_tables import (
    CARRIERS,
    NOT_ZERO,
    PROPERTIES,
    REASON_CODES_5,
    REASON_CODES_311,
)

Drawn = TypeVar("Drawn")

# --- values ---------------------------------------------------------------------------------------

# All that UTF-8 can say but U+0000.
characters = st.characters(codec="utf-8", exclude_characters="\0")
texts = st.text(characters, max_size=12)
binaries = st.binary(max_size=12)
packet_ids = st.integers(1, 65_535)
qualities = st.integers(0, 2)

_plain_level = st.text(st.characters(codec="utf-8", exclude_characters="\0/+#"), max_size=4)
topic_names = st.builds(
    lambda first, rest: "/".join([first, *rest]),
    _plain_level | st.sampled_from(["$SYS", "$"]),
    st.lists(_plain_level, max_size=3),
).filter(bool)
_filter_level = _plain_level | st.just("+")
topic_filters = st.builds(
    lambda levels, last: "/".join([*levels, *last]),
    st.lists(_filter_level, max_size=3),
    st.sampled_from([["#"], ["+"], ["a"], []]),
).filter(bool)
share_names = st.text(
    st.characters(codec="utf-8", exclude_characters="\0/+#"), min_size=1, max_size=4
)
shared_filters = st.builds(lambda name, rest: f"$share/{name}/{rest}", share_names, topic_filters)

# --- properties -----------------------------------------------------------------------------------

_BY_KIND: dict[str, st.SearchStrategy[PropertyValue]] = {
    "flag": st.integers(0, 1),
    "two": st.integers(0, 65_535),
    "four": st.integers(0, 2**32 - 1),
    "variable": st.integers(1, 127) | st.integers(1, 2**28 - 1),
    "text": texts,
    "binary": binaries,
    "pair": st.tuples(texts, texts),
}


def _values(identifier: int, kind: str) -> st.SearchStrategy[PropertyValue]:
    if identifier == 8:
        return topic_names
    values = _BY_KIND[kind]
    return values.filter(bool) if identifier in NOT_ZERO else values


def _once(items: list[PropertyItem], several: frozenset[int]) -> Properties:
    seen: set[int] = set()
    kept: list[PropertyItem] = []
    for item in items:
        if item[0] not in seen or item[0] in several:
            kept.append(item)
        seen.add(item[0])
    return Properties(kept)


def properties(packet: str) -> st.SearchStrategy[Properties]:
    """Property sections that may stand in `packet`, or in a WILL."""
    items: list[st.SearchStrategy[PropertyItem]] = [
        st.tuples(st.just(identifier), _values(identifier, kind))
        for identifier, _, kind, packets_of in PROPERTIES
        if packet in packets_of.split()
    ]
    several = frozenset((11, 38)) if packet == "PUBLISH" else frozenset((38,))
    return st.just(NO_PROPERTIES) | st.lists(st.one_of(items), max_size=5).map(
        lambda drawn: _once(drawn, several)
    )


_PROPERTIES = {name: properties(name) for name in CARRIERS}


def _properties(packet: str, version: int) -> st.SearchStrategy[Properties]:
    return _PROPERTIES[packet] if version == MQTT5 else st.just(NO_PROPERTIES)


# --- packets --------------------------------------------------------------------------------------


def _payload(draw: st.DrawFn, section: Properties) -> bytes:
    if section.payload_format_indicator == 1:
        return draw(st.text(st.characters(codec="utf-8"), max_size=8)).encode()
    return draw(st.binary(max_size=40))


@st.composite
def publishes(draw: st.DrawFn, version: int) -> Publish:
    section = draw(_properties("PUBLISH", version))
    qos = draw(qualities)
    alias = section.topic_alias is not None
    return Publish(
        draw(topic_names | st.just("")) if alias else draw(topic_names),
        _payload(draw, section),
        qos=qos,
        packet_id=draw(packet_ids) if qos else 0,
        retain=draw(st.booleans()),
        dup=qos > 0 and draw(st.booleans()),
        properties=section,
    )


@st.composite
def wills(draw: st.DrawFn, version: int) -> Will:
    section = draw(_properties("WILL", version))
    return Will(
        draw(topic_names),
        _payload(draw, section),
        qos=draw(qualities),
        retain=draw(st.booleans()),
        properties=section,
    )


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    section = draw(_properties("CONNECT", version))
    if section.authentication_data is not None and section.authentication_method is None:
        section = Properties([*section.items, (21, draw(texts))])
    clean_start = draw(st.booleans())
    client_id = draw(texts)
    if version != MQTT5 and not client_id:
        clean_start = True
    user_name = draw(st.none() | texts)
    password = draw(st.none() | binaries)
    if version != MQTT5 and user_name is None:
        password = None
    return Connect(
        client_id,
        version=version,
        clean_start=clean_start,
        keep_alive=draw(st.integers(0, 65_535)),
        user_name=user_name,
        password=password,
        will=draw(st.none() | wills(version)),
        properties=section,
    )


@cache
def reasons(packet: str, version: int) -> st.SearchStrategy[int]:
    """The codes that a packet may carry under a version."""
    table = REASON_CODES_5[packet] if version == MQTT5 else REASON_CODES_311.get(packet, {0})
    return st.sampled_from(sorted(table))


@st.composite
def connacks(draw: st.DrawFn, version: int) -> ConnAck:
    reason = draw(reasons("CONNACK", version))
    return ConnAck(
        reason,
        session_present=reason == 0 and draw(st.booleans()),
        properties=draw(_properties("CONNACK", version)),
    )


@cache
def acks(version: int) -> st.SearchStrategy[Packet]:
    """PUBACK, PUBREC, PUBREL, PUBCOMP."""

    def one(name: str, build: Callable[..., Packet]) -> st.SearchStrategy[Packet]:
        return st.builds(
            build,
            packet_ids,
            reasons(name, version),
            properties=_properties(name, version),
        )

    return st.one_of(
        one("PUBACK", PubAck), one("PUBREC", PubRec), one("PUBREL", PubRel), one("PUBCOMP", PubComp)
    )


@st.composite
def subscriptions(draw: st.DrawFn, version: int) -> Subscription:
    if version != MQTT5:
        return Subscription(draw(topic_filters | shared_filters), draw(qualities))
    shared = draw(st.booleans())
    return Subscription(
        draw(shared_filters if shared else topic_filters),
        draw(qualities),
        no_local=not shared and draw(st.booleans()),
        retain_as_published=draw(st.booleans()),
        retain_handling=draw(st.integers(0, 2)),
    )


@cache
def subscribes(version: int) -> st.SearchStrategy[Subscribe]:
    return st.builds(
        Subscribe,
        packet_ids,
        st.lists(subscriptions(version), min_size=1, max_size=3),
        properties=_properties("SUBSCRIBE", version),
    )


@cache
def unsubscribes(version: int) -> st.SearchStrategy[Unsubscribe]:
    return st.builds(
        Unsubscribe,
        packet_ids,
        st.lists(topic_filters | shared_filters, min_size=1, max_size=3),
        properties=_properties("UNSUBSCRIBE", version),
    )


@cache
def subacks(version: int) -> st.SearchStrategy[SubAck]:
    return st.builds(
        SubAck,
        packet_ids,
        st.lists(reasons("SUBACK", version), min_size=1, max_size=4),
        properties=_properties("SUBACK", version),
    )


@cache
def unsubacks(version: int) -> st.SearchStrategy[UnsubAck]:
    if version != MQTT5:
        return st.builds(UnsubAck, packet_ids)
    return st.builds(
        UnsubAck,
        packet_ids,
        st.lists(reasons("UNSUBACK", version), min_size=1, max_size=4),
        properties=_properties("UNSUBACK", version),
    )


@cache
def disconnects(version: int) -> st.SearchStrategy[Disconnect]:
    return st.builds(
        Disconnect,
        reasons("DISCONNECT", version),
        properties=_properties("DISCONNECT", version),
    )


@st.composite
def auths(draw: st.DrawFn) -> Auth:
    section = draw(_properties("AUTH", MQTT5))
    if section.authentication_method is None:
        section = Properties([*section.items, (21, draw(texts))])
    return Auth(draw(reasons("AUTH", MQTT5)), properties=section)


@cache
def packets(version: int) -> st.SearchStrategy[Packet]:
    """Any packet that is legal under a version."""
    kinds: list[st.SearchStrategy[Packet]] = [
        publishes(version),
        acks(version),
        connects(version),
        connacks(version),
        subscribes(version),
        subacks(version),
        unsubscribes(version),
        unsubacks(version),
        disconnects(version),
        st.sampled_from([PingReq(), PingResp()]),
    ]
    if version == MQTT5:
        kinds.append(auths())
    return st.one_of(kinds)


# --- bytes ----------------------------------------------------------------------------------------


@cache
def streams(version: int) -> st.SearchStrategy[bytes]:
    """The encodings of a few packets, one after another."""
    return st.lists(packets(version), min_size=1, max_size=3).map(
        lambda drawn: b"".join(encode(packet, version) for packet in drawn)
    )


@st.composite
def broken_streams(draw: st.DrawFn, version: int) -> bytes:
    """Encodings with bytes changed, lost, doubled or put in; now and then still right."""
    data = bytearray(draw(streams(version)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["flip", "set", "cut", "insert", "remove", "splice"])):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "set" if at < len(data):
                data[at] = draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=3))
            case "remove":
                del data[at : at + draw(st.integers(1, 3))]
            case "splice":
                other = draw(streams(version))
                data[at:] = other[draw(st.integers(0, len(other))) :]
    return bytes(data)


@cache
def inputs(version: int) -> st.SearchStrategy[bytes]:
    """Bytes of every kind: right, nearly right, and anything at all."""
    first = st.sampled_from([*range(16)]).map(
        lambda kind: bytes((kind << 4 | (2 * (kind in (6, 8, 10))),))
    )
    framed = st.builds(
        lambda head, body: head + bytes((len(body),)) + body, first, st.binary(max_size=30)
    )
    return st.one_of(st.binary(max_size=40), framed, streams(version), broken_streams(version))


def with_version(
    strategy: Callable[[int], st.SearchStrategy[Drawn]],
) -> st.SearchStrategy[tuple[int, Drawn]]:
    """A version, and what `strategy` draws for it."""
    return st.one_of(
        st.tuples(st.just(MQTT311), strategy(MQTT311)), st.tuples(st.just(MQTT5), strategy(MQTT5))
    )
