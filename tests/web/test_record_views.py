"""Topics, history, tables and SQL of a real record and a real lake, as the page gets them."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from semel.pipeline.app_transactions import position_id
from semel.web.lake_tables import list_tables
from semel.web.record_topics import (
    LIMITS,
    FollowLimits,
    RecordTopics,
    RecordUnreadable,
    describe_topic,
)
from semel.web.sql_queries import (
    WAITING_QUERIES,
    LakeAddress,
    QueryRefused,
    SqlQueries,
    TooManyQueries,
)
from semel.web.sql_worker import plain_value
from semel.web.topic_tree import TopicBranch, TopicTree
from tests.up.asked import Kept
from tests.web.serving import Browser, Served, served

# Enough for any machine; a test that waits for the limit sets another.
SECONDS = 120.0


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    made.close()


def seal(kept: Kept) -> None:
    """Seal all rows that are not sealed."""
    kept.keeper.seal(1_000_000)


def topics_of(kept: Kept, limits: FollowLimits = LIMITS) -> RecordTopics:
    return RecordTopics(kept.keeper.folder.path, str(kept.root), "plant", limits=limits)


def leaves(tree: TopicTree) -> Iterator[TopicBranch]:
    """The branches that have messages of their own."""
    return (each for each in tree.search("#")[0] if each.last is not None)


def address_of(kept: Kept) -> LakeAddress:
    data = kept.keeper.folder.path
    return LakeAddress(str(kept.lake), str(kept.root), data, "plant", "messages")


# --- topics ---------------------------------------------------------------------------------------


def test_a_tree_follows_the_record_sealed_or_not(kept: Kept) -> None:
    topics = topics_of(kept)
    kept.keeper.commit(10)
    seal(kept)
    kept.keeper.commit(5)
    tree = topics.follow()
    assert (tree.root.messages, tree.root.topics) == (15, 5)
    branch = tree.branch("plant/line0/temperature/")
    assert branch is not None
    assert (branch.messages, branch.last and branch.last.payload) == (3, b"value 15")
    kept.keeper.commit(1)
    assert topics.follow().root.messages == 16
    assert topics.follow().root.messages == 16
    shown = describe_topic(branch)
    assert (shown["level"], shown["key"]) == ("temperature", "plant/line0/temperature/")
    assert shown["last"]["payload"]["text"] == "value 15"


def test_old_rows_are_left_out_and_of_many_new_ones_some_stand_for_all(kept: Kept) -> None:
    topics = topics_of(kept, FollowLimits(first_rows=4, maximum_rows=2))
    kept.keeper.commit(20)
    assert topics.follow().root.messages == 4
    kept.keeper.commit(10)
    tree = topics.follow()
    assert tree.root.messages == 4 + 10
    # The newest two of five topics were read, and each of them stands for five messages.
    assert sorted(each.messages for each in leaves(tree))[-2:] == [5 + 1, 5 + 1]


def test_rows_are_read_as_long_as_there_is_time_for_them(kept: Kept) -> None:
    # No computer reads a row in this time.
    topics = topics_of(kept, FollowLimits(minimum_rows=3, seconds=1e-12))
    kept.keeper.commit(20)
    assert len(list(leaves(topics.follow()))) == 5
    kept.keeper.commit(20)
    before = {each.topic: each.last for each in leaves(topics.tree)}
    after = {each.topic: each.last for each in leaves(topics.follow())}
    assert sum(before[topic] != last for topic, last in after.items()) == 3


def test_rows_that_are_not_sealed_are_read_only_if_they_are_few(kept: Kept) -> None:
    topics = topics_of(kept, FollowLimits(unsealed_rows=3))
    kept.keeper.commit(5)
    seal(kept)
    kept.keeper.commit(4)
    assert topics.follow().root.messages == 5
    seal(kept)
    assert topics.follow().root.messages == 9


def test_history_has_the_newest_messages_of_one_topic(kept: Kept) -> None:
    kept.keeper.commit(20)
    seal(kept)
    topics = topics_of(kept)
    found = topics.history("plant/line1/temperature", 1e12)
    assert [row["seq"] for row in found["rows"]] == [16, 11, 6, 1]
    assert found["rows"][0]["payload"]["text"] == "value 16"
    assert found["more"] is False
    # The rows of the record are of another year.
    assert topics.history("plant/line1/temperature", 60)["rows"] == []


def test_long_history_is_cut_and_says_so(kept: Kept) -> None:
    kept.keeper.commit(20)
    found = topics_of(kept, FollowLimits(history_rows=2)).history("plant/line1/temperature", 1e12)
    assert [row["seq"] for row in found["rows"]] == [16, 11]
    assert found["more"] is True


def test_a_record_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecordUnreadable, match="does not exist"):
        RecordTopics(None, str(tmp_path / "nothing"), "plant").follow()


# --- tables and SQL -------------------------------------------------------------------------------


def test_tables_are_listed_with_their_lag(kept: Kept) -> None:
    assert list_tables(address_of(kept)) == []
    kept.keeper.commit(10)
    seal(kept)
    kept.land(4)
    write_deltalake(kept.lake / "other", pa.table({"a": [1]}))
    (messages, other) = list_tables(address_of(kept))
    assert (messages["table"], messages["rows"], messages["stream"]) == ("messages", 4, "plant")
    assert messages["lag"] == [{"node": "n1", "landed": 4, "recorded": 10, "rows": 6}]
    assert (other["rows"], other["lag"], other["stream"]) == (1, None, None)


def test_a_table_with_damaged_positions_takes_no_lag_from_the_others(kept: Kept) -> None:
    kept.keeper.commit(10)
    seal(kept)
    kept.land(4)
    shutil.copytree(kept.lake / "messages", kept.lake / "same")
    entry = kept.lake / "messages" / "_delta_log" / f"{1:020}.json"
    name = position_id("plant", "n1")
    whole = entry.read_text()
    assert f'"{name}","version":4' in whole
    entry.write_text(whole.replace(f'"{name}","version":4', f'"{name}","version":5'))
    (messages, same) = list_tables(address_of(kept))
    assert (messages["rows"], messages["lag"]) == (4, None)
    assert same["lag"] == [{"node": "n1", "landed": 4, "recorded": 10, "rows": 6}]


def queries_of(kept: Kept, seconds: float = SECONDS) -> SqlQueries:
    return SqlQueries(address_of(kept), seconds=seconds, memory="256MB")


def test_queries_have_results_names_and_errors(kept: Kept) -> None:
    kept.keeper.commit(10)
    seal(kept)
    kept.land(4)

    async def test() -> None:
        queries = queries_of(kept)
        try:
            found = await queries.run("select landed, count(*) as n from messages_now group by 1")
            assert sorted(found["rows"]) == [[False, 6], [True, 4]]
            assert found["columns"] == [
                {"name": "landed", "type": "boolean"},
                {"name": "n", "type": "number"},
            ]
            with pytest.raises(QueryRefused, match="there is no table mesages"):
                await queries.run("select * from mesages")
            with pytest.raises(QueryRefused, match="only the command semel sql does"):
                await queries.run("copy (select 1) to 'x.csv'")
            many = await queries.run("select * from range(5000)")
            assert (len(many["rows"]), many["more"]) == (1_000, True)
            names = await queries.names()
            assert "messages_now" in [each["name"] for each in names["tables"]]
        finally:
            await queries.close()

    asyncio.run(test())


def test_a_query_that_runs_too_long_is_ended_and_the_next_one_runs(kept: Kept) -> None:
    kept.keeper.commit(1)
    endless = "select count(*) from range(1000000) a, range(1000000) b, range(1000) c"

    async def test() -> None:
        queries = queries_of(kept)
        try:
            # The worker is started first, so that the limit is that of the query.
            await queries.run("select 1")
            queries._seconds = 1.0
            with pytest.raises(QueryRefused, match="ended after 1 seconds"):
                await queries.run(endless)
            queries._seconds = SECONDS
            assert (await queries.run("select 1 as a"))["rows"] == [[1]]
        finally:
            await queries.close()

    asyncio.run(test())


def test_too_many_queries_are_refused(kept: Kept) -> None:
    # One runs, as many as possible wait, and two are refused.
    given = 1 + WAITING_QUERIES + 2
    kept.keeper.commit(1)

    async def test() -> None:
        queries = queries_of(kept)
        try:
            found = await asyncio.gather(
                *(queries.run("select 1") for _ in range(given)), return_exceptions=True
            )
        finally:
            await queries.close()
        refused = [each for each in found if isinstance(each, TooManyQueries)]
        assert (len(refused), len(found)) == (2, given)

    asyncio.run(test())


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_result_is_exported_as_a_whole(kept: Kept, form: str) -> None:
    import pyarrow.parquet as pq

    kept.keeper.commit(3)
    seal(kept)
    kept.land(1)

    async def test() -> Path:
        queries = queries_of(kept)
        async with queries.export("select seq from messages_now order by 1; ", form) as path:
            if form == "csv":
                assert path.read_text().split() == ["seq", "1", "2", "3"]
            else:
                assert pq.read_table(path).to_pydict() == {"seq": [1, 2, 3]}
            return path

    assert not asyncio.run(test()).exists()

    async def wrong() -> None:
        async with queries_of(kept).export("select nothing", form):
            pass

    with pytest.raises(QueryRefused, match="nothing"):
        asyncio.run(wrong())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (2**53, 2**53),
        (2**60, str(2**60)),
        (float("nan"), "nan"),
        (b"text", "text"),
        (b"\xff\x00", "\\xff00"),
        ([1, {"a": b"\xff"}], '[1, {"a": "\\\\xff"}]'),
        ("x" * 20_000, "x" * 10_000 + "…"),
    ],
)
def test_values_are_shown_without_loss_or_as_text(value: Any, expected: Any) -> None:
    assert plain_value(value) == expected


# --- over HTTP ------------------------------------------------------------------------------------


def test_the_views_of_record_and_lake_over_http(kept: Kept, tmp_path: Path) -> None:
    kept.keeper.commit(10)
    seal(kept)
    kept.land(10)
    letters = {"table_name": ["t"], "reason": ["not JSON"], "column_name": ["a"]}
    write_deltalake(kept.lake / "dead_letters", pa.table(letters))
    folder = tmp_path / "control"
    folder.mkdir()

    async def views(page: Served, browser: Browser) -> None:
        _, _, found = await browser.get("/api/tables")
        assert [each["table"] for each in found["tables"]] == ["dead_letters", "messages"]
        assert found["dead_letters"] == [
            {"table_name": "t", "reason": "not JSON", "column_name": "a", "count": 1}
        ]
        _, _, result = await browser.post("/api/sql", {"query": "select count(*) from messages"})
        assert result["rows"] == [[10]]
        status, _, wrong = await browser.post("/api/sql", {"query": "selec"})
        assert (status, "syntax error" in wrong["error"]) == (400, True)
        status, headers, content = await browser.post(
            "/api/export", {"query": "select 1 as a", "format": "csv"}
        )
        assert (status, content) == (200, b"a\n1\n")
        assert headers["content-disposition"] == 'attachment; filename="result.csv"'
        status, _, _ = await browser.post("/api/export", {"query": "select 1", "format": "exe"})
        assert status == 400
        _, _, history = await browser.get(
            "/api/history?topic=plant%2Fline1%2Ftemperature&minutes=10080"
        )
        assert history["rows"] == []
        status, _, _ = await browser.get("/api/history?topic=a&minutes=x")
        assert status == 400
        async with browser.live() as live:
            await live.send(watch="topics", branches=["", "plant/"])
            root = await live.next("topics")
            plant = await live.next("topics")
            assert [each["level"] for each in root["entries"]] == ["plant"]
            assert len(plant["entries"]) == 5
            await live.send(search="line3")
            assert (await live.next("found"))["entries"][0]["topic"] == "plant/line3/temperature"

    async def test() -> None:
        data = kept.keeper.folder.path
        async with served(folder, lake=address_of(kept), stream="plant", data=data) as page:
            page.server.topics = page.server.feed._topics = topics_of(kept)
            await views(page, await page.browser())

    asyncio.run(test())
