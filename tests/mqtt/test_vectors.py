"""Every vector, through every way in and out of the codec.

One list drives whole packets, single bytes, every cut, every prefix, what follows and what goes
before, the encoder, constructors, and observation. `test_exchange.py` drives the traces.
"""

from collections import Counter
from collections.abc import Callable
from importlib.resources import files

import pytest

from semel import vectors
from semel.mqtt import (
    LARGEST_PACKET,
    RULES,
    Decoder,
    Packet,
    PingReq,
    Rule,
    Violation,
    decode,
    encode,
    exchange_rules,
    observe,
)
from semel.standard import statements
from tests.modes import repeats
from tests.mqtt.vectors import Trace, Vector, build_packet, load_traces, load_vectors

VECTORS = load_vectors()
WIRE = [vector for vector in VECTORS if vector.data is not None]
BUILDS = [vector for vector in VECTORS if vector.build is not None]
TRACES = load_traces()
FILES = sorted({vector.file for vector in WIRE})
VERSION_NAMES = {4: "3.1.1", 5: "5.0"}
IDS = {version: {s.id for s in statements(name)} for version, name in VERSION_NAMES.items()}
PINGREQ = b"\xc0\x00"
# Payloads and passwords of the vectors that watch over secrecy have these bytes.
SECRET = "s3cr3t!"
# Above this size a few cuts stand for all of them.
SHORT = 300

Outcome = Packet | Rule | None


def outcome(data: bytes, vector: Vector, start: int = 0) -> tuple[Outcome, int]:
    """What decode makes of the bytes: the packet and its end, or the rule broken, or None."""
    maximum = vector.maximum_packet_size
    try:
        decoded = decode(data, vector.version, start=start, maximum_packet_size=maximum)
    except Violation as violation:
        return violation.rule, 0
    return (None, 0) if decoded is None else decoded


def received(pieces: list[bytes], vector: Vector) -> list[Outcome]:
    """What a Decoder makes of a stream in these pieces."""
    decoder = Decoder(vector.version, maximum_packet_size=vector.maximum_packet_size)
    found: list[Outcome] = []
    for piece in pieces:
        for value in decoder.receive(piece):
            found.append(value.rule if isinstance(value, Violation) else value)
    return found


def expected(vector: Vector) -> Outcome:
    if vector.rule is not None:
        return vector.rule
    assert vector.packet is not None
    return build_packet(vector.packet)


