"""Landing batches of Sparkplug messages in Delta tables, each row once.

    batch of the record ─▶ messages in order ─▶ state.apply ─▶ dead letters, metrics, nodes, gaps
                                                           └─▶ last: the state, with its position

What a message means depends on those before it, so the state must fit exactly to what is read next.
It is a table of its own, and each commit to it has the changed states together with the position in
the record up to which they hold: one log entry, so one cannot be there without the other. It is
committed last. So it is never ahead of the other tables, and each start reads from its position,
with a new checkpoint of Spark. If a landing was killed between two commits, the batch is repeated
from the same state, its rows are the same, and the tables that have them already leave them out,
because each of them has its position, too.

The same rows: states are kept for each node of the record, whose rows have an order of their own.
So the result does not depend on how the record is divided into batches, or on which node is read
first. A client is connected to one node at a time, and sends a birth after it has connected.

Two landings at a time do no harm: a commit to the state is refused unless the positions in the
table are those that it began with.

The state table is appended to: a part of a state that a batch has changed is a new row, and the row
with the highest seq counts. When most rows are obsolete, a commit replaces all of them.
"""

import json
import threading
import time
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from semel.pipeline.app_transactions import position_transactions, positions_in
from semel.pipeline.coverage import Span
from semel.pipeline.dead_letters import COLUMNS as DEAD_LETTER_COLUMNS
from semel.pipeline.dead_letters import (
    commit_dead_letters,
    dead_letters_layout,
    letters_transactions,
)
from semel.pipeline.decoders.outcome import Problem
from semel.pipeline.errors import TableError
from semel.pipeline.file_verification import FileReader
from semel.pipeline.files import (
    BUFFER_BYTES,
    REPEATED,
    DataFile,
    FileWriter,
    TableLayout,
    write_files,
)
from semel.pipeline.landing_plan import LandingPlan, SparkplugTables, landing_table
from semel.pipeline.live_files import list_files
from semel.pipeline.source_columns import DATE
from semel.pipeline.sparkplug.payload import STATE, decode_message
from semel.pipeline.sparkplug.rows import (
    GAP_COLUMNS,
    METRIC_COLUMNS,
    NODE_COLUMNS,
    RECORD_COLUMNS,
    STATE_COLUMNS,
    SparkplugRows,
    arrow_schema,
)
from semel.pipeline.sparkplug.state import EdgeNodeState, PartKey, apply, host_event
from semel.pipeline.stream_record import StreamRecord
from semel.pipeline.table import CommitChoice, LandingBatch, Table, cached_table

if TYPE_CHECKING:
    from deltalake import DeltaTable, Transaction

# Messages of a batch, which are in the memory of the driver.
MAX_MESSAGES: Final = 50_000
# Seconds between two commits if there are no Sparkplug messages.
ADVANCE_SECONDS: Final = 60.0
# Types as in SQL.
DEAD_LETTER_KINDS: Final = {**DEAD_LETTER_COLUMNS, DATE: "date"}


@dataclass(frozen=True)
class SparkplugLimits:
    """What is kept in memory, and in the state table."""

    # Messages that are decoded before their rows become Arrow tables, which are smaller.
    chunk_messages: int = 1_000
    # The state table is replaced when it has this many rows for each part of a state, and this many
    # more; or after this many commits, each of which adds a file.
    obsolete_factor: int = 4
    obsolete_rows: int = 1_000
    appended_commits: int = 100


LIMITS: Final = SparkplugLimits()

# Node of the record, group and edge node.
StateKey = tuple[str, str, str]


