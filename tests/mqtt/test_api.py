"""What semel.mqtt promises to those who import it."""

import ast
import doctest
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings

import semel.mqtt
from semel.mqtt import (
    MQTT5,
    MQTT311,
    RULES,
    Auth,
    ConnAck,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    PingReq,
    Properties,
    PubAck,
    Publish,
    Rule,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Violation,
    Will,
    decode,
    encode,
    observe,
    rules,
)
from tests.mqtt.strategies import packets, with_version
from tests.mqtt.verdicts import framed, section, text

COMPILED = os.environ.get("SEMEL_TEST_MODE") == "compiled"
WHEN_COMPILED = pytest.mark.skipif(not COMPILED, reason="enforced at run time when compiled")

PACKETS = (
    *("Auth", "ConnAck", "Connect", "Disconnect", "PingReq", "PingResp", "PubAck", "PubComp"),
    *("PubRec", "PubRel", "Publish", "SubAck", "Subscribe", "UnsubAck", "Unsubscribe"),
)
OTHERS = (
    *("Decoder", "LARGEST_PACKET", "MQTT311", "MQTT5", "NO_PROPERTIES", "Observation"),
    *("PACKET_NAMES", "Packet", "Properties", "RULES", "Rule", "Subscription", "Violation"),
    *("Will", "check_levels", "decode", "encode", "observe", "packet_type_of", "reasons"),
    *("rules", "split_share", "topic_matches"),
)


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PACKETS + OTHERS)
def test_a_public_name_can_be_imported_from_the_package(name: str) -> None:
    assert hasattr(semel.mqtt, name)


def test_the_packet_type_is_the_union_of_all_packets() -> None:
    assert sorted(each.__name__ for each in get_args(Packet)) == sorted(PACKETS)


def test_versions_are_protocol_levels() -> None:
    assert (MQTT311, MQTT5) == (4, 5)


def test_every_rule_is_listed_once_under_its_own_name() -> None:
    names = [rule.name for rule in RULES]
    assert len(names) == len(set(names))
    for name, rule in vars(rules).items():
        if isinstance(rule, Rule):
            assert rule.name == name
            assert rule in RULES


def test_every_rule_is_a_sentence_with_a_boundary_and_statements() -> None:
    for rule in RULES:
        assert rule.sentence.endswith(".")
        assert rule.boundaries
        assert set(rule.boundaries) <= {"encode", "decode", "exchange", "limit"}
        assert rule.reason == 0 or rule.reason >= 0x80


