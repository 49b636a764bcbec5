"""The rows of a batch on their way to the outbox: checked in tasks, kept in one file by the driver.

    task      Arrow batches ─▶ checked rows ─▶ in the commit message, or in a file if there are more
    driver    all of them, in the order of the tasks ─▶ one file of chunks ─▶ the outbox

A chunk is a record batch within the ChunkLimits (or one row, if it is larger), and is put into the
outbox in one transaction. So neither a task nor the driver has more than a few chunks in memory,
whatever the size of the batch. Column `row` counts the rows of the batch from 0; column `problem`
says why a row can never be sent.

Arrow's files have no checksums. So the writer of a file remembers that of all its bytes, and no row
is used before the reader has compared it.
"""

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Final
from zlib import crc32

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from semel.counts import count
from semel.mqtt.codec import LARGEST_PACKET, publish_fits
from semel.mqtt.message import Message
from semel.mqtt.packet_types import MQTT5
from semel.mqtt.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MESSAGE_EXPIRY_INTERVAL,
    NO_PROPERTIES,
    PAYLOAD_FORMAT_INDICATOR,
    RESPONSE_TOPIC,
    USER_PROPERTY,
    Properties,
    PropertyItem,
)
from semel.mqtt.violation import Violation
from semel.pipeline.errors import PipelineError
from semel.pipeline.publish_options import CHUNKS, ChunkLimits
from semel.store.private_files import new_private, sync

# Rows of a task up to this size are in its commit message, and others in a file.
INLINE_BYTES: Final = 256 * 1024
# Bytes to read at a time when verifying a file: still in the processor's cache for the checksum.
_PIECE: Final = 256 * 1024

_USER_PROPERTIES: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
_USER_PROPERTIES_BYTES: Final = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
_KINDS: Final = {
    "topic": pa.string(),
    "payload": pa.binary(),
    "qos": pa.int32(),
    "retain": pa.bool_(),
    "payload_format": pa.int32(),
    "content_type": pa.string(),
    "response_topic": pa.string(),
    "correlation_data": pa.binary(),
    "message_expiry": pa.int64(),
    "user_properties": _USER_PROPERTIES,
}
TASK_SCHEMA: Final = pa.schema([*_KINDS.items(), ("problem", pa.string())])
CHUNK_SCHEMA: Final = pa.schema([("row", pa.int64()), *TASK_SCHEMA])
# The properties of a message, by their columns.
_PROPERTIES: Final = {
    "payload_format": PAYLOAD_FORMAT_INDICATOR,
    "content_type": CONTENT_TYPE,
    "response_topic": RESPONSE_TOPIC,
    "correlation_data": CORRELATION_DATA,
    "message_expiry": MESSAGE_EXPIRY_INTERVAL,
}

Row = Mapping[str, Any]


@dataclass
class TaskRows(WriterCommitMessage):
    """The rows of one task: an Arrow stream, in `data` or in a file of the state folder."""

    count: int
    data: bytes
    # None: in `data`.
    path: str | None = None
    host: str = ""
    # The CRC-32 of the file.
    checksum: int = 0


# --- one row --------------------------------------------------------------------------------------


def message_of(row: Row, now: float) -> Message:
    """The message of a row. Raises Violation."""
    items: list[PropertyItem] = [
        (identifier, row[name]) for name, identifier in _PROPERTIES.items() if row[name] is not None
    ]
    for each in row["user_properties"] or ():
        items.append((USER_PROPERTY, (each["key"], each["value"])))
    expiry = row["message_expiry"]
    return Message(
        row["topic"],
        row["payload"],
        qos=row["qos"],
        retain=row["retain"],
        properties=Properties(items) if items else NO_PROPERTIES,
        expires_at=None if expiry is None else now + expiry,
    )


def problem_of_row(row: Row, maximum_packet_size: int = LARGEST_PACKET) -> str | None:
    """Why a row can never be sent, to any broker; None if it can."""
    for name in ("topic", "payload"):
        if row[name] is None:
            return f"column {name} is null"
    for each in row["user_properties"] or ():
        if each is None or each["key"] is None or each["value"] is None:
            return "a user property, its key or its value is null"
    try:
        # The expiry is a duration here, so any time will do.
        message = message_of(row, 0.0)
        packet = message.publish(1 if message.qos else 0, 0.0, MQTT5, dup=False)
    except Violation as violation:
        return str(violation)
    # [2.1.4]
    if not publish_fits(packet, MQTT5, maximum_packet_size):
        return f"its packet exceeds the {maximum_packet_size:,} bytes that MQTT allows"
    return None


# --- tasks ----------------------------------------------------------------------------------------


