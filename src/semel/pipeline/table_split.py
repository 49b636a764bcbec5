"""The rows and the dead letters of one table, from the rows of a query (`table_rows.py`).

Payloads that were not decoded before are decoded here.
"""

import json
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from semel.pipeline.arrow_decoding import ArrowDecoding, problem_array
from semel.pipeline.dead_letters import dead_letters_of
from semel.pipeline.decoders.outcome import Decoded, joined
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
        self._names = [each["name"] for each in json.loads(shape.schema)["fields"]]
        self._template = parse_template(shape.template) if shape.template else None
        self._decoding: ArrowDecoding | None = None
        if shape.decoding is not None:
            self._decoding = ArrowDecoding.from_text(shape.decoding)

    def split(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The rows of the table, with its columns in their order, and its dead letters."""
        record = [name for name in rows.column_names if name in COLUMNS or name == DATE]
        if self._decoding is not None:
            # Null in rows that are elements of other tables.
            return self._decoded(rows.select(record).filter(rows.column(self._takes)))
        bad = _without_nulls(rows.select([*record, self._bad]), self._bad)
        ours = _without_nulls(rows.select([*self._shape.shared, self._row]), self._row)
        structs = ours.column(self._row)
        own = {
            structs.type.field(place).name: pc.struct_field(structs, [place])
            for place in range(structs.type.num_fields)
        }
        return self._columns(ours, own), self._letters(bad)

    def _decoded(self, messages: pa.Table) -> tuple[pa.Table, pa.Table]:
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
        return self._columns(messages, own), self._letters(bad)

    def _columns(self, rows: pa.Table, own: dict[str, pa.Array]) -> pa.Table:
        columns = {name: rows.column(name) for name in self._shape.shared} | own
        return pa.table([columns[name] for name in self._names], names=self._names)

    def _letters(self, rows: pa.Table) -> pa.Table:
        return dead_letters_of(rows, self._bad, self._shape, self._stream)


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
