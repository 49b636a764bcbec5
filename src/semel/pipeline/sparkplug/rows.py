"""The tables of Sparkplug B: their columns, and Arrow tables of rows.

Every row begins with the columns of its message: `node`, `seq` and `received` of the record, and
what the topic and the payload say.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import pyarrow as pa

from semel.pipeline.decoders.outcome import Problem
from semel.pipeline.sparkplug.payload import SparkplugMessage
from semel.pipeline.sparkplug.state import Applied, MetricRow, NodeEvent, SparkplugGap

# Columns that a batch of Spark has.
RECORD_COLUMNS: Final = ("node", "seq", "received", "topic", "payload", "date")

# Types of Delta, and the same in Arrow.
ARROW_TYPES: Final[dict[str, Any]] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
}
# Of the record, and of the message.
_MESSAGE: Final = {
    "node": "string",
    "seq": "long",
    "received": "timestamp",
    "message_type": "string",
    "group_id": "string",
    "edge_node_id": "string",
    "payload_seq": "integer",
    "payload_time": "timestamp",
}
METRIC_COLUMNS: Final = {
    **_MESSAGE,
    "device_id": "string",
    "metric_index": "integer",
    "name": "string",
    "alias": "long",
    "datatype": "string",
    "is_resolved": "boolean",
    "is_null": "boolean",
    "is_historical": "boolean",
    "is_transient": "boolean",
    "metric_time": "timestamp",
    "value_long": "long",
    "value_double": "double",
    "value_boolean": "boolean",
    "value_text": "string",
    "value_bytes": "binary",
    "value_time": "timestamp",
    "properties": "string",
    "metadata": "string",
    "problem": "string",
    "date": "date",
}
NODE_COLUMNS: Final = {
    **_MESSAGE,
    "host_id": "string",
    "event": "string",
    "is_online": "boolean",
    "device_id": "string",
    "bd_seq": "long",
    "metric_count": "integer",
    "date": "date",
}
GAP_COLUMNS: Final = {
    **_MESSAGE,
    "kind": "string",
    "device_id": "string",
    "expected": "long",
    "found": "long",
    "missing": "long",
    "detail": "string",
    "date": "date",
}
STATE_COLUMNS: Final = {
    "node": "string",
    "seq": "long",
    "group_id": "string",
    "edge_node_id": "string",
    "device_id": "string",
    "part": "string",
    "state": "string",
}


@cache
def arrow_schema(*columns: tuple[str, str]) -> Any:
    return pa.schema([(name, ARROW_TYPES[kind]) for name, kind in columns])


@dataclass
class SparkplugRows:
    """What a batch of messages has become, with the place of its message for each row."""

    # A batch of messages, with RECORD_COLUMNS.
    batch: pa.Table
    messages: list[SparkplugMessage | None] = field(default_factory=list)
    metrics: list[MetricRow] = field(default_factory=list)
    metric_places: list[int] = field(default_factory=list)
    events: list[NodeEvent] = field(default_factory=list)
    event_places: list[int] = field(default_factory=list)
    gaps: list[SparkplugGap] = field(default_factory=list)
    gap_places: list[int] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    problem_places: list[int] = field(default_factory=list)

    def add(self, place: int, applied: Applied) -> None:
        """Add the rows of the message at a place of the batch."""
        self.metrics += applied.metrics
        self.metric_places += [place] * len(applied.metrics)
        self.events += applied.events
        self.event_places += [place] * len(applied.events)
        self.gaps += applied.gaps
        self.gap_places += [place] * len(applied.gaps)

    def add_event(self, place: int, event: NodeEvent) -> None:
        self.events.append(event)
        self.event_places.append(place)

    def add_problem(self, place: int, problem: Problem) -> None:
        self.problems.append(problem)
        self.problem_places.append(place)

    def metrics_table(self) -> pa.Table:
        return self._table(METRIC_COLUMNS, self.metrics, MetricRow._fields, self.metric_places)

    def nodes_table(self) -> pa.Table:
        return self._table(NODE_COLUMNS, self.events, NodeEvent._fields, self.event_places)

    def gaps_table(self) -> pa.Table:
        return self._table(GAP_COLUMNS, self.gaps, SparkplugGap._fields, self.gap_places)

    def _table(
        self,
        columns: dict[str, str],
        rows: Sequence[tuple[Any, ...]],
        fields: tuple[str, ...],
        places: list[int],
    ) -> pa.Table:
        """Rows with the columns of their messages."""
        schema = arrow_schema(*columns.items())
        if not rows:
            return schema.empty_table()
        given = dict(zip(fields, zip(*rows, strict=True), strict=True))
        at = pa.array(places, pa.int64())
        made = []
        for each in schema:
            if each.name in given:
                made.append(pa.array(given[each.name], each.type))
            elif each.name in RECORD_COLUMNS:
                made.append(self.batch.column(each.name).take(at).cast(each.type))
            else:
                made.append(self._of_messages(each).take(at))
        return pa.table(made, schema=schema)

    def _of_messages(self, column: Any) -> Any:
        """What each message of the batch says about itself."""
        messages = self.messages
        if column.name == "payload_seq":
            found: list[Any] = [None if each is None else each.seq for each in messages]
        elif column.name == "payload_time":
            found = [None if each is None else each.time for each in messages]
        else:
            found = [
                None if each is None else getattr(each.topic, column.name) for each in messages
            ]
        return pa.array(found, column.type)
