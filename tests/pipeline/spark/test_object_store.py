"""Root and lake on an object store: exactly once, refused where that cannot be, and no secrets.

Spark's own notes stay in a folder. The store is a real server, in a process of its own.
"""

import asyncio
import io
import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, Schema, write_deltalake
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from semel.cli import group
from semel.client import Client
from semel.pipeline.commit_probe import probe
from semel.pipeline.errors import PipelineError, TableError, sentence_of
from semel.pipeline.files import UNIQUE, TableLayout, write_files
from semel.pipeline.lake_address import split_address, table_address
from semel.pipeline.landing import Event, Landing
from semel.pipeline.landing_plan import make_plan
from semel.pipeline.settings import LandSettings
from semel.pipeline.table import LandingBatch, Table
from tests.broker.broker_process import Process
from tests.pipeline.core.test_table import record
from tests.pipeline.living import until
from tests.pipeline.made import root_of, write_messages
from tests.pipeline.object_store import KEY, READER, SECRET, SECRET_IN_ADDRESS, Store, running

# Nobody listens there.
NOWHERE = "127.0.0.1:9"
STRANGER = "AKIDOFASTRANGER"


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    pytest.importorskip("moto.server")
    with running() as found:
        found.make_bucket("bucket")
        yield found


def check_no_secret(*texts: str | bytes) -> None:
    """Neither key nor secret is in there, in any form."""
    for text in texts:
        data = text if isinstance(text, bytes) else text.encode()
        for word in (KEY, STRANGER, READER, SECRET, SECRET_IN_ADDRESS):
            assert word.encode() not in data, f"{word} is in {data[:2000]!r}"


def rows(address: str) -> Counter[tuple[str, int]]:
    """Node and seq of each row of a table, and how often it is there."""
    uri, options = split_address(address)
    table = DeltaTable(uri, storage_options=options).to_pyarrow_table(columns=["node", "seq"])
    return Counter(zip(table["node"].to_pylist(), table["seq"].to_pylist(), strict=True))


def once(**last: int) -> dict[tuple[str, int], int]:
    """Each node's rows from 1 to its last, each once, and nothing else."""
    return {(node, seq): 1 for node, through in last.items() for seq in range(1, through + 1)}


# --- landing --------------------------------------------------------------------------------------


class Place:
    """A root and a lake in a bucket, and a landing from one to the other."""

    def __init__(self, spark: SparkSession, store: Store, name: str, folder: Path) -> None:
        self.spark = spark
        self.root = store.address(f"bucket/{name}/root")
        self.lake = store.address(f"bucket/{name}/lake")
        self.table = table_address(self.lake, "messages")
        self.checkpoint = folder / "checkpoint"
        self.events: list[Event] = []

    def land(self, **settings: Any) -> int:
        """Land what is there; how many rows landed."""
        wanted = {"root": self.root, "lake": self.lake, "checkpoint": self.checkpoint, **settings}
        plan = make_plan(LandSettings(**wanted))
        Landing(plan, self.events.append).run(once=True, spark=self.spark)
        assert self.events[-1]["event"] == "ended"
        landed: int = self.events[-1]["landed"]
        return landed

    def refused(self, **settings: Any) -> str:
        """What the command says of a landing that cannot be."""
        # Both are what the command has a sentence for.
        with pytest.raises((PipelineError, OSError)) as caught:
            self.land(**settings)
        sentence = " ".join(str(caught.value).split())
        assert "Traceback" not in sentence
        check_no_secret(sentence)
        return sentence


NODES = 20