def write_task_rows(
    batches: Iterable[pa.RecordBatch],
    folder: Path,
    *,
    default_qos: int,
    keeps_invalid: bool,
    limits: ChunkLimits = CHUNKS,
) -> TaskRows:
    """Check the rows of a task, and keep them for the driver.

    Unless it keeps invalid rows too, for the failures table, raises PipelineError for the first of
    them: then nothing of the batch is sent.
    """
    rows = TaskRowWriter(folder)
    try:
        for batch in batches:
            for chunk in chunks_of(batch, limits):
                first = rows.count
                checked = check_rows(chunk, default_qos)
                if not keeps_invalid:
                    report_invalid_row(checked, first)
                rows.write(checked)
        return rows.finish()
    except OSError as problem:
        rows.discard()
        raise PipelineError(
            f"the state folder {folder} cannot be written: {problem.strerror or problem}"
        ) from problem
    except BaseException:
        rows.discard()
        raise


def chunks_of(batch: pa.RecordBatch, limits: ChunkLimits) -> Iterator[pa.RecordBatch]:
    """Parts of a batch within the limits, or of one row that is larger."""
    if batch.num_rows == 0:
        return
    if batch.num_rows > 1 and (
        batch.num_rows > limits.rows or batch.get_total_buffer_size() > limits.bytes
    ):
        size = batch.nbytes
        if batch.num_rows > limits.rows or size > limits.bytes:
            half = batch.num_rows // 2
            yield from chunks_of(batch.slice(0, half), limits)
            yield from chunks_of(batch.slice(half), limits)
            return
    yield batch


def check_rows(batch: pa.RecordBatch, default_qos: int) -> pa.RecordBatch:
    """The rows with all columns of TASK_SCHEMA: defaults instead of nulls, and their problems."""
    columns: dict[str, pa.Array] = {}
    for name, kind in _KINDS.items():
        if name in batch.schema.names:
            columns[name] = batch.column(name).cast(kind)
        else:
            columns[name] = pa.nulls(batch.num_rows, kind)
    columns["qos"] = columns["qos"].fill_null(default_qos)
    columns["retain"] = columns["retain"].fill_null(False)
    try:
        rows = pa.RecordBatch.from_pydict(columns).to_pylist()
        ill_formed: dict[int, str] = {}
    except UnicodeDecodeError:
        # Spark does not check what is cast to a string.
        ill_formed = _replace_ill_formed_text(columns)
        rows = pa.RecordBatch.from_pydict(columns).to_pylist()
    problems = [ill_formed.get(at) or problem_of_row(row) for at, row in enumerate(rows)]
    columns["problem"] = pa.array(problems, pa.string())
    return pa.RecordBatch.from_pydict(columns, schema=TASK_SCHEMA)


def _replace_ill_formed_text(columns: dict[str, pa.Array]) -> dict[int, str]:
    """Make all text valid, with replacement characters. Returns the problem of each row with one.

    [MQTT-1.5.4-1] [MQTT-1.5.3-1] a string is well-formed UTF-8.
    """
    problems: dict[int, str] = {}

    def valid(at: int, what: str, data: bytes | None) -> str | None:
        if data is None:
            return None
        try:
            return data.decode()
        except UnicodeDecodeError as problem:
            problems.setdefault(at, f"{what} is not UTF-8 [MQTT-1.5.4-1]: {problem.reason}")
            return data.decode("utf-8", "replace")

    for name, kind in _KINDS.items():
        if kind == pa.string():
            values = columns[name].cast(pa.binary()).to_pylist()
            texts = [valid(at, f"column {name}", each) for at, each in enumerate(values)]
            columns[name] = pa.array(texts, kind)
    name = "user_properties"
    what = f"column {name}: a key or value"
    rows = []
    for at, items in enumerate(columns[name].cast(_USER_PROPERTIES_BYTES).to_pylist()):
        row = items and [
            each and {part: valid(at, what, data) for part, data in each.items()} for each in items
        ]
        rows.append(row)
    columns[name] = pa.array(rows, _USER_PROPERTIES)
    return problems


def report_invalid_row(batch: pa.RecordBatch, first: int) -> None:
    """Raise PipelineError for the first row of a task that can never be sent."""
    for index, problem in enumerate(batch.column("problem").to_pylist()):
        if problem is not None:
            raise PipelineError(
                f"{row_name(first + index, batch.column('topic')[index].as_py())} of partition"
                f" {partition_number()} can never be sent: {problem.rstrip('.')}. Correct it, or"
                " collect such rows in a table with option failures"
            )


def row_name(row: int, topic: str | None) -> str:
    """A row in a sentence."""
    return f"row {row}" if topic is None else f"row {row} (topic {topic[:100]!r})"


