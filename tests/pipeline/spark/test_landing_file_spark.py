"""Landing by a landing file with a real Spark: every table exact, whatever happens between them."""

import dataclasses
import gzip
import json
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import cbor2
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession, functions

from semel.cli.land_file import others_line
from semel.pipeline import upsert
from semel.pipeline.dead_letter_retry import RetryOutcome, retry_dead_letters
from semel.pipeline.errors import OptionError, PipelineError
from semel.pipeline.landing import Event, Landing
from semel.pipeline.landing_check import check_landing, infer_table
from semel.pipeline.landing_errors import spark_errors
from semel.pipeline.landing_plan import LandingPlan, make_plan
from semel.pipeline.settings import LandSettings
from semel.pipeline.topic_template import parse_template
from semel.store.landing_notes import read_landing_notes
from semel.store.roots import open_root
from tests.pipeline.made import write_messages

# Spark may take a minute on a machine that has other things to do.
SPARK_PATIENCE = 300.0

FILE = """
    [[table]]
    name = "temperature"
    topic = "site/{plant}/{line:int}/temp"
    decoder = "json"
    columns = "value DOUBLE NOT NULL, unit STRING, at TIMESTAMP"
    event_time = "at"
    computed = { fahrenheit = "value * 9 / 5 + 32", tenth = "line div (line - line)" }
    where = "value < 1000"
    message_columns = ["qos", "client_id"]

    [[table]]
    name = "counts"
    topic = "count/+"
    decoder = "number"
    columns = "value INT"

    [[table]]
    name = "everything"
    topic = "#"
    partition_by = []

    [[table]]
    name = "current"
    topic = "#"
    latest_by = ["topic"]
"""


def topic(seq: int) -> str:
    return f"site/p{seq % 3}/{seq % 5}/temp" if seq % 2 else f"count/{seq % 4}"


def payload(seq: int) -> bytes:
    """Of every ten, one is bad for its table, and one is left out by a filter."""
    if seq % 10 == 7:
        return b'{"value": "warm"}'
    if seq % 10 == 8:
        return b"many"
    if seq % 10 == 3:
        return json.dumps({"value": 1_000 + seq}).encode()
    if seq % 2:
        return json.dumps({"value": seq / 8, "unit": "C", "at": "2026-03-01T12:00:00Z"}).encode()
    return str(seq).encode()


FIX = (
    "a landing file cannot change that: give the table another name there, and fill it with"
    " `semel land backfill`"
)


