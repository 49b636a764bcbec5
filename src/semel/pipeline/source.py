"""`format("mqtt")`: the record of a stream as a Spark source, for batch and streaming queries.

    spark.readStream.format("mqtt").option("root", "data/streams").option("stream", "all").load()

Segments are read with the functions of the store; Spark itself never opens a root. An offset is
`{node: seq}` (`offsets`). The driver splits a batch into partitions. A task reads one partition and
depends on nothing else: rows by their numbers, each once and in order, from whichever segments hold
them at that time, as Arrow batches with Spark's schema.

A stream reader lives in one process beside the driver as long as its query runs. There it remembers
what it has warned about, whether the live broker is attached, and where AvailableNow ends. The
copies that Spark sends to tasks have none of this, and no options of a live broker; nor does the
copy of the source that goes with them.
"""

import gc
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from semel.extras import MissingExtra
from semel.pipeline.errors import OptionError, PipelineError
from semel.pipeline.offsets import (
    Losses,
    NodeExtent,
    Offset,
    first_offset,
    last_offset,
    list_all_extents,
    list_extents,
    next_offset,
    positions_of,
    spans_of,
    with_beginnings,
)
from semel.pipeline.source_columns import check_columns, ddl_of, table_options, table_schema
from semel.pipeline.source_options import (
    SourceOptions,
    has_root,
    kept_options,
    near,
    options_of_table,
    parse_source_options,
)
from semel.pipeline.source_partitions import Rows, SegmentPartition, locate_rows, partitions_of
from semel.store.reading import MissingRows, NodeRecord, ReadOptions
from semel.store.roots import LocalRoot, Root, RootError, open_root
from semel.store.segment_names import Range
from semel.store.segment_writer import GROUP_ROWS
from semel.store.segments import LISTINGS, RecordError, first_among

if TYPE_CHECKING:
    from semel.pipeline.publish import PublishBatchWriter, PublishStreamWriter

NAME: Final = "mqtt"
# Rows in an Arrow batch for Spark: Java is fastest with 1 to 3 MB. Row groups, whose bytes are
# bounded, are decoded whole, which takes four fifths of the time of decoding them in pieces.
BATCH_ROWS: Final = 8_192


class MqttSource(DataSource):
    """The data source that Spark creates for `format("mqtt")` and its options."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Raises OptionError, so that a wrong option fails in `load()`.

        Without a root this may be a query of a catalog table, whose schema has the options.
        """
        super().__init__(options)
        # The options of CREATE TABLE; None for anything else.
        self._table = options_of_table(options)
        self._parsed: SourceOptions | None = None
        if self._table is not None:
            self._parsed = parse_source_options(self._table)
        elif has_root(options) and not any(name.lower() == "url" for name in options):
            # With a broker it may be a write, whose options the sink checks.
            self._parsed = parse_source_options(options)
        self._has_reader = False

    def __getstate__(self) -> dict[str, Any]:
        if not self._has_reader:
            return self.__dict__
        # Spark sends the source with its reader to tasks, which only use its name.
        return {**self.__dict__, "options": {}, "_parsed": None}

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str | StructType:
        parsed = self._parsed or parse_source_options(self.options)
        if self._table is None:
            return ddl_of(parsed.columns)
        return table_schema(parsed.columns, kept_options(self._table, parsed))

    def reader(self, schema: StructType) -> "MqttBatchReader":
        return MqttBatchReader(self._options_for(schema), schema)

    def streamReader(self, schema: StructType) -> "MqttStreamReader":  # noqa: N802
        reader = MqttStreamReader(self._options_for(schema), schema)
        # From now on the source is pickled for tasks.
        self._has_reader = True
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> "PublishBatchWriter":
        from semel.pipeline.publish import PublishBatchWriter

        return PublishBatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "PublishStreamWriter":  # noqa: N802
        from semel.pipeline.publish import PublishStreamWriter

        return PublishStreamWriter(self.options, schema, overwrite=overwrite)

    def _options_for(self, schema: StructType) -> SourceOptions:
        """The options of a query with this schema: its own override those of its table."""
        if self._parsed is not None:
            return self._parsed
        given = {name.lower(): value for name, value in self.options.items()}
        return parse_source_options(table_options(schema) | given)


