"""A question finds the tables and views that it names, and is told why one cannot be asked."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.schema import Field, PrimitiveType

from semel.pipeline.errors import TableError
from semel.up.sql import LakeSql, RecordLocation, SqlError
from tests.pipeline.mapped_columns import write_mapped_table
from tests.up.asked import NUMBERS, Kept, ask, simple_lake


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    """Of ten rows 1 to 8 are sealed, as 1-3, 4-6 and 7-8, and 1 to 5 landed."""
    made = Kept(tmp_path)
    made.keeper.commit(10)
    made.keeper.seal(3, 3, 2)
    made.land(5)
    yield made
    made.close()


def test_a_name_may_have_any_form_that_sql_can_quote(tmp_path: Path) -> None:
    lake = simple_lake(tmp_path, **{"my table": NUMBERS, "b-2": NUMBERS, "ümlaut": NUMBERS})
    question = (
        'select (select sum(a) from "My table") + (select sum(a) from "b-2") as s from ümlaut'
    )
    assert ask(LakeSql(lake), question) == [{"s": 12}] * 3


def test_a_name_may_have_quotes_in_it(tmp_path: Path) -> None:
    lake = simple_lake(tmp_path, **{'a"b': NUMBERS})
    assert ask(LakeSql(lake), 'select sum(a) as s from "a""b"') == [{"s": 6}]
    with pytest.raises(SqlError, match='no table a"c'):
        ask(LakeSql(lake), 'select * from "a""c"')


def test_of_tables_that_are_one_name_in_sql_none_can_be_asked(tmp_path: Path) -> None:
    lake = simple_lake(tmp_path, Readings=NUMBERS, readings=pa.table({"a": [7]}), other=NUMBERS)
    sentence = "Readings and readings are the same name in SQL: rename the folder of one of them"
    for name in ("readings", '"Readings"', "READINGS", "readings_now"):
        with pytest.raises(SqlError) as caught:
            ask(LakeSql(lake), f"select * from {name}")
        assert str(caught.value) == sentence
    sql = LakeSql(lake)
    assert ask(sql, "select sum(a) as s from other") == [{"s": 6}]
    assert sql.notes == []
    sql = LakeSql(lake)
    assert ask(sql, "show tables") == [{"name": "other"}]
    assert sql.notes == [sentence]
    (tmp_path / "Readings").rename(tmp_path / "spare")
    assert ask(LakeSql(lake), 'select sum(a) as s from "Readings"') == [{"s": 7}]


def test_letters_that_sql_tells_apart_make_two_names(tmp_path: Path) -> None:
    lake = simple_lake(tmp_path, Übe=NUMBERS, übe=pa.table({"a": [7]}))
    question = 'select (select sum(a) from "Übe") as b, (select sum(a) from "übe") as s'
    assert ask(LakeSql(lake), question) == [{"b": 6, "s": 7}]


def test_a_table_with_the_name_of_a_view_is_that_table_in_capitals_too(kept: Kept) -> None:
    write_deltalake(kept.lake / "Messages_Now", NUMBERS)
    assert ask(kept.sql(), "select sum(a) as a from messages_now") == [{"a": 6}]
    assert ask(kept.sql(), "select count(*) as n from messages") == [{"n": 5}]


def test_a_table_that_is_to_come_has_no_views_beside_one_of_its_name(kept: Kept) -> None:
    record = RecordLocation(str(kept.root), kept.keeper.folder.path, "plant", "Messages")
    sql = LakeSql(str(kept.lake), record=record)
    assert ask(sql, "select count(*) as n, sum(landed::int) as l from messages_now") == [
        {"n": 10, "l": 5}
    ]


def test_of_two_tables_of_one_name_no_view_is_made(kept: Kept) -> None:
    write_deltalake(kept.lake / "Messages", NUMBERS)
    for name in ("messages", "messages_now", "messages_not_landed"):
        with pytest.raises(SqlError, match="Messages and messages are the same name in SQL"):
            ask(kept.sql(), f"select * from {name}")


def test_a_table_with_a_column_landed_has_no_view_of_all_rows(kept: Kept) -> None:
    table = DeltaTable(kept.lake / "messages")
    table.alter.add_columns([Field("Landed", PrimitiveType("boolean"), nullable=True)])
    with pytest.raises(SqlError, match="no messages_now: messages has a column landed itself"):
        ask(kept.sql(), "select * from messages_now")
    for question, n in (
        ("select count(*) as n from messages", 5),
        ("select count(*) as n from messages_not_landed", 5),
        ("select count(*) as n from messages where topic <> 'messages_now'", 5),
        ("select count(*) as n from messages where topic not like '%show%'", 5),
    ):
        assert ask(kept.sql(), question) == [{"n": n}]
    names = ask(kept.sql(), "show tables")
    assert {"name": "messages"} in names
    assert {"name": "messages_now"} not in names


def test_a_view_of_a_table_that_cannot_be_read_says_why(kept: Kept) -> None:
    (kept.lake / "messages" / "_delta_log" / f"{0:020}.json").write_text("{broken")
    for name in ("messages", "messages_now", "messages_not_landed"):
        with pytest.raises(TableError, match="lake/messages: "):
            ask(kept.sql(), f"select * from {name}")


def test_a_name_in_a_text_or_a_comment_opens_nothing_that_is_missed(tmp_path: Path) -> None:
    lake = simple_lake(tmp_path, good=NUMBERS, bad=NUMBERS)
    (tmp_path / "bad" / "_delta_log" / "00000000000000000000.json").write_text("{broken")
    question = "select 'ü bad show' as t, a -- pragma bad\nfrom good where a = 1 /* show */"
    assert ask(LakeSql(lake), question) == [{"t": "ü bad show", "a": 1}]
    with LakeSql(lake) as sql:
        assert not sql._reads_catalog(question)
        assert sql._reads_catalog("select 'ü' as x; show tables")
        assert sql._reads_catalog("from information_schema.tables")
        assert not sql._reads_catalog("select 'it''s' from good where $$ pg_x $$ <> e'show'")


@pytest.mark.parametrize("mode", ["none", "name", "id"])
def test_a_table_with_other_names_in_its_files_is_refused(tmp_path: Path, mode: str) -> None:
    write_mapped_table(tmp_path / "mapped", mode)
    if mode == "none":
        assert ask(LakeSql(str(tmp_path)), "select * from mapped") == [{"a": 1}]
        return
    with pytest.raises(TableError, match=f"mapped has delta.columnMapping.mode={mode}, which"):
        ask(LakeSql(str(tmp_path)), "select * from mapped")