class Place:
    """A root, a lake and a landing file."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.root = folder / "root"
        self.lake = folder / "lake"
        self.path = folder / "landing.toml"
        self.events: list[Event] = []
        self.describe(FILE)

    def describe(self, text: str) -> None:
        self.path.write_text(textwrap.dedent(text))

    def write(self, node: str, first: int, count: int) -> None:
        write_messages(self.root, "all", node, first, count, topic=topic, payload=payload)

    def plan(self, **settings: Any) -> LandingPlan:
        return make_plan(
            LandSettings(root=str(self.root), lake=str(self.lake), landing=self.path, **settings)
        )

    def landing(self, **settings: Any) -> Landing:
        return Landing(self.plan(**settings), self.events.append)

    def land(self, **settings: Any) -> int:
        """Land what is there; how many rows landed in all tables."""
        self.events.clear()
        self.landing(**settings).run(once=True, spark=self.spark)
        landed: int = self.events[-1]["landed"]
        return landed

    def rows(self, table: str) -> list[dict[str, Any]]:
        found = DeltaTable(str(self.lake / table)).to_pyarrow_table()
        rows: list[dict[str, Any]] = found.sort_by(
            [("node", "ascending"), ("seq", "ascending")]
        ).to_pylist()
        return rows

    def holds(self, **last: int) -> None:
        """Every table has what is for it of rows 1 to `last` of each node, each once."""
        seqs = [(node, seq) for node, through in last.items() for seq in range(1, through + 1)]

        def found(table: str) -> Counter[tuple[str, int]]:
            return Counter((each["node"], each["seq"]) for each in self.rows(table))

        odd = [each for each in seqs if each[1] % 2]
        assert found("temperature") == Counter(each for each in odd if each[1] % 10 not in (3, 7))
        assert found("counts") == Counter(
            each for each in seqs if each[1] % 2 == 0 and each[1] % 10 != 8
        )
        assert found("everything") == Counter(seqs)
        newest = {topic(seq): seq for seq in sorted(seq for _, seq in seqs)}
        current = [(each["topic"], each["seq"]) for each in self.rows("current")]
        assert sorted(current) == sorted(newest.items())
        assert found("dead_letters") == Counter(each for each in seqs if each[1] % 10 in (7, 8))


def wait_until(condition: Callable[[], bool], running: threading.Thread) -> None:
    end = time.monotonic() + SPARK_PATIENCE
    while not condition():
        assert running.is_alive()
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


def test_messages_land_typed_in_several_tables_and_bad_ones_as_dead_letters(place: Place) -> None:
    place.write("n1", 1, 100)
    place.write("n2", 1, 50)
    landed = place.land(max_rows=60)
    place.holds(n1=100, n2=50)
    batches = [event for event in place.events if event["event"] == "batch"]
    assert landed == sum(event["rows"] for event in batches)
    assert sum(event["tables"]["counts"] for event in batches) == len(place.rows("counts"))
    assert sum(event["tables"]["dead_letters"] for event in batches) == 30
    first = place.rows("temperature")[0]
    assert first["seq"] == 1
    assert (first["plant"], first["line"], first["value"], first["unit"]) == ("p1", 1, 0.125, "C")
    assert first["fahrenheit"] == 32.225
    # A division by zero is null, and no error that would stop the landing.
    assert first["tenth"] is None
    assert first["event_time"] == first["at"]
    assert (first["qos"], first["client_id"]) == (1, "sensor-1")
    bad = next(each for each in place.rows("dead_letters") if each["seq"] == 7)
    assert bad["table_name"] == "temperature"
    assert bad["reason"] == 'expected a number, found text "warm"'
    assert (bad["column_name"], bad["byte_offset"]) == ("value", None)
    assert bad["payload"] == b'{"value": "warm"}'
    assert (bad["topic"], bad["client_id"]) == ("site/p1/2/temp", "sensor-3")
    notes = read_landing_notes(open_root(str(place.root)), "all")
    assert sorted(note.table.rpartition("/")[2] for note in notes) == [
        *("counts", "current", "everything", "temperature")
    ]
    assert all(note.landed == {"n1": 100, "n2": 50} for note in notes)
    assert place.land() == 0
    place.write("n1", 101, 30)
    place.land()
    place.holds(n1=130, n2=50)
    # No checkpoint of an ended run stays.
    assert [each.name for each in (place.lake / "_checkpoints" / "_landing-all").iterdir()] == [
        "lock"
    ]


def test_a_table_that_failed_alone_gets_its_rows_later_and_the_others_none_twice(
    place: Place,
) -> None:
    place.write("n1", 1, 40)
    landing = place.landing(interval=0.1)
    problems: list[PipelineError] = []

    def run() -> None:
        try:
            landing.run(spark=place.spark)
        except PipelineError as problem:
            problems.append(problem)

    running = threading.Thread(target=run)
    running.start()
    try:
        wait_until(lambda: any(each["event"] == "batch" for each in place.events), running)
        # Another program changes one table, so that nothing can be added to it.
        counts = DeltaTable(str(place.lake / "counts"))
        counts.alter.add_constraint({"small": "value < 1000000"})
        place.write("n1", 41, 40)
        running.join(SPARK_PATIENCE)
    finally:
        landing.stop()
        landing.stop()
        running.join(SPARK_PATIENCE)
    (problem,) = problems
    assert "counts requires writer feature" in str(problem)
    assert len(place.rows("counts")) == 16
    assert len(place.rows("everything")) == 80
    DeltaTable(str(place.lake / "counts")).alter.drop_constraint("small")
    place.land()
    place.holds(n1=80)


def test_a_new_table_begins_with_the_record_and_the_others_stay_exact(place: Place) -> None:
    place.describe(FILE.replace('name = "counts"', 'name = "numbers"'))
    place.write("n1", 1, 40)
    place.land()
    place.describe(FILE)
    place.write("n1", 41, 20)
    place.land()
    assert len(place.rows("everything")) == 60
    assert [each["seq"] for each in place.rows("counts")] == [
        seq for seq in range(2, 61, 2) if seq % 10 != 8
    ]
    assert len(place.rows("temperature")) == 18


def test_dead_letters_are_retried_each_once_after_the_file_was_corrected(place: Place) -> None:
    place.write("n1", 1, 60)
    place.land()
    letters = {each["seq"] for each in place.rows("dead_letters")}
    assert letters == {seq for seq in range(1, 61) if seq % 10 in (7, 8)}
    # Values are not read any more, so that text is not bad.
    place.describe(
        FILE.replace("value DOUBLE NOT NULL, ", "")
        .replace("value * 9 / 5 + 32", "cast(line as double)")
        .replace('where = "value < 1000"', 'where = "line < 4"')
    )
    plan = place.plan()
    assert plan.file is not None
    before = place.rows("temperature")
    reports: list[RetryOutcome] = []
    (outcome,) = retry_dead_letters(
        place.spark, plan, [plan.file.table("temperature")], reports.append
    )
    # The lines of rows 7, 17, 27, … are 2.
    assert (outcome.landed, outcome.known, outcome.bad, outcome.waiting) == (6, 0, 0, 0)
    assert reports == [outcome]
    added = [each for each in place.rows("temperature") if each not in before]
    assert [each["seq"] for each in added] == [7, 17, 27, 37, 47, 57]
    assert {each["client_id"] for each in added} == {"sensor-3", "sensor-1"}
    # Those of the other table are still there, and a second retry finds nothing.
    assert {each["table_name"] for each in place.rows("dead_letters")} == {"counts"}
    (again,) = retry_dead_letters(
        place.spark, plan, [plan.file.table("temperature")], reports.append
    )
    assert again.landed == 0
    (counts,) = retry_dead_letters(place.spark, plan, [plan.file.table("counts")], reports.append)
    assert (counts.landed, counts.bad) == (0, 6)
    assert len(place.rows("dead_letters")) == 6


def test_a_check_says_what_each_table_would_get_and_what_is_for_none(place: Place) -> None:
    place.describe(FILE.partition('    [[table]]\n    name = "everything"')[0])
    place.write("n1", 1, 100)
    write_messages(place.root, "all", "n1", 101, 1, topic="nobody/knows", payload=b"x")
    found = check_landing(place.spark, place.plan(), 51)
    assert found.messages == 51
    temperature, counts = found.tables
    # Rows 51 to 100, and row 101, which is for no table.
    assert (temperature.taken, temperature.rows, temperature.left_out) == (25, 15, 5)
    assert (counts.taken, counts.rows, counts.left_out) == (25, 20, 0)
    (bad,) = temperature.bad
    assert (bad.count, bad.column) == (5, "value")
    assert bad.reason == 'expected a number, found text "warm"'
    assert temperature.columns["line"] == "bigint"
    assert temperature.sample[0]["plant"] in ("p0", "p1", "p2")
    assert (found.unmatched, found.unmatched_topics) == (1, ("nobody/knows",))
    assert not place.lake.exists()
    # With tables: what is new in them, and what they cannot take.
    place.land()
    place.describe(
        FILE.replace("unit STRING", "unit STRING, room INT").replace("value INT", "value DOUBLE")
    )
    found = check_landing(place.spark, place.plan(), 10)
    assert found.tables[0].new_columns == ("room",)
    assert found.tables[1].problem is not None
    assert found.tables[1].problem == (
        f"{place.lake}/counts: column value is integer in the table, but double in the rows; {FIX}"
    )
    place.describe(
        FILE.replace('columns = "value INT"', 'columns = "value INT"\n    partition_by = []')
    )
    (problem,) = [each.problem for each in check_landing(place.spark, place.plan(), 10).tables[1:2]]
    assert problem == f"{place.lake}/counts is partitioned by date, not by nothing; {FIX}"
    place.describe(FILE.replace("value INT", "value DOUBLE"))
    with pytest.raises(OptionError, match="column value is integer in the table"):
        place.land()
    place.describe(FILE.replace("unit STRING", "unit STRING, room INT"))
    place.land()
    assert place.rows("temperature")[0]["room"] is None


def test_columns_are_inferred_from_the_record(place: Place) -> None:
    place.write("n1", 1, 60)
    plan = place.plan()
    found = infer_table(place.spark, plan, parse_template("site/{plant}/{line:int}/temp"), 3)
    assert (found.name, found.decoder, found.messages) == ("temp", "json", 3)
    # The last of them are rows 59, 57 and 55, one of which has a text as its value.
    assert found.columns == "at TIMESTAMP, unit STRING, value STRING"
    numbers = infer_table(place.spark, plan, parse_template("count/2"), 1)
    assert (numbers.decoder, numbers.columns) == ("text", None)
    # Messages of another kind do not count: "many" makes no whole number a fraction.
    mixed = infer_table(place.spark, plan, parse_template("count/+"), 30)
    assert (mixed.columns, mixed.others, mixed.undecodable) == ("value BIGINT", 6, 6)
    assert others_line(mixed) == (
        "6 of them look like another format (text); number cannot decode them"
    )
    # Other decoders take more than what looks like their format.
    everything = infer_table(place.spark, plan, parse_template("#"), 60)
    assert (everything.decoder, everything.other_decoders) == ("json", ("number", "text"))
    assert (everything.others, everything.undecodable) == (30, 30)
    place.describe(found.as_toml())
    assert place.land() == 30
    with pytest.raises(PipelineError, match="none of the last messages"):
        infer_table(place.spark, plan, parse_template("nothing/#"), 10)


def test_keys_that_cannot_be_columns_are_left_out_of_an_inferred_table(place: Place) -> None:
    sent = {
        "v": 1,
        "V": 2.5,
        "a b": 1,
        "c=d": 1,
        "tab\t": 1,
        "": 1,
        "Topic": "x",
        "plant": "y",
        "ok": 1,
        "two.dots": 1,
        "é": 2,
        "both": {"x": 1, "X": 2},
        "list": [{"x": 1, "y": 2, "Y": 3}],
        "inner": {"x": {"x y": 1}, "y": 1},
    }
    write_messages(
        *(place.root, "all", "n1", 1, 3), topic="p/1/t", payload=json.dumps(sent).encode()
    )
    found = infer_table(place.spark, place.plan(), parse_template("p/{plant}/t"), 3)
    by_case = "another key differs by case only, which Delta ignores"
    rule = "Delta allows none of ' ,;{}()=' in a name"
    assert found.left_out == {
        **dict.fromkeys(("a b", "c=d", "tab\t"), rule),
        **dict.fromkeys(("Topic", "plant"), "the table has another column of this name"),
        **dict.fromkeys(("V", "v", "both.X", "both.x", "list.Y", "list.y"), by_case),
        "both": "none of its keys can be a column",
    }
    assert found.columns is not None
    for name in ("`two.dots` BIGINT", "`é` BIGINT", "ok BIGINT", "list array<struct<x:bigint>>"):
        assert name in found.columns
    lines = found.as_toml().splitlines()
    assert f'# left out of columns: "v": {by_case}' in lines
    assert f'# left out of columns: "tab\\t": {rule}' in lines
    place.describe(found.as_toml())
    (checked,) = check_landing(place.spark, place.plan(), 3).tables
    assert (checked.rows, checked.problem) == (3, None)
    assert place.land() == 3
    write_messages(*(place.root, "all", "n1", 4, 1), topic="p/2/t", payload=b'{"v": 1, "V": 2}')
    with pytest.raises(OptionError, match="no key of the JSON objects can be a column: "):
        infer_table(place.spark, place.plan(), parse_template("p/{plant}/t"), 1)


def test_a_table_can_be_filled_from_a_row_on_and_the_landing_continues_it(place: Place) -> None:
    place.write("n1", 1, 40)
    place.describe(FILE.replace('name = "counts"', 'name = "numbers"'))
    place.land()
    place.describe(FILE)
    plan = place.plan()
    assert plan.file is not None
    only = dataclasses.replace(
        plan,
        file=plan.file.only("counts"),
        checkpoint=plan.checkpoint.with_name("_landing-backfill"),
        begin_at="21",
    )
    place.events.clear()
    Landing(only, place.events.append).run(once=True, spark=place.spark)
    # There are dead letters, but of other tables.
    ready = next(each for each in place.events if each["event"] == "ready")
    assert (len(place.rows("dead_letters")), ready["landed_before"]) == (10, 0)
    assert [each["seq"] for each in place.rows("counts")] == [22, 24, 26, 30, 32, 34, 36, 40]
    place.write("n1", 41, 10)
    place.land()
    assert [each["seq"] for each in place.rows("counts")][-4:] == [42, 44, 46, 50]
    assert len(place.rows("everything")) == 50


JSON_FILE = """
    [[table]]
    name = "typed"
    topic = "typed"
    decoder = "json"
    columns = '''
        d DOUBLE, i INT, l BIGINT, s STRING, b BOOLEAN, t TIMESTAMP, a ARRAY<INT>,
        r STRUCT<x: INT, y: ARRAY<STRUCT<z: DOUBLE>>>, m MAP<STRING, INT>, n DECIMAL(10, 2),
        z TIMESTAMP_NTZ'''

    [[table]]
    name = "free"
    topic = "free"
    decoder = "json_text"

    [[table]]
    name = "lines"
    topic = "lines"
    decoder = "csv"
    columns = "x INT, y STRING"
    separator = ";"

    [[table]]
    name = "amounts"
    topic = "amounts"
    decoder = "number"
    columns = "value DECIMAL(10, 2)"

    [[table]]
    name = "packed"
    topic = "packed"
    decoder = "cbor"
    compression = "gzip"
    columns = "x INT NOT NULL, y ARRAY<STRING>"

    [[table]]
    name = "words"
    topic = "words"
    decoder = "text"
