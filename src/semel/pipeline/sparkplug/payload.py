"""Messages of Sparkplug B: topic and payload to a message, or to the reason why it is none.

    spBv1.0/<group>/<type>/<edge node>[/<device>]     a Protobuf payload
    spBv1.0/STATE/<host>                              JSON: {"online": …, "timestamp": …}

Only what a message says itself is here. Names and data types that it leaves to its birth are
resolved by `state.py`. Nothing raises: what cannot be decoded is a Problem.
"""

import json
from typing import Any, Final, NamedTuple

from semel.pipeline.decoders.outcome import Problem
from semel.pipeline.sparkplug.protobuf_schema import VALUE, decode_error, payload_class
from semel.pipeline.sparkplug.values import (
    INT64,
    MOST_LONG,
    UINT64,
    BadValue,
    json_text,
    read_integer,
    read_metadata,
    read_properties,
    read_time,
    time_of_number,
)

NAMESPACE: Final = "spBv1.0/"

NBIRTH: Final = "NBIRTH"
NDEATH: Final = "NDEATH"
NDATA: Final = "NDATA"
NCMD: Final = "NCMD"
DBIRTH: Final = "DBIRTH"
DDEATH: Final = "DDEATH"
DDATA: Final = "DDATA"
DCMD: Final = "DCMD"
STATE: Final = "STATE"
OF_NODES: Final = (NBIRTH, NDEATH, NDATA, NCMD)
OF_DEVICES: Final = (DBIRTH, DDEATH, DDATA, DCMD)
# Those that an edge node numbers, from 0 to 255.
NUMBERED: Final = frozenset((NBIRTH, NDATA, DBIRTH, DDATA, DDEATH))
SEQ_COUNT: Final = 256
# The uuid of a payload whose metrics are compressed in `body`, as Eclipse Tahu writes it.
COMPRESSED: Final = "SPBV1.0_COMPRESSED"
# The metric that tells which birth a death belongs to.
BD_SEQ: Final = "bdSeq"


class SparkplugTopic(NamedTuple):
    """What a topic says."""

    message_type: str
    group_id: str | None = None
    edge_node_id: str | None = None
    device_id: str | None = None
    host_id: str | None = None


class SentMetric(NamedTuple):
    """A metric as it was sent."""

    name: str | None
    alias: int | None
    # 0: the birth has it.
    datatype: int
    is_null: bool
    is_historical: bool
    is_transient: bool
    # In microseconds since 1970.
    time: int | None
    # The field of the value, and what it holds.
    field: str | None
    value: Any
    # As JSON.
    properties: str | None
    metadata: str | None
    problem: str | None


class SparkplugMessage(NamedTuple):
    """A message that could be decoded."""

    topic: SparkplugTopic
    # In microseconds since 1970; None: there is none, or `time_problem` says why.
    time: int | None
    seq: int | None
    metrics: tuple[SentMetric, ...]
    # Of an NBIRTH or NDEATH.
    bd_seq: int | None = None
    # Of a STATE.
    is_online: bool | None = None
    time_problem: str | None = None


def decode_message(topic: str, payload: bytes) -> SparkplugMessage | Problem:
    """The message of a topic below NAMESPACE."""
    parsed = parse_topic(topic)
    if isinstance(parsed, Problem):
        return parsed
    if parsed.message_type == STATE:
        return _decode_state(parsed, payload)
    try:
        found = payload_class().FromString(payload)
    except decode_error():
        return Problem("the payload is not a valid message of Sparkplug B")
    if found.uuid == COMPRESSED:
        return Problem("the payload is compressed, which is not supported", "uuid")
    seq = found.seq if found.HasField("seq") else None
    if seq is not None and seq >= SEQ_COUNT:
        return Problem(f"expected a seq from 0 to {SEQ_COUNT - 1}, found {seq}", "seq")
    metrics = tuple(map(_sent_metric, found.metrics))
    bd_seq = None
    if parsed.message_type in (NBIRTH, NDEATH):
        try:
            bd_seq = _bd_seq_in(metrics)
        except BadValue as problem:
            return Problem(str(problem), BD_SEQ)
    time, time_problem = None, None
    if found.HasField("timestamp"):
        try:
            time = read_time(found.timestamp)
        except BadValue as problem:
            time_problem = str(problem)
    return SparkplugMessage(parsed, time, seq, metrics, bd_seq, time_problem=time_problem)


def parse_topic(topic: str) -> SparkplugTopic | Problem:
    """What a topic below NAMESPACE says."""
    levels = topic.split("/")
    if not all(levels):
        return Problem(f"expected no empty levels in the topic, found {topic}")
    if len(levels) == 3 and levels[1] == STATE:
        return SparkplugTopic(STATE, host_id=levels[2])
    kind = levels[2] if len(levels) > 2 else None
    if kind in OF_NODES and len(levels) == 4:
        return SparkplugTopic(kind, levels[1], levels[3])
    if kind in OF_DEVICES and len(levels) == 5:
        return SparkplugTopic(kind, levels[1], levels[3], levels[4])
    if kind in OF_NODES or kind in OF_DEVICES:
        last = "edge node" if kind in OF_NODES else "edge node/device"
        return Problem(f"expected a topic {NAMESPACE}group/{kind}/{last}, found {topic}")
    return Problem(f"expected a type of message such as {NDATA} in the topic, found {topic}")


def _sent_metric(metric: Any) -> SentMetric:
    has = metric.HasField
    field = metric.WhichOneof(VALUE)
    alias = metric.alias if has("alias") else None
    problem = time = properties = metadata = None
    try:
        if has("timestamp"):
            time = read_time(metric.timestamp)
        if has("properties"):
            properties = json_text(read_properties(metric.properties))
        if has("metadata"):
            metadata = json_text(read_metadata(metric.metadata))
    except BadValue as found:
        problem = str(found)
    return SentMetric(
        # An empty name is sent by some in place of none, because an alias is there.
        metric.name or None,
        alias,
        metric.datatype,
        metric.is_null,
        metric.is_historical,
        metric.is_transient,
        time,
        field,
        None if field is None else getattr(metric, field),
        properties,
        metadata,
        problem,
    )


def _bd_seq_in(metrics: tuple[SentMetric, ...]) -> int | None:
    """The number of the birth. Raises BadValue."""
    for each in metrics:
        if each.name == BD_SEQ and not each.is_null:
            kind = INT64 if each.datatype == INT64 else UINT64
            found = read_integer(kind, each.field, each.value)
            if not 0 <= found <= MOST_LONG:
                raise BadValue(f"expected a number for {BD_SEQ}, found {found}")
            return found
    return None


def _decode_state(topic: SparkplugTopic, payload: bytes) -> SparkplugMessage | Problem:
    """The message of a host. Versions before 3.0 have other topics and payloads."""
    try:
        # RFC 8259: JSON is UTF-8, and a reader may ignore a byte order mark.
        found = json.loads(payload.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return Problem("the payload of STATE is not JSON")
    if not isinstance(found, dict) or not isinstance(found.get("online"), bool):
        return Problem("expected true or false for online in the payload of STATE", "online")
    milliseconds = found.get("timestamp")
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        return Problem("expected a number for timestamp in the payload of STATE", "timestamp")
    try:
        time = time_of_number(milliseconds)
    except BadValue as problem:
        return Problem(str(problem), "timestamp")
    return SparkplugMessage(topic, time, None, (), is_online=found["online"])