def partition_number() -> int:
    """The partition of the running task; 0 outside Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


class TaskRowWriter:
    """Writes an Arrow stream to memory and, when it becomes too large, to a file."""

    def __init__(self, folder: Path) -> None:
        self.count = 0
        self._folder = folder
        self._path: Path | None = None
        self._memory = BytesIO()
        self._sink: IO[bytes] = self._memory
        self._checksum = 0
        self._writer: Any = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows. Raises OSError."""
        if self._writer is None:
            self._writer = pa.ipc.new_stream(_Sink(self.append), TASK_SCHEMA)
        self._writer.write_batch(batch)
        self.count += batch.num_rows
        if self._path is None and self._memory.tell() > INLINE_BYTES:
            self._move_to_file()

    def append(self, data: bytes) -> None:
        """Append bytes of the stream, wherever it is."""
        self._sink.write(data)
        self._checksum = crc32(data, self._checksum)

    def _move_to_file(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = self._folder / f"{os.urandom(12).hex()}.arrows"
        self._sink = os.fdopen(new_private(self._path), "wb")
        self._sink.write(self._memory.getvalue())
        self._memory = BytesIO()

    def finish(self) -> TaskRows:
        """The rows, for the driver. Raises OSError."""
        if self._writer is not None:
            self._writer.close()
        if self._path is None:
            return TaskRows(self.count, self._memory.getvalue())
        # The driver writes its own copy and syncs that.
        self._sink.close()
        return TaskRows(self.count, b"", str(self._path), socket.gethostname(), self._checksum)

    def discard(self) -> None:
        """Delete the file, if there is one."""
        if self._path is not None:
            self._sink.close()
            self._path.unlink(missing_ok=True)


class _Sink:
    """The part of a file that pyarrow writes to."""

    closed = False

    def __init__(self, append: Callable[[bytes], None]) -> None:
        self._append = append

    def write(self, data: Any) -> int:
        self._append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Not needed."""

    def close(self) -> None:
        """The owner closes the file."""


# --- the driver -----------------------------------------------------------------------------------


def batches_of(messages: Iterable[TaskRows]) -> Iterator[pa.RecordBatch]:
    """The rows of all tasks, in their order. Raises PipelineError if a file is missing."""
    for message in messages:
        if message.path is None:
            if message.count:
                yield from pa.ipc.open_stream(message.data)
            continue
        found = 0
        try:
            check_file(Path(message.path), message.checksum)
            with pa.OSFile(message.path) as source:
                for batch in pa.ipc.open_stream(source):
                    found += batch.num_rows
                    yield batch
        except FileNotFoundError:
            raise PipelineError(
                f"{message.path}, which a task on {message.host} has written, is not on the"
                f" driver's machine: give option state with a folder that all machines share, or"
                f" make partitions of at most {INLINE_BYTES // 1024} KiB"
            ) from None
        except (OSError, pa.ArrowInvalid) as problem:
            raise PipelineError(f"{message.path} cannot be read: {problem}") from problem
        if found != message.count:
            raise PipelineError(
                f"{message.path} has {count(found, 'row')}, but its task wrote {message.count}"
            )


def check_file(path: Path, checksum: int) -> None:
    """Raise OSError if a file is not as it was written."""
    found = 0
    with open(path, "rb") as file:
        while data := file.read(_PIECE):
            found = crc32(data, found)
    if found != checksum:
        raise OSError("it is damaged: it has another checksum than what was written")


def write_chunks(
    batches: Iterable[pa.RecordBatch], path: Path, limits: ChunkLimits = CHUNKS
) -> int:
    """Write the chunks of a batch to a new file, and sync it. Returns the CRC-32 of the file.

    Raises OSError.
    """
    checksum = row = 0
    pending: list[pa.RecordBatch] = []
    with os.fdopen(new_private(path), "wb") as file:

        def append(data: bytes) -> None:
            nonlocal checksum
            file.write(data)
            checksum = crc32(data, checksum)

        with pa.ipc.new_file(_Sink(append), CHUNK_SCHEMA) as writer:

            def write() -> None:
                nonlocal row
                for chunk in pa.Table.from_batches(pending).combine_chunks().to_batches():
                    rows = pa.array(range(row, row + chunk.num_rows), pa.int64())
                    writer.write_batch(
                        pa.RecordBatch.from_arrays([rows, *chunk.columns], schema=CHUNK_SCHEMA)
                    )
                    row += chunk.num_rows
                pending.clear()

            for batch in batches:
                rows = sum(each.num_rows for each in pending) + batch.num_rows
                size = sum(each.nbytes for each in pending) + batch.nbytes
                if pending and (rows > limits.rows or size > limits.bytes):
                    write()
                pending.append(batch)
            if pending:
                write()
        file.flush()
        os.fsync(file.fileno())
    sync(path.parent)
    return checksum


class ChunkFile:
    """The chunks of a batch."""

    def __init__(self, path: Path) -> None:
        """Raises OSError and ArrowInvalid."""
        self._source = pa.OSFile(str(path))
        self._reader = pa.ipc.open_file(self._source)
        self.chunks: int = self._reader.num_record_batches

    def rows(self, chunk: int) -> list[dict[str, Any]]:
        """The rows of a chunk."""
        rows: list[dict[str, Any]] = self._reader.get_batch(chunk).to_pylist()
        return rows

    def close(self) -> None:
        """Close the file."""
        self._source.close()
