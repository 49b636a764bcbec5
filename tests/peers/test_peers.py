"""The vectors put to other implementations: each difference is listed, with who is right and why.

`differences.csv` has a row for each way in which a peer differs:

    peer       its name here
    kind       accepts (what the vector says is wrong), refuses (what is right), reads (other
               values), writes (other bytes for the same packet), panics (refuses what is wrong,
               yet with an exception that is no `Exception`)
    versions   of the protocol, where the row is for one only
    rule       the rule that the vectors break; empty if they break none
    vectors    a pattern for "file name: vector name", as the shell has it
    behaviour  what the peer does
    clause     the statement that decides
    right      semel, the peer, or either

A difference without a row fails, and so does a row without a difference.
"""

import csv
import importlib
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from semel.mqtt import LARGEST_PACKET, MQTT5, Packet, Properties, Publish, decode
from tests.mqtt.vectors import Vector, build_packet, load_vectors
from tests.peers.facts import our_facts

PEERS = {"mqtt5": "mqtt5", "amqtt": "amqtt", "paho": "paho.mqtt"}
LISTED = Path(__file__).with_name("differences.csv")
VERSION_NAMES = {4: "3.1.1", 5: "5.0"}

# (kind, vector, what was seen)
Difference = tuple[str, Vector, str]


def load_peer(name: str) -> ModuleType:
    pytest.importorskip(PEERS[name], reason=f"the peer {PEERS[name]} is not installed")
    return importlib.import_module(f"tests.peers.peer_{name}")


@cache
def vectors() -> tuple[Vector, ...]:
    """Those that are bytes, for a receiver without a limit of its own."""
    return tuple(
        vector
        for vector in load_vectors()
        if vector.data is not None and vector.maximum_packet_size == LARGEST_PACKET
    )


def difference_in_reading(peer: ModuleType, vector: Vector) -> Difference | None:
    """How the peer's decoder differs from what the vector says."""
    assert vector.data is not None
    if not peer.receives(vector.data[0] >> 4, vector.version):
        return None
    try:
        theirs = peer.decode(vector.data, vector.version)
    except Exception as problem:  # each peer has its own, and some have any
        if type(problem).__name__ == "Panic":
            return "panics", vector, str(problem)
        if vector.packet is None:
            return None
        return "refuses", vector, f"{type(problem).__name__}: {problem}"
    if vector.packet is None:
        return "accepts", vector, f"{vector.rule} as {theirs}"
    ours = our_facts(build_packet(vector.packet))
    unlike = {
        name: (ours.get(name), theirs.get(name))
        for name in theirs.keys() | {name for name in ours if "property" in name}
        if ours.get(name) != theirs.get(name)
    }
    return ("reads", vector, f"ours, theirs: {unlike}") if unlike else None


def without_order(packet: Packet) -> str:
    """A packet as text, its properties in an order of ours: any order says the same [2.2.2.2]."""
    text = repr(packet)
    properties = getattr(packet, "properties", None)
    if isinstance(properties, Properties):
        items = sorted(properties.items, key=lambda item: item[0])
        text = text.replace(repr(properties), repr(Properties(items)))
    if isinstance(packet, Publish):
        return text
    will = getattr(packet, "will", None)
    if will is not None:
        items = sorted(will.properties.items, key=lambda item: item[0])
        text = text.replace(repr(will.properties), repr(Properties(items)))
    return text


def difference_in_writing(peer: ModuleType, vector: Vector) -> Difference | None:
    """How the peer's encoder differs, for a packet that it can express."""
    if vector.packet is None:
        return None
    packet = build_packet(vector.packet)
    try:
        theirs = peer.encode(packet, vector.version)
    except Exception as problem:
        return "writes", vector, f"{type(problem).__name__}: {problem}"
    if theirs is None or theirs == vector.encodes_to:
        return None
    decoded: Any = None
    if len(theirs) == len(vector.encodes_to):
        try:
            decoded = decode(theirs, vector.version)
        except Exception as problem:
            return "writes", vector, f"{theirs.hex()}: {problem}"
    if decoded is not None and without_order(decoded[0]) == without_order(packet):
        return None
    return "writes", vector, f"{theirs.hex()[:120]} instead of {vector.encodes_to.hex()[:120]}"


