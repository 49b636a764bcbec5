"""The sink of several tables without Spark: what becomes of one table concerns no other."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable, Schema

from semel.pipeline import tables_sink
from semel.pipeline.app_transactions import positions_in
from semel.pipeline.dead_letters import dead_letters_layout
from semel.pipeline.errors import PipelineError, TableError
from semel.pipeline.files import REPEATED, DataFile, TableLayout, write_files
from semel.pipeline.lake import optimize
from semel.pipeline.table_rows import TableShape
from semel.pipeline.tables_sink import TablesPlan, TablesWriter, WrittenTables, advance
from tests.pipeline.landing_rows import rows_of
from tests.pipeline.made import write_messages

NAMES = ("a", "b", "c")


class Query:
    """A query that lands all messages in each of the tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lake = folder / "lake"
        write_messages(folder / "root", "all", "n1", 1, 400)
        self._schema = Schema.from_arrow(rows_of(1, 1).schema).to_json()
        self._run = 0
        self.start()

    def start(self, *, begins_anywhere: bool = False) -> None:
        """Start a query anew, as a landing does: with what the tables have, and a checkpoint."""
        self._run += 1
        self._batch = -1
        shape = TableShape("a", None, self._schema, ("date",), ())
        self.plan = TablesPlan(
            stream="all",
            root=str(self.folder / "root"),
            checkpoint=str(self.folder / f"run-{self._run}"),
            may_skip=False,
            addresses=tuple(str(self.lake / name) for name in NAMES),
            dead_letters=str(self.lake / "dead_letters"),
            dead_letters_name="dead_letters",
            dead_letters_schema=self._schema,
            shapes=tuple(replace(shape, name=name) for name in NAMES),
            begins_anywhere=begins_anywhere,
            landed=tuple(self.positions(name) for name in NAMES),
        )

    def positions(self, name: str) -> dict[str, int]:
        if not DeltaTable.is_deltatable(str(self.lake / name)):
            return {}
        return positions_in(DeltaTable(str(self.lake / name)), "all", ["n1"])

    def land(self, first: int, last: int, *, began: int = 0, dead: str = "") -> None:
        """Commit a batch with these rows for each table, of which some lack earlier ones."""
        self._batch += 1
        checkpoint = Path(self.plan.checkpoint)
        for folder in ("offsets", "commits"):
            (checkpoint / folder).mkdir(parents=True, exist_ok=True)
        end = {"n1": last} | ({"n1/began": began} if began else {})
        (checkpoint / "offsets" / str(self._batch)).write_text(f"v1\n{{}}\n{json.dumps(end)}\n")
        rows: list[list[DataFile]] = []
        letters: list[list[DataFile]] = []
        for place, address in enumerate(self.plan.addresses):
            layout = TableLayout(address, ("date",), numbering=REPEATED)
            begin = max(first, self.plan.landed[place].get("n1", 0) + 1)
            batches = rows_of(begin, last).to_batches() if begin <= last else []
            rows.append(write_files(batches, layout))
            bad = dead_letters_layout(self.plan.dead_letters)
            letters.append(write_files(batches, bad) if NAMES[place] in dead else [])
        writer = TablesWriter({"plan": self.plan.to_json()})
        writer.commit([WrittenTables(rows, letters)], self._batch)
        (checkpoint / "commits" / str(self._batch)).write_text("v1\n{}")

    def seqs(self, name: str) -> list[int]:
        rows = DeltaTable(str(self.lake / name)).to_pyarrow_table()
        return sorted(rows.column("seq").to_pylist())


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


def check_all_have(query: Query, last: int) -> None:
    for name in NAMES:
        assert query.seqs(name) == list(range(1, last + 1)), name


