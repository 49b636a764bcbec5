"""Sparkplug without Spark: strict payloads, and states that depend on nothing but the messages."""

import math
import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.pipeline.decoders.outcome import Problem
from semel.pipeline.sparkplug.payload import SparkplugMessage, decode_message
from semel.pipeline.sparkplug.protobuf_schema import payload_class
from semel.pipeline.sparkplug.state import (
    Applied,
    EdgeNodeState,
    MetricRow,
    PartKey,
    apply,
)
from semel.pipeline.sparkplug.values import BadValue, read_array

NODE = "spBv1.0/g/{}/e"
DEVICE = "spBv1.0/g/{}/e/{}"


def encoded(seq: int | None = None, *metrics: dict[str, Any], time: int | None = 1_000) -> bytes:
    payload = payload_class()()
    if seq is not None:
        payload.seq = seq
    if time is not None:
        payload.timestamp = time
    for each in metrics:
        payload.metrics.add(**each)
    data: bytes = payload.SerializeToString()
    return data


def message(topic: str, payload: bytes) -> SparkplugMessage:
    found = decode_message(topic, payload)
    assert isinstance(found, SparkplugMessage), found
    return found


def bd_seq(number: int) -> dict[str, Any]:
    return {"name": "bdSeq", "datatype": 4, "long_value": number}


def declared(name: str, alias: int | None = None, datatype: int = 3) -> dict[str, Any]:
    found = {"name": name, "datatype": datatype, "is_null": True}
    return found if alias is None else {**found, "alias": alias}


class Followed:
    """A state, and what its messages have given."""

    def __init__(self) -> None:
        self.state = EdgeNodeState()
        self.last: Applied

    def send(self, topic: str, seq: int | None = None, *metrics: dict[str, Any]) -> list[str]:
        """Apply a message; the kinds of its gaps."""
        self.last = apply(self.state, message(topic, encoded(seq, *metrics)))
        self.state = self.last.state
        return [gap.kind for gap in self.last.gaps]

    @property
    def events(self) -> list[tuple[str, str | None]]:
        return [(each.event, each.device_id) for each in self.last.events]


def born(number: int = 0) -> Followed:
    found = Followed()
    metrics = (bd_seq(number), declared("speed", 1), declared("name", None, 12))
    assert found.send(NODE.format("NBIRTH"), 0, *metrics) == []
    return found


# --- payloads -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "payload", "reason"),
    [
        ("spBv1.0/g/NDATA/e", b"\xff", "not a valid message of Sparkplug B"),
        ("spBv1.0/g/NDATA/e", b"\x12\x05\x0a\x03\xff\xff\xff", "not a valid message"),
        ("spBv1.0/g/NDATA/e", b"\x18\x80\x02", "expected a seq from 0 to 255, found 256"),
        ("spBv1.0/g/NDATA/e/d", b"", "expected a topic spBv1.0/group/NDATA/edge node"),
        ("spBv1.0/g/DDATA/e", b"", "expected a topic spBv1.0/group/DDATA/edge node/device"),
        ("spBv1.0/g/NMETA/e", b"", "expected a type of message such as NDATA"),
        ("spBv1.0/g", b"", "expected a type of message"),
        ("spBv1.0/", b"", "no empty levels"),
        ("spBv1.0//NDATA/e", b"", "no empty levels"),
        ("spBv1.0/g/NDEATH/e", encoded(None, declared("bdSeq") | {"is_null": False}), "no value"),
        ("spBv1.0/g/NBIRTH/e", encoded(0, bd_seq(2**64 - 1)), "expected a number for bdSeq"),
        ("spBv1.0/STATE/h", b"ONLINE", "the payload of STATE is not JSON"),
        ("spBv1.0/STATE/h", b"\xff", "not JSON"),
        ("spBv1.0/STATE/h", b"[" * 100_000, "not JSON"),
        ("spBv1.0/STATE/h", b'{"online": 1, "timestamp": 1}', "expected true or false"),
        ("spBv1.0/STATE/h", b'{"online": true}', "expected a number for timestamp"),
        ("spBv1.0/STATE/h", b'{"online": true, "timestamp": 1e99}', "years 1 to 9999"),
        ("spBv1.0/STATE/h", b'{"online": true, "timestamp": NaN}', "years 1 to 9999"),
        ("spBv1.0/STATE/h", b'{"online": true, "timestamp": true}', "expected a number"),
        # In an unsigned field this is a negative time, but JSON has signs.
        ("spBv1.0/STATE/h", b'{"online": true, "timestamp": %d}' % (2**64 - 1), "years 1 to 9999"),
        ("spBv1.0/STATE/h", '{"online": true, "timestamp": 1}'.encode("utf-16"), "not JSON"),
        ("spBv1.0/STATE/h", b'{"online": true, "timestamp": %d}' % 10**30, "years 1 to 9999"),
    ],
)
def test_what_is_no_message_has_a_reason(topic: str, payload: bytes, reason: str) -> None:
    found = decode_message(topic, payload)
    assert isinstance(found, Problem)
    assert reason in found.reason


