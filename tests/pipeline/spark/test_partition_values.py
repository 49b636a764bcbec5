"""Values by which a table cannot be partitioned: long or empty texts, and times beyond years."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from semel.pipeline import tables_sink
from semel.pipeline.dead_letter_retry import RetryOutcome, retry_dead_letters
from semel.pipeline.dead_letters import schema_json
from semel.pipeline.files import (
    NAME_BYTES,
    REPEATED,
    TableLayout,
    partition_folder,
    write_files,
)
from semel.pipeline.landing_check import check_landing
from semel.pipeline.table_split import TableSplit, cut_before_last_message
from semel.pipeline.tables_sink import TablesPlan, TablesWriter
from tests.pipeline.made import write_messages
from tests.pipeline.spark.test_exploded_rows import MadeRows
from tests.pipeline.spark.test_landing_file_spark import Place

# The sink decodes the first table, and Spark the second one.
TABLES = """
    [[table]]
    name = "direct"
    topic = "at/{site}"
    decoder = "json"
    columns = "unit STRING, v INT"
    partition_by = ["site", "unit"]

    [[table]]
    name = "filtered"
    topic = "at/{site}"
    decoder = "json"
    columns = "unit STRING, v INT"
    where = "v < 100"
    partition_by = ["site", "unit"]

    [[table]]
    name = "everything"
    topic = "#"
"""
PARTS = """
    [[table]]
    name = "parts"
    topic = "at/{site}"
    decoder = "json"
    columns = "parts ARRAY<STRUCT<unit: STRING, v: INT>>"
    explode = "parts"
    partition_by = ["unit"]

    [[table]]
    name = "everything"
    topic = "#"
