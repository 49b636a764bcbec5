"""Writing to a Delta table exactly once: one commit per batch.

A commit is one entry in the table's log, and therefore atomic. It carries the files of the batch
and app transactions, which record what has been written (`app_transactions.py`).

Rows of a stream are compared by their own numbers, never by the number of the batch. Rows at or
below the last seq landed are left out; rows that follow it are added; a gap is an error. So a
replayed batch, a checkpoint that was lost, copied or restored from a backup, and two concurrent
landings all end with each row in the table once.

Two writers that read the same version cannot both commit: the second one fails, reads the table
again and decides again, even if the commit in between was a RESTORE that removed rows. This
requires storage that creates a file only if it does not exist: folders do, and object stores that
pass `commit_probe`.

delta-rs does not call fsync: a commit counts when its log entry is on disk (`delta_fsync.py`).
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Final

from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Field
from deltalake.transaction import AddAction, RemoveAction

from semel.pipeline.app_transactions import (
    owner_id,
    owner_number,
    position_id,
    position_transactions,
    positions_in,
    query_id,
    stream_id,
)
from semel.pipeline.commit_probe import probe
from semel.pipeline.coverage import TAKE, BatchDecision, Span, decide
from semel.pipeline.delta_errors import one_line, table_errors
from semel.pipeline.delta_fsync import entry_fingerprint, fsync_commit
from semel.pipeline.delta_log import COMMIT_MARKER, DeltaLog, find_empty_entry, find_rollback
from semel.pipeline.errors import DataLoss, TableError, UnfitRows
from semel.pipeline.files import (
    ASK_COVERAGE,
    REPEATED,
    UNIQUE,
    DataFile,
    Run,
    TableFolder,
    new_part,
)
from semel.pipeline.lake_address import local_folder, split_address
from semel.pipeline.stream_record import StreamRecord, runs_label
from semel.pipeline.table_schema import new_columns, plain_type, rows_schema, type_name
from semel.pipeline.upserts import upserted_files
from semel.store.reading import row_label
from semel.store.roots import Root, RootError, open_root, without_secrets

LOG: Final = logging.getLogger("semel.pipeline")

# Attempts to commit, each of which failed because another writer had committed first.
ATTEMPTS: Final = 50
# Attempts to add columns to a table that other writers change at the same time.
ADD_ATTEMPTS: Final = 10
# Tables that a process keeps loaded, by address.
CACHE_SIZE: Final = 64
_CACHE: Final[dict[str, "Table"]] = {}
# Log entries that are searched for the last commit of a query: other programs may write to its
# table continuously. The table of a stream has no other writers, and its log is searched in full.
HISTORY_LIMIT: Final = 200
LOG_RETENTION: Final = "delta.logRetentionDuration"
# Versions that may not be on disk yet when a writer finds its batch committed.
RECENT: Final = 20
# Writer features that do not concern a writer that only appends plain files. All others change what
# a row may be, what a column is called in a file, or what a commit must contain.
WRITER_FEATURES: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "deletionVectors",
        "domainMetadata",
        "invariants",
        "timestampNtz",
        "vacuumProtocolCheck",
        "variantType",
    }
)
# Before features had names, properties and column metadata of a table enabled them.
FEATURE_SETTINGS: Final = ("delta.constraints.", "delta.columnMapping.mode")
FEATURE_METADATA: Final = ("delta.generationExpression", "delta.invariants", "delta.identity.start")


@dataclass(frozen=True)
class LandingBatch:
    """The files of a batch, and what the commit must check."""

    files: Sequence[DataFile]
    # Spark's schema of the rows, as JSON.
    schema: str
    partition_by: tuple[str, ...] = ()
    # The query, and the number of its batch.
    query: str | None = None
    number: int | None = None
    # The stream whose rows these are; their seq decides what is new.
    stream: str | None = None
    # The rows of the record that the batch covers on each node, whatever rows it brings for them;
    # None: exactly the rows that it brings, each once.
    covers: Mapping[str, Span] | None = None
    # The record that they come from, if known: where a node begins, and which store numbered it.
    record: StreamRecord | None = None
    # Whether a gap is allowed where the record lacks the rows as well.
    may_skip: bool = False
    may_add_columns: bool = False
    overwrite: bool = False
    # By node: the row up to which this query knows that the table had everything.
    reached: Mapping[str, int] | None = None
    # Whether a table without rows of a node may begin with any of its rows.
    begins_anywhere: bool = False
    # App transactions that the commit of rows of a stream records besides.
    records: Sequence[Transaction] = ()
    # Which rows are new, if neither the stream nor the query decides that.
    select: "Selection | None" = None
    # Columns by which rows replace those of the table; and those that say which of them is newest.
    key: tuple[str, ...] = ()
    newest_by: tuple[str, ...] = ()
    # The description of the table, if it is created; None: that of a stream, or none.
    description: str | None = None


# The files of a commit that are new in a version of a table, and app transactions; or None.
CommitChoice = tuple[Sequence[DataFile], list[Transaction]] | None
Selection = Callable[[DeltaTable, Sequence[DataFile]], CommitChoice]


@dataclass(frozen=True)
class CommitOutcome:
    """The result of a commit."""

    # False if there was nothing to commit.
    is_committed: bool
    rows: int
    # Rows of the batch that the table already had.
    known: int


class Table:
    """A Delta table, for writing."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.shown = without_secrets(address)
        self.uri, self.storage = split_address(address)
        self._is_probed = False
        # As last loaded, and the fingerprint of the log entry of that version.
        self._loaded: DeltaTable | None = None
        self._mark: object = None

    # --- reading ----------------------------------------------------------------------------------

    def load(self) -> DeltaTable | None:
        """The current version of the table, or None if there is no table.

        The same object is updated by the next call, which reads only new commits. If the log entry
        of the loaded version is gone or has changed, the log was cleaned or the table was
        recreated, and all of it is read again.
        """
        with table_errors(self.address):
            if not self._is_brought_up_to_date():
                self._loaded = None
                try:
                    self._loaded = DeltaTable(self.uri, storage_options=self.storage or None)
                except TableNotFoundError:
                    return None
            assert self._loaded is not None
            self._mark = entry_fingerprint(self.address, self._loaded.version())
            return self._loaded

    def _is_brought_up_to_date(self) -> bool:
        if self._loaded is None or self._mark is None:
            return False
        if entry_fingerprint(self.address, self._loaded.version()) != self._mark:
            return False
        try:
            self._loaded.update_incremental()
        except DeltaError as problem:
            LOG.info("%s: reading the whole log: %s", self.shown, one_line(problem))
            return False
        return True

    def log(self) -> DeltaLog:
        """The log of the table, entry by entry."""
        return DeltaLog(self._files())

    def _files(self) -> Root:
        try:
            return open_root(self.address)
        except RootError as problem:
            raise TableError(str(problem)) from problem

    def check_log(self) -> None:
        """Raise TableError for damage that delta-rs does not notice: an empty log entry."""
        try:
            damage = find_empty_entry(self._files())
        except OSError as problem:
            raise TableError(f"{self.shown} cannot be listed: {one_line(problem)}") from problem
        if damage is not None:
            raise TableError(f"{self.shown}: its log is damaged: {damage}")

    def positions(self, stream: str, nodes: Iterable[str]) -> dict[str, int]:
        """The last seq landed of each node that has one."""
        table = self.load()
        return {} if table is None else positions_in(table, stream, nodes)

    # --- writing ----------------------------------------------------------------------------------

    def commit(self, batch: LandingBatch) -> CommitOutcome:
        """Commit the rows of a batch that the table lacks. Raises TableError and DataLoss."""
        # Check this first, so that without shared storage not even an empty table is created.
        TableFolder(self.address).check_files(batch.files)
        for _ in range(ATTEMPTS):
            table = self._prepare(batch)
            chosen = self._select_new(table, batch)
            there = sum(each.rows for each in batch.files)
            if chosen is None:
                # The process that committed it may have died before the commit was on disk.
                self._fsync_versions(max(0, table.version() - RECENT), table.version())
                return CommitOutcome(False, 0, there)
            files, transactions = chosen
            rows = sum(each.rows for each in files)
            version = table.version()
            removed: list[RemoveAction] = []
            if batch.key and not batch.overwrite:
                files, removed = upserted_files(
                    self.address, table, files, batch.key, batch.newest_by
                )
            try:
                table.create_write_transaction(
                    [*map(_action, files), *removed],
                    "overwrite" if batch.overwrite else "append",
                    table.schema(),
                    list(batch.partition_by) or None,
                    commit_properties=CommitProperties(
                        app_transactions=transactions,
                        custom_metadata={COMMIT_MARKER: str(rows)},
                        # The selection is valid only right after this version. After another
                        # commit, such as a RESTORE, rows are selected again.
                        max_commit_retries=0,
                    ),
                )
            except (DeltaError, OSError) as problem:
                now = self.load()
                if now is not None and now.version() == version:
                    # No other commit was first, so a retry would fail too.
                    raise TableError(f"{self.shown}: {one_line(problem)}") from problem
                LOG.info("%s: another writer committed first: %s", self.shown, one_line(problem))
                continue
            self._fsync_after(version)
            return CommitOutcome(True, rows, there - rows)
        raise TableError(
            f"{self.shown}: other writers committed first {ATTEMPTS} times in a row; is something "
            "else writing to the table continuously?"
        )

    def _prepare(self, batch: LandingBatch) -> DeltaTable:
        """The table, created or widened if necessary, and checked against the batch."""
        schema = rows_schema(batch.schema)
        table, new = self._load_checked(batch, schema)
        for _ in range(ADD_ATTEMPTS):
            if not new:
                return table
            try:
                table.alter.add_columns(new)
            except CommitFailedError:
                pass  # another writer may have added them: check again
            except DeltaError as problem:
                raise TableError(f"{self.shown}: {_names(new)}: {one_line(problem)}") from problem
            table, new = self._load_checked(batch, schema)
        if new:
            raise TableError(
                f"{self.shown}: {_names(new)} cannot be added: other writers changed the table"
                f" first {ADD_ATTEMPTS} times in a row; is something else changing it continuously?"
            )
        return table

    def _load_checked(self, batch: LandingBatch, schema: Schema) -> tuple[DeltaTable, list[Field]]:
        """The current version of the table, created if necessary, and the columns that it lacks.

        Raises TableError if the batch does not fit the table.
        """
        table = self.load()
        if table is None:
            # A new table can only take rows from the beginning of the record.
            if batch.stream is not None and batch.select is None:
                self._check_reached(batch, batch.stream, {})
                self._decide(batch, self._spans(batch), {})
            self.create(schema, batch.partition_by, batch.stream, batch.description)
            table = self.load()
            assert table is not None
        elif batch.query is None or table.transaction_version(query_id(batch.query)) is None:
            self._probe_once()  # another program may have created the table
        self._check_fits(table, batch, schema)
        self._check_not_restored(table, batch)
        new = new_columns(table.schema(), schema)
        if new and not batch.may_add_columns:
            raise TableError(
                f"{self.shown} has no column {_names(new)}: set mergeSchema to true to add "
                + ("it" if len(new) == 1 else "them")
            )
        return table, new

    def new_columns_for(self, batch: LandingBatch) -> list[str]:
        """The columns that the rows of a batch would add. Raises TableError if they do not fit."""
        table = self.load()
        if table is None:
            return []
        schema = rows_schema(batch.schema)
        self._check_fits(table, batch, schema)
        return [each.name for each in new_columns(table.schema(), schema)]

    def create(
        self,
        schema: Schema,
        partition_by: Sequence[str],
        stream: str | None,
        description: str | None = None,
    ) -> None:
        """Create an empty table, unless another writer has just done so."""
        self._probe_once()
        names = {field.name for field in schema.fields}
        for name in partition_by:
            if name not in names:
                raise TableError(f"partitionBy: there is no column {name}")
        try:
            DeltaTable.create(
                self.uri,
                schema,
                mode="ignore",
                partition_by=list(partition_by) or None,
                # A landing commits every second: more than a day of entries would be slow to list.
                configuration=None if stream is None else {LOG_RETENTION: "interval 1 days"},
                name=None if stream is None else stream_id(stream),
                description=description or (stream and f"Messages of the MQTT stream {stream}"),
                storage_options=self.storage or None,
            )
        except (DeltaError, OSError) as problem:
            if self.load() is None:
                raise TableError(
                    f"{self.shown} cannot be created: {one_line(problem)}"
                ) from problem
        if not partition_by and description is None:
            # Warn users of .partitionBy() now, and not when the table is large.
            LOG.warning(
                "%s is created without partitions: to partition it, delete it and give option"
                " partitionBy, because Spark does not pass .partitionBy() on to a sink in Python",
                self.shown,
            )
        self._fsync_versions(0, 0)

    def _probe_once(self) -> None:
        """Check once that the storage can hold a table. Raises TableError."""
        if not self._is_probed:
            probe(self.address)
            self._is_probed = True

    def _fsync_versions(self, first: int, last: int) -> None:
        """Make a range of versions durable."""
        for version in range(first, last + 1):
            # Entries that a checkpoint covers are deleted.
            with suppress(FileNotFoundError):
                self._fsync_version(version)

    def _fsync_after(self, version: int) -> None:
        """Make all versions after one durable: our commit, and those of others."""
        if local_folder(self.address) is None:
            return
        self._fsync_version(version + 1)
        with suppress(FileNotFoundError):
            for later in count(version + 2):
                self._fsync_version(later)

    def _fsync_version(self, version: int) -> None:
        try:
            fsync_commit(self.address, version)
        except FileNotFoundError:
            raise
        except OSError as problem:
            raise TableError(
                f"{self.shown}: version {version} may not be on disk: {one_line(problem)}"
            ) from problem

    def _check_fits(self, table: DeltaTable, batch: LandingBatch, schema: Schema) -> None:
        metadata = table.metadata()
        asked = set(table.protocol().writer_features or ()) - WRITER_FEATURES
        asked |= {
            key
            for key, value in metadata.configuration.items()
            if key.startswith(FEATURE_SETTINGS) and value != "none"
        }
        for field in table.schema().fields:
            asked |= {key for key in FEATURE_METADATA if key in (field.metadata or {})}
        if asked:
            names = ", ".join(sorted(asked))
            raise TableError(
                f"{self.shown} requires writer feature {names}, which semel does not support"
            )
        if tuple(metadata.partition_columns) != batch.partition_by:
            raise UnfitRows(
                f"{self.shown} is partitioned by {_listed(metadata.partition_columns)}, "
                f"not by {_listed(batch.partition_by)}",
                "give partitionBy as in the table",
            )
        if batch.stream is None and (metadata.name or "").startswith(stream_id("")):
            raise UnfitRows(
                f"{self.shown} is the table of a stream",
                "give option stream, or choose another table",
            )
        if batch.stream is not None and metadata.name != stream_id(batch.stream):
            raise TableError(
                f"{self.shown} is not a table of stream {batch.stream}"
                f" (it is named {metadata.name or 'nothing'}): rows of two streams would have the"
                " same numbers; choose another table"
            )
        there = {field.name: field for field in table.schema().fields}
        given = {each["name"]: each for each in json.loads(batch.schema)["fields"]}
        for field in there.values():
            if not field.nullable and given.get(field.name, {}).get("nullable", True):
                raise TableError(
                    f"{self.shown}: column {field.name} is NOT NULL in the table, but nullable in"
                    " the rows"
                )
        for field in schema.fields:
            known = there.get(field.name)
            if known is not None and plain_type(known) != plain_type(field):
                raise UnfitRows(
                    f"{self.shown}: column {field.name} is {type_name(known)} in the table, but"
                    f" {type_name(field)} in the rows",
                    "cast it, or choose another table",
                )
            near = [name for name in there if name.lower() == field.name.lower()]
            if known is None and near:
                raise TableError(
                    f"{self.shown}: column {field.name} is called {near[0]} in the table"
                )

    def _check_not_restored(self, table: DeltaTable, batch: LandingBatch) -> None:
        """Raise TableError if a RESTORE removed rows that the app transactions claim."""
        if batch.stream is not None:
            self.check_not_restored(table, position_id(batch.stream, ""))
        elif batch.query is not None and not batch.overwrite:
            app = query_id(batch.query)
            if table.transaction_version(app) is None:
                return  # this query has not committed yet
            found = find_rollback(
                self.log(),
                table.version(),
                lambda entry: app in entry.transactions,
                limit=HISTORY_LIMIT,
            )
            if found is not None:
                raise TableError(
                    f"{self.shown} was restored to an older version by version {found.version},"
                    " and so lacks batches that this query has written: restore version"
                    f" {found.intact}, unless its files have been vacuumed, or give option appId"
                    " with a new name to continue without them"
                )

    def check_not_restored(self, table: DeltaTable, app: str) -> None:
        """Raise TableError if a RESTORE removed rows that the table claims to have.

        They are those of commits with an app transaction whose name begins with `app`.
        """
        found = find_rollback(
            self.log(),
            table.version(),
            lambda entry: any(each.startswith(app) for each in entry.transactions),
        )
        if found is not None:
            raise TableError(
                f"{self.shown} was restored to an older version by version {found.version}, and so"
                " lacks rows that its log claims: land in another table (--table), or restore"
                f" version {found.intact}, unless its files have been vacuumed"
            )

    # --- which rows of a batch are new ------------------------------------------------------------

    def _select_new(self, table: DeltaTable, batch: LandingBatch) -> CommitChoice:
        """The files and app transactions of the commit, or None if there is nothing to commit."""
        if batch.select is not None:
            return batch.select(table, batch.files)
        transactions = []
        if batch.query is not None:
            assert batch.number is not None
            app = query_id(batch.query)
            done = table.transaction_version(app)
            if batch.stream is None and done is not None and batch.number <= done:
                LOG.info("%s already has batch %d of %s", self.shown, batch.number, batch.query)
                return None
            if done is None or batch.number > done:
                transactions.append(Transaction(app, batch.number))
        if batch.stream is None:
            return (batch.files, transactions) if batch.files or batch.overwrite else None
        reached = positions_in(table, batch.stream, batch.reached or {})
        self._check_reached(batch, batch.stream, reached)
        spans = self._spans(batch)
        landed = positions_in(table, batch.stream, spans)
        decision = self._decide(batch, spans, landed)
        owners = {} if batch.record is None else batch.record.owners(spans)
        for node in sorted(spans):
            self._check_owner(table, batch.stream, node, owners.get(node, []), landed.get(node))
            if node in decision.positions:
                last = decision.positions[node]
                transactions += position_transactions(batch.stream, node, last)
                for owner in owners.get(node, [])[:1]:
                    number = owner_number(owner)
                    transactions.append(Transaction(owner_id(batch.stream, node), number))
        files = batch.files
        if decision.verdict != TAKE:
            numbering = UNIQUE if batch.covers is None else REPEATED
            files = [
                new
                for each in batch.files
                for new in new_part(self.address, each, decision.landed, numbering)
            ]
        return (files, [*transactions, *batch.records]) if decision.positions else None

    def _spans(self, batch: LandingBatch) -> dict[str, Run]:
        """First and last seq that the batch covers of each node.

        Raises an error for duplicate or missing rows, or for rows that it does not cover.
        """
        runs: dict[str, list[Run]] = {}
        for file in batch.files:
            for node, found in file.runs.items():
                runs.setdefault(node, []).extend(found)
        if batch.covers is not None:
            for node, found in runs.items():
                first, last = batch.covers.get(node, (1, 0))
                for each in found:
                    if each[0] < first or each[1] > last:
                        raise TableError(
                            f"{self.shown}: stream {batch.stream}, node {node}: the batch brings"
                            f" {row_label(*each)}, but its query has read"
                            f" {row_label(first, last) if last else 'none of this node'}; nothing"
                            " was committed"
                        )
            return dict(batch.covers)
        spans = {}
        for node, found in runs.items():
            found.sort()
            for (_, before), (after, _) in pairwise(found):
                which = f"{self.shown}: stream {batch.stream}, node {node}"
                if after <= before:
                    raise TableError(
                        f"{which}: row {after} is duplicated; nothing was committed; {ASK_COVERAGE}"
                    )
                if after > before + 1:
                    gap = row_label(before + 1, after - 1)
                    self._check_may_lack(
                        batch,
                        node,
                        (before + 1, after - 1),
                        f"{which}: {gap} are missing, although later rows exist; nothing was"
                        f" committed; {ASK_COVERAGE}",
                    )
            spans[node] = (found[0][0], found[-1][1])
        return spans

    def _check_reached(self, batch: LandingBatch, stream: str, landed: Mapping[str, int]) -> None:
        """Raise TableError if the table lacks rows that it had earlier in this query."""
        for node, seq in sorted((batch.reached or {}).items()):
            at = landed.get(node, 0)
            if at < seq:
                raise TableError(
                    f"{self.shown} was deleted or replaced while rows landed in it: it lacks"
                    f" {row_label(at + 1, seq)} of stream {stream}, node {node}; nothing was"
                    " committed. Start the landing again to add them"
                )

    def _decide(
        self, batch: LandingBatch, spans: Mapping[str, Run], landed: Mapping[str, int]
    ) -> BatchDecision:
        """What the table makes of the batch. Raises DataLoss if it would leave a gap."""
        beginnings = {
            node: self._beginning(batch, node, first)
            for node, (first, _) in spans.items()
            if node not in landed
        }
        decision = decide(landed, spans, beginnings)
        for node, gap in decision.gaps.items():
            self._check_may_lack(
                batch,
                node,
                gap,
                f"{self.shown} lacks {row_label(*gap)} of stream {batch.stream}, node"
                f" {node}, and this batch begins after them: the table and the checkpoint do not"
                " belong together; remove the checkpoint, and landing continues from what the"
                " table has",
            )
        return decision

    def _beginning(self, batch: LandingBatch, node: str, first: int) -> int:
        """The first row of a node that has not landed yet."""
        if batch.record is None or batch.begins_anywhere:
            return first
        held = batch.record.ranges(node)
        if not held and not batch.record.owners([node])[node]:
            raise TableError(
                f"{self.shown}: the root has no node {node} of stream {batch.stream}: give the root"
                " that these rows were read from"
            )
        return held[0][0] if held else first

    def _check_may_lack(self, batch: LandingBatch, node: str, gap: Run, sentence: str) -> None:
        """Raise DataLoss unless a gap is allowed, and the record lacks the rows as well."""
        if batch.record is None:
            if batch.may_skip:
                sentence += (
                    "; only rows that the record lacks may be skipped: give option root, so that"
                    " the record can be checked"
                )
            raise DataLoss(sentence)
        held = batch.record.ranges_within(node, *gap)
        if held:
            raise DataLoss(f"{sentence}; the record has {runs_label(held)} of them")
        if not batch.may_skip:
            raise DataLoss(
                f"{sentence}; the record lacks them as well: failOnDataLoss=false skips them"
            )
        LOG.warning(
            "%s: skipping %s of stream %s, node %s, which the record lacks",
            self.shown,
            row_label(*gap),
            batch.stream,
            node,
        )

    def _check_owner(
        self, table: DeltaTable, stream: str, node: str, owners: list[str], landed: int | None
    ) -> None:
        """Raise TableError if another store now writes under the name of a landed node."""
        if landed is None or not owners:
            return
        known = table.transaction_version(owner_id(stream, node))
        if known is None or known in map(owner_number, owners):
            return
        raise TableError(
            f"{self.shown}: node {node} of stream {stream} now belongs to another store"
            f" ({owners[0]}), which numbers its rows from 1: give that broker its own --node, or"
            " land in another table"
        )


def cached_table(address: str) -> Table:
    """A table that stays loaded in this process, so that each batch reads only new commits.

    Spark creates a new writer for each commit, but in the same process.
    """
    if address not in _CACHE:
        while len(_CACHE) >= CACHE_SIZE:
            _CACHE.pop(next(iter(_CACHE)))
        _CACHE[address] = Table(address)
    return _CACHE[address]


def _names(columns: Iterable[Field]) -> str:
    return ", ".join(field.name for field in columns)


def _action(file: DataFile) -> AddAction:
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values=file.partition,
        modification_time=file.modified,
        data_change=True,
        stats=file.statistics,
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