@pytest.mark.parametrize(
    ("payload", "time"),
    [
        (b'{"online": true, "timestamp": 1700000000000}', 1_700_000_000_000_000),
        # As Python's time.time() * 1000.
        (b'{"online": true, "timestamp": 1700000000000.5}', 1_700_000_000_000_500),
        (b'{"online": true, "timestamp": 1.7e12}', 1_700_000_000_000_000),
        (b'\xef\xbb\xbf{"online": true, "timestamp": -1}', -1_000),
    ],
)
def test_the_time_of_a_host_is_any_number_of_json(payload: bytes, time: int) -> None:
    found = message("spBv1.0/STATE/h", payload)
    assert (found.time, found.is_online) == (time, True)


def test_a_compressed_payload_is_no_message_without_metrics() -> None:
    """Its metrics are in `body`: taken as it is, they would be lost without a trace."""
    algorithm = {"name": "algorithm", "datatype": 12, "string_value": "DEFLATE"}
    payload = payload_class()(seq=3, uuid="SPBV1.0_COMPRESSED", body=b"x")
    payload.metrics.add(**algorithm)
    found = decode_message("spBv1.0/g/NDATA/e", payload.SerializeToString())
    assert found == Problem("the payload is compressed, which is not supported", "uuid")
    payload.uuid = "of a schema"
    assert message("spBv1.0/g/NDATA/e", payload.SerializeToString()).seq == 3


def test_bytes_made_by_hand_are_read() -> None:
    # Payload: timestamp 1, seq 5, and a metric: alias 300, datatype 10 (Double), 1.0.
    metric = b"\x10\xac\x02\x20\x0a\x69" + struct.pack("<d", 1.0)
    payload = b"\x08\x01\x12" + bytes([len(metric)]) + metric + b"\x18\x05"
    found = message("spBv1.0/g/DDATA/e/d", payload)
    assert (found.seq, found.time, found.topic.device_id) == (5, 1_000, "d")
    (sent,) = found.metrics
    assert (sent.name, sent.alias, sent.datatype, sent.field) == (None, 300, 10, "double_value")
    # An unknown field, such as an extension, is no error.
    assert message("spBv1.0/g/DDATA/e/d", payload + b"\xf8\x3f\x01") == found


def row_of(**metric: Any) -> MetricRow:
    followed = Followed()
    followed.send(NODE.format("NBIRTH"), 0, {"name": "m", **metric})
    return followed.last.metrics[0]


@pytest.mark.parametrize(
    ("datatype", "field", "value", "expected"),
    [
        (1, "int_value", 127, 127),
        (1, "int_value", 128, -128),
        (1, "int_value", 2**32 - 128, -128),
        (1, "long_value", 2**64 - 1, -1),
        (3, "int_value", 2**31, -(2**31)),
        (3, "long_value", 2**64 - 5, -5),
        (4, "long_value", 2**63, -(2**63)),
        (4, "int_value", 2**32 - 1, 2**32 - 1),
        (7, "long_value", 2**32 - 1, 2**32 - 1),
        (8, "long_value", 2**63 - 1, 2**63 - 1),
    ],
)
def test_integers_are_taken_in_each_form(
    datatype: int, field: str, value: int, expected: int
) -> None:
    row = row_of(datatype=datatype, **{field: value})
    assert (row.value_long, row.problem) == (expected, None)