"""
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NAIVE_NOON = datetime(2026, 3, 1, 12)
GOOD: dict[str, list[tuple[bytes, dict[str, Any]]]] = {
    "typed": [
        (b"{}", {"d": None, "i": None, "s": None}),
        (b' {"d": 1, "unknown": [[{}]]} \n', {"d": 1.0}),
        (b'{"d": -1.7976931348623157e308}', {"d": -1.7976931348623157e308}),
        (b'{"i": 2147483647, "l": -9223372036854775808}', {"i": 2**31 - 1, "l": -(2**63)}),
        (b'{"i": 1, "i": 2}', {"i": 2}),
        (b'{"s": "\xc3\xa9\\u0000", "b": true}', {"s": "é\x00", "b": True}),
        (b'{"a": [1, null, 3], "m": {"k": 1}}', {"a": [1, None, 3], "m": [("k", 1)]}),
        (
            b'{"r": {"x": 1, "y": [{"z": 0.5}, {}]}}',
            {"r": {"x": 1, "y": [{"z": 0.5}, {"z": None}]}},
        ),
        (b'{"n": 12345678.91, "s": 1.50}', {"n": Decimal("12345678.91"), "s": "1.50"}),
        (b'{"t": "2026-03-01T12:00:00", "z": "2026-03-01T12:00:00"}', {"t": NOON, "z": NAIVE_NOON}),
        (b'{"t": 1772366400}', {"t": NOON, "z": None}),
    ],
    "free": [(b'{"a": [1, {"b": null}]}', {"value": '{"a": [1, {"b": null}]}'}), (b"7", {})],
    "lines": [(b"1;x,y", {"x": 1, "y": "x,y"}), (b'2;"a;""b"""\r\n', {"x": 2, "y": 'a;"b"'})],
    "amounts": [(b" +1.50\n", {"value": Decimal("1.50")}), (b"1e3", {"value": Decimal(1000)})],
    "packed": [(gzip.compress(cbor2.dumps({"x": 7, "y": ["é"]})), {"x": 7, "y": ["é"]})],
    "words": [("é".encode(), {"value": "é"}), (b"", {"value": ""})],
}
BAD: dict[str, list[tuple[bytes, str, str | None, int | None]]] = {
    "typed": [
        (b"", "the payload is empty", None, None),
        (b"\xff", "the payload is not UTF-8", None, 0),
        (b'{"s": "\xc3"}', "the payload is not UTF-8", None, 7),
        (b"nonsense", "not JSON: Expecting value", None, 0),
        (b'{"d": 1', "not JSON: Expecting ',' delimiter", None, 7),
        (b"{'d': 1}", "not JSON: Expecting property name enclosed in double quotes", None, 1),
        (b'{"d": NaN}', "not JSON: NaN is not a JSON value", None, None),
        (b'{"d": 1} {"d": 2}', "not JSON: Extra data", None, 9),
        (b'{"d": 1},"x": 2', "not JSON: Extra data", None, 8),
        (b'{"d": 1}],"x": [2', "not JSON: Extra data", None, 8),
        (b"null", "expected a JSON object, found null", None, None),
        (b"7", "expected a JSON object, found the number 7", None, None),
        (b'[{"d": 1}]', "expected a JSON object, found an array", None, None),
        (b'{"d": "1"}', 'expected a number, found text "1"', "d", None),
        (b'{"d": 1e999}', "1e999 is too large for a double", "d", None),
        (b'{"i": 1.5}', "expected an integer, found the number 1.5", "i", None),
        (
            b'{"i": 2147483648}',
            "expected an integer from -2147483648 to 2147483647, found 2147483648",
            "i",
            None,
        ),
        (b'{"b": 1}', "expected true or false, found the number 1", "b", None),
        (b'{"t": "noon"}', 'expected a timestamp, found text "noon"', "t", None),
        (b'{"a": [1, "2"]}', 'expected an integer, found text "2"', "a[1]", None),
        (b'{"r": [1]}', "expected an object, found an array", "r", None),
        (b'{"r": {"y": [{"z": true}]}}', "expected a number, found true", "r.y[0].z", None),
        (b'{"m": {"k": "v"}}', 'expected an integer, found text "v"', 'm["k"]', None),
        (
            b'{"r": ' + b"[" * 5_000,
            "not JSON that can be read: it is nested too deeply",
            None,
            None,
        ),
    ],
    "free": [
        (b"{} {}", "not JSON: Extra data", None, 3),
        (b"", "the payload is empty", None, None),
    ],
    "lines": [
        (b"x;1", 'expected an integer, found text "x"', "x", None),
        (b"1;2;3", "expected 2 fields, found 3", None, None),
        (b"1;2\n3;4", "expected one record, found a line break", None, 3),
        (b"", "the payload is empty", None, None),
    ],
    "amounts": [
        (b"1.005", "expected a decimal with at most 10 digits, 2 after the point", "value", None),
        (b"NaN", "expected a decimal", "value", None),
        (b"\xff", "the payload is not UTF-8", None, 0),
    ],
    "packed": [
        (b"plain", "the payload is not valid gzip data", None, None),
        (gzip.compress(cbor2.dumps({"y": []})), "required column x is missing", "x", None),
        (gzip.compress(b"\xff"), "", None, None),
    ],
    "words": [(b"\xff", "the payload is not UTF-8", None, 0)],
}


