"""Writing to a Delta table exactly once: one commit for a batch, which says all that it did.

A commit is one entry in the table's log, there or not there. It carries the files of the batch and
*app transactions*, pairs of a name and a number that Delta keeps for ever:

    semel/query/<checkpoint>      the batch of a query, for rows that have no numbers of their own
    semel/stream/<stream>/<node>  the last seq landed, for rows of a stream
    semel/owner/<stream>/<node>   whose numbers these are: the id of the store, as a number

Rows of a stream are judged by their own numbers, never by that of the batch. What is at or below
the last seq landed is left out; what begins right after it is taken; what would leave a gap is
refused. So a replayed batch, a checkpoint that was lost, copied or brought back from a backup, and
two landings at once all end in a table with each row once.

Two writers who read the same version cannot both commit: the second is refused, reads the table
again and decides anew, also if what came between was a RESTORE that took rows back. This needs a
place where a file can be made if and only if it is not there: folders can, and of object stores
those that `probe` finds able to.

delta-rs does not sync what it writes: a commit counts when its log entry is on disk.
"""

import json
import logging
import secrets
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import count, pairwise
from typing import Any, Final

import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.schema import Field, PrimitiveType
from deltalake.transaction import AddAction

from semel.pipeline.delta_errors import one_line, table_errors
from semel.pipeline.delta_fsync import entry_fingerprint, fsync_commit
from semel.pipeline.delta_log import COMMIT_MARKER, DeltaLog, find_empty_entry, find_rollback
from semel.pipeline.errors import DataLoss, TableError
from semel.pipeline.files import DataFile, Run, TableFolder, TableLayout, write_files
from semel.pipeline.lake_address import local_folder, split_address
from semel.pipeline.stream_record import StreamRecord, runs_label
from semel.store.reading import row_label
from semel.store.roots import Root, RootError, open_root, without_secrets

LOG: Final = logging.getLogger("semel.pipeline")

# How often a commit that others came before is tried again. Each time somebody has got further.
ATTEMPTS: Final = 50
# Tables that a process keeps loaded.
CACHE_SIZE: Final = 8
_CACHE: Final[dict[str, "Table"]] = {}
# Entries of the log in which the last commit of a query is looked for. Others may write to the same
# table all the time; to that of a stream they do not.
HISTORY_LIMIT: Final = 200
LOG_RETENTION: Final = "delta.logRetentionDuration"
# How many commit at once to find out about an object store, and how often at most.
CONTENDERS: Final = 6
PROBES: Final = 20
# Versions that may not be on disk yet when a writer finds that its batch is there.
RECENT: Final = 20
# What a table may ask of one that only appends plain files. Others change what a row must be, what
# a column is called in a file, or what a commit has to say.
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
# Before features had names, a table said by its settings and columns that it uses them.
FEATURE_SETTINGS: Final = ("delta.constraints.", "delta.columnMapping.mode")
_PROBED: Final = Schema([Field("a", PrimitiveType("long"))])
FEATURE_METADATA: Final = ("delta.generationExpression", "delta.invariants", "delta.identity.start")


def position_id(stream: str, node: str) -> str:
    """The app transaction whose version is the last seq landed of (stream, node)."""
    return f"{stream_id(stream)}/{node}"


def owner_id(stream: str, node: str) -> str:
    """The app transaction that says whose numbers were landed as those of (stream, node)."""
    return f"semel/owner/{stream}/{node}"


def owner_number(store: str) -> int:
    """The id of a store, as the version of an app transaction."""
    return int.from_bytes(sha256(store.encode()).digest()[:7])


def stream_id(stream: str) -> str:
    """What a table that takes rows of a stream is named in its metadata."""
    return f"semel/stream/{stream}"


def query_id(checkpoint: str) -> str:
    """The app transaction whose version is the last batch of a query."""
    return f"semel/query/{checkpoint}"


@dataclass(frozen=True)
class LandingBatch:
    """What is to be committed, and what it has to follow."""

    files: Sequence[DataFile]
    # Spark's schema of the rows, as JSON.
    schema: str
    partition_by: tuple[str, ...] = ()
    # The query and the number of its batch.
    query: str | None = None
    number: int | None = None
    # The stream whose rows these are: their numbers decide.
    stream: str | None = None
    # Where they come from, if that is known: it tells where a node begins, and whose it is.
    record: StreamRecord | None = None
    # Whether rows may be missing that the record lacks as well.
    may_skip: bool = False
    may_add_columns: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class CommitOutcome:
    """What a commit did."""

    # False: there was nothing to do.
    is_committed: bool
    rows: int
    # Rows that were in the table before.
    known: int