# --- what both readers share ----------------------------------------------------------------------


@contextmanager
def root_errors() -> Iterator[None]:
    """Turn errors about a root or a record into a PipelineError with one sentence."""
    try:
        yield
    except RootError as problem:
        raise OptionError(f"option root: {problem}") from None
    except (RecordError, MissingExtra) as problem:
        raise PipelineError(str(problem)) from None
    except OSError as problem:
        reason = " ".join(str(problem).split())
        raise PipelineError(f"the root cannot be read: {reason}") from problem


def stream_of(root: Root, options: SourceOptions, *, may_wait: bool) -> str | None:
    """The stream to read, or None if there is none yet. Raises OptionError for a wrong one."""
    if isinstance(root, LocalRoot) and not Path(root.address).is_dir():
        raise OptionError(f"option root: there is no folder {root.address}")
    if options.is_live:
        return options.stream
    streams = root.streams()
    if options.stream is None:
        if len(streams) > 1:
            raise OptionError(f"option stream is missing: {_list_streams(root, streams)}")
        if streams or may_wait:
            return streams[0] if streams else None
        raise OptionError(f"option root: {root.address} has no streams")
    if options.stream in streams or (may_wait and not streams):
        return options.stream
    meant = near(options.stream, {each.lower(): each for each in streams})
    hint = f"; did you mean {meant}?" if meant else ""
    raise OptionError(
        f"option stream: there is no stream {options.stream}: {_list_streams(root, streams)}{hint}"
    )


def check_is_record(root: Root, stream: str | None, extents: Mapping[str, NodeExtent]) -> None:
    """Raise OptionError if folders are not nodes: the root is one level too high or too low."""
    if stream is None or any(extent.last for extent in extents.values()):
        return
    nodes = root.nodes(stream)
    if any(root.owners(stream, node) for node in nodes):
        return  # nothing has been sealed yet
    if any(extent.last for extent in list_extents(root, stream, nodes).values()):
        return  # a node that this query does not read has rows
    raise OptionError(
        f"option root: {root.address} has no segments of stream {stream}: give the folder that has"
        " <stream>/<node>/<segments> in it, such as data/streams"
    )


def check_nodes(options: SourceOptions, nodes: Sequence[str]) -> None:
    """Raise OptionError for unknown nodes; a batch read does not wait for them."""
    named = {"nodes": options.nodes or (), "start": options.start.by_node}
    named["end"] = {} if options.end is None else options.end.by_node
    for option, names in named.items():
        for name in names:
            if name not in nodes:
                meant = near(name, {each.lower(): each for each in nodes})
                hint = (
                    f"did you mean {meant}?" if meant else f"the nodes are {', '.join(nodes[:20])}"
                )
                raise OptionError(f"option {option}: there is no node {name}: {hint}")


def _list_streams(root: Root, streams: Sequence[str]) -> str:
    if not streams:
        return f"{root.address} has none"
    return f"{root.address} has {', '.join(streams[:20])}{', …' if len(streams) > 20 else ''}"


def read_rows(
    root: Root, stream: str, rows: Rows, read_options: ReadOptions, losses: Losses
) -> Iterator[Any]:
    """Read rows as Arrow tables. Rows that disappear in the meantime are a loss."""
    record = NodeRecord(root, stream, rows.node)
    at = rows.first
    while at <= rows.last:
        try:
            yield from record.tables(
                at, rows.last, replace(read_options, hinted_segments=rows.files)
            )
            return
        except MissingRows as missing:
            extent = list_extents(root, stream, [rows.node])[rows.node]
            # If the record ends before them, everything that is left to read is gone.
            last = rows.last if extent.last < missing.first else min(missing.last, rows.last)
            losses.report_missing(extent, missing.first, last)
            at = last + 1


