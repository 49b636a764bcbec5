"""A lake on an object store is listed, asked and kept in order as a folder is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.pipeline.errors import TableError
from semel.pipeline.lake import history, open_table, optimize, tables, vacuum
from semel.store.reading import NodeRecord
from semel.store.roots import open_root
from semel.up.sql import LakeSql, RecordLocation, SqlError
from tests.pipeline.object_store import Store, running
from tests.store.keeper import Keeper
from tests.up.landed import land


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    pytest.importorskip("moto.server")
    with running() as made:
        made.make_bucket("bucket")
        yield made


def ask(lake: str, record: RecordLocation | None, question: str) -> list[dict[str, object]]:
    with LakeSql(lake, record=record) as sql:
        found: list[dict[str, object]] = []
        for batch in sql.query(question).batches:
            found += batch.to_pylist()
        return found


def test_tables_are_listed_asked_merged_and_cleaned(store: Store, tmp_path: Path) -> None:
    root = store.address("bucket/root")
    lake = store.address("bucket/lake")
    keeper = Keeper(tmp_path / "data", root=open_root(root))
    keeper.commit(10)
    keeper.seal(3, 3, 2)
    assert tables(lake) == []
    record = RecordLocation(root, keeper.folder.path, "plant", "messages")
    question = "select landed, count(*) as n, sum(seq)::int as s from messages_now group by 1"
    assert ask(lake, record, question) == [{"landed": False, "n": 10, "s": 55}]
    rows = NodeRecord(keeper.root, "plant", "n1")
    for first, last in ((1, 2), (3, 5)):
        land(lake, rows, first, last)
    found = sorted(ask(lake, record, question), key=str)
    assert found == [{"landed": False, "n": 5, "s": 40}, {"landed": True, "n": 5, "s": 15}]
    (one,) = tables(lake)
    assert (one.table, one.rows, one.files, one.stream) == ("messages", 5, 2, "plant")
    done = optimize(lake, "messages")
    assert (done.files_removed, done.files_added) == (2, 1)
    assert [step.operation for step in history(lake, "messages", limit=1)] == ["OPTIMIZE"]
    assert history(lake, "messages")[1].positions == {"plant/n1": 5}
    assert vacuum(lake, "messages", run=True).files == ()
    assert sorted(ask(lake, record, question), key=str) == found
    keeper.close()


def test_what_is_not_there_is_one_sentence_without_keys(store: Store) -> None:
    lake = store.address("bucket/empty")
    with pytest.raises(TableError, match="there is no table at s3://bucket/empty/t") as caught:
        open_table(lake, "t")
    assert "secret" not in str(caught.value)
    with pytest.raises(SqlError, match="the lake has none"):
        ask(lake, None, "select * from t")
    nowhere = store.address("nobucket/lake")
    with pytest.raises(TableError) as caught:
        open_table(nowhere, "t")
    assert "s3://nobucket/lake/t" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