def docstrings(path: Path) -> Iterator[str]:
    """Those of a module, its classes and its functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""


def test_the_examples_of_the_modules_are_true() -> None:
    # Read from the sources: doctest cannot look into a compiled module.
    runner = doctest.DocTestRunner()
    parser = doctest.DocTestParser()
    for path in sorted(Path(semel.mqtt.__file__).parent.rglob("*.py")):
        names = dict(vars(semel.mqtt))
        for docstring in docstrings(path):
            runner.run(parser.get_doctest(docstring, names, path.name, str(path), 0))
    assert runner.tries >= 4
    assert runner.failures == 0


# --- secrets --------------------------------------------------------------------------------------

SECRET = "s3cr3t"
BROKEN_AND_SECRET = (
    # A CONNECT whose password is followed by one byte too many, or cut short.
    framed(0x10, "00044d515454 04 c2 003c" + text("a") + text("u") + text(SECRET) + "00"),
    framed(0x10, "00044d515454 04 42 003c" + text("a") + text(SECRET)),
    framed(0x10, "00044d515454 04 c3 003c" + text("a") + text("u") + text(SECRET)),
    # Authentication Data without a method, or in a packet that may not have it.
    framed(0x10, "00044d515454 05 02 003c" + section("16" + text(SECRET)) + text("a")),
    framed(0xF0, "18" + section("16" + text(SECRET))),
    framed(0xE0, "00" + section("16" + text(SECRET))),
    framed(0xF0, "18" + section("15" + text("m") + 2 * ("16" + text(SECRET)))),
    # Payloads that are not the UTF-8 they are said to be, of a message and of a will.
    framed(0x30, text("a") + "020101" + SECRET.encode().hex() + "ff"),
    framed(0x38, text("a") + "00" + SECRET.encode().hex()),
    framed(
        0x10,
        "00044d515454 05 06 003c 00"
        + text("a")
        + "020101"
        + text("w")
        + "0007"
        + SECRET.encode().hex()
        + "ff",
    ),
)


@pytest.mark.parametrize("data", BROKEN_AND_SECRET)
def test_an_error_shows_no_password_no_payload_and_no_authentication_data(data: bytes) -> None:
    with pytest.raises(Violation) as caught:
        decode(data, MQTT5)
    observation = observe(data, MQTT5)
    assert observation is not None
    for violation in (caught.value, *observation.violations):
        for shown in (str(violation), repr(violation), violation.seen, repr(violation.args)):
            assert SECRET not in shown
            assert SECRET.encode().hex() not in shown


def test_an_error_of_a_constructor_shows_no_secret_either() -> None:
    secret = SECRET.encode()
    for build in (
        lambda: Connect("a", version=MQTT311, password=secret),
        lambda: Connect("a", password=secret * 20_000),
        lambda: Connect("a", properties=Properties(authentication_data=secret)),
        lambda: Properties(authentication_method="m", authentication_data=secret * 20_000),
        lambda: Publish("a", secret, dup=True),
        lambda: Publish("a", secret + b"\xff", properties=Properties(payload_format_indicator=1)),
        lambda: Will("w", secret * 20_000),
    ):
        with pytest.raises(Violation) as caught:
            build()
        assert SECRET not in str(caught.value)
        assert SECRET not in repr(caught.value)


def test_a_repr_shows_no_password_and_no_authentication_data() -> None:
    secret = Properties(authentication_method="m", authentication_data=SECRET.encode())
    for packet in (
        Connect("a", password=SECRET.encode(), user_name="u", properties=secret),
        ConnAck(properties=secret),
        Auth(0x18, properties=secret),
    ):
        assert SECRET not in repr(packet)
        assert SECRET not in str(packet)
        assert "authentication_data=<6 bytes>" in repr(packet)


# --- packets are values ---------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=100, deadline=None, derandomize=True)
@given(with_version(packets))
def test_a_packet_is_equal_to_its_like_and_to_nothing_else(drawn: tuple[int, Packet]) -> None:
    version, packet = drawn
    again = decode(encode(packet, version), version)
    assert again is not None
    assert packet == again[0]
    others: tuple[object, ...] = (version, encode(packet, version), None, repr(packet))
    assert packet not in others
    assert re.fullmatch(r"\w+\(.*\)", repr(packet), re.DOTALL)


EXAMPLES = (
    Connect("a", will=Will("w")),
    Will("w"),
    ConnAck(),
    Publish("a"),
    PubAck(7),
    Subscribe(7, [Subscription("a")]),
    Subscription("a"),
    SubAck(7, [0]),
    Unsubscribe(7, ["a"]),
    UnsubAck(7),
    Disconnect(),
    Auth(0x18, properties=Properties(authentication_method="m")),
    Properties(topic_alias=1),
    rules.QOS_NOT_3,
)


@WHEN_COMPILED
@pytest.mark.parametrize("value", EXAMPLES, ids=lambda value: type(value).__name__)
def test_no_field_can_be_changed_removed_or_added(value: object) -> None:
    for name in type(value).__annotations__:
        before = getattr(value, name)
        with pytest.raises(AttributeError):
            setattr(value, name, before)
        with pytest.raises(AttributeError):
            delattr(value, name)
        assert getattr(value, name) == before
    with pytest.raises(AttributeError):
        value.something_new = 1  # type: ignore[attr-defined]


@WHEN_COMPILED
def test_a_subclass_of_a_packet_has_no_instances() -> None:
    mine = type("Mine", (Publish,), {"__init__": lambda self: None})
    with pytest.raises(TypeError):
        mine()


@WHEN_COMPILED
@pytest.mark.parametrize(
    "build",
    [
        lambda: Publish(b"a"),  # type: ignore[arg-type]
        lambda: Publish("a", "x"),  # type: ignore[arg-type]
        lambda: Publish("a", bytearray(b"x")),  # type: ignore[arg-type]
        lambda: Publish("a", None),  # type: ignore[arg-type]
        lambda: Publish("a", qos="1"),  # type: ignore[arg-type]
        lambda: Publish("a", qos=1.0, packet_id=1),  # type: ignore[arg-type]
        lambda: Publish("a", retain=1),  # type: ignore[arg-type]
        lambda: Publish("a", properties=None),  # type: ignore[arg-type]
        lambda: Publish("a", properties={}),  # type: ignore[arg-type]
        lambda: PubAck("7"),  # type: ignore[arg-type]
        lambda: PubAck(None),  # type: ignore[arg-type]
        lambda: Connect(b"a"),  # type: ignore[arg-type]
        lambda: Connect("a", password="p"),  # type: ignore[arg-type]
        lambda: Connect("a", user_name=b"u"),  # type: ignore[arg-type]
        lambda: Connect("a", will=Publish("w")),  # type: ignore[arg-type]
        lambda: Connect("a", clean_start=None),  # type: ignore[arg-type]
        lambda: Will("w", "x"),  # type: ignore[arg-type]
        lambda: Subscribe(7, ["a"]),  # type: ignore[list-item]
        lambda: Subscribe(7, [("a", 1)]),  # type: ignore[list-item]
        lambda: Subscription(7),  # type: ignore[arg-type]
        lambda: SubAck(7, ["0"]),  # type: ignore[list-item]
        lambda: SubAck(7, 0),  # type: ignore[arg-type]
        lambda: Unsubscribe(7, [b"a"]),  # type: ignore[list-item]
        lambda: Auth(0x18),  # type: ignore[call-arg]
        lambda: Properties(user_properties=[("a", "b", "c")]),  # type: ignore[list-item]
        lambda: Properties(user_properties=["ab"]),  # type: ignore[list-item]
        lambda: Properties(topic_alias="1"),  # type: ignore[arg-type]
        lambda: decode("c000"),  # type: ignore[arg-type]
        lambda: decode(b"\xc0\x00", "5"),  # type: ignore[arg-type]
        lambda: encode(b"\xc0\x00"),  # type: ignore[arg-type]
        lambda: encode(Will("w")),  # type: ignore[arg-type]
        lambda: encode(PingReq(), None),  # type: ignore[arg-type]
        lambda: observe(None),  # type: ignore[arg-type]
        lambda: Decoder().receive("c000"),  # type: ignore[arg-type]
        lambda: Decoder(maximum_packet_size=None),  # type: ignore[arg-type]
    ],
)
def test_an_argument_of_another_type_is_a_type_error(build: object) -> None:
    with pytest.raises(TypeError):
        build()  # type: ignore[operator]


def test_a_keyword_that_does_not_exist_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        Publish("a", topic="a")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Properties(topic_aliass=1)  # type: ignore[call-arg]


def test_flags_are_named_and_never_positional() -> None:
    with pytest.raises(TypeError):
        Publish("a", b"x", 1, 7, True)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Subscription("a", 1, True)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        ConnAck(0, True)  # type: ignore[call-arg]
    assert Publish("a", b"x", 1, 7, retain=True).retain