def read_partition(
    options: SourceOptions,
    schema: StructType,
    partition: InputPartition,
) -> Iterator[Any]:
    """The rows of a partition as record batches with Spark's schema."""
    if not gc.get_freeze_count():
        # A worker runs many tasks, and collects garbage after each: a fifth of its time, most of it
        # spent on what was imported.
        gc.freeze()
    if not isinstance(partition, SegmentPartition):
        return  # Spark's own partition for an empty batch
    columns = check_columns(schema, options.columns)
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    read_options = ReadOptions(columns, GROUP_ROWS)
    with root_errors():
        root = open_root(options.root)
        losses = Losses(partition.stream, root.address, fail=options.fail_on_data_loss)
        for rows in partition.rows:
            for table in read_rows(root, partition.stream, rows, read_options, losses):
                which = f"stream {partition.stream}, node {rows.node}"
                table = _with_schema(table, arrow_schema, which)
                yield from table.to_batches(max_chunksize=BATCH_ROWS)


def _with_schema(table: Any, schema: Any, which: str) -> Any:
    """The table with Spark's schema, whose columns may be NOT NULL. Raises RecordError."""
    if table.schema.equals(schema):
        return table
    for field in schema:
        if not field.nullable and table.column(field.name).null_count:
            # Java does not look for nulls there.
            raise RecordError(
                f"{which}: column {field.name} of a segment has nulls, so semel did not write it"
            )
    return table.cast(schema)


class _SourceStream:
    """A root, the stream to read, and its extents; used on the driver."""

    def __init__(self, options: SourceOptions, *, may_wait: bool) -> None:
        self._options = options
        self.root = open_root(options.root)
        # None: the root has none yet.
        self.name = stream_of(self.root, options, may_wait=may_wait)
        self.losses = Losses(
            self.name or "(none yet)", self.root.address, fail=options.fail_on_data_loss
        )

    def list_extents(self, done: Mapping[str, int] | None = None) -> dict[str, NodeExtent]:
        """The extents of the nodes to read, and of those in the offset `done`."""
        before = done or {}
        if self.name is not None and self._options.nodes is None:
            found = list_all_extents(self.root, self.name)
            # A listing is not atomic: list nodes again whose rows seem to be gone.
            behind = [
                node
                for node, last in before.items()
                if node not in found or found[node].last < last
            ]
            return dict(sorted((found | self.list_node_extents(behind)).items()))
        nodes = {*before}
        if self.name is not None:
            nodes |= {*self.root.nodes(self.name)}
        if self._options.nodes is not None:
            nodes &= {*self._options.nodes}
        return self.list_node_extents(nodes)

    def list_node_extents(self, nodes: Iterable[str]) -> dict[str, NodeExtent]:
        """The extents of these nodes."""
        if self.name is None:
            return {node: NodeExtent(node, 0, ()) for node in nodes}
        return list_extents(self.root, self.name, nodes)

    def since(self, extent: NodeExtent, time: int) -> int | None:
        """The first row that was received at or after a time, or None."""
        if self.name is None:
            return None
        for _ in range(LISTINGS):
            ranges = [segment.range for segment in extent.segments]
            try:
                return first_among(self.root, self.name, extent.node, ranges, time)
            except FileNotFoundError:
                extent = list_extents(self.root, self.name, [extent.node])[extent.node]
            except OSError as problem:
                which = f"stream {self.name}, node {extent.node}"
                raise RecordError(f"{which}: a segment cannot be read: {problem}") from problem
        raise RecordError(
            f"stream {self.name}, node {extent.node}: segments disappear while they are listed"
        )

    def partitions(
        self, extents: dict[str, NodeExtent], spans: dict[str, Range]
    ) -> list[SegmentPartition]:
        """Partitions of the rows of these spans."""
        found = list(locate_rows(extents, spans, self.losses))
        if self.name is None:
            return []
        return partitions_of(
            self.root,
            self.name,
            found,
            rows=self._options.rows_per_partition,
            least=self._options.min_partitions,
        )