class Table:
    """A Delta table as its writer sees it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.shown = without_secrets(address)
        self.uri, self.storage = split_address(address)
        self._is_probed = False
        # As it was loaded last, and what tells that its log is still the same one.
        self._loaded: DeltaTable | None = None
        self._mark: object = None

    # --- reading ----------------------------------------------------------------------------------

    def load(self) -> DeltaTable | None:
        """The table as it is now, or None if there is none.

        It is one object, which the next call brings up to date: only what was committed meanwhile
        is read. A log in which the entry of the version that we have is not there any more, or is
        another one, is read as a whole: somebody has cleaned it, or made the table anew.
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
            LOG.info("%s is read as a whole: %s", self.shown, one_line(problem))
            return False
        return True

    def log(self) -> DeltaLog:
        """Its log, entry by entry."""
        return DeltaLog(self._files())

    def _files(self) -> Root:
        try:
            return open_root(self.address)
        except RootError as problem:
            raise TableError(str(problem)) from problem

    def check_log(self) -> None:
        """Raise TableError for damage that delta-rs does not notice: an entry that is empty."""
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
        """Commit what of a batch is not in the table yet. Raises TableError and DataLoss."""
        # First of all: without shared storage not even an empty table is made.
        TableFolder(self.address).check_files(batch.files)
        for _ in range(ATTEMPTS):
            table = self._prepare(batch)
            chosen = self._select_new(table, batch)
            there = sum(each.rows for each in batch.files)
            if chosen is None:
                # Whoever committed this may have died before it was on disk.
                self._fsync_versions(max(0, table.version() - RECENT), table.version())
                return CommitOutcome(False, 0, there)
            files, transactions = chosen
            rows = sum(each.rows for each in files)
            version = table.version()
            try:
                table.create_write_transaction(
                    [_action(each) for each in files],
                    "overwrite" if batch.overwrite else "append",
                    table.schema(),
                    list(batch.partition_by) or None,
                    commit_properties=CommitProperties(
                        app_transactions=transactions,
                        custom_metadata={COMMIT_MARKER: str(rows)},
                        # What was chosen is right after this version: after another one, such as
                        # a RESTORE, it is chosen anew.
                        max_commit_retries=0,
                    ),
                )
            except (DeltaError, OSError) as problem:
                now = self.load()
                if now is not None and now.version() == version:
                    # Nobody was first: it cannot be done, or the table does not allow it.
                    raise TableError(f"{self.shown}: {one_line(problem)}") from problem
                LOG.info("%s: another writer was first: %s", self.shown, one_line(problem))
                continue
            self._fsync_after(version)
            return CommitOutcome(True, rows, there - rows)
        raise TableError(
            f"{self.shown}: {ATTEMPTS} commits of others came before this one; is something "
            "else writing to it all the time?"
        )

    def _prepare(self, batch: LandingBatch) -> DeltaTable:
        """The table, made or widened if need be, and fit for these rows."""
        wanted = Schema.from_json(json.dumps(nullable(json.loads(batch.schema))))
        table = self.load()
        if table is None:
            # One that is not there can only take rows from their beginning on.
            for node, (first, _) in sorted(self._spans(batch).items()):
                self._check_follows(batch, node, None, first)
            self.create(wanted, batch.partition_by, batch.stream)
            table = self.load()
            assert table is not None
        elif batch.query is None or table.transaction_version(query_id(batch.query)) is None:
            self._probe_once()  # a table that we have not committed to, and others may have made
        self._check_fits(table, batch, wanted)
        self._check_not_restored(table, batch)
        new = new_columns(table.schema(), wanted)
        if new:
            names = ", ".join(field.name for field in new)
            if not batch.may_add_columns:
                raise TableError(
                    f"{self.shown} has no column {names}: set mergeSchema to true to add "
                    + ("it" if len(new) == 1 else "them")
                )
            try:
                table.alter.add_columns(new)
            except CommitFailedError:
                pass  # another writer did the same, or the next look tells
            except DeltaError as problem:
                raise TableError(f"{self.shown}: {names}: {one_line(problem)}") from problem
            return self._prepare(batch)
        return table

    def create(self, schema: Schema, partition_by: Sequence[str], stream: str | None) -> None:
        """Make an empty table; nothing happens if somebody else has just done so."""
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
                # Landing commits every second: the notes of more than a day would be a burden.
                configuration=None if stream is None else {LOG_RETENTION: "interval 1 days"},
                name=None if stream is None else stream_id(stream),
                description=None if stream is None else f"Messages of the MQTT stream {stream}",
                storage_options=self.storage or None,
            )
        except (DeltaError, OSError) as problem:
            if self.load() is None:
                raise TableError(f"{self.shown} cannot be made: {one_line(problem)}") from problem
        if not partition_by:
            # Who wrote .partitionBy() is not to find out when the table is large.
            LOG.warning(
                "%s is created without partitions: to partition it, delete it and give option"
                " partitionBy, because Spark does not pass .partitionBy() on to a sink in Python",
                self.shown,
            )
        self._fsync_versions(0, 0)

    def _probe_once(self) -> None:
        """Once, whether the place can hold a table. Raises TableError."""
        if not self._is_probed:
            probe(self.address)
            self._is_probed = True

    def _fsync_versions(self, first: int, last: int) -> None:
        """These versions are to last."""
        for version in range(first, last + 1):
            # The log of old versions is cleaned away, when a checkpoint holds what they say.
            with suppress(FileNotFoundError):
                self._fsync_version(version)

    def _fsync_after(self, version: int) -> None:
        """What came after a version is to last: our commit, and what others did meanwhile."""
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

    def _check_fits(self, table: DeltaTable, batch: LandingBatch, wanted: Schema) -> None:
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
            raise TableError(f"{self.shown} asks its writers for {names}, which semel does not do")
        if tuple(metadata.partition_columns) != batch.partition_by:
            raise TableError(
                f"{self.shown} is partitioned by {_listed(metadata.partition_columns)}, "
                f"not by {_listed(batch.partition_by)}: say partitionBy as the table does"
            )
        if batch.stream is None and (metadata.name or "").startswith(stream_id("")):
            raise TableError(
                f"{self.shown} takes the rows of a stream, each once: give option stream, or choose"
                " another table"
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
                    f"{self.shown}: column {field.name} is NOT NULL there and may be null here"
                )
        for field in wanted.fields:
            known = there.get(field.name)
            if known is not None and _plain(known) != _plain(field):
                raise TableError(
                    f"{self.shown}: column {field.name} is {_type(known)} there and {_type(field)}"
                    " here: cast it, or choose another table"
                )
            near = [name for name in there if name.lower() == field.name.lower()]
            if known is None and near:
                raise TableError(f"{self.shown}: column {field.name} is called {near[0]} there")

    def _check_not_restored(self, table: DeltaTable, batch: LandingBatch) -> None:
        """Refuse a table whose rows were taken back: what it says to have landed was not."""
        if batch.stream is not None:
            self.check_not_restored(table, batch.stream)
        elif batch.query is not None and not batch.overwrite:
            app = query_id(batch.query)
            if table.transaction_version(app) is None:
                return  # nothing of this query was there
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
                    " with a new name to go on without them"
                )

    def check_not_restored(self, table: DeltaTable, stream: str) -> None:
        """Raise TableError if a RESTORE took back rows of a stream that the table says to have."""
        name = position_id(stream, "")
        found = find_rollback(
            self.log(),
            table.version(),
            lambda entry: any(each.startswith(name) for each in entry.transactions),
        )
        if found is not None:
            raise TableError(
                f"{self.shown} was restored to an older version by version {found.version}, and so"
                " lacks rows that it says to have: land in another table (--table), or restore"
                f" version {found.intact}, unless its files have been vacuumed"
            )

    # --- what of a batch is new -------------------------------------------------------------------

    def _select_new(
        self, table: DeltaTable, batch: LandingBatch
    ) -> tuple[Sequence[DataFile], list[Transaction]] | None:
        """The files and the app transactions of the commit; None: there is nothing to commit."""
        transactions = []
        if batch.query is not None:
            assert batch.number is not None
            app = query_id(batch.query)
            done = table.transaction_version(app)
            if batch.stream is None and done is not None and batch.number <= done:
                LOG.info("%s: batch %d of %s is there", self.shown, batch.number, batch.query)
                return None
            if done is None or batch.number > done:
                transactions.append(Transaction(app, batch.number))
        if batch.stream is None:
            return (batch.files, transactions) if batch.files or batch.overwrite else None
        spans = self._spans(batch)
        landed = positions_in(table, batch.stream, spans)
        owners = {} if batch.record is None else batch.record.owners(spans)
        for node, (first, last) in sorted(spans.items()):
            at = landed.get(node)
            self._check_follows(batch, node, at, first)
            self._check_owner(table, batch.stream, node, owners.get(node, []), at)
            if at is None or last > at:
                transactions.append(Transaction(position_id(batch.stream, node), last))
                for owner in owners.get(node, [])[:1]:
                    number = owner_number(owner)
                    transactions.append(Transaction(owner_id(batch.stream, node), number))
        files = [new for each in batch.files for new in self._new_part(each, landed)]
        return (files, transactions) if files else None

    def _spans(self, batch: LandingBatch) -> dict[str, Run]:
        """First and last seq of each node. Refuses rows that come twice, or do not come."""
        runs: dict[str, list[Run]] = {}
        for file in batch.files:
            for node, found in file.runs.items():
                runs.setdefault(node, []).extend(found)
        spans = {}
        for node, found in runs.items():
            found.sort()
            for (_, before), (after, _) in pairwise(found):
                which = f"{self.shown}: stream {batch.stream}, node {node}"
                if after <= before:
                    raise TableError(f"{which}: row {after} came twice; nothing was committed")
                if after > before + 1:
                    gap = row_label(before + 1, after - 1)
                    self._check_may_lack(
                        batch,
                        node,
                        (before + 1, after - 1),
                        f"{which}: {gap} did not come, though later ones did; nothing was"
                        " committed",
                    )
            spans[node] = (found[0][0], found[-1][1])
        return spans

    def _check_follows(
        self, batch: LandingBatch, node: str, landed: int | None, first: int
    ) -> None:
        """Refuse a batch that would leave a gap."""
        expected = self._beginning(batch, node, first) if landed is None else landed + 1
        if first <= expected:
            return
        self._check_may_lack(
            batch,
            node,
            (expected, first - 1),
            f"{self.shown} lacks {row_label(expected, first - 1)} of stream {batch.stream}, node"
            f" {node}, and this batch begins after them: the table or the checkpoint is not the"
            " one that they were landed with; remove the checkpoint, and landing goes on from what"
            " the table has",
        )

    def _beginning(self, batch: LandingBatch, node: str, first: int) -> int:
        """With which row a node begins of which nothing is landed."""
        if batch.record is None:
            return first
        held = batch.record.ranges(node)
        if not held and not batch.record.owners([node])[node]:
            raise TableError(
                f"{self.shown}: the root has no node {node} of stream {batch.stream}, of which"
                " these rows are: give the root that they were read from"
            )
        return held[0][0] if held else first

    def _check_may_lack(self, batch: LandingBatch, node: str, gap: Run, sentence: str) -> None:
        """Raise DataLoss unless rows may be missing: only if the record lacks them as well."""
        if batch.record is None:
            if batch.may_skip:
                sentence += (
                    "; only rows that the record lacks may be left out: give option root, so that"
                    " this can be known"
                )
            raise DataLoss(sentence)
        held = batch.record.ranges_within(node, *gap)
        if held:
            raise DataLoss(f"{sentence}; the record has {runs_label(held)} of them")
        if not batch.may_skip:
            raise DataLoss(
                f"{sentence}; the record lacks them as well: failOnDataLoss=false leaves them out"
            )
        LOG.warning(
            "%s: %s of stream %s, node %s are not in the record and are left out",
            self.shown,
            row_label(*gap),
            batch.stream,
            node,
        )

    def _check_owner(
        self, table: DeltaTable, stream: str, node: str, owners: list[str], landed: int | None
    ) -> None:
        """Refuse the rows of another record that has the name of one that was landed."""
        if landed is None or not owners:
            return
        known = table.transaction_version(owner_id(stream, node))
        if known is None or known in map(owner_number, owners):
            return
        raise TableError(
            f"{self.shown}: node {node} of stream {stream} is now that of another store"
            f" ({owners[0]}), whose numbers begin anew: give that broker a --node of its own, or"
            " land in another table"
        )

    def _new_part(self, file: DataFile, landed: dict[str, int]) -> list[DataFile]:
        """What of a file is not landed: the file, nothing, or a new file with the rest."""
        at = {node: landed.get(node, 0) for node in file.runs}
        if all(runs[0][0] > at[node] for node, runs in file.runs.items()):
            return [file]
        if all(runs[-1][1] <= at[node] for node, runs in file.runs.items()):
            return []
        rows = TableFolder(self.address).read(file.path)
        mask = None
        for node, seq in at.items():
            new = pc.and_(pc.equal(rows.column("node"), node), pc.greater(rows.column("seq"), seq))
            mask = new if mask is None else pc.or_(mask, new)
        layout = TableLayout(self.address, is_numbered=True, folder=file.path.rpartition("/")[0])
        rest = write_files(rows.filter(mask).to_batches(), layout)
        return [replace(each, partition=file.partition) for each in rest]


