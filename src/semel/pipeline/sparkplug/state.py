"""What an edge node has declared, and what its next message means: one function, `apply`.

An edge node numbers its messages from 0 to 255 and again from 0, for itself and all its devices. A
birth declares names, aliases and data types, which data may leave out. A death ends what a birth
began; the bdSeq of an NDEATH tells which one. So a message means something only after those before
it. `apply` takes the state that they have left, and returns the next one, with rows.

Nothing here depends on time or on batches: the same messages in the same order give the same rows,
however they are divided, and a state that was saved as JSON and loaded again continues exactly.

Data is never resolved by a birth that has ended: after an NDEATH, aliases are unknown until the
next NBIRTH, because it may give them to other metrics.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

from semel.pipeline.sparkplug.payload import (
    DBIRTH,
    DCMD,
    DDEATH,
    NBIRTH,
    NCMD,
    NDEATH,
    NUMBERED,
    OF_DEVICES,
    SEQ_COUNT,
    SentMetric,
    SparkplugMessage,
)
from semel.pipeline.sparkplug.values import (
    DATATYPES,
    MOST_LONG,
    NO_VALUE,
    untyped_columns,
    value_columns,
)

# What happened to a node, a device or a host.
BIRTH: Final = "birth"
REBIRTH: Final = "rebirth"
REBIRTH_REQUESTED: Final = "rebirth_requested"
DEATH: Final = "death"
DEATH_IGNORED: Final = "death_ignored"
STALE: Final = "stale"
HOST_ONLINE: Final = "host_online"
HOST_OFFLINE: Final = "host_offline"

# What is missing or contradicts what came before.
SEQUENCE_GAP: Final = "sequence_gap"
SEQUENCE_DUPLICATE: Final = "sequence_duplicate"
SEQUENCE_MISSING: Final = "sequence_missing"
BIRTH_MISSING: Final = "birth_missing"
UNKNOWN_METRIC: Final = "unknown_metric"
DEATH_MISMATCH: Final = "death_mismatch"
BAD_VALUE: Final = "bad_value"

# The status of a device.
ONLINE: Final = "online"
OFFLINE: Final = "offline"

# The command by which a host asks for births.
REBIRTH_COMMAND: Final = "Node Control/Rebirth"
# Metrics that a gap names.
SHOWN_METRICS: Final = 20

# Name, data type and alias.
Declaration = tuple[str, int, int | None]
# A part of a state that is saved by itself: its kind, and its device.
PartKey = tuple[str, str | None]
SESSION_PART: Final = "session"
BIRTH_PART: Final = "birth"


@dataclass(frozen=True)
class Declarations:
    """The metrics of a birth."""

    metrics: tuple[Declaration, ...] = ()

    @cached_property
    def by_alias(self) -> dict[int, Declaration]:
        return {each[2]: each for each in self.metrics if each[2] is not None}

    @cached_property
    def by_name(self) -> dict[str, Declaration]:
        return {each[0]: each for each in self.metrics}

    def to_json(self) -> str:
        return json.dumps(self.metrics, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Declarations":
        return cls(tuple((name, kind, alias) for name, kind, alias in json.loads(text)))


NOTHING_DECLARED: Final = Declarations()


@dataclass(frozen=True)
class DeviceState:
    """A device since the last NBIRTH of its node."""

    # ONLINE, OFFLINE after a DDEATH, or STALE after an NDEATH.
    status: str
    declared: Declarations = NOTHING_DECLARED


@dataclass(frozen=True)
class EdgeNodeState:
    """An edge node after some messages. The default is that before the first one."""

    is_online: bool = False
    # Of the last NBIRTH.
    bd_seq: int | None = None
    # None: any may follow.
    next_seq: int | None = None
    declared: Declarations = NOTHING_DECLARED
    devices: Mapping[str, DeviceState] = field(default_factory=dict)
    # Whose missing births were reported since the last birth or death: devices, and "" for itself.
    missing: frozenset[str] = frozenset()

    def part(self, key: PartKey) -> str:
        """A part of the state as JSON."""
        kind, device = key
        if kind == BIRTH_PART:
            declared = self.declared if device is None else self.devices[device].declared
            return declared.to_json()
        return json.dumps(
            {
                "is_online": self.is_online,
                "bd_seq": self.bd_seq,
                "next_seq": self.next_seq,
                "devices": {name: each.status for name, each in sorted(self.devices.items())},
                "missing": sorted(self.missing),
            },
            ensure_ascii=False,
            separators=(",", ":"),
        )

    def changed_parts(self, before: "EdgeNodeState | None" = None) -> list[PartKey]:
        """The parts that differ from an earlier state; None: all."""
        found: list[PartKey] = [(SESSION_PART, None)]
        if before is None or self.declared is not before.declared:
            found.append((BIRTH_PART, None))
        for name, each in self.devices.items():
            old = None if before is None else before.devices.get(name)
            if old is None or each.declared is not old.declared:
                found.append((BIRTH_PART, name))
        return found

    @classmethod
    def from_parts(cls, parts: Mapping[PartKey, str]) -> "EdgeNodeState":
        """The state with these parts. Births of devices that it does not have are ignored."""
        session = json.loads(parts[SESSION_PART, None])
        return cls(
            is_online=session["is_online"],
            bd_seq=session["bd_seq"],
            next_seq=session["next_seq"],
            declared=Declarations.from_json(parts[BIRTH_PART, None]),
            devices={
                name: DeviceState(status, Declarations.from_json(parts[BIRTH_PART, name]))
                for name, status in session["devices"].items()
            },
            missing=frozenset(session["missing"]),
        )


class MetricRow(NamedTuple):
    """A metric of a message, with the columns of its value."""

    metric_index: int
    name: str | None
    alias: int | None
    datatype: str | None
    # Whether name and data type are known.
    is_resolved: bool
    is_null: bool
    is_historical: bool
    is_transient: bool
    metric_time: int | None
    value_long: int | None
    value_double: float | None
    value_boolean: bool | None
    value_text: str | None
    value_bytes: bytes | None
    value_time: int | None
    properties: str | None
    metadata: str | None
    problem: str | None


class NodeEvent(NamedTuple):
    """Something that happened to an edge node, a device or a host."""

    event: str
    is_online: bool | None
    device_id: str | None = None
    bd_seq: int | None = None
    metric_count: int | None = None


class SparkplugGap(NamedTuple):
    """Something that is missing before a message, or in it."""

    kind: str
    device_id: str | None = None
    expected: int | None = None
    found: int | None = None
    # Messages of a sequence gap; metrics of an unknown metric or bad value.
    missing: int | None = None
    detail: str | None = None


class Applied(NamedTuple):
    """What a message means after those before it."""

    state: EdgeNodeState
    metrics: list[MetricRow]
    events: list[NodeEvent]
    gaps: list[SparkplugGap]


def apply(state: EdgeNodeState, message: SparkplugMessage) -> Applied:
    """The next state of an edge node, and the rows of a message of it, which is no STATE."""
    kind = message.topic.message_type
    gaps: list[SparkplugGap] = []
    if message.time_problem is not None:
        gaps.append(SparkplugGap(BAD_VALUE, message.topic.device_id, detail=message.time_problem))
    if kind == NBIRTH:
        return _apply_node_birth(state, message, gaps)
    if kind == NDEATH:
        return _apply_node_death(state, message, gaps)
    if kind in (NCMD, DCMD):
        return _apply_command(state, message, gaps)
    state = _check_sequence(state, message, gaps)
    if kind == DBIRTH:
        return _apply_device_birth(state, message, gaps)
    if kind == DDEATH:
        return _apply_device_death(state, message, gaps)
    return _apply_data(state, message, gaps)


def host_event(message: SparkplugMessage) -> NodeEvent:
    """The event of a STATE message."""
    return NodeEvent(HOST_ONLINE if message.is_online else HOST_OFFLINE, message.is_online)


# --- births and deaths ----------------------------------------------------------------------------


def _apply_node_birth(
    state: EdgeNodeState, message: SparkplugMessage, gaps: list[SparkplugGap]
) -> Applied:
    """All that was declared before ends: devices are born again after their node."""
    is_rebirth = state.is_online and state.bd_seq == message.bd_seq
    events = _stale_events(state)
    count = len(message.metrics)
    events.append(
        NodeEvent(REBIRTH if is_rebirth else BIRTH, True, bd_seq=message.bd_seq, metric_count=count)
    )
    if message.seq is None:
        gaps.append(SparkplugGap(SEQUENCE_MISSING))
    declared = _declarations(message)
    after = EdgeNodeState(
        is_online=True,
        bd_seq=message.bd_seq,
        next_seq=None if message.seq is None else (message.seq + 1) % SEQ_COUNT,
        declared=declared,
    )
    return Applied(after, _own_metric_rows(message, gaps), events, gaps)


def _apply_node_death(
    state: EdgeNodeState, message: SparkplugMessage, gaps: list[SparkplugGap]
) -> Applied:
    """A death of another birth is ignored: the will of an earlier connection may come late."""
    rows = _own_metric_rows(message, gaps)
    is_ours = state.bd_seq is None or message.bd_seq == state.bd_seq
    if not state.is_online or not is_ours:
        if not is_ours:
            gaps.append(SparkplugGap(DEATH_MISMATCH, expected=state.bd_seq, found=message.bd_seq))
        event = NodeEvent(DEATH_IGNORED, state.is_online, bd_seq=message.bd_seq)
        return Applied(state, rows, [event], gaps)
    events = [NodeEvent(DEATH, False, bd_seq=message.bd_seq), *_stale_events(state)]
    after = EdgeNodeState(
        bd_seq=state.bd_seq,
        devices={
            name: DeviceState(STALE if each.status == ONLINE else each.status)
            for name, each in state.devices.items()
        },
    )
    return Applied(after, rows, events, gaps)


def _stale_events(state: EdgeNodeState) -> list[NodeEvent]:
    """For each device that is online: its values are stale, because its node has ended."""
    return [
        NodeEvent(STALE, False, name)
        for name, each in sorted(state.devices.items())
        if each.status == ONLINE
    ]


def _apply_device_birth(
    state: EdgeNodeState, message: SparkplugMessage, gaps: list[SparkplugGap]
) -> Applied:
    name = message.topic.device_id
    assert name is not None
    if not state.is_online:
        state = _report_missing_birth(state, None, gaps)
    before = state.devices.get(name)
    is_rebirth = before is not None and before.status == ONLINE
    event = NodeEvent(
        REBIRTH if is_rebirth else BIRTH, True, name, metric_count=len(message.metrics)
    )
    after = replace(
        state,
        devices={**state.devices, name: DeviceState(ONLINE, _declarations(message))},
        missing=state.missing - {name},
    )
    return Applied(after, _own_metric_rows(message, gaps), [event], gaps)


def _apply_device_death(
    state: EdgeNodeState, message: SparkplugMessage, gaps: list[SparkplugGap]
) -> Applied:
    name = message.topic.device_id
    assert name is not None
    rows = _own_metric_rows(message, gaps)
    before = state.devices.get(name)
    if before is None or before.status != ONLINE:
        return Applied(state, rows, [NodeEvent(DEATH_IGNORED, False, name)], gaps)
    after = replace(
        state,
        devices={**state.devices, name: DeviceState(OFFLINE)},
        missing=state.missing - {name},
    )
    return Applied(after, rows, [NodeEvent(DEATH, False, name)], gaps)


def _declarations(message: SparkplugMessage) -> Declarations:
    """What a birth declares: metrics without a name or a data type declare nothing."""
    return Declarations(
        tuple(
            (each.name, each.datatype, each.alias)
            for each in message.metrics
            if each.name is not None and each.datatype in DATATYPES
        )
    )


# --- data and commands ----------------------------------------------------------------------------


def _apply_data(
    state: EdgeNodeState, message: SparkplugMessage, gaps: list[SparkplugGap]
) -> Applied:
    declared = _declared_by(state, message)
    if declared is None:
        state = _report_missing_birth(state, message.topic.device_id, gaps)
    return Applied(state, _metric_rows(message, declared, gaps), [], gaps)


def _apply_command(
    state: EdgeNodeState, message: SparkplugMessage, gaps: list[SparkplugGap]
) -> Applied:
    """A host may send commands at any time, such as the one that asks for a birth."""
    rows = _metric_rows(message, _declared_by(state, message), gaps)
    asks = any(each.name == REBIRTH_COMMAND and each.value_boolean for each in rows)
    events = [NodeEvent(REBIRTH_REQUESTED, state.is_online)] if asks else []
    return Applied(state, rows, events, gaps)


def _declared_by(state: EdgeNodeState, message: SparkplugMessage) -> Declarations | None:
    """What the birth for this message declares; None: there is none."""
    if message.topic.message_type in OF_DEVICES:
        device = state.devices.get(message.topic.device_id or "")
        return None if device is None or device.status != ONLINE else device.declared
    return state.declared if state.is_online else None


def _report_missing_birth(
    state: EdgeNodeState, device: str | None, gaps: list[SparkplugGap]
) -> EdgeNodeState:
    """Report it once, not for each message until the birth comes."""
    if (device or "") in state.missing:
        return state
    gaps.append(SparkplugGap(BIRTH_MISSING, device))
    return replace(state, missing=state.missing | {device or ""})


def _check_sequence(
    state: EdgeNodeState, message: SparkplugMessage, gaps: list[SparkplugGap]
) -> EdgeNodeState:
    """Compare the number of a message with the expected one."""
    assert message.topic.message_type in NUMBERED
    found, expected = message.seq, state.next_seq
    if found is None:
        gaps.append(SparkplugGap(SEQUENCE_MISSING, message.topic.device_id, expected))
        return state
    if expected is not None and found != expected:
        missing = (found - expected) % SEQ_COUNT
        if missing == SEQ_COUNT - 1:
            # The number of the message before. (Or 255 messages are missing, which is less likely.)
            gaps.append(
                SparkplugGap(SEQUENCE_DUPLICATE, message.topic.device_id, expected, found, 0)
            )
            return state
        gaps.append(SparkplugGap(SEQUENCE_GAP, message.topic.device_id, expected, found, missing))
    return replace(state, next_seq=(found + 1) % SEQ_COUNT)


# --- metrics --------------------------------------------------------------------------------------


def _own_metric_rows(message: SparkplugMessage, gaps: list[SparkplugGap]) -> list[MetricRow]:
    """The metrics of a birth or death, which says names and data types itself."""
    rows = [_metric_row(index, each, None) for index, each in enumerate(message.metrics)]
    unknown = [not row.is_resolved for row in rows]
    _report_metrics(message, rows, unknown, gaps)
    return rows


def _metric_rows(
    message: SparkplugMessage, declared: Declarations | None, gaps: list[SparkplugGap]
) -> list[MetricRow]:
    """The metrics of data or of a command, resolved by its birth; None: there is no birth."""
    rows = []
    unknown = []
    for index, each in enumerate(message.metrics):
        found = None
        if declared is not None:
            if each.name is not None:
                found = declared.by_name.get(each.name)
            elif each.alias is not None:
                found = declared.by_alias.get(each.alias)
        row = _metric_row(index, each, found)
        rows.append(row)
        # Without a birth nothing is known, which is another gap. A command may say all itself.
        is_enough = row.is_resolved and message.topic.message_type in (NCMD, DCMD)
        unknown.append(found is None and declared is not None and not is_enough)
    _report_metrics(message, rows, unknown, gaps)
    return rows


def _metric_row(index: int, sent: SentMetric, declaration: Declaration | None) -> MetricRow:
    """The row of a metric, with what its birth says about it."""
    name, alias, datatype = sent.name, sent.alias, sent.datatype
    if declaration is not None:
        name = declaration[0]
        datatype = datatype or declaration[1]
    type_name = DATATYPES.get(datatype)
    problem = sent.problem
    if sent.is_null:
        value = NO_VALUE
    elif type_name is not None:
        value = value_columns(datatype, sent.field, sent.value)
    else:
        value = untyped_columns(sent.field, sent.value)
        if datatype:
            problem = problem or f"there is no data type {datatype}"
    if alias is not None and alias > MOST_LONG:
        problem = problem or f"alias {alias} is too large for its column"
        alias = None
    return MetricRow(
        index,
        name,
        alias,
        type_name,
        name is not None and type_name is not None,
        sent.is_null,
        sent.is_historical,
        sent.is_transient,
        sent.time,
        *value[:6],
        sent.properties,
        sent.metadata,
        problem or value.problem,
    )


def _report_metrics(
    message: SparkplugMessage,
    rows: list[MetricRow],
    unknown: list[bool],
    gaps: list[SparkplugGap],
) -> None:
    """Report metrics that no birth has, and values that do not fit."""
    if any(unknown):
        labels = [_label(row) for row, is_unknown in zip(rows, unknown, strict=True) if is_unknown]
        gaps.append(_gap_of_metrics(UNKNOWN_METRIC, message, labels))
    bad = [f"{_label(row)}: {row.problem}" for row in rows if row.problem is not None]
    if bad:
        gaps.append(_gap_of_metrics(BAD_VALUE, message, bad))


def _label(row: MetricRow) -> str:
    if row.name is not None:
        return row.name
    return f"metric {row.metric_index}" if row.alias is None else f"alias {row.alias}"


def _gap_of_metrics(kind: str, message: SparkplugMessage, labels: list[str]) -> SparkplugGap:
    more = "" if len(labels) <= SHOWN_METRICS else ", …"
    detail = ", ".join(labels[:SHOWN_METRICS]) + more
    return SparkplugGap(kind, message.topic.device_id, missing=len(labels), detail=detail)