def speaks(peer: ModuleType, vector: Vector) -> bool:
    """Whether the peer knows the version; a CONNECT names its own."""
    named = vector.version
    if vector.packet is not None and vector.packet["type"] == "Connect":
        named = vector.packet.get("version", MQTT5)
    return vector.version in peer.VERSIONS and named in peer.VERSIONS


def differences(peer: ModuleType) -> list[Difference]:
    found: list[Difference] = []
    for vector in vectors():
        if not speaks(peer, vector):
            continue
        for difference in (
            difference_in_reading(peer, vector),
            difference_in_writing(peer, vector),
        ):
            if difference is not None:
                found.append(difference)
    return found


def listed() -> list[dict[str, str]]:
    with LISTED.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def covers(row: dict[str, str], difference: Difference) -> bool:
    kind, vector, _ = difference
    return (
        row["kind"] == kind
        and row["versions"] in ("", VERSION_NAMES[vector.version])
        and row["rule"] == ("" if vector.rule is None else vector.rule.name)
        and fnmatchcase(f"{vector.file}: {vector.name}", row["vectors"])
    )


# The panics of mqtt5 leave an exception behind that nobody can catch.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("name", PEERS)
def test_every_difference_is_listed(name: str) -> None:
    rows = [row for row in listed() if row["peer"] == name]
    unlisted = [
        f"{kind} {VERSION_NAMES[vector.version]} {vector.file}: {vector.name} — {seen}"
        for kind, vector, seen in differences(load_peer(name))
        if not any(covers(row, (kind, vector, seen)) for row in rows)
    ]
    assert not unlisted, "\n".join([f"{len(unlisted)} differences are not listed:", *unlisted])


@pytest.mark.parametrize("name", PEERS)
def test_every_listed_difference_occurs(name: str) -> None:
    found = differences(load_peer(name))
    idle = [
        str(row)
        for row in listed()
        if row["peer"] == name and not any(covers(row, difference) for difference in found)
    ]
    assert not idle, "\n".join(["these rows describe nothing any more:", *idle])


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_and_semel_agree_on_most_packets(name: str) -> None:
    """Or the two tests above would compare nothing with nothing."""
    peer = load_peer(name)
    right = [
        vector
        for vector in vectors()
        if vector.packet is not None
        and vector.data is not None
        and speaks(peer, vector)
        and peer.receives(vector.data[0] >> 4, vector.version)
    ]
    alike = [vector for vector in right if difference_in_reading(peer, vector) is None]
    assert len(alike) > len(right) / 2 > 10


def statements() -> set[str]:
    """Every statement of both standards by its number."""
    numbers = set()
    for file in files("semel.standard").iterdir():
        if file.name.endswith(".csv"):
            for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
                numbers.add(row.get("id") or row["key"])
    return numbers


def test_every_row_names_a_peer_a_clause_and_who_is_right() -> None:
    known = statements()
    for row in listed():
        assert row["peer"] in PEERS, row
        assert row["kind"] in ("accepts", "refuses", "reads", "writes", "panics"), row
        assert row["right"] in ("semel", "peer", "either"), row
        assert row["behaviour"], row
        assert row["clause"], row
        for clause in row["clause"].split():
            if not clause.startswith("§"):
                assert clause in known, f"{clause} is no statement: {row}"


def test_no_row_is_stated_twice() -> None:
    keys = [
        tuple(row[key] for key in ("peer", "kind", "versions", "rule", "vectors"))
        for row in listed()
    ]
    assert len(keys) == len(set(keys))