def test_each_decoder_takes_what_is_right_and_says_where_the_rest_is_wrong(place: Place) -> None:
    place.describe(JSON_FILE)
    cases = [(name, payload) for name, good in GOOD.items() for payload, _ in good]
    cases += [(name, each[0]) for name, bad in BAD.items() for each in bad]
    write_messages(
        place.root,
        "all",
        "n1",
        1,
        len(cases),
        topic=lambda seq: cases[seq - 1][0],
        payload=lambda seq: cases[seq - 1][1],
    )
    place.land()
    for name, good in GOOD.items():
        rows = place.rows(name)
        assert [cases[row["seq"] - 1][1] for row in rows] == [payload for payload, _ in good]
        for row, (_, expected) in zip(rows, good, strict=True):
            assert {key: row[key] for key in expected} == expected
    letters = place.rows("dead_letters")
    for name, bad in BAD.items():
        mine = [each for each in letters if each["table_name"] == name]
        assert [each["payload"] for each in mine] == [each[0] for each in bad]
        for letter, (_, reason, column, byte) in zip(mine, bad, strict=True):
            assert reason in letter["reason"]
            assert (letter["column_name"], letter["byte_offset"]) == (column, byte), letter


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("value DOUBLE", "value DUBLE"), "table temperature: columns"),
        (("value * 9", "valu * 9"), "table temperature: computed.fahrenheit"),
        (('where = "value < 1000"', 'where = "value <"'), "table temperature: where"),
        (('event_time = "at"', 'event_time = "att"'), "table temperature: event_time"),
        (("value * 9", "sum(value) * 9"), "table temperature: computed.fahrenheit"),
        (("value * 9", "rank() over (order by value) * 9"), "table temperature: computed.fahr"),
        (("value * 9 / 5 + 32", "explode(array(value))"), "table temperature: computed.fahrenheit"),
        (("value * 9 / 5 + 32", "x -> x"), "table temperature: computed.fahrenheit"),
        (('where = "value < 1000"', 'where = "max(value) < 1000"'), "table temperature: where"),
        (("fahrenheit =", '"" ='), "table temperature: a column has an empty name"),
        (("unit STRING", "plant STRING"), "table temperature: two columns are called plant"),
        (("unit STRING", "Topic STRING"), "table temperature: two columns are called"),
        (
            ("unit STRING", "r STRUCT<x: INT NOT NULL>"),
            "table temperature: columns: r has a part that is NOT NULL",
        ),
        (
            ('columns = "value INT"', 'columns = "value INT, x INT"'),
            "table counts: decoder number gives one numeric column",
        ),
        (("partition_by = []", 'partition_by = ["day"]'), "there is no column day"),
    ],
)
def test_what_spark_does_not_understand_is_refused_with_table_and_key(
    place: Place, change: tuple[str, str], problem: str
) -> None:
    place.write("n1", 1, 10)
    assert change[0] in FILE
    place.describe(FILE.replace(*change))
    with pytest.raises(PipelineError) as caught:
        check_landing(place.spark, place.plan(), 10)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_invalid_regular_expression_is_a_sentence(place: Place) -> None:
    place.write("n1", 1, 10)
    for pattern in ("[", "[CF]"):
        text = FILE.replace('where = "value < 1000"', f"where = \"unit rlike '{pattern}'\"")
        place.describe(text)
        if pattern == "[":
            for run in (place.land, lambda: checked(place)):
                with pytest.raises(PipelineError) as caught:
                    run()
                assert "has an invalid regular expression: Unclosed character class" in str(
                    caught.value
                )
                assert "\n" not in str(caught.value)
        else:
            assert place.land() > 0


