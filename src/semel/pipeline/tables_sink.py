"""`format("semel_tables")`: writes the rows of several Delta tables in one query, each once.

    executors    write(batches) ─▶ Parquet files of each table, and of its dead letters
    driver       commit(messages, batch) ─▶ for each table: one commit to the dead letters, if there
                 are any, and one to the table

The landing uses it (`landing.py`). Its rows are made by `table_rows.py`, and taken apart by
`table_split.py`, which also decodes the payloads of most tables. There is no commit over
several tables, so each of them stands for itself: a table records which messages it covers, and a
batch that was killed between two commits is repeated and finds what each table has.

A table without rows in a batch is not committed for each batch, but when some time has passed. That
loses nothing: the next commit covers all messages since the query began, because Spark commits
batches in order. Dead letters come first: if they were committed and their table was not, the
repeated batch finds them.

If a commit fails, the other tables are still committed; then the query ends with the errors.

A commit covers more than its batch, so it would hide that a table was deleted, or replaced by an
older copy, since the last one. So the sink notes in the checkpoint how far each table got, and a
commit to a table that has less is refused.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from semel.pipeline.checkpoint import last_batch, spans_since_start
from semel.pipeline.errors import PipelineError
from semel.pipeline.table_rows import TableShape

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from semel.pipeline.coverage import Span
    from semel.pipeline.files import DataFile

NAME: Final = "semel_tables"
# Seconds between two commits of a table that has no rows.
ADVANCE_SECONDS: Final = 60.0
# Record batches, and their bytes, that are divided among the tables at once.
SPLIT_BATCHES: Final = 64
SPLIT_BYTES: Final = 32 * 1024 * 1024
# Rows that wait before only the newest of each key are kept.
LATEST_ROWS: Final = 10_000
# The folder of a checkpoint in which the sink notes how far each table got, by its place.
REACHED: Final = "reached"
# When the tables were committed last, by address, on the clock of this process.
_COMMITTED: Final[dict[str, float]] = {}


@dataclass(frozen=True)
class TablesPlan:
    """What the sink must know; sent to its processes as JSON."""

    stream: str
    root: str
    checkpoint: str
    may_skip: bool
    # The addresses of the tables, in the order of `shapes`, and of the dead letters.
    addresses: tuple[str, ...]
    dead_letters: str
    # Their name, which the tables record.
    dead_letters_name: str
    # As JSON of Spark.
    dead_letters_schema: str
    shapes: tuple[TableShape, ...]
    # Whether a new table may begin with any message, and not with the first of the record.
    begins_anywhere: bool = False
    # By table: the positions of its nodes when the query began.
    landed: tuple[dict[str, int], ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "TablesPlan":
        found = json.loads(text)
        shapes = tuple(
            TableShape(
                **each
                | {
                    "partition_by": tuple(each["partition_by"]),
                    "shared": tuple(each["shared"]),
                    "latest_by": tuple(each["latest_by"]),
                }
            )
            for each in found["shapes"]
        )
        lists = {name: tuple(found[name]) for name in ("addresses", "landed")}
        return cls(**found | lists | {"shapes": shapes})


@dataclass
class WrittenTables(WriterCommitMessage):
    """The files that one task has written: of each table, and of its dead letters."""

    rows: "list[list[DataFile]]"
    dead_letters: "list[list[DataFile]]"


class TablesSink(DataSource):
    """Several Delta tables."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def streamWriter(  # noqa: N802
        self, schema: "StructType", overwrite: bool
    ) -> "TablesWriter":
        return TablesWriter(self.options)