"""
TOO_LONG = (
    "{} is too long to partition by it: the name of its folder would have more than 255 bytes"
)
EMPTY = "{} is empty, and a Delta table cannot be partitioned by empty text"
# "site=" and 250 bytes; percent-encoded, as "室" and "/" are, and not.
LONGEST = ["x" * 250, "/" * 83 + "x", "室" * 27 + "x" * 7]


@pytest.fixture
def made(spark: SparkSession, tmp_path: Path) -> MadeRows:
    return MadeRows(spark, tmp_path)


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


def reasons(letters: list[dict[str, Any]]) -> list[tuple[int, str, str]]:
    return sorted((each["seq"], each["reason"], each["column_name"]) for each in letters)


def test_a_message_whose_text_cannot_be_a_partition_is_a_dead_letter(made: MadeRows) -> None:
    units = [*LONGEST, *(each + "x" for each in LONGEST), "室" * 300, "", None, "°C", "x" * 250]
    sent = [{"unit": unit, "v": seq} for seq, unit in enumerate(units, 1)]
    made.make(TABLES, *sent, b"{", {"unit": "", "v": 100}, topic="at/x")
    long = TOO_LONG.format("unit")
    expected = [*((seq, long, "unit") for seq in (4, 5, 6, 7)), (8, EMPTY.format("unit"), "unit")]
    for table in ("direct", "filtered"):
        # What the filter leaves out needs no partition.
        more = [(13, EMPTY.format("unit"), "unit")] if table == "direct" else []
        found = [each for each in reasons(made.bad[table]) if each[0] != 12]
        assert found == [*expected, *more], table
        assert len(made.bad[table]) == len(found) + 1
        assert made.values("seq", "unit", table=table) == [
            (seq, unit) for seq, unit in enumerate(units, 1) if seq not in (4, 5, 6, 7, 8)
        ]
        bad = next(each for each in made.bad[table] if each["seq"] == 7)
        assert json.loads(bad["payload"]) == sent[6]
        assert (bad["table_name"], bad["byte_offset"]) == (table, None)
    assert len(made.rows["everything"]) == len(sent) + 2
    assert all(len(partition_folder("unit", each)) == NAME_BYTES for each in LONGEST)


def test_levels_of_topics_and_columns_of_the_record_can_be_partitions_too(made: MadeRows) -> None:
    text = TABLES.replace('"site", "unit"', '"site"')
    for topic, reason in (
        ("at/" + "室" * 30, TOO_LONG.format("site")),
        ("at/", EMPTY.format("site")),
        ("at/室", None),
    ):
        made.make(text, {"v": 1}, {"v": 2}, topic=topic)
        expected = [] if reason is None else [(1, reason, "site"), (2, reason, "site")]
        for table in ("direct", "filtered"):
            assert reasons(made.bad[table]) == expected
            assert len(made.rows[table]) == 2 - len(expected)
    by_topic = text.replace('["site"]', '["topic"]').replace("{site}", "#")
    made.make(by_topic, {"v": 1}, topic="at/" + "x" * 249)
    assert reasons(made.bad["direct"]) == [(1, TOO_LONG.format("topic"), "topic")]
    made.make(by_topic, {"v": 1}, topic="at/" + "x" * 200)
    assert len(made.rows["direct"]) == 1


@pytest.mark.parametrize(
    "expression",
    [
        "cast(timestamp_seconds(v) as date)",
        "timestamp_seconds(v)",
        "cast(timestamp_seconds(v) as timestamp_ntz)",
    ],
)
def test_a_time_that_cannot_be_a_partition_is_a_dead_letter(
    made: MadeRows, expression: str, tmp_path: Path
) -> None:
    text = f"""
    [[table]]
    name = "by_time"
    topic = "at/{{site}}"
    decoder = "json"
    columns = "v BIGINT"
    computed = {{ at = "{expression}" }}
    partition_by = ["at"]
    """
    first, last = -62_135_596_800, 253_402_300_799
    times = [0, first, last, None, first - 1, last + 1, 1_772_366_400_000]
    made.make(text, *({"v": each} for each in times), topic="at/x")
    reason = "at is not in the years 1 to 9999, by which a table can be partitioned"
    assert reasons(made.bad["by_time"]) == [(seq, reason, "at") for seq in (5, 6, 7)]
    assert [json.loads(each["payload"])["v"] for each in made.bad["by_time"]] == times[4:]
    rows, _ = TableSplit(0, made.shapes[0], "all").split(made.arrow)
    assert rows.column("v").to_pylist() == times[:4]
    # The writer takes the others.
    layout = TableLayout(str(tmp_path / "table"), ("at",), numbering=REPEATED)
    assert len(write_files(rows.to_batches(), layout)) == 4


def test_a_message_with_a_row_that_cannot_be_in_a_partition_has_no_row(made: MadeRows) -> None:
    long = "室" * 30

    def parts(*units: str | None) -> dict[str, Any]:
        return {"parts": [{"unit": each, "v": 1} for each in units]}

    sent = [parts("a", long, "", "b"), parts("a", None), parts("", "a"), parts(), parts("室" * 27)]
    made.make(PARTS, *sent, topic="at/x")
    assert reasons(made.bad["parts"]) == [
        (1, TOO_LONG.format("unit"), "unit"),
        (3, EMPTY.format("unit"), "unit"),
    ]
    assert made.values("seq", "unit", table="parts") == [(2, "a"), (2, None), (5, "室" * 27)]
    payloads = {each["seq"]: each["payload"] for each in made.bad["parts"]}
    assert {seq: json.loads(each) for seq, each in payloads.items()} == {1: sent[0], 3: sent[2]}
    assert len(made.rows["everything"]) == 5


def test_rows_are_cut_before_those_of_the_last_message() -> None:
    def batch(*seqs: int, node: str = "n1") -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"node": [node] * len(seqs), "seq": list(seqs)})

    def cut(*batches: pa.RecordBatch) -> list[list[int]]:
        return [
            [seq for each in part for seq in each.column("seq").to_pylist()]
            for part in cut_before_last_message(batches)
        ]

    assert cut(batch(1, 1, 2)) == [[1, 1], [2]]
    assert cut(batch(1, 1, 2), batch(2, 2), batch(2)) == [[1, 1], [2, 2, 2, 2]]
    assert cut(batch(1), batch(2)) == [[1], [2]]
    assert cut(batch(1, 1), batch(1)) == [[], [1, 1, 1]]
    assert cut(batch(1, 1), batch(1, node="n2")) == [[1, 1], [1]]


def test_rows_of_a_message_that_come_in_several_batches_are_refused_together(
    made: MadeRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [
        {"parts": [{"unit": "a", "v": part} for part in range(40)]},
        {"parts": [{"unit": "" if part == 39 else "a", "v": part} for part in range(40)]},
        {"parts": [{"unit": "" if part == 0 else "b", "v": part} for part in range(40)]},
        {"parts": [{"unit": "b", "v": part} for part in range(3)]},
    ]
    made.make(PARTS, *sent, topic="at/x")
    names = [shape.name for shape in made.shapes]
    plan = TablesPlan(
        stream="all",
        root=str(tmp_path / "root"),
        checkpoint=str(tmp_path / "checkpoint"),
        may_skip=False,
        addresses=tuple(str(tmp_path / "lake" / name) for name in names),
        dead_letters=str(tmp_path / "lake" / "dead_letters"),
        dead_letters_name="dead_letters",
        dead_letters_schema=schema_json(["node", "seq", "received", "topic", "payload"]),
        shapes=tuple(made.shapes),
    )
    monkeypatch.setattr(tables_sink, "SPLIT_BATCHES", 2)

    def batches() -> Iterator[pa.RecordBatch]:
        for begin in range(0, made.arrow.num_rows, 7):
            yield from made.arrow.slice(begin, 7).combine_chunks().to_batches()
            yield pa.RecordBatch.from_pylist([], made.arrow.schema)

    written = TablesWriter({"plan": plan.to_json()}).write(batches())
    rows: Counter[str | None] = Counter()
    for file in written.rows[0]:
        rows[file.partition["unit"]] += file.rows
    assert rows == {"a": 40, "b": 3}
    assert sum(file.rows for file in written.dead_letters[0]) == 2
    assert sum(file.rows for file in written.rows[1]) == 4


def test_other_messages_land_and_dead_letters_are_retried(place: Place) -> None:
    place.describe(TABLES)
    levels = {1: "x", 2: "室" * 30, 3: "", 4: "y"}
    write_messages(
        *(place.root, "all", "n1", 1, 4),
        topic=lambda seq: f"at/{levels[seq]}",
        payload=lambda seq: json.dumps({"unit": "C", "v": seq}).encode(),
    )
    (direct, filtered, everything) = check_landing(place.spark, place.plan(), 4).tables
    for found in (direct, filtered):
        assert (found.taken, found.rows, found.left_out) == (4, 2, 0)
        assert {(each.reason, each.column, each.count) for each in found.bad} == {
            (TOO_LONG.format("site"), "site", 1),
            (EMPTY.format("site"), "site", 1),
        }
    assert everything.rows == 4
    place.land()
    assert [row["seq"] for row in place.rows("everything")] == [1, 2, 3, 4]
    for table in ("direct", "filtered"):
        assert [row["seq"] for row in place.rows(table)] == [1, 4]
    plan = place.plan()
    assert plan.file is not None
    tables = plan.file.tables[:2]
    reports: list[RetryOutcome] = []
    outcomes = retry_dead_letters(place.spark, plan, tables, reports.append)
    assert outcomes == [RetryOutcome(each.name, bad=2) for each in tables]
    # The level keeps its name and its column, and is shorter in the table.
    shorter = TABLES.replace("at/{site}", "at/{level}").replace(
        'partition_by = ["site", "unit"]',
        "computed = { site = \"coalesce(nullif(left(level, 20), ''), 'none')\" }\n"
        '    partition_by = ["site", "unit"]',
    )
    place.describe(shorter)
    plan = place.plan()
    assert plan.file is not None
    outcomes = retry_dead_letters(place.spark, plan, plan.file.tables[:2], reports.append)
    assert [(each.landed, each.bad) for each in outcomes] == [(2, 0), (2, 0)]
    assert not place.rows("dead_letters")
    assert [row["site"] for row in place.rows("direct")] == ["x", "室" * 20, "none", "y"]