@pytest.mark.slow
@pytest.mark.parametrize("begins_anywhere", [False, True])
def test_a_table_that_is_deleted_while_rows_land_does_not_begin_in_the_middle(
    query: Query, begins_anywhere: bool
) -> None:
    query.start(begins_anywhere=begins_anywhere)
    query.land(1, 100)
    query.land(101, 200)
    shutil.rmtree(query.lake / "b")
    with pytest.raises(TableError, match=r"b was deleted or replaced while .* lacks rows 1 to 200"):
        query.land(201, 300)
    assert query.seqs("a") == query.seqs("c") == list(range(1, 301))
    query.start()
    assert query.plan.landed == ({"n1": 300}, {}, {"n1": 300})
    query.land(1, 400)
    check_all_have(query, 400)


def test_a_table_that_is_replaced_by_an_older_copy_gets_the_rest(query: Query) -> None:
    query.land(1, 100)
    shutil.copytree(query.lake / "b", query.folder / "copy")
    query.land(101, 200)
    shutil.rmtree(query.lake / "b")
    (query.folder / "copy").rename(query.lake / "b")
    with pytest.raises(TableError, match=r"b was deleted or replaced while .* lacks rows 101 to"):
        query.land(201, 300)
    query.start()
    query.land(101, 400, began=100)
    check_all_have(query, 400)


def test_a_table_that_is_deleted_before_the_first_batch_does_not_begin_in_the_middle(
    query: Query,
) -> None:
    query.land(1, 100)
    query.start()
    shutil.rmtree(query.lake / "b")
    with pytest.raises(TableError, match=r"b was deleted or replaced while .* lacks rows 1 to 100"):
        query.land(101, 200, began=100)


def test_a_table_that_was_deleted_is_not_created_at_the_end_without_its_rows(query: Query) -> None:
    query.land(1, 100)
    shutil.rmtree(query.lake / "b")
    with pytest.raises(TableError, match="b was deleted or replaced"):
        advance(query.plan)
    assert query.positions("b") == {}
    assert query.positions("a") == {"n1": 100}


@pytest.mark.slow
def test_a_table_that_others_maintain_or_land_in_goes_on(query: Query) -> None:
    query.land(1, 100)
    query.land(101, 200)
    optimize(str(query.lake), "b")
    other = Query(query.folder)
    other.land(201, 250, began=200)
    DeltaTable(str(query.lake / "a")).delete("seq <= 100")
    query.land(201, 300)
    assert query.seqs("b") == list(range(1, 301))
    assert query.seqs("a") == list(range(101, 301))
    advance(query.plan)
    # A commit of a process that knows nothing of the earlier ones.
    tables_sink._COMMITTED.clear()
    query.land(301, 400)
    assert query.seqs("c") == list(range(1, 401))


def test_each_table_that_fails_is_named_and_the_others_get_their_rows(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after errors that no Delta table should cause, such as a damaged file."""
    query.land(1, 100)
    committed = tables_sink.commit_table

    def commit(plan: TablesPlan, place: int, *given: object) -> None:
        if place == 0:
            raise OSError("[Errno 5] Input/output error")
        if place == 1:
            raise ValueError("Parquet magic bytes not found")
        committed(plan, place, *given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(tables_sink, "commit_table", commit)
        with pytest.raises(PipelineError) as raised:
            query.land(101, 200)
    assert str(raised.value) == (
        f"{query.lake / 'a'}: [Errno 5] Input/output error;"
        f" {query.lake / 'b'}: Parquet magic bytes not found"
    )
    assert [query.positions(name)["n1"] for name in NAMES] == [100, 100, 200]
    query.start()
    query.land(101, 300, began=100)
    check_all_have(query, 300)


def test_dead_letters_that_cannot_be_committed_keep_no_other_table_from_its_rows(
    query: Query,
) -> None:
    query.land(1, 100)
    schema = Schema.from_arrow(rows_of(1, 1).schema)
    DeltaTable.create(str(query.lake / "dead_letters"), schema)
    with pytest.raises(PipelineError) as raised:
        query.land(101, 200, dead="ab")
    assert str(raised.value).count("dead_letters is partitioned by nothing") == 1
    assert [query.positions(name)["n1"] for name in NAMES] == [100, 100, 200]