def cached_table(address: str) -> Table:
    """A table as this process knows it: the next batch of a query reads only what is new.

    Spark makes a writer anew for each commit, but in the same process.
    """
    if address not in _CACHE:
        while len(_CACHE) >= CACHE_SIZE:
            _CACHE.pop(next(iter(_CACHE)))
        _CACHE[address] = Table(address)
    return _CACHE[address]


def positions_in(table: DeltaTable, stream: str, nodes: Iterable[str]) -> dict[str, int]:
    """The last seq landed of each node that has one, in one version of a table."""
    found = {}
    for node in nodes:
        at = table.transaction_version(position_id(stream, node))
        if at is not None:
            found[node] = at
    return found


def new_columns(there: Schema, wanted: Schema) -> list[Field]:
    """The columns that a table lacks; as new ones they may be null."""
    names = {field.name for field in there.fields}
    return [
        Field(field.name, field.type, nullable=True)
        for field in wanted.fields
        if field.name not in names
    ]


def _action(file: DataFile) -> AddAction:
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values=file.partition,
        modification_time=file.modified,
        data_change=True,
        stats=file.statistics,
    )


def _plain(field: Field) -> Any:
    """The type of a column, but for what in it may be null."""
    return nullable(json.loads(field.type.to_json()))


def _type(field: Field) -> str:
    return str(json.loads(field.type.to_json()))


