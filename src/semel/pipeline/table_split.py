"""The rows and the dead letters of one table, from the rows of a query (`table_rows.py`).

Payloads that were not decoded before are decoded here.

Some texts and times cannot be partitions (`_partition_problems`): an error of the writer would end
the landing again and again, and with it all tables. So a message that has one in a partition column
is a dead letter of the table. A message lands with all of its rows or with none, so that rows must
come here with all others of their message (`cut_before_last_message`).
"""

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from semel.pipeline.arrow_decoding import ArrowDecoding, problem_array
from semel.pipeline.dead_letters import dead_letters_of, message_keys
from semel.pipeline.decoders.outcome import Decoded, Problem, joined
from semel.pipeline.files import NAME_BYTES, partition_folder
from semel.pipeline.landing_file import EVENT_TIME
from semel.pipeline.source_columns import COLUMNS, DATE
from semel.pipeline.table_rows import BAD, LATE, PAYLOAD, ROW, TAKES, TableShape
from semel.pipeline.topic_template import parse_template

# Bytes of payloads that are decoded at once. An Arrow array has at most 2 GiB.
DECODED_BYTES: Final = 256 * 1024 * 1024


class TableSplit:
    """Takes apart the rows of `rows_of_tables`: finds those of the table at `place`."""

    def __init__(self, place: int, shape: TableShape, stream: str) -> None:
        self._takes, self._row, self._bad = f"{TAKES}{place}", f"{ROW}{place}", f"{BAD}{place}"
        self._shape = shape
        self._stream = stream
        self._limited = shape.limited_partitions
        self._names = [each["name"] for each in json.loads(shape.schema)["fields"]]
        self._template = parse_template(shape.template) if shape.template else None
        self._decoding: ArrowDecoding | None = None
        if shape.decoding is not None:
            self._decoding = ArrowDecoding.from_text(shape.decoding)

    def split(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The rows of the table, with its columns in their order, and its dead letters.

        `rows` are all rows of their messages.
        """
        record = [name for name in rows.column_names if name in COLUMNS or name == DATE]
        if self._decoding is not None:
            # Null in rows that are elements of other tables.
            messages = rows.select(record).filter(rows.column(self._takes))
            found, bad = self._decoded(messages)
        else:
            messages = rows.select(record)
            found, bad = self._decoded_before(rows, record)
        found, refused = self._refused(found, messages)
        if refused is not None:
            bad = pa.concat_tables([bad, refused])
        return found, dead_letters_of(bad, self._bad, self._shape, self._stream)

    def _decoded_before(self, rows: pa.Table, record: list[str]) -> tuple[pa.Table, pa.Table]:
        """The rows of the table, and its bad messages with the reason."""
        bad = _without_nulls(rows.select([*record, self._bad]), self._bad)
        ours = _without_nulls(rows.select([*self._shape.shared, self._row]), self._row)
        structs = ours.column(self._row)
        own = {
            structs.type.field(place).name: pc.struct_field(structs, [place])
            for place in range(structs.type.num_fields)
        }
        return self._columns(ours, own), bad

    def _decoded(self, messages: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The rows of the table, and its bad messages with the reason."""
        assert self._decoding is not None
        assert self._template is not None
        found = _decode(self._decoding, messages.column(PAYLOAD))
        problems = problem_array(found.problems, messages.num_rows)
        bad = _without_nulls(messages.append_column(self._bad, problems), self._bad)
        values = found.values
        if values.null_count:
            is_good = values.is_valid()
            messages, values = messages.filter(is_good), values.filter(is_good)
        levels = self._template.arrow_columns(messages.column("topic").combine_chunks())
        own = levels | dict(zip(values.type.names, values.flatten(), strict=True))
        if self._shape.event_time is not None:
            own[EVENT_TIME] = own[self._shape.event_time]
        if self._shape.late_after is not None:
            own[LATE] = _is_late(own[EVENT_TIME], messages.column("received"), self._shape)
        return self._columns(messages, own), bad

    def _columns(self, rows: pa.Table, own: dict[str, pa.Array]) -> pa.Table:
        columns = {name: rows.column(name) for name in self._shape.shared} | own
        return pa.table([columns[name] for name in self._names], names=self._names)

    def _refused(self, found: pa.Table, messages: pa.Table) -> tuple[pa.Table, pa.Table | None]:
        """The rows that can be in a partition; and the messages of the others with the reason.

        `messages` have the columns of dead letters; one row of each message has its payload.
        """
        problems = _partition_problems(found, self._limited)
        if not problems:
            return found, None
        keys = message_keys(found)
        by_message: dict[str, Problem] = {}
        for place, problem in problems.items():
            by_message.setdefault(keys[place].as_py(), problem)
        refused = pa.array(by_message)
        messages = _without_nulls(messages, PAYLOAD)
        messages = messages.filter(pc.is_in(message_keys(messages), value_set=refused))
        reasons = {
            place: by_message[key] for place, key in enumerate(message_keys(messages).to_pylist())
        }
        return (
            found.filter(pc.invert(pc.is_in(keys, value_set=refused))),
            messages.append_column(self._bad, problem_array(reasons, messages.num_rows)),
        )


def cut_before_last_message(
    batches: Sequence[pa.RecordBatch],
) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """The rows before those of the last message, and those of the last one.

    The rows of a message are consecutive, and no batch is empty.
    """
    node, seq = (batches[-1].column(name)[-1] for name in ("node", "seq"))
    for place in reversed(range(len(batches))):
        batch = batches[place]
        is_last = pc.and_(pc.equal(batch.column("node"), node), pc.equal(batch.column("seq"), seq))
        begin = batch.num_rows - is_last.true_count
        if begin:
            before, last = batch.slice(0, begin), batch.slice(begin)
            return [*batches[:place], before], [
                each for each in (last, *batches[place + 1 :]) if each.num_rows
            ]
    return [], list(batches)


def _partition_problems(rows: pa.Table, names: Sequence[str]) -> dict[int, Problem]:
    """By place of a row: why a value of one of these columns cannot be a partition value.

    A text needs a folder, and times are in the years that Python has, as those of decoders are.
    """
    problems: dict[int, Problem] = {}
    for name in names:
        column = rows.column(name)
        if pa.types.is_temporal(column.type):
            problem = Problem(
                f"{name} is not in the years 1 to 9999, by which a table can be partitioned", name
            )
            for place in pc.indices_nonzero(_is_beyond_years(column)).to_pylist():
                problems.setdefault(place, problem)
            continue
        sizes = pc.binary_length(column)
        # A byte of UTF-8 has at most three in the name of a folder.
        short = (NAME_BYTES - len(partition_folder(name, ""))) // 3
        is_suspect = pc.or_(pc.equal(sizes, 0), pc.greater(sizes, short))
        if not pc.any(is_suspect, min_count=0).as_py():
            continue
        reasons = {
            text: reason
            for text in column.filter(is_suspect).unique().to_pylist()
            if (reason := _partition_problem(name, text)) is not None
        }
        is_bad = pc.is_in(column, value_set=pa.array(reasons, column.type))
        for place in pc.indices_nonzero(is_bad).to_pylist():
            problems.setdefault(place, Problem(reasons[column[place].as_py()], name))
    return problems


def _is_beyond_years(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whether dates or times are outside of the years 1 to 9999."""
    least: date = date.min
    most: date = date.max
    if not pa.types.is_date(times.type):
        zone = None if times.type.tz is None else UTC
        least, most = datetime.min.replace(tzinfo=zone), datetime.max.replace(tzinfo=zone)
    is_before = pc.less(times, pa.scalar(least, times.type))
    return pc.or_(is_before, pc.greater(times, pa.scalar(most, times.type)))


def _partition_problem(name: str, text: str) -> str | None:
    if not text:
        return f"{name} is empty, and a Delta table cannot be partitioned by empty text"
    if len(partition_folder(name, text)) > NAME_BYTES:
        return (
            f"{name} is too long to partition by it: the name of its folder would have more than"
            f" {NAME_BYTES} bytes"
        )
    return None


def _is_late(event_time: pa.Array, received: pa.ChunkedArray, shape: TableShape) -> pa.Array:
    """Whether messages were received more than some seconds after their event time."""
    assert shape.late_after is not None
    # Compared with `received`, which is a plausible time: a difference to any time can overflow.
    latest = pc.subtract(received.cast(pa.int64()), round(shape.late_after * 1_000_000))
    return pc.less(event_time.cast(pa.int64()), latest)


def _without_nulls(rows: pa.Table, name: str) -> pa.Table:
    """The rows in which this column is not null."""
    column = rows.column(name)
    return rows.filter(column.is_valid()) if column.null_count else rows


def _decode(decoding: ArrowDecoding, payloads: pa.ChunkedArray) -> Decoded:
    if payloads.nbytes <= DECODED_BYTES:
        return decoding.decoded(payloads.combine_chunks())
    return joined([decoding.decoded(chunk) for chunk in payloads.chunks])