def run_messages(batch: pa.Table, states: MutableMapping[StateKey, EdgeNodeState]) -> SparkplugRows:
    """The rows of messages, which are in order. Changes the states of their edge nodes."""
    rows = SparkplugRows(batch)
    nodes, topics, payloads = (
        batch.column(name).to_pylist() for name in ("node", "topic", "payload")
    )
    for place, (node, topic, payload) in enumerate(zip(nodes, topics, payloads, strict=True)):
        message = decode_message(topic, payload)
        if isinstance(message, Problem):
            rows.messages.append(None)
            rows.add_problem(place, message)
            continue
        rows.messages.append(message)
        group, edge_node = message.topic.group_id, message.topic.edge_node_id
        if message.topic.message_type == STATE:
            rows.add_event(place, host_event(message))
            continue
        assert group is not None
        assert edge_node is not None
        key = (node, group, edge_node)
        applied = apply(states.get(key) or EdgeNodeState(), message)
        states[key] = applied.state
        rows.add(place, applied)
    return rows


class SparkplugLanding:
    """Lands the batches of one query, in order. `land` is called by one thread at a time."""

    def __init__(
        self, plan: LandingPlan, tables: SparkplugTables, *, limits: SparkplugLimits = LIMITS
    ) -> None:
        """Load the states. Raises TableError."""
        self._plan = plan
        self._limits = limits
        self._name = tables.prefix
        addresses = {name: landing_table(plan.lake, name) for name in tables.names}
        self._metrics = addresses[tables.metrics]
        self._nodes = addresses[tables.nodes]
        self._gaps = addresses[tables.gaps]
        self._letters_name = tables.dead_letters
        self._dead_letters = landing_table(plan.lake, tables.dead_letters)
        self._state_table = StateTable(
            addresses[tables.state], plan.stream, plan.root.nodes(plan.stream), limits=limits
        )
        self._states = self._state_table.states
        # What the last batch covered that was committed, or had no messages to commit.
        self._covers: Mapping[str, Span] = {}
        self._committed_at = time.monotonic()
        self._lock = threading.Lock()

    @property
    def positions(self) -> dict[str, int]:
        """The last row of each node that the state has."""
        return dict(self._state_table.positions)

    def land(self, batch: pa.Table, covers: Mapping[str, Span]) -> None:
        """Land messages, with RECORD_COLUMNS. Raises PipelineError.

        `covers` has all rows since the query began, whether they are Sparkplug messages or not.
        """
        with self._lock:
            is_due = time.monotonic() - self._committed_at >= ADVANCE_SECONDS
            if batch.num_rows or is_due:
                self._land(batch, covers)
            # Not before: `finish` must not advance beyond a batch that has failed.
            self._covers = covers

    def finish(self) -> None:
        """Advance the tables to the end of the last batch. Raises PipelineError."""
        with self._lock:
            ends = {node: last for node, (_, last) in self._covers.items()}
            if ends != {node: self._state_table.positions.get(node) for node in ends}:
                self._land(empty_batch(), self._covers)

    def _land(self, batch: pa.Table, covers: Mapping[str, Span]) -> None:
        ordered = batch.sort_by([("node", "ascending"), ("seq", "ascending")])
        changed: dict[StateKey, EdgeNodeState] = {}
        states = ChainMap(changed, self._states)
        metrics, nodes, gaps = (
            FileWriter(TableLayout(address, (DATE,), numbering=REPEATED), BUFFER_BYTES // 4)
            for address in (self._metrics, self._nodes, self._gaps)
        )
        dead_letters = FileWriter(dead_letters_layout(self._dead_letters), BUFFER_BYTES // 4)
        chunk = self._limits.chunk_messages
        for begin in range(0, ordered.num_rows, chunk):
            rows = run_messages(ordered.slice(begin, chunk), states)
            metrics.add(rows.metrics_table())
            nodes.add(rows.nodes_table())
            gaps.add(rows.gaps_table())
            dead_letters.add(self._dead_letters_of(rows))
        bad = dead_letters.finish()
        if bad:
            schema = schema_of_columns(DEAD_LETTER_KINDS)
            commit_dead_letters(self._dead_letters, self._plan.stream, self._name, bad, schema)
        for address, writer, columns, subject in (
            (self._metrics, metrics, METRIC_COLUMNS, "Metrics"),
            (self._nodes, nodes, NODE_COLUMNS, "Births and deaths"),
            (self._gaps, gaps, GAP_COLUMNS, "Gaps"),
        ):
            self._commit(address, writer.finish(), columns, covers=covers, subject=subject)
        records = letters_transactions(self._letters_name, self._plan.stream, bad)
        self._state_table.commit(changed, covers, records)
        self._committed_at = time.monotonic()

    def _commit(
        self,
        address: str,
        files: Sequence[DataFile],
        columns: Mapping[str, str],
        *,
        covers: Mapping[str, Span],
        subject: str,
    ) -> None:
        plan = self._plan
        cached_table(address).commit(
            LandingBatch(
                files=files,
                schema=schema_of_columns(columns),
                partition_by=(DATE,),
                stream=plan.stream,
                covers=covers,
                record=StreamRecord(plan.root_address, plan.stream),
                # The state is committed last.
                reached=self.positions,
                may_skip=not plan.fail_on_data_loss,
                may_add_columns=True,
                description=f"{subject} of Sparkplug messages of the MQTT stream {plan.stream}",
            )
        )

    def _dead_letters_of(self, rows: SparkplugRows) -> pa.Table:
        """The messages that could not be decoded."""
        bad = rows.batch.take(pa.array(rows.problem_places, pa.int64()))
        count, found = bad.num_rows, rows.problems
        columns = {name: bad.column(name) for name in RECORD_COLUMNS}
        columns["stream"] = pa.array([self._plan.stream] * count, pa.string())
        columns["table_name"] = pa.array([self._name] * count, pa.string())
        columns["reason"] = pa.array([each.reason for each in found], pa.string())
        columns["column_name"] = pa.array([each.column for each in found], pa.string())
        columns["byte_offset"] = pa.array([each.byte for each in found], pa.int32())
        return pa.table({name: columns[name] for name in DEAD_LETTER_KINDS})


class StateTable:
    """The states of all edge nodes, and the position in the record up to which they hold."""

    def __init__(
        self,
        address: str,
        stream: str,
        nodes: Iterable[str],
        *,
        limits: SparkplugLimits = LIMITS,
    ) -> None:
        """Load them. Raises TableError."""
        self.states: dict[StateKey, EdgeNodeState] = {}
        self.positions: dict[str, int] = {}
        self._address = address
        self._limits = limits
        self._stream = stream
        self._table = Table(address)
        # Rows in the table, and commits since they were replaced.
        self._row_count = 0
        self._commit_count = 0
        # The last seq of the states of each node, which may have left the record.
        self._seqs: dict[str, int] = {}
        loaded = self._table.load()
        if loaded is not None:
            self.positions = positions_in(loaded, stream, nodes)
            self._read(loaded)

    def _read(self, loaded: "DeltaTable") -> None:
        advice = (
            f"restore it from a backup of the table, or delete {self._table.shown}, and landing"
            " begins with the record again: the states are computed from the messages that the"
            " record still has, and rows that the other tables have are not added again"
        )
        reader = FileReader(self._address, loaded, advice=advice)
        newest: dict[StateKey, dict[PartKey, tuple[int, str]]] = {}
        for file in list_files(loaded):
            self._commit_count += 1
            for row in reader.read(file, list(STATE_COLUMNS)).to_pylist():
                self._row_count += 1
                node, seq = row["node"], row["seq"]
                self._seqs[node] = max(seq, self._seqs.get(node, seq))
                parts = newest.setdefault((row["node"], row["group_id"], row["edge_node_id"]), {})
                part = (row["part"], row["device_id"])
                if part not in parts or parts[part][0] < row["seq"]:
                    parts[part] = (row["seq"], row["state"])
        for key, parts in newest.items():
            texts = {part: text for part, (_, text) in parts.items()}
            self.states[key] = EdgeNodeState.from_parts(texts)

    def commit(
        self,
        changed: Mapping[StateKey, EdgeNodeState],
        covers: Mapping[str, Span],
        records: "Sequence[Transaction]" = (),
    ) -> None:
        """Commit states that hold up to the end of `covers`. Raises TableError.

        `records` are app transactions of the commit besides the positions.
        Afterwards `states` and `positions` are those of the table.
        """
        ends = {node: last for node, (_, last) in covers.items()}
        every = {**self.states, **changed}
        rows = [
            row
            for key, state in changed.items()
            for row in _rows_of(key, state, state.changed_parts(self.states.get(key)), ends)
        ]
        replaces = self._is_worn(every, len(rows))
        if replaces:
            at = {**self._seqs, **self.positions, **ends}
            rows = [
                row
                for key, state in every.items()
                for row in _rows_of(key, state, state.changed_parts(), at)
            ]
        schema = arrow_schema(*STATE_COLUMNS.items())
        table = pa.Table.from_pylist(rows, schema)
        self._table.commit(
            LandingBatch(
                files=write_files(table.to_batches(), TableLayout(self._address)),
                schema=schema_of_columns(STATE_COLUMNS),
                stream=self._stream,
                overwrite=replaces,
                select=self._selection(ends, records),
                description=f"States of Sparkplug edge nodes of the MQTT stream {self._stream}",
            )
        )
        self.states.update(changed)
        self.positions.update(ends)
        self._row_count = len(rows) if replaces else self._row_count + len(rows)
        self._commit_count = 0 if replaces else self._commit_count + bool(rows)

    def _is_worn(self, every: Mapping[StateKey, EdgeNodeState], added: int) -> bool:
        """Whether so many rows are obsolete, or files are there, that all should be replaced."""
        if self._commit_count >= self._limits.appended_commits:
            return True
        parts = sum(2 + len(state.devices) for state in every.values())
        limits = self._limits
        return self._row_count + added > limits.obsolete_factor * parts + limits.obsolete_rows

    def _selection(
        self, ends: Mapping[str, int], records: "Sequence[Transaction]"
    ) -> "Callable[[DeltaTable, Sequence[DataFile]], CommitChoice]":
        """Take the files, unless another landing has advanced the table."""
        stream, expected, shown = self._stream, self.positions, self._table.shown

        def select(loaded: "DeltaTable", files: Sequence[DataFile]) -> CommitChoice:
            found = positions_in(loaded, stream, {*ends, *expected})
            if found != expected:
                raise TableError(
                    f"{shown} was changed by another landing of stream {stream}, so that this one"
                    " ends: run one of them; nothing is lost"
                )
            positions = (
                each
                for node, last in sorted(ends.items())
                for each in position_transactions(stream, node, last)
            )
            return files, [*positions, *records]

        return select


def _rows_of(
    key: StateKey, state: EdgeNodeState, parts: Iterable[PartKey], ends: Mapping[str, int]
) -> list[dict[str, Any]]:
    node, group, edge_node = key
    return [
        {
            "node": node,
            "seq": ends[node],
            "group_id": group,
            "edge_node_id": edge_node,
            "device_id": part[1],
            "part": part[0],
            "state": state.part(part),
        }
        for part in parts
    ]


def schema_of_columns(columns: Mapping[str, str]) -> str:
    """A schema as JSON of Spark, from types as in JSON or in SQL."""
    in_json = {"bigint": "long", "int": "integer"}
    fields = [
        {"name": name, "type": in_json.get(kind, kind), "nullable": True, "metadata": {}}
        for name, kind in columns.items()
    ]
    return json.dumps({"type": "struct", "fields": fields})


def empty_batch() -> pa.Table:
    """No messages."""
    kinds = ("string", "long", "timestamp", "string", "binary", "date")
    return arrow_schema(*zip(RECORD_COLUMNS, kinds, strict=True)).empty_table()