def checked(place: Place) -> None:
    """What `semel land check` does."""
    plan = place.plan()
    with spark_errors(plan):
        check_landing(place.spark, plan, 10)


def test_names_of_columns_may_need_quotes(place: Place) -> None:
    place.describe(
        """
        [[table]]
        name = "units"
        topic = "units"
        decoder = "json"
        columns = "`the-unit` STRING, inner STRUCT<`a b`: INT>"
        computed = { length = "length(`the-unit`) + inner.`a b`" }
        """
    )
    write_messages(
        place.root,
        "all",
        "n1",
        1,
        1,
        topic=lambda _: "units",
        payload=lambda _: b'{"the-unit": "km", "inner": {"a b": 5}}',
    )
    place.land()
    (row,) = place.rows("units")
    assert (row["the-unit"], row["inner"], row["length"]) == ("km", {"a b": 5}, 7)


def test_aggregates_of_a_stream_land_by_key_and_each_batch_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = str(tmp_path / "lake" / "totals")
    write = upsert(table, key="k", app_id="totals")
    source = tmp_path / "in"

    def run(checkpoint: str) -> None:
        totals = (
            spark.readStream.schema("id long")
            .parquet(str(source))
            .groupBy((functions.col("id") % 3).alias("k"))
            .agg(functions.count("*").alias("n"))
        )
        query = totals.writeStream.outputMode("update").foreachBatch(write)
        query = query.option("checkpointLocation", str(tmp_path / checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    def found() -> dict[int, int]:
        rows = DeltaTable(table).to_pyarrow_table().to_pylist()
        assert len({row["k"] for row in rows}) == len(rows)
        return {row["k"]: row["n"] for row in rows}

    spark.range(9).write.parquet(str(source))
    run("checkpoint")
    assert found() == {0: 3, 1: 3, 2: 3}
    spark.createDataFrame([(4,), (7,)], "id long").write.mode("append").parquet(str(source))
    run("checkpoint")
    assert found() == {0: 3, 1: 5, 2: 3}
    # A batch that is there already is not written again.
    version = DeltaTable(table).version()
    write(spark.createDataFrame([(1, 99)], "k long, n long"), 1)
    assert DeltaTable(table).version() == version


# Functions of Spark that raise errors without ANSI mode, too, by the payload of the second message.
RAISING = {
    "overflow": "timestamp_seconds(t)",
    "place": "element_at(array(1, 2), cast(t as int) - 1772366400)",
    "text": "to_number(s, '99')",
    "variant": "cast(parse_json(s) as string)",
    "pattern": "regexp_replace('abc', s, 'x')",
    "zone": "from_utc_timestamp(timestamp'2026-03-01 12:00:00', s)",
    "step": "sequence(1, 5, cast(s as int))",
    "percent": "url_decode(concat('%', s))",
}


def test_an_expression_that_raises_an_error_gives_null_and_stops_nothing(place: Place) -> None:
    """One message must not end the landing of all tables, again and again."""
    computed = ", ".join(f'{name} = "{text}"' for name, text in RAISING.items())
    table = """
        [[table]]
        name = "NAME"
        topic = "t"
        decoder = "json"
        columns = "t BIGINT, s STRING, readings ARRAY<STRUCT<u: BIGINT>>"
        EXTRA
    """
    expressions = f"""
        event_time = "timestamp_seconds(t)"
        late_after = "1h"
        computed = {{ {computed} }}
    """
    extras = {
        "whole": expressions,
        "chosen": expressions + "where = \"timestamp_seconds(t) > timestamp'2020-01-01'\"",
        # Spark would evaluate equal parts of an expression once, before it.
        "filtered": 'where = "year(timestamp_seconds(t)) + hour(timestamp_seconds(t)) > 0"',
        "parts": 'explode = "readings"\n        event_time = "timestamp_seconds(u)"',
    }
    place.describe(
        "".join(
            textwrap.dedent(table).replace("NAME", name).replace("EXTRA", textwrap.dedent(extra))
            for name, extra in extras.items()
        )
    )
    good = b'{"t": 1772366402, "s": "1", "readings": [{"u": 1772366402}]}'
    bad = (
        b'{"t": 1772366400000000000, "s": "[", "readings": [{"u": 1772366400000000000}, {"u": 1}]}'
    )
    write_messages(
        place.root,
        "all",
        "n1",
        1,
        3,
        topic=lambda _: "t",
        payload=lambda seq: bad if seq == 2 else good,
    )
    place.land()
    first, second, third = place.rows("whole")
    assert [second[name] for name in (*RAISING, "event_time", "late")] == [None] * 10
    times = {each["event_time"] for each in (first, third)}
    assert times == {datetime(2026, 3, 1, 12, 0, 2, tzinfo=UTC)}
    # The payload of the others is neither a zone nor two digits.
    assert [name for name in RAISING if first[name] is None] == ["zone", "percent"]
    for name in ("chosen", "filtered"):
        assert [each["seq"] for each in place.rows(name)] == [1, 3]
    assert [(each["seq"], each["event_time"] is None) for each in place.rows("parts")] == [
        (1, False),
        (2, True),
        (2, False),
        (3, False),
    ]
    assert not (place.lake / "dead_letters").exists()
    checked = {
        each.table: each.rows for each in check_landing(place.spark, place.plan(), 10).tables
    }
    assert checked == {"whole": 3, "chosen": 2, "filtered": 2, "parts": 4}