def cuts(size: int) -> list[int]:
    """Where to cut `size` bytes in two."""
    if size <= SHORT:
        return list(range(1, size))
    return [*range(1, 12), size // 2, *range(size - 3, size)]


@pytest.mark.parametrize("vector", [v for v in WIRE if v.rule is None], ids=str)
def test_bytes_are_the_packet_and_the_packet_the_bytes(vector: Vector) -> None:
    assert vector.data is not None
    packet = expected(vector)
    assert outcome(vector.data, vector) == (packet, len(vector.data))
    assert packet is not None
    assert not isinstance(packet, Rule)
    data = encode(packet, vector.version)
    assert data == vector.encodes_to
    assert decode(data, vector.version) == (packet, len(data))
    seen = observe(vector.data, vector.version)
    assert seen is not None
    assert seen.violations == ()
    assert (seen.start, seen.end) == (0, len(vector.data))


@pytest.mark.parametrize("vector", [v for v in WIRE if v.rule is not None], ids=str)
def test_bytes_that_break_a_rule_are_refused_and_seen(vector: Vector) -> None:
    assert vector.data is not None
    with pytest.raises(Violation) as caught:
        decode(vector.data, vector.version, maximum_packet_size=vector.maximum_packet_size)
    violation = caught.value
    assert violation.rule is vector.rule
    assert set(vector.statements) <= set(violation.statements)
    seen = observe(vector.data, vector.version)
    assert seen is not None
    if vector.maximum_packet_size == LARGEST_PACKET:
        assert vector.rule in [other.rule for other in seen.violations]
    else:
        # The size that a receiver takes is none of the packet's own faults.
        assert seen.violations == ()
    for found in (violation, *seen.violations):
        assert found.version == vector.version
        assert found.packet_type == vector.data[0] >> 4
        assert set(found.statements) <= IDS[vector.version]
        assert SECRET not in f"{found} {found!r} {found.seen}"


# Packets up to this size also come byte by byte.
SINGLE_BYTES = repeats(100_000, 5_000)


def pieces_agree(vector: Vector, data: bytes) -> bool:
    wanted = [expected(vector)]
    if len(data) < SINGLE_BYTES and received([bytes([byte]) for byte in data], vector) != wanted:
        return False
    return all(received([data[:at], data[at:]], vector) == wanted for at in cuts(len(data)))


def prefixes_are_no_packets(vector: Vector, data: bytes) -> bool:
    allowed = (None, vector.rule)
    return all(outcome(data[:at], vector)[0] in allowed for at in (0, *cuts(len(data))))


def neighbours_do_not_matter(vector: Vector, data: bytes) -> bool:
    wanted = expected(vector)
    end = 0 if vector.rule else len(data)
    inner = 0 if vector.rule else len(data) + 2
    # After a violation nothing is read. A CONNECT changes the version; PINGREQ is in both.
    after: list[Outcome] = [] if vector.rule else [PingReq()]
    return (
        outcome(data + PINGREQ, vector) == (wanted, end)
        and outcome(data + data, vector) == (wanted, end)
        and outcome(PINGREQ + data + PINGREQ, vector, 2) == (wanted, inner)
        and received([PINGREQ + data + PINGREQ], vector) == [PingReq(), wanted, *after]
    )


def failing(check: Callable[[Vector, bytes], bool], file: str) -> list[str]:
    """The vectors of a file that a check does not hold for."""
    mine = [(v, v.data) for v in WIRE if v.file == file and v.data is not None]
    assert mine
    return [str(vector) for vector, data in mine if not check(vector, data)]


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_pieces_of_any_size_come_to_the_same(file: str) -> None:
    assert failing(pieces_agree, file) == []


@pytest.mark.parametrize("file", FILES)
def test_no_proper_prefix_is_a_packet(file: str) -> None:
    assert failing(prefixes_are_no_packets, file) == []


@pytest.mark.parametrize("file", FILES)
def test_what_stands_around_a_packet_does_not_matter(file: str) -> None:
    assert failing(neighbours_do_not_matter, file) == []


@pytest.mark.parametrize("vector", BUILDS, ids=str)
def test_what_breaks_a_rule_cannot_be_written(vector: Vector) -> None:
    assert vector.build is not None
    with pytest.raises(Violation) as caught:
        encode(build_packet(vector.build), vector.version)
    violation = caught.value
    assert violation.rule is vector.rule
    # A constructor does not know the version, and its violation names the statements of both.
    assert violation.version in (0, vector.version)
    assert set(vector.statements) <= set(violation.rule.statements(vector.version))
    assert SECRET not in f"{violation} {violation!r} {violation.seen}"


def test_secrets_are_in_rejected_packets_on_both_ways() -> None:
    """Or else the tests above could not find one."""
    secret = SECRET.encode()
    assert sum(v.data is not None and v.rule is not None and secret in v.data for v in WIRE) >= 8
    assert sum(secret.hex() in str(v.build) for v in BUILDS) >= 4


def test_every_reject_has_an_accept_beside_it() -> None:
    """One of the same packet type and version, on one of the same statements if there are any."""
    beside = {
        (v.file, v.version, statement) for v in WIRE if v.rule is None for statement in v.statements
    }
    files = {(v.file, v.version) for v in WIRE if v.rule is None}
    alone = [
        str(v)
        for v in VECTORS
        if v.rule is not None
        and (
            not any((v.file, v.version, statement) in beside for statement in v.statements)
            if v.statements
            else (v.file, v.version) not in files
        )
    ]
    assert alone == []


def test_vectors_are_either_accepted_or_rejected_and_are_not_listed_twice() -> None:
    for vector in VECTORS:
        assert (vector.data is None) != (vector.build is None), vector
        assert (vector.packet is None) != (vector.rule is None), vector
        assert vector.build is None or vector.packet is None, vector
        assert set(vector.statements) <= IDS[vector.version], vector
    names = Counter(map(str, [*VECTORS, *TRACES]))
    assert [name for name, count in names.items() if count > 1] == []
    bodies = Counter((v.version, v.data, v.maximum_packet_size) for v in WIRE)
    assert [body for body, count in bodies.items() if count > 1] == []


def test_vectors_are_one_to_a_line() -> None:
    for name in vectors.names():
        lines = files(vectors).joinpath(f"{name}.json").read_text("ascii")
        assert len(lines.splitlines()) == len(vectors.load(name)) + 2


def test_bytes_are_written_in_hexadecimal_with_repeats() -> None:
    assert vectors.parse_bytes("") == b""
    assert vectors.parse_bytes("3000") == b"0\x00"
    assert vectors.parse_bytes("30 61*3 ff00*2") == b"0aaa\xff\x00\xff\x00"


@pytest.mark.parametrize("trace", TRACES, ids=str)
def test_every_step_of_a_trace_is_a_whole_packet(trace: Trace) -> None:
    assert set(trace.statements) <= IDS[trace.version]
    assert trace.steps
    for sender, data in trace.steps:
        assert sender in ("C>S", "S>C")
        decoded = decode(data, trace.version)
        assert decoded is not None
        assert decoded[1] == len(data)
    for sender, packet_id, stage in trace.carried:
        assert sender in ("C>S", "S>C")
        assert 0 < packet_id < 65_536
        assert stage in ("PUBLISH_QOS_1", "PUBLISH_QOS_2", "PUBREC", "PUBREL")
    if trace.rule is not None:
        assert "exchange" in trace.rule.boundaries
        packet_type = trace.steps[-1][1][0] >> 4
        assert set(trace.statements) <= set(trace.rule.statements(trace.version, packet_type))


def test_every_rule_of_the_exchange_has_a_trace_that_breaks_it_and_one_that_keeps_it() -> None:
    rules = [rule for rule in RULES if "exchange" in rule.boundaries]
    assert {rule for rule in vars(exchange_rules).values() if isinstance(rule, Rule)} <= set(rules)
    for rule in rules:
        for version in VERSION_NAMES:
            named = set(rule.statements(version))
            if not named:
                continue
            broken = [t for t in TRACES if t.rule is rule and t.version == version]
            kept = [
                t
                for t in TRACES
                if t.rule is None and t.version == version and named & set(t.statements)
            ]
            assert broken, (rule, version)
            assert kept, (rule, version)
