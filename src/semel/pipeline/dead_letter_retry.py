"""`semel land retry`: dead letters are decoded again, after the landing file was corrected.

Each dead letter that can be decoded now is added to its table once, and then deleted from the dead
letters. The commit to the table adds only messages that the table does not have, and decides again
if another program has committed first, so that a retry can be killed or run twice. A dead letter is
left alone until the landing of its table has passed it: before that, the landing itself may still
land it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from semel.pipeline.app_transactions import positions_in
from semel.pipeline.arrow_types import with_plain_types
from semel.pipeline.dead_letters import (
    PIECE_ROWS,
    count_messages,
    message_keys,
    read_letters,
)
from semel.pipeline.delta_errors import one_line, table_errors
from semel.pipeline.delta_fsync import fsync_commit
from semel.pipeline.errors import PipelineError
from semel.pipeline.files import (
    REPEATED,
    DataFile,
    FileWriter,
    TableFolder,
    TableLayout,
    write_files,
)
from semel.pipeline.lake import dataset_of
from semel.pipeline.landing_file import LandedTable
from semel.pipeline.landing_plan import LandingPlan, landing_table
from semel.pipeline.table import CommitChoice, LandingBatch, Table
from semel.pipeline.table_rows import TableShape, needed_columns, rows_of_tables, without_ansi
from semel.pipeline.table_split import TableSplit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Attempts to delete dead letters while a landing adds others.
DELETE_ATTEMPTS: Final = 20
_KEY: Final = ("node", "seq")


@dataclass(frozen=True)
class RetryOutcome:
    """What became of the dead letters of one table: numbers of messages."""

    table: str
    # Added to the table now; there already; and without a row, because of the filter of the table
    # or an empty array.
    landed: int = 0
    known: int = 0
    left_out: int = 0
    # They still cannot be decoded; or the landing has not passed them yet.
    bad: int = 0
    waiting: int = 0

    def __add__(self, other: "RetryOutcome") -> "RetryOutcome":
        return RetryOutcome(
            self.table,
            self.landed + other.landed,
            self.known + other.known,
            self.left_out + other.left_out,
            self.bad + other.bad,
            self.waiting + other.waiting,
        )


def retry_dead_letters(
    spark: "SparkSession",
    plan: LandingPlan,
    tables: Sequence[LandedTable],
    report: Callable[[RetryOutcome], None],
) -> list[RetryOutcome]:
    """Decode the dead letters of these tables again. Raises PipelineError.

    `report` is called with the outcome so far of the table in progress.
    """
    assert plan.file is not None
    dead = Table(landing_table(plan.lake, plan.file.dead_letters))
    found = []
    for table in tables:
        outcome = RetryOutcome(table.name)
        for chunk in _chunks(dead, plan.stream, table.name):
            outcome += _retry(spark, plan, dead, table, chunk)
            report(outcome)
        found.append(outcome)
    return found


def _chunks(dead: Table, stream: str, table: str) -> Iterator[pa.Table]:
    """The dead letters of a table, about PIECE_ROWS at a time, as they are now."""
    loaded = dead.load()
    if loaded is None:
        return
    pieces: list[pa.Table] = []
    with table_errors(dead.address):
        for piece in read_letters(loaded, stream, table):
            pieces.append(piece)
            if sum(each.num_rows for each in pieces) >= PIECE_ROWS:
                yield pa.concat_tables(pieces)
                pieces = []
    if pieces:
        yield pa.concat_tables(pieces)


def _retry(
    spark: "SparkSession", plan: LandingPlan, dead: Table, table: LandedTable, letters: pa.Table
) -> RetryOutcome:
    names = needed_columns([table])
    for name in names:
        if name not in letters.column_names:
            raise PipelineError(
                f"table {table.name}: its dead letters have no column {name}, because the table did"
                f" not have it when they were written: leave {name} out of message_columns"
            )
    # What the template no longer takes stays a dead letter.
    takes = [table.template.explain(each) is None for each in letters.column("topic").to_pylist()]
    letters, others = letters.filter(pa.array(takes)), letters.num_rows
    others -= letters.num_rows
    if not letters.num_rows:
        return RetryOutcome(table.name, bad=others)
    # In one chunk: Spark stops at an empty one, and leaves out what follows.
    messages = spark.createDataFrame(letters.select(names).combine_chunks())
    with without_ansi(spark):
        frame, (shape,) = rows_of_tables(messages, [table], {})
        decoded = frame.toArrow()
    found = count_messages(decoded)
    if found != letters.num_rows:
        raise PipelineError(
            f"table {table.name}: Spark has decoded {found} of {letters.num_rows} dead letters:"
            " nothing was changed"
        )
    target = Table(landing_table(plan.lake, table.name))
    rows, bad = TableSplit(0, shape, plan.stream).split(decoded)
    adding = _Adding(target, plan.stream, rows, shape)
    adding.commit()
    # A message without a row was left out by the filter, which is what the landing does, too.
    done = _without(letters.select(_KEY), [bad, adding.waiting])
    _delete(dead, plan.stream, table.name, done)
    with_rows, waiting = count_messages(rows), count_messages(adding.waiting)
    return RetryOutcome(
        table.name,
        landed=adding.landed,
        known=with_rows - adding.landed - waiting,
        left_out=letters.num_rows - with_rows - bad.num_rows,
        bad=bad.num_rows + others,
        waiting=waiting,
    )


class _Adding:
    """Adds rows to a table that it does not have."""

    def __init__(self, target: Table, stream: str, rows: pa.Table, shape: TableShape) -> None:
        self._target = target
        self._stream = stream
        self._rows = rows
        self._shape = shape
        # Messages whose rows were added, and rows that the landing has not passed.
        self.landed = 0
        self.waiting = rows.slice(0, 0)
        self._selected = 0

    def commit(self) -> None:
        """Commit the rows that the table lacks. Raises TableError."""
        loaded = self._target.load()
        if loaded is None:
            # The landing has not even created it.
            self.waiting = self._rows
            return
        if not self._rows.num_rows:
            return
        layout = TableLayout(self._target.address, self._shape.partition_by, numbering=REPEATED)
        writer = FileWriter(layout)
        writer.add(self._new_rows(loaded))
        files = writer.finish()
        if not files:
            return
        outcome = self._target.commit(
            LandingBatch(
                files=files,
                schema=self._shape.schema,
                partition_by=self._shape.partition_by,
                stream=self._stream,
                may_add_columns=True,
                select=self._select,
                key=self._shape.latest_by,
                newest_by=self._shape.newest_by,
            )
        )
        self.landed = self._selected if outcome.rows else 0

    def _new_rows(self, loaded: DeltaTable) -> pa.Table:
        """The rows that a version of the table lacks, and the landing has passed."""
        nodes = self._rows.column("node").unique().to_pylist()
        landed = positions_in(loaded, self._stream, nodes)
        passed = None
        for node in nodes:
            at = pc.less_equal(self._rows.column("seq"), landed.get(node, 0))
            mine = pc.and_(pc.equal(self._rows.column("node"), node), at)
            passed = mine if passed is None else pc.or_(passed, mine)
        assert passed is not None
        self.waiting = self._rows.filter(pc.invert(passed))
        return _without(self._rows.filter(passed), [self._existing(loaded)])

    def _existing(self, loaded: DeltaTable) -> pa.Table:
        """The messages of the table in the range of the rows."""
        bounds = pc.min_max(self._rows.column("seq")).as_py()
        within = (pc.field("seq") >= bounds["min"]) & (pc.field("seq") <= bounds["max"])
        with table_errors(self._target.address):
            found = dataset_of(loaded).to_table(columns=list(_KEY), filter=within)
        return with_plain_types(found)

    def _select(self, loaded: DeltaTable, files: Sequence[DataFile]) -> CommitChoice:
        """Decides again what is new: another program may have committed since."""
        new = self._new_rows(loaded)
        self._selected = count_messages(new)
        if new.num_rows == sum(each.rows for each in files):
            return files, []
        kept: list[DataFile] = []
        for file in files:
            rows = TableFolder(self._target.address).read(file.path)
            rest = pc.is_in(message_keys(rows), value_set=message_keys(new))
            folder = file.path.rpartition("/")[0]
            layout = TableLayout(self._target.address, numbering=REPEATED, folder=folder)
            for each in write_files(rows.filter(rest).to_batches(), layout):
                kept.append(replace(each, partition=file.partition))
        return (kept, []) if kept else None


def _without(rows: pa.Table, others: Sequence[pa.Table]) -> pa.Table:
    """The rows whose message none of the others has."""
    for other in others:
        if other.num_rows:
            rows = rows.filter(
                pc.invert(pc.is_in(message_keys(rows), value_set=message_keys(other)))
            )
    return rows


def _delete(dead: Table, stream: str, table: str, done: pa.Table) -> None:
    """Delete dead letters. Raises PipelineError."""
    if not done.num_rows:
        return
    conditions = []
    for node in done.column("node").unique().to_pylist():
        seqs = done.filter(pc.equal(done.column("node"), node)).column("seq").to_pylist()
        numbers = ", ".join(map(str, sorted(seqs)))
        conditions.append(f"(node = {_quoted(node)} AND seq IN ({numbers}))")
    predicate = (
        f"stream = {_quoted(stream)} AND table_name = {_quoted(table)}"
        f" AND ({' OR '.join(conditions)})"
    )
    for attempt in range(DELETE_ATTEMPTS):
        loaded = dead.load()
        if loaded is None:
            return
        try:
            loaded.delete(predicate)
        except DeltaError as problem:
            # A landing may have added dead letters meanwhile.
            if attempt + 1 == DELETE_ATTEMPTS:
                raise PipelineError(f"{dead.shown}: {one_line(problem)}") from problem
            continue
        fsync_commit(dead.address, loaded.version(), files=True)
        return


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