# --- batches --------------------------------------------------------------------------------------


class MqttBatchReader(DataSourceReader):
    """Reads a stream once, from one point to another.

    It takes no filters: Spark 4.3 keeps the partitions that were planned with the filters of one
    query, and uses them for all other queries of the same DataFrame or view.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        for value, name in ((options.is_live, "url"), (options.max_rows, "maxRowsPerBatch")):
            if value:
                raise OptionError(f"option {name} is for readStream: read returns all sealed rows")
        check_columns(schema, options.columns)
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        with root_errors():
            stream = _SourceStream(self._options, may_wait=False)
            assert stream.name is not None
            extents = stream.list_extents()
            check_nodes(self._options, stream.root.nodes(stream.name))
            check_is_record(stream.root, stream.name, extents)
            start = first_offset(self._options.start, extents, stream.since, stream.losses)
            end = last_offset(self._options.end, extents, stream.since)
            spans = {node: (start.get(node, 0) + 1, last) for node, last in end.items()}
            return list(stream.partitions(extents, spans))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(self._options, self._schema, partition)


# --- streams --------------------------------------------------------------------------------------


class MqttStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream continuously."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.end is not None:
            raise OptionError("option end is for read: readStream has no end")
        check_columns(schema, options.columns)
        self._options = options
        self._schema = schema
        self._forget()

    def _forget(self) -> None:
        """Reset the state that only the driver's reader has."""
        self._found: _SourceStream | None = None
        self._seen: dict[str, NodeExtent] = {}
        self._latest: Offset | None = None
        self._target: Offset | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": replace(self._options, live={}), "schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._options = state["options"]
        self._schema = state["schema"]
        self._forget()

    def _open(self) -> _SourceStream:
        """The stream to read; makes sure that the ingest of a live broker is running."""
        if self._options.is_live:
            from semel.pipeline.live import check

            assert self._options.stream is not None
            check(self._options.live, root=self._options.root, stream=self._options.stream)
        if self._found is None or self._found.name is None:
            self._found = _SourceStream(self._options, may_wait=True)
        return self._found

    def initialOffset(self) -> Offset:  # noqa: N802
        with root_errors():
            stream = self._open()
            extents = stream.list_extents()
            if extents and not self._options.is_live:
                check_is_record(stream.root, stream.name, extents)
            start = first_offset(self._options.start, extents, stream.since, stream.losses)
            return with_beginnings(start)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        with root_errors():
            stream = self._open()
            done = positions_of(start)
            extents = self._seen = stream.list_extents(done)
            self._latest = {node: extent.last for node, extent in extents.items()}
            rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            end = next_offset(done, extents, rows, stream.losses, self._target)
            return with_beginnings(end, start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_rows is None:
            return ReadAllAvailable()
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with root_errors():
            extents = self._open().list_extents()
            self._target = {node: extent.last for node, extent in extents.items()}

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        return self._latest

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        start, end = positions_of(start), positions_of(end)
        moved = [node for node, last in end.items() if last > start.get(node, 0)]
        if not moved:
            return []
        with root_errors():
            stream = self._open()
            # Usually these rows were listed a moment ago. If a segment is gone by now, the task
            # finds the one that replaced it.
            extents = {node: self._seen[node] for node in moved if node in self._seen}
            spans = spans_of(start, end, extents)
            if len(extents) < len(moved) or not all(
                extents[node].reach(first - 1) >= last for node, (first, last) in spans.items()
            ):
                extents = stream.list_node_extents(moved)
                spans = spans_of(start, end, extents)
            return stream.partitions(extents, spans)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(self._options, self._schema, partition)

    def commit(self, end: Offset) -> None:
        """Does nothing: rows are kept, and Spark may call this late or not at all."""

    def stop(self) -> None:
        self._forget()
