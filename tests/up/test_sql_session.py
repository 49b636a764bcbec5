"""Statements of a session share what they create, and each sees the lake as it is then."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

from semel.up.sql_errors import SqlError, shown_error
from semel.up.sql_session import SqlSession
from tests.up.asked import NUMBERS, Kept, rows_of


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    """Of four rows two are sealed, and one has landed."""
    made = Kept(tmp_path)
    made.keeper.commit(4)
    made.keeper.seal(2)
    made.land(1)
    yield made
    made.close()


@pytest.fixture
def session(kept: Kept) -> Iterator[SqlSession]:
    with SqlSession(lambda: (str(kept.lake), kept.record), memory="500MB") as made:
        yield made


def ask(session: SqlSession, text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for statement in session.statements(text):
        with session.opened(statement) as sql, sql.query(statement.query) as answer:
            found = rows_of(answer)
    return found


def test_each_statement_sees_the_lake_as_it_is_then(kept: Kept, session: SqlSession) -> None:
    query = "select landed, count(*) as n from messages_now group by 1 order by 1"
    assert [row["n"] for row in ask(session, query)] == [3, 1]
    kept.keeper.commit(1)
    kept.land(1)
    assert [row["n"] for row in ask(session, query)] == [3, 2]
    write_deltalake(kept.lake / "later", NUMBERS)
    assert ask(session, "select sum(a) as s from later") == [{"s": 6}]


def test_what_a_statement_creates_is_there_for_the_next(kept: Kept, session: SqlSession) -> None:
    ask(session, "create table hot as select seq from messages; set variable x = 7")
    ask(session, "create view every as select seq from messages_now")
    ask(session, "create macro total() as table select count(*) as n from messages_now")
    assert ask(session, "select count(*) as n from hot") == [{"n": 1}]
    assert ask(session, "select getvariable('x') as x") == [{"x": 7}]
    kept.keeper.commit(1)
    # A table is a copy; the others see the lake as it is.
    assert ask(session, "select count(*) as n from hot") == [{"n": 1}]
    assert ask(session, "select count(*) as n from every") == [{"n": 5}]
    assert ask(session, "from total()") == [{"n": 5}]
    assert ("hot", "table of this session") in session.tables()
    assert ("every", "view of this session") in session.tables()


def test_tables_and_columns_are_listed(session: SqlSession) -> None:
    assert session.tables() == [
        ("messages", "table"),
        ("messages_not_landed", "rows that have not landed"),
        ("messages_now", "all rows, with a column landed"),
        ("messages_once", "all rows, without repeats of QoS 1 messages"),
    ]
    found = session.columns()
    assert list(found) == ["messages", "messages_not_landed", "messages_now", "messages_once"]
    assert {"seq", "payload", "text", "json"} <= set(found["messages"])
    assert "landed" in found["messages_now"]


def test_a_failed_statement_defines_nothing_and_harms_no_other(session: SqlSession) -> None:
    for text in ("create view bad as select nothing from messages", "select * from nothing"):
        with pytest.raises(SqlError):
            ask(session, text)
    assert session._definitions == []
    assert ask(session, "select count(*) as n from messages_now") == [{"n": 4}]


def test_a_session_has_no_transactions_and_no_files(session: SqlSession) -> None:
    for text in ("begin", "select 1; commit", "rollback"):
        with pytest.raises(SqlError, match="no transactions"):
            session.statements(text)
    with pytest.raises(SqlError, match="no prepared statements: create a view or a macro"):
        session.statements("prepare p as select * from messages")
    for text in ("set enable_external_access = true", "select * from glob('*')", "attach 'x.db'"):
        with pytest.raises(SqlError):
            ask(session, text)


def test_a_query_that_is_left_early_does_not_keep_the_connection_busy(session: SqlSession) -> None:
    query = "select * from range(100000000000)"
    (statement,) = session.statements(query)
    with session.opened(statement) as sql, sql.query(query) as answer:
        assert next(answer.batches).num_rows
    assert ask(session, "select count(*) as n from messages") == [{"n": 1}]


def test_a_session_leaves_no_temporary_files(kept: Kept) -> None:
    with SqlSession(lambda: (str(kept.lake), kept.record), memory="500MB") as session:
        folder = session._folder
        assert folder.is_dir()
    assert not folder.exists()
    with pytest.raises(SqlError, match="--memory lots"):
        SqlSession(lambda: (str(kept.lake), None), memory="lots")


@pytest.mark.parametrize(
    ("text", "is_complete"),
    [
        ("select 1;", True),
        ("select 1 ; -- done;", True),
        ("select 1; /* done */ ", True),
        ("select 'ü';", True),
        (";", True),
        ("", False),
        ("-- ;", False),
        ("select 1", False),
        ("select ';", False),
        ("select ';'", False),
        ('select "a;', False),
        ("select $$ ;", False),
        ("select 1; /* ", False),
        ("select 1 -- ;", False),
        ("select 1; select 2", False),
    ],
)
def test_a_text_is_complete_with_a_semicolon_outside_of_quotes(
    session: SqlSession, text: str, is_complete: bool
) -> None:
    assert session.is_complete(text) == is_complete


def test_some_statements_return_no_rows(session: SqlSession) -> None:
    for text, returns in (
        ("select 1", True),
        ("pivot (select 1 a, 2 b) on a using sum(b)", True),
        ("copy messages to 'x.csv'", True),
        ("create table t as select 1", False),
        ("set variable x = 1", False),
        ("drop table t", False),
    ):
        (statement,) = session.statements(text)
        assert session.returns_rows(statement) == returns


def test_a_message_of_duckdb_ends_before_its_details() -> None:
    problem = RuntimeError(
        "Out of Memory Error: failed to allocate data of size 512.0 MiB\n"
        "Possible solutions:\n* Reducing the number of threads (SET threads=X)"
    )
    assert shown_error(problem).splitlines() == [
        "Out of Memory Error: failed to allocate data of size 512.0 MiB",
        "Give the query more memory, or ask for less.",
    ]
    problem = RuntimeError("INTERNAL Error: it is full\n\nStack Trace:\n\nduckdb.so(+0x1) [0x2]")
    assert shown_error(problem) == "INTERNAL Error: it is full"
    problem = RuntimeError("Binder Error: no x\n\nLINE 1: select 'Stack Trace:'\n        ^")
    assert shown_error(problem).splitlines()[1:] == ["LINE 1: select 'Stack Trace:'", "        ^"]