class TablesWriter(DataSourceStreamArrowWriter):
    """Writes the rows of `rows_of_tables`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.plan = TablesPlan.from_json(options["plan"])

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WrittenTables:
        # Here and below: pyarrow and deltalake are slow to import, and planning needs neither.
        import pyarrow as pa

        from semel.pipeline.table_split import cut_before_last_message

        splitter = RowSplitter(self.plan)
        # Tables that may refuse a message because of any of its rows, which come one by one.
        needs_whole = any(each.has_parts and each.limited_partitions for each in self.plan.shapes)
        waiting: list[pa.RecordBatch] = []
        size = 0
        for batch in iterator:
            if not batch.num_rows:
                continue
            waiting.append(batch)
            size += batch.nbytes
            # Spark sends some thousands of rows at a time: few, if there are many tables.
            if size >= SPLIT_BYTES or len(waiting) >= SPLIT_BATCHES:
                ready, waiting = cut_before_last_message(waiting) if needs_whole else (waiting, [])
                if ready:
                    splitter.add(pa.Table.from_batches(ready))
                size = sum(each.nbytes for each in waiting)
        if waiting:
            splitter.add(pa.Table.from_batches(waiting))
        return splitter.finish()

    def commit(
        self,
        messages: "list[WriterCommitMessage | None]",
        batchId: int,  # noqa: N803
    ) -> None:
        covers = spans_since_start(Path(self.plan.checkpoint), batchId)
        now = time.monotonic()
        written = [each for each in messages if isinstance(each, WrittenTables)]
        new: dict[int, tuple[list[DataFile], list[DataFile]]] = {}
        for place, address in enumerate(self.plan.addresses):
            files = [file for each in written for file in each.rows[place]]
            dead = [file for each in written for file in each.dead_letters[place]]
            since = now - _COMMITTED.get(address, float("-inf"))
            if files or dead or since >= ADVANCE_SECONDS:
                new[place] = (files, dead)
        commit_tables(self.plan, new, covers)

    def abort(
        self,
        messages: "list[WriterCommitMessage | None]",
        batchId: int,  # noqa: N803
    ) -> None:
        return


def commit_tables(
    plan: TablesPlan,
    new: "Mapping[int, tuple[Sequence[DataFile], Sequence[DataFile]]]",
    covers: "Mapping[str, Span]",
) -> None:
    """Commit rows and dead letters, by the place of their table.

    A table whose commit fails keeps none of the others from theirs; then the errors are raised.
    """
    from semel.pipeline.delta_errors import table_errors

    problems: list[Exception] = []
    for place, (files, dead) in new.items():
        address = plan.addresses[place]
        try:
            with table_errors(address):
                commit_table(plan, place, files, dead, covers)
            _COMMITTED[address] = time.monotonic()
        except Exception as problem:
            problems.append(problem)
    if len(problems) > 1 and all(isinstance(each, PipelineError) for each in problems):
        raise PipelineError("; ".join(dict.fromkeys(map(str, problems)))) from problems[0]
    if problems:
        raise problems[0]


def commit_table(
    plan: TablesPlan,
    place: int,
    files: "Sequence[DataFile]",
    dead: "Sequence[DataFile]",
    covers: "Mapping[str, Span]",
) -> None:
    """Commit rows and dead letters of one table. Raises PipelineError, OSError and DeltaError."""
    from semel.pipeline.dead_letters import commit_dead_letters, letters_transactions
    from semel.pipeline.stream_record import StreamRecord
    from semel.pipeline.table import LandingBatch, cached_table

    shape = plan.shapes[place]
    if dead:
        commit_dead_letters(
            plan.dead_letters, plan.stream, shape.name, dead, plan.dead_letters_schema
        )
    cached_table(plan.addresses[place]).commit(
        LandingBatch(
            files=files,
            schema=shape.schema,
            partition_by=shape.partition_by,
            stream=plan.stream,
            covers=covers,
            record=StreamRecord(plan.root, plan.stream),
            reached=_reached(plan, place),
            records=letters_transactions(plan.dead_letters_name, plan.stream, dead),
            may_skip=plan.may_skip,
            may_add_columns=True,
            begins_anywhere=plan.begins_anywhere,
            key=shape.latest_by,
            newest_by=shape.newest_by,
            description=f"Messages of the MQTT stream {plan.stream}, with typed columns",
        )
    )
    _note_reached(plan, place, covers)


def _reached(plan: TablesPlan, place: int) -> dict[str, int]:
    """The positions that a table had when the query began, or after its last commit to it."""
    found = dict(plan.landed[place]) if plan.landed else {}
    with suppress(FileNotFoundError):
        noted: dict[str, int] = json.loads(_note_path(plan, place).read_text("utf-8"))
        found |= {node: max(seq, found.get(node, 0)) for node, seq in noted.items()}
    return found


def _note_reached(plan: TablesPlan, place: int, covers: "Mapping[str, Span]") -> None:
    """Note the positions of a table after a commit, for the process of the next one.

    If it is killed before that, the next query has another checkpoint.
    """
    path = _note_path(plan, place)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps({node: last for node, (_, last) in covers.items()}), "utf-8")
    new.replace(path)


def _note_path(plan: TablesPlan, place: int) -> Path:
    return Path(plan.checkpoint) / REACHED / str(place)


def advance(plan: TablesPlan) -> None:
    """Advance all tables to the end of the last batch that is done. Raises PipelineError."""
    checkpoint = Path(plan.checkpoint)
    batch = last_batch(checkpoint)
    if batch is None:
        return
    covers = spans_since_start(checkpoint, batch)
    commit_tables(plan, {place: ([], []) for place in range(len(plan.addresses))}, covers)


class RowSplitter:
    """Takes the rows of `rows_of_tables` apart, and writes the files of each table."""

    def __init__(self, plan: TablesPlan) -> None:
        from semel.pipeline.dead_letters import dead_letters_layout
        from semel.pipeline.files import BUFFER_BYTES, REPEATED, FileWriter, TableLayout
        from semel.pipeline.table_split import TableSplit

        self._shapes = plan.shapes
        self._splits = [
            TableSplit(place, shape, plan.stream) for place, shape in enumerate(plan.shapes)
        ]
        each_bytes = max(1, BUFFER_BYTES // (2 * len(plan.shapes)))
        self._rows = [
            FileWriter(TableLayout(address, shape.partition_by, numbering=REPEATED), each_bytes)
            for address, shape in zip(plan.addresses, plan.shapes, strict=True)
        ]
        layout = dead_letters_layout(plan.dead_letters)
        self._dead = [FileWriter(layout, each_bytes) for _ in plan.shapes]
        # By place of a table with only the newest rows: those that are not written yet, and how
        # many there may be before they are reduced.
        self._latest: dict[int, list[pa.Table]] = {}
        self._latest_limit: dict[int, int] = {}

    def add(self, rows: "pa.Table") -> None:
        """Take rows apart, and write them when enough of them are in memory."""
        # Once, and not for each table.
        rows = rows.combine_chunks()
        for place, shape in enumerate(self._shapes):
            found, letters = self._splits[place].split(rows)
            if shape.latest_by:
                self._add_latest(place, found)
            else:
                self._rows[place].add(found)
            self._dead[place].add(letters)

    def _add_latest(self, place: int, rows: "pa.Table") -> None:
        """Keep the newest row of each key in memory."""
        import pyarrow as pa

        waiting = self._latest.setdefault(place, [])
        if rows.num_rows:
            waiting.append(rows)
        if sum(each.num_rows for each in waiting) > self._latest_limit.get(place, LATEST_ROWS):
            newest = self._newest(place, pa.concat_tables(waiting))
            self._latest[place] = [newest]
            # Not again before there are as many others.
            self._latest_limit[place] = 2 * newest.num_rows + LATEST_ROWS

    def _newest(self, place: int, rows: "pa.Table") -> "pa.Table":
        from semel.pipeline.upserts import newest_rows

        shape = self._shapes[place]
        return newest_rows(rows, shape.latest_by, shape.newest_by)

    def finish(self) -> WrittenTables:
        """Write what is left."""
        import pyarrow as pa

        for place, waiting in self._latest.items():
            if waiting:
                self._rows[place].add(self._newest(place, pa.concat_tables(waiting)))
        return WrittenTables(
            [each.finish() for each in self._rows], [each.finish() for each in self._dead]
        )