def nullable(kind: Any) -> Any:
    """A type or schema of Spark's in which everything may be null, as in those of files."""
    if isinstance(kind, list):
        return [nullable(each) for each in kind]
    if not isinstance(kind, dict):
        return kind
    free = ("nullable", "containsNull", "valueContainsNull")
    return {
        name: True if name in free else {} if name == "metadata" else nullable(value)
        for name, value in kind.items()
    }


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


def probe(address: str) -> None:
    """Refuse an object store on which two writers could both make the same commit.

    By trying it, on a small table beside the real one. A writer that finds another's commit before
    it makes its own says nothing about the store. So several commit at once, again and again, until
    the store itself has refused one, or has let two make the same version.
    """
    if local_folder(address) is not None:
        return
    uri, storage = split_address(address)
    name = f"_semel_probe-{secrets.token_hex(8)}"
    shown = without_secrets(address)
    try:
        place = f"{uri.rstrip('/')}/{name}"
        DeltaTable.create(place, _PROBED, storage_options=storage or None)
        try:
            for number in range(PROBES):
                made, refused = _contend(place, storage, number)
                if made < CONTENDERS - refused:
                    raise TableError(
                        f"{shown}: this object store lets two writers make the same file, so that"
                        " nothing on it can be exactly once: use one that honours put-if-absent"
                        " (If-None-Match), or a folder"
                    )
                if refused:
                    return
        finally:
            # Not by pyarrow, which would leave an empty file with the name of the folder above.
            DeltaStorageHandler(uri, storage).delete_dir(name)
    except (DeltaError, OSError) as problem:
        raise TableError(f"{shown} cannot be written: {one_line(problem)}") from problem
    raise TableError(
        f"{shown}: {PROBES * CONTENDERS} commits did not show whether this object store refuses"
        " to make a file that is there: try again when the machine has less to do"
    )


def _contend(place: str, storage: dict[str, str], number: int) -> tuple[int, int]:
    """Commit to a small table, several at once; how many versions were made, and how many refused.

    Each commit could follow any other, and delta-rs tries it twice: what fails is one that the
    store has refused, because the version that it had seen to be free was taken.
    """
    together = threading.Barrier(CONTENDERS)

    def load(_: int) -> DeltaTable:
        return DeltaTable(place, storage_options=storage or None)

    def commit(each: int, table: DeltaTable) -> bool:
        transaction = Transaction(f"semel/probe/{number}/{each}", 0)
        properties = CommitProperties(app_transactions=[transaction], max_commit_retries=1)
        together.wait()
        try:
            table.create_write_transaction([], "append", _PROBED, commit_properties=properties)
        except CommitFailedError:
            return False
        return True

    with ThreadPoolExecutor(CONTENDERS) as pool:
        tables = list(pool.map(load, range(CONTENDERS)))
        before = tables[0].version()
        won = list(pool.map(commit, range(CONTENDERS), tables))
    return load(0).version() - before, won.count(False)
