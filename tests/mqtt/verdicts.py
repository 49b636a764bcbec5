"""How the tests say what a packet's bytes are, and what must be thought of them.

`framed` and `section` count lengths, so that a test shows the bytes that matter; they share
nothing with the encoder under test.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from semel.mqtt import MQTT5, MQTT311, Packet, Rule, Violation, decode, encode, observe

BOTH = (MQTT311, MQTT5)


def variable(value: int) -> bytes:
    """A Variable Byte Integer [1.5.5]."""
    if value < 128:
        return bytes((value,))
    return bytes((value % 128 + 128,)) + variable(value // 128)


def framed(first: int, body: str) -> bytes:
    """A packet from its first byte and the hex of its body."""
    content = bytes.fromhex(body)
    return bytes((first,)) + variable(len(content)) + content


def section(properties: str) -> str:
    """A property section with its length, hex to hex."""
    content = bytes.fromhex(properties)
    return (variable(len(content)) + content).hex()


def text(value: str) -> str:
    """A string with its length, as hex."""
    content = value.encode()
    return (len(content).to_bytes(2, "big") + content).hex()


@contextmanager
def refuses(rule: Rule) -> Iterator[None]:
    """The block breaks exactly this rule."""
    with pytest.raises(Violation) as caught:
        yield
    assert caught.value.rule is rule


def observed(data: bytes, version: int) -> list[Rule]:
    """The rules that `observe` finds broken, in order."""
    observation = observe(data, version)
    assert observation is not None
    assert (observation.start, observation.end) == (0, len(data))
    return [violation.rule for violation in observation.violations]


def check_accepted(data: bytes, version: int, packet: Packet) -> None:
    """Decoded as `packet`; nothing is wrong with it; whoever reads it back gets the same."""
    assert decode(data, version) == (packet, len(data))
    assert observed(data, version) == []


def check_both_ways(data: bytes, version: int, packet: Packet) -> None:
    """The bytes and the packet are each other's only form."""
    check_accepted(data, version, packet)
    assert encode(packet, version) == data


def check_refused(data: bytes, version: int, *rules: Rule) -> None:
    """`decode` stops at the first of `rules`; `observe` reports these and no other."""
    with pytest.raises(Violation) as caught:
        decode(data, version)
    assert caught.value.rule is rules[0]
    assert sorted(map(repr, observed(data, version))) == sorted(map(repr, rules))