@pytest.mark.parametrize("milliseconds", [-1, -62_135_596_800_000, 0, 253_402_300_799_999])
def test_times_before_1970_are_sent_as_two_s_complement(milliseconds: int) -> None:
    sent = milliseconds % 2**64
    row = row_of(datatype=13, long_value=sent, timestamp=sent)
    assert (row.value_time, row.problem) == (milliseconds * 1_000, None)


@pytest.mark.parametrize(
    ("metric", "problem"),
    [
        ({"datatype": 1, "int_value": 256}, "expected a value of type Int8, found 256"),
        ({"datatype": 1, "int_value": 2**32 - 129}, "expected a value of type Int8"),
        ({"datatype": 3, "long_value": 2**32}, "expected a value of type Int32"),
        ({"datatype": 5, "int_value": 256}, "expected a value of type UInt8"),
        ({"datatype": 3, "double_value": 1.0}, "expected int_value for type Int32"),
        ({"datatype": 12, "bytes_value": b"x"}, "expected string_value for type String"),
        ({"datatype": 3}, "the metric has no value, and is_null is not set"),
        ({"datatype": 99, "string_value": "x"}, "there is no data type 99"),
        ({"datatype": 13, "long_value": 2**62}, "expected a time in the years 1 to 9999"),
        *(
            (metric, f"found {number} ms since 1970")
            for number in (2**63 - 1, 2**63, 2**64 - 62_135_596_800_001)
            for metric in (
                {"datatype": 13, "long_value": number},
                {"datatype": 3, "int_value": 1, "timestamp": number},
            )
        ),
        ({"datatype": 20, "string_value": "x"}, "expected propertyset_value"),
        ({"datatype": 24, "bytes_value": b"123"}, "expected elements of 4 bytes"),
        ({"datatype": 3, "int_value": 1, "timestamp": 2**62}, "expected a time"),
        (
            {"datatype": 3, "int_value": 1, "properties": {"keys": ["a"]}},
            "a property set has 1 keys and 0 values",
        ),
        (
            {"datatype": 16, "dataset_value": {"columns": ["a"], "types": [3, 3]}},
            "a data set has 1 columns, 2 types",
        ),
        (
            {"datatype": 16, "dataset_value": {"columns": ["a"], "types": [3], "rows": [{}]}},
            "a row of a data set has 0 elements, not 1",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_a_problem_of_its_row(
    metric: dict[str, Any], problem: str
) -> None:
    followed = Followed()
    good = {"name": "good", "datatype": 3, "int_value": 1}
    gaps = followed.send(NODE.format("NBIRTH"), 0, {"name": "bad", **metric}, good)
    bad, fine = followed.last.metrics
    assert bad.problem is not None
    assert problem in bad.problem
    assert (fine.value_long, fine.problem) == (1, None)
    assert "bad_value" in gaps


def test_values_that_json_does_not_have_are_text() -> None:
    row = row_of(datatype=31, bytes_value=struct.pack("<3d", math.nan, math.inf, -math.inf))
    assert row.value_text == '["NaN","Infinity","-Infinity"]'
    row = row_of(
        datatype=19,
        template_value={
            "metrics": [{"name": "b", "datatype": 17, "bytes_value": b"\xff"}],
            "parameters": [{"name": "t", "type": 13, "long_value": 0}],
        },
    )
    assert row.value_text is not None
    assert '"value":"/w=="' in row.value_text
    assert '"value":"1970-01-01T00:00:00.000Z"' in row.value_text
    assert row_of(datatype=9, float_value=math.inf).value_double == math.inf


@pytest.mark.parametrize(
    ("datatype", "data"),
    [(32, b""), (32, b"\x01\0\0\0"), (32, b"\x01\0\0\0\x80\x80"), (33, b"a"), (33, b"\xff\0")],
)
def test_an_array_that_is_damaged_is_refused(datatype: int, data: bytes) -> None:
    with pytest.raises(BadValue):
        read_array(datatype, data)


def test_empty_arrays_are_empty() -> None:
    assert read_array(32, b"\0\0\0\0") == []
    assert read_array(33, b"") == read_array(22, b"") == read_array(34, b"") == []
    assert read_array(33, b"\0\0") == ["", ""]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_raise(data: bytes) -> None:
    for topic in (NODE.format("NBIRTH"), DEVICE.format("DDATA", "d"), "spBv1.0/STATE/h"):
        found = decode_message(topic, data)
        if isinstance(found, SparkplugMessage) and found.topic.message_type != "STATE":
            apply(EdgeNodeState(), found)


# --- states ---------------------------------------------------------------------------------------


def test_data_before_a_birth_is_kept_and_reported_once() -> None:
    followed = Followed()
    data = NODE.format("NDATA")
    assert followed.send(data, 7, {"alias": 1, "int_value": 5}) == ["birth_missing"]
    (row,) = followed.last.metrics
    assert (row.is_resolved, row.alias, row.name, row.value_text) == (False, 1, None, "5")
    assert followed.send(data, 8, {"name": "x", "datatype": 9, "float_value": 1.0}) == []
    assert followed.last.metrics[0].is_resolved
    # The sequence is checked even so.
    assert followed.send(data, 10) == ["sequence_gap"]
    assert followed.send(DEVICE.format("DDATA", "d"), 11, {"alias": 1, "float_value": 0.5}) == [
        "birth_missing"
    ]
    assert followed.last.metrics[0].value_double == 0.5
    # A birth of a device without that of its node declares its metrics.
    assert followed.send(DEVICE.format("DBIRTH", "d"), 12, declared("level", 1)) == []
    assert followed.send(DEVICE.format("DDATA", "d"), 13, {"alias": 1, "int_value": 4}) == []
    assert followed.last.metrics[0].value_long == 4


def test_an_unknown_alias_is_a_row_and_a_gap() -> None:
    followed = born()
    sent = ({"alias": 9, "int_value": 3}, {"alias": 1, "int_value": 2**32 - 3})
    assert followed.send(NODE.format("NDATA"), 1, *sent) == ["unknown_metric"]
    unknown, speed = followed.last.metrics
    assert (unknown.is_resolved, unknown.alias, unknown.value_long) == (False, 9, None)
    assert (speed.is_resolved, speed.name, speed.value_long) == (True, "speed", -3)
    (gap,) = followed.last.gaps
    assert (gap.missing, gap.detail) == (1, "alias 9")
    # A name that no birth has is a gap, too, though it needs none.
    named = {"name": "other", "datatype": 11, "boolean_value": True}
    assert followed.send(NODE.format("NDATA"), 2, named) == ["unknown_metric"]
    assert followed.last.metrics[0].is_resolved


def test_aliases_belong_to_their_node_or_device() -> None:
    followed = born()
    followed.send(DEVICE.format("DBIRTH", "d"), 1, declared("level", 1, 10))
    followed.send(DEVICE.format("DDATA", "d"), 2, {"alias": 1, "double_value": 0.5})
    assert (followed.last.metrics[0].name, followed.last.metrics[0].datatype) == (
        *("level", "Double"),
    )
    followed.send(NODE.format("NDATA"), 3, {"alias": 1, "int_value": 1})
    assert followed.last.metrics[0].name == "speed"


def test_numbers_go_from_255_to_0_and_duplicates_are_no_gaps() -> None:
    followed = born()
    for seq in [*range(1, 256), 0, 1]:
        assert followed.send(NODE.format("NDATA"), seq) == []
    assert followed.send(NODE.format("NDATA"), 1) == ["sequence_duplicate"]
    assert followed.send(NODE.format("NDATA"), 2) == []
    assert followed.send(DEVICE.format("DDEATH", "d"), 1) == ["sequence_gap"]
    (gap,) = followed.last.gaps
    assert (gap.expected, gap.found, gap.missing) == (3, 1, 254)
    assert followed.send(NODE.format("NDATA")) == ["sequence_missing"]
    assert followed.send(NODE.format("NCMD")) == []
    assert followed.send(NODE.format("NDATA"), 2) == []


def test_a_death_of_another_birth_is_ignored() -> None:
    followed = born(4)
    assert followed.send(NODE.format("NDEATH"), None, bd_seq(3)) == ["death_mismatch"]
    (gap,) = followed.last.gaps
    assert (gap.expected, gap.found) == (4, 3)
    assert followed.events == [("death_ignored", None)]
    assert followed.send(NODE.format("NDATA"), 1, {"alias": 1, "int_value": 1}) == []
    assert followed.send(NODE.format("NDEATH"), None) == ["death_mismatch"]
    assert followed.send(NODE.format("NDEATH"), None, bd_seq(4)) == []
    assert followed.events == [("death", None)]
    # Published by the node, and by the broker as its will.
    assert followed.send(NODE.format("NDEATH"), None, bd_seq(4)) == []
    assert followed.events == [("death_ignored", None)]


def test_devices_are_stale_after_their_node_and_born_again_after_it() -> None:
    followed = born()
    for at, name in enumerate(("a", "b", "c"), 1):
        assert followed.send(DEVICE.format("DBIRTH", name), at, declared("level", at)) == []
        assert followed.events == [("birth", name)]
    followed.send(DEVICE.format("DBIRTH", "a"), 4, declared("level", 1))
    assert followed.events == [("rebirth", "a")]
    followed.send(DEVICE.format("DDEATH", "b"), 5)
    assert followed.events == [("death", "b")]
    followed.send(DEVICE.format("DDEATH", "b"), 6)
    assert followed.events == [("death_ignored", "b")]
    before = followed.state
    followed.send(NODE.format("NDEATH"), None, bd_seq(0))
    assert followed.events == [("death", None), ("stale", "a"), ("stale", "c")]
    assert {name: each.status for name, each in followed.state.devices.items()} == {
        "a": "stale",
        "b": "offline",
        "c": "stale",
    }
    # What was declared has ended.
    sent = {"alias": 1, "int_value": 1}
    assert followed.send(DEVICE.format("DDATA", "a"), 7, sent) == ["birth_missing"]
    assert not followed.last.metrics[0].is_resolved
    # Without a death, a birth does the same.
    followed.state = before
    assert followed.send(NODE.format("NBIRTH"), 0, bd_seq(1)) == []
    assert followed.events == [("stale", "a"), ("stale", "c"), ("birth", None)]
    assert followed.state.devices == {}
    followed.send(NODE.format("NBIRTH"), 0, bd_seq(1), declared("new", 1, 12))
    assert followed.events == [("rebirth", None)]
    assert followed.send(NODE.format("NDATA"), 1, {"alias": 1, "string_value": "x"}) == []
    assert (followed.last.metrics[0].name, followed.last.metrics[0].value_text) == ("new", "x")


def test_a_command_needs_no_birth() -> None:
    followed = Followed()
    rebirth = {"name": "Node Control/Rebirth", "datatype": 11, "boolean_value": True}
    assert followed.send(NODE.format("NCMD"), None, rebirth) == []
    assert followed.events == [("rebirth_requested", None)]
    assert followed.state == EdgeNodeState()
    followed = born()
    assert followed.send(NODE.format("NCMD"), None, {"alias": 1, "int_value": 7}) == []
    assert followed.last.metrics[0].name == "speed"
    assert followed.send(DEVICE.format("DCMD", "d"), None, {"alias": 1, "int_value": 7}) == []


def test_a_time_out_of_range_is_null_and_a_gap() -> None:
    found = apply(EdgeNodeState(), message(NODE.format("NBIRTH"), encoded(0, time=10**16)))
    assert [gap.kind for gap in found.gaps] == ["bad_value"]
    assert found.state.is_online


# --- random sessions ------------------------------------------------------------------------------


def random_messages(chance: random.Random, count: int) -> list[tuple[str, bytes]]:
    """Anything that nodes and brokers might do, in any order."""
    found = []
    for _ in range(count):
        seq = chance.choice([None, *range(6), 255])
        kind = chance.choice(["NBIRTH", "NDEATH", "NDATA", "NDATA", "NCMD"])
        topic = NODE.format(kind)
        if chance.random() < 0.5:
            kind = chance.choice(["DBIRTH", "DDEATH", "DDATA", "DDATA", "DCMD"])
            topic = DEVICE.format(kind, chance.choice("ab"))
        metrics = [bd_seq(chance.randrange(2))] if kind in ("NBIRTH", "NDEATH") else []
        for alias in chance.sample(range(4), chance.randrange(3)):
            if kind.endswith("BIRTH"):
                metrics.append(declared(chance.choice("xyz"), alias, chance.choice([3, 10, 12])))
            else:
                metrics.append({"alias": alias, "int_value": chance.randrange(5)})
        found.append((topic, encoded(seq, *metrics)))
    return found


def reloaded(state: EdgeNodeState) -> EdgeNodeState:
    parts: dict[PartKey, str] = {key: state.part(key) for key in state.changed_parts()}
    found = EdgeNodeState.from_parts(parts)
    assert found == state
    return found


@pytest.mark.parametrize("seed", range(20))
def test_a_state_that_was_saved_after_any_message_continues_exactly(seed: int) -> None:
    messages = [message(*each) for each in random_messages(random.Random(seed), 60)]
    state = EdgeNodeState()
    states = [state]
    expected = []
    for each in messages:
        expected.append(apply(states[-1], each))
        states.append(expected[-1].state)
    for cut, state in enumerate(states):
        state = reloaded(state)
        for each, wanted in zip(messages[cut:], expected[cut:], strict=True):
            found = apply(state, each)
            assert found == wanted
            state = found.state


@pytest.mark.parametrize("seed", range(20))
def test_only_changed_parts_have_to_be_saved(seed: int) -> None:
    saved: dict[PartKey, str] = {}
    state = EdgeNodeState()
    before: EdgeNodeState | None = None
    for each in random_messages(random.Random(seed), 60):
        state = apply(state, message(*each)).state
        saved |= {key: state.part(key) for key in state.changed_parts(before)}
        before = state
        assert EdgeNodeState.from_parts(saved) == state


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 254)), max_size=60))
def test_gaps_are_exactly_those_that_were_made(steps: list[tuple[int, int]]) -> None:
    """Each step sends data of the node or a device, or a birth, after some lost messages."""
    followed = born()
    followed.send(DEVICE.format("DBIRTH", "d"), 1, declared("level", 2))
    seq, number = 1, 0
    made, found = [], []
    for kind, lost in steps:
        if kind == 3:
            number += 1
            seq = 0
            followed.send(NODE.format("NBIRTH"), 0, bd_seq(number), declared("speed", 1))
            found += followed.last.gaps
            seq = 1
            followed.send(DEVICE.format("DBIRTH", "d"), 1, declared("level", 2))
        else:
            if lost:
                made.append(((seq + 1) % 256, (seq + 1 + lost) % 256, lost))
            seq = (seq + 1 + lost) % 256
            if kind == 0:
                followed.send(NODE.format("NDATA"), seq, {"alias": 1, "int_value": lost})
            else:
                topic = DEVICE.format("DDATA", "d")
                followed.send(topic, seq, {"alias": 2, "int_value": lost})
            assert followed.last.metrics[0].value_long == lost
        found += followed.last.gaps
    assert {gap.kind for gap in found} <= {"sequence_gap"}
    assert [(gap.expected, gap.found, gap.missing) for gap in found] == made