@pytest.mark.long
def test_a_batch_takes_one_listing_of_the_root_however_many_nodes_it_has(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    place = Place(spark, store, "requests", tmp_path)
    root = root_of(place.root)
    for number in range(NODES):
        root.claim("all", f"n{number:02}", f"store-{number}")
        write_messages(root, "all", f"n{number:02}", 1, 10)

    def land(rows: int) -> tuple[int, int, int]:
        """Land all, in batches of so many rows: batches, listings, and reads of owners."""
        place.events.clear()
        with store.counted() as requests:
            # The lake is in a folder: what is counted is asked of the root.
            place.land(lake=str(tmp_path / "lake"), max_rows=rows)
        return (
            sum(event["event"] == "batch" for event in place.events),
            sum(each.is_list for each in requests),
            sum(each.path.endswith("_owner.json") for each in requests),
        )

    batches, listings, _ = land(1_000)
    assert batches == 1
    # Some at the start, and one for each node that is new to the table.
    assert listings <= NODES + 12
    for number in range(NODES):
        write_messages(root, "all", f"n{number:02}", 11, 4)
    batches, listings, owners = land(20)
    assert batches == 4
    assert listings <= batches + 8
    # Each of them has rows of each node, whose owner takes HEAD and GET.
    assert owners <= 2 * NODES * batches
    _, listings, owners = land(20)
    assert (listings <= 8, owners) == (True, 0)


def test_a_file_that_a_worker_put_elsewhere_is_not_committed(store: Store) -> None:
    elsewhere = store.address("bucket/elsewhere/messages")
    address = store.address("bucket/shared/messages")
    batch = numbered(elsewhere, "a", 1, 25)
    with pytest.raises(
        TableError, match="must be on storage that the driver and the workers"
    ) as it:
        Table(address).commit(batch)
    check_no_secret(str(it.value))
    assert store.files("bucket/shared") == {}
    Table(address).commit(numbered(address, "a", 1, 25))
    assert rows(address) == once(a=25)


class Told(StreamingQueryListener):
    """All that Spark tells of queries to whoever wants to know."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        self.texts.append(str(event.name))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.texts.append(event.progress.json)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self.texts.append(str(event.exception))


def record_by_broker(root: str, data: Path, messages: int) -> str:
    """A broker keeps what is published as node n1 of the stream all; what it said."""

    async def publish(port: int) -> None:
        async with Client(f"mqtt://127.0.0.1:{port}") as client:
            for number in range(messages):
                await client.publish("plant/line1", f"{number}", qos=1)

    where = ("--data", str(data), "--root", root, "--node", "n1", "--stream", "all=#")
    with Process("--host", "127.0.0.1", "--seal-after", "100ms", *where) as broker:
        asyncio.run(publish(broker.address[1]))
        kept = root_of(root)
        until(lambda: kept.highest_seq("all", "n1") == messages, "the broker does not seal")
    return "".join(broker.log)


def explain_plan(spark: SparkSession, root: str) -> str:
    """The plans of a query, as Spark prints them for people."""
    frame = spark.read.format("mqtt").option("root", root).option("stream", "all").load()
    printed = io.StringIO()
    with redirect_stdout(printed):
        frame.explain(mode="extended")
    return printed.getvalue()


def test_each_row_is_landed_once_and_nothing_tells_a_secret(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    place = Place(spark, store, "a", tmp_path)
    told = Told()
    spark.streams.addListener(told)
    said = record_by_broker(place.root, tmp_path / "data", 40)
    write_messages(place.root, "all", "n2", 1, 300)
    write_messages(place.root, "all", "n2", 301, 100)
    assert place.land(max_rows=250) == 440
    assert rows(place.table) == once(n1=40, n2=400)
    shutil.copytree(place.checkpoint, tmp_path / "old")
    # The checkpoint is lost: a new one begins after what the table has.
    shutil.rmtree(place.checkpoint)
    write_messages(place.root, "all", "n2", 401, 100)
    assert place.land() == 100
    # One that is behind: its batch is partly there, and files are read and written anew.
    write_messages(place.root, "all", "n2", 501, 50)
    before = set(store.files("bucket/a/lake"))
    assert place.land(checkpoint=tmp_path / "old") == 50
    assert rows(place.table) == once(n1=40, n2=550)
    assert len(set(store.files("bucket/a/lake")) - before) > 2

    until(lambda: sum('"numInputRows"' in text for text in told.texts) >= 4, "no progress told")
    spark.streams.removeListener(told)
    notes = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    check_no_secret(said, json.dumps(place.events), explain_plan(spark, place.root))
    check_no_secret(*told.texts, *notes, *store.files("bucket/a/").values())
    ask_by_commands(place)


def ask_by_commands(place: Place) -> None:
    """The commands see it as they see a folder."""

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(group, [*arguments, "--lake", place.lake])
        assert result.exit_code == 0, result.output
        check_no_secret(result.output)
        return result.stdout

    (facts,) = json.loads(run("tables", "--root", place.root, "--json"))
    assert (facts["table"], facts["rows"], facts["stream"]) == ("messages", 590, "all")
    write_messages(place.root, "all", "n2", 551, 9)
    question = "select landed, count(*) as n from messages_now group by 1 order by 1"
    answer = run("sql", question, "--root", place.root, "--json")
    assert [json.loads(line) for line in answer.splitlines()] == [
        {"landed": False, "n": 9},
        {"landed": True, "n": 590},
    ]
    merged = json.loads(run("lake", "optimize", "messages", "--json"))
    assert merged["files_added"] == 1
    assert "OPTIMIZE" in run("lake", "history", "messages")
    assert rows(place.table) == once(n1=40, n2=550)


def test_a_store_that_cannot_be_used_is_one_sentence_and_gets_nothing(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    place = Place(spark, store, "b", tmp_path)
    write_messages(place.root, "all", "n1", 1, 10)
    path = "bucket/b/lake"
    for lake, words in (
        (store.address(path, careless=True), "put-if-absent"),
        (store.address(path, key=STRANGER), "403 Forbidden: check key, secret"),
        (store.address(path, key=READER), "403 Forbidden: check key, secret"),
        (store.address(path, server=NOWHERE), f"at {NOWHERE} cannot be reached"),
        (store.address("nobucket/lake"), "there is no such bucket"),
    ):
        sentence = place.refused(lake=lake)
        assert words in sentence
        assert sentence.startswith("s3://")
    assert store.files(path) == {}
    strange = store.address("bucket/b/root", key=STRANGER)
    assert "INVALID_ACCESS_KEY_ID" in place.refused(root=strange)
    assert NOWHERE in place.refused(root=store.address("bucket/b/root", server=NOWHERE))
    # What a program of the user's own gets.
    sentence = sentence_for_a_program(spark.read.format("mqtt").load(strange).collect)
    assert "INVALID_ACCESS_KEY_ID" in sentence
    # An executor is who finds out first, if nobody tries the store before.
    lake = store.address("nobucket/lake/t")
    sentence = sentence_for_a_program(
        lambda: spark.range(1).write.format("semel_delta").mode("append").save(lake)
    )
    assert sentence.startswith("s3://nobucket/lake/t cannot be written: ")
    # The same place with a store that can be used.
    assert place.land() == 10
    assert rows(place.table) == once(n1=10)


def sentence_for_a_program(action: Callable[[], Any]) -> str:
    """Our sentence in what Spark tells a program of the user's own."""
    with pytest.raises(PySparkException) as caught:
        action()
    text = str(caught.value)
    assert SECRET not in text
    assert SECRET_IN_ADDRESS not in text
    sentence = sentence_of(text)
    assert sentence is not None, text
    return sentence


def test_a_root_in_a_bucket_that_is_not_there_is_one_sentence(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    place = Place(spark, store, "c", tmp_path)
    nowhere = store.address("nobucket/root")
    assert "nobucket" in place.refused(root=nowhere)
    # A bucket that is there may have nothing yet.
    assert place.land() == 0


# --- without Spark --------------------------------------------------------------------------------


def test_a_store_is_tried_and_nothing_is_left_of_it(store: Store) -> None:
    probe(store.address("bucket/tried/messages"))
    with pytest.raises(TableError, match="lets two writers create the same file") as caught:
        probe(store.address("bucket/tried/messages", careless=True))
    check_no_secret(str(caught.value))
    assert store.files("bucket/tried") == {}


def test_a_table_that_others_have_made_is_tried_before_the_first_commit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_of_others = pa.table({"a": [1, 2]})
    schema = Schema.from_arrow(rows_of_others.schema).to_json()
    careless, careful = (
        store.address("bucket/theirs/messages", careless=each) for each in (True, False)
    )
    uri, storage = split_address(careful)
    write_deltalake(uri, rows_of_others, storage_options=storage)

    def batch(number: int) -> LandingBatch:
        files = write_files(rows_of_others.to_batches(), TableLayout(careful))
        return LandingBatch(files, schema, query="q", number=number)

    with pytest.raises(TableError, match="lets two writers create the same file"):
        Table(careless).commit(batch(0))
    assert DeltaTable(uri, storage_options=storage).count() == 2
    Table(careful).commit(batch(0))
    assert DeltaTable(uri, storage_options=storage).count() == 4
    # Who has committed to it before goes on without.
    tried: list[str] = []
    monkeypatch.setattr("semel.pipeline.table.probe", tried.append)
    Table(careful).commit(batch(1))
    assert tried == []
    Table(careful).commit(LandingBatch(batch(0).files, schema, query="another", number=0))
    assert tried == [careful]
    assert DeltaTable(uri, storage_options=storage).count() == 8


def numbered(address: str, node: str, first: int, last: int) -> LandingBatch:
    """The rows first to last of a node, in files, for a commit."""
    seqs = list(range(first, last + 1))
    days = [f"d{seq // 10}" for seq in seqs]
    table = pa.table({"node": [node] * len(seqs), "seq": seqs, "day": days})
    files = write_files(table.to_batches(), TableLayout(address, ("day",), numbering=UNIQUE))
    schema = Schema.from_arrow(table.schema).to_json()
    return LandingBatch(
        files, schema, ("day",), stream="all", record=record(**{node: [(1, 1_000)]})
    )


def test_writers_at_once_neither_double_nor_skip(store: Store) -> None:
    """Two land the same rows, in batches of their own, and two those of other nodes."""
    address = store.address("bucket/writers/messages")
    # The last row of each batch.
    plans = [("a", (10, 20, 30)), ("a", (6, 22, 30)), ("b", (10, 20, 30)), ("c", (10, 20, 30))]
    together = threading.Barrier(len(plans))
    problems: list[BaseException] = []

    def write(node: str, lasts: tuple[int, ...]) -> None:
        done = 0
        try:
            for last in lasts:
                batch = numbered(address, node, done + 1, last)
                together.wait()
                Table(address).commit(batch)
                done = last
        except BaseException as problem:
            problems.append(problem)
            together.abort()

    writers = [threading.Thread(target=write, args=plan) for plan in plans]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert problems == []
    assert rows(address) == once(a=30, b=30, c=30)
    assert not [name for name in store.files("bucket/writers") if "_semel_probe" in name]
