"""One row for each element of an array: `explode` of a landing file, and `late_after` beside it."""

import dataclasses
import json
import re
import textwrap
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import cbor2
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from semel.pipeline import exploded_rows
from semel.pipeline.coverage import Span
from semel.pipeline.dead_letter_retry import RetryOutcome, retry_dead_letters
from semel.pipeline.dead_letters import count_messages, schema_json
from semel.pipeline.errors import OptionError
from semel.pipeline.files import DataFile
from semel.pipeline.landing import Landing
from semel.pipeline.landing_check import check_landing, infer_table
from semel.pipeline.landing_file import read_landing_file
from semel.pipeline.table_rows import (
    TableShape,
    needed_columns,
    rows_of_tables,
    without_ansi,
)
from semel.pipeline.table_split import TableSplit
from semel.pipeline.tables_sink import RowSplitter, TablesPlan, commit_table
from semel.pipeline.topic_template import parse_template
from semel.store.segments import table_of
from tests.pipeline.made import START, received_at, write_messages
from tests.pipeline.spark.test_landing_file_spark import Place

READINGS = """
    [[table]]
    name = "readings"
    topic = "site/{plant}/readings"
    decoder = "json"
    columns = "device STRING, readings ARRAY<STRUCT<t: BIGINT, v: DOUBLE>>"
    explode = "readings"
"""
PAGE = Path(__file__).parents[3] / "docs" / "data" / "landing-file.md"
EVERYTHING = """
    [[table]]
    name = "everything"
    topic = "#"
"""


class MadeRows:
    """What a landing file makes of messages, without a landing."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._path = folder / "landing.toml"
        self.shapes: list[TableShape] = []
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.bad: dict[str, list[dict[str, Any]]] = {}
        self.arrow = pa.table({})

    def make(self, text: str, *payloads: bytes | object, topic: str = "site/a/readings") -> None:
        """Decode payloads, which are messages 1, 2 and so on; an object is sent as JSON."""
        self._path.write_text(textwrap.dedent(text))
        tables = read_landing_file(self._path).tables
        sent = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in payloads]
        micros = [int(received_at(seq).timestamp() * 1_000_000) for seq in range(len(sent) + 1)]
        record = table_of(
            [
                (seq, micros[seq], 1, seq, 5, "sensor", None, topic, None, payload)
                for seq, payload in enumerate(sent, 1)
            ],
            "n1",
        )
        messages = self._spark.createDataFrame(record.select(needed_columns(tables)))
        with without_ansi(self._spark):
            frame, self.shapes = rows_of_tables(messages, tables, {})
            self.arrow = frame.toArrow()
        self.rows, self.bad = {}, {}
        for place, shape in enumerate(self.shapes):
            rows, letters = TableSplit(place, shape, "all").split(self.arrow)
            self.rows[shape.name] = rows.to_pylist()
            self.bad[shape.name] = letters.to_pylist()

    def values(self, *names: str, table: str = "readings") -> list[tuple[Any, ...]]:
        """These columns of all rows of a table."""
        return [tuple(row[name] for name in names) for row in self.rows[table]]


@pytest.fixture
def made(spark: SparkSession, tmp_path: Path) -> MadeRows:
    return MadeRows(spark, tmp_path)


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


# --- rows -----------------------------------------------------------------------------------------


def test_each_element_is_a_row_with_its_place_and_the_other_columns(made: MadeRows) -> None:
    made.make(
        READINGS + EVERYTHING,
        {"device": "a", "readings": [{"t": 1, "v": 2.5}, {"t": 2, "v": 2.6}]},
        {"device": "b", "readings": []},
        {"device": "c", "readings": None},
        {"device": "d"},
        {"device": "e", "readings": [None, {"v": 1}, {}]},
        {"device": "f", "readings": [{"t": "soon"}]},
    )
    assert made.values("seq", "part", "plant", "device", "t", "v") == [
        (1, 0, "a", "a", 1, 2.5),
        (1, 1, "a", "a", 2, 2.6),
        (5, 0, "a", "e", None, None),
        (5, 1, "a", "e", None, 1.0),
        (5, 2, "a", "e", None, None),
    ]
    names = ["seq", "node", "received", "topic", "plant", "device", "part", "t", "v", "date"]
    assert list(made.rows["readings"][0]) == names
    assert made.arrow.schema.field("row_0").type.field("part").type == pa.int32()
    # A message without elements is no dead letter, and another table gets each message once.
    (bad,) = made.bad["readings"]
    assert (bad["seq"], bad["column_name"]) == (6, "readings[0].t")
    assert [seq for (seq,) in made.values("seq", table="everything")] == [1, 2, 3, 4, 5, 6]
    assert all(row["payload"] for row in made.rows["everything"])


def test_the_example_of_the_page_becomes_the_rows_that_it_shows(made: MadeRows) -> None:
    section = PAGE.read_text().partition("## Many readings in one message")[2]
    blocks = re.findall(r"```(?:toml|json)?\n(.*?)```", section, re.DOTALL)
    file, message, answer = blocks[:3]
    made.make(file, message.encode())
    names = ("seq", "part", "device", "t", "v", "event_time", "late")
    shown = [line.split() for line in answer.splitlines()[1:]]
    assert shown[0] == list(names)
    found = [
        [
            str(each)
            for each in (*row[:-2], f"{row[-2]:%Y-%m-%dT%H:%M:%S.%fZ}", str(row[-1]).lower())
        ]
        for row in made.values(*names)
    ]
    assert found == shown[1:]


def test_elements_that_are_not_structs_are_a_column_with_the_name_of_the_array(
    made: MadeRows,
) -> None:
    def of(kind: str) -> str:
        return READINGS.replace("STRUCT<t: BIGINT, v: DOUBLE>", kind)

    made.make(of("DOUBLE"), {"device": "a", "readings": [1, None, 3.5]})
    assert made.values("part", "readings") == [(0, 1.0), (1, None), (2, 3.5)]
    made.make(of("ARRAY<INT>"), {"readings": [[1, 2], [], None]})
    assert made.values("part", "readings") == [(0, [1, 2]), (1, []), (2, None)]
    made.make(of("MAP<STRING, INT>"), {"readings": [{"x": 1}]})
    assert made.values("part", "readings") == [(0, [("x", 1)])]
    # There is no other column, neither of the payload nor of the topic.
    alone = of("INT").replace("device STRING, ", "").replace("{plant}", "+")
    made.make(alone, {"readings": [7]})
    assert made.values("seq", "part", "readings") == [(1, 0, 7)]


def test_a_constant_is_allowed_beside_messages_of_other_tables(made: MadeRows) -> None:
    other = READINGS.replace("site/{plant}/readings", "elsewhere").replace("explode", "# explode")
    for text in (READINGS, other):
        made.make(
            text + EVERYTHING.replace("[[table]]", 'computed = { x = "array(1)" }\n[[table]]'), {}
        )
        assert made.rows["readings"] == []
        assert made.shapes[0].schema.count('"nullable":false') == 0


def test_other_decoders_give_arrays_too(made: MadeRows) -> None:
    text = READINGS.replace('"json"', '"cbor"')
    sent = {"device": "a", "readings": [{"t": 1, "v": 0.5}, {"t": 2}]}
    made.make(text, cbor2.dumps(sent), cbor2.dumps({"device": "b"}))
    assert made.values("seq", "part", "t", "v") == [(1, 0, 1, 0.5), (1, 1, 2, None)]


def test_expressions_see_the_columns_of_an_element_by_name(made: MadeRows) -> None:
    # Names of elements, of the message and of the record; functions whose variables hide them.
    computed = {
        "doubled": "v * 2",
        "all_together": "concat(device, '-', `T`, '-', part, '-', seq, '-', plant)",
        "quoted": "upper(`unit`)",
        "field": "x.y + X.Y",
        "hidden": "transform(array(1, 2), t -> t + coalesce(v, 0))",
        "nested": "aggregate(array(1, 2), 0D, (v, t) -> v + t) + t",
        "fixed": "named_struct('a', array(1))",
        "chosen": "case when exists(array(t), e -> e = part) then 'same' else 'other' end",
    }
    given = ", ".join(f'{name} = "{each}"' for name, each in computed.items())
    kinds = "v: DOUBLE, `unit`: STRING, x: STRUCT<y: INT>"
    made.make(
        READINGS.replace("v: DOUBLE", kinds)
        + f"""
    event_time = "timestamp_seconds(T + part)"
    where = "V is null or v > 1"
    computed = {{ {given} }}
    """,
        {
            "device": "a",
            "readings": [
                {"t": 0, "v": 2, "unit": "c", "x": {"y": 3}},
                {"t": 2, "v": 1},
                {"t": 3},
                None,
            ],
        },
    )
    assert made.values("part", "doubled", "all_together", "quoted", "field") == [
        (0, 4.0, "a-0-0-1-a", "C", 6),
        (2, None, "a-3-2-1-a", None, None),
        (3, None, None, None, None),
    ]
    assert made.values("hidden", "nested", "chosen") == [
        ([3.0, 4.0], 3.0, "same"),
        ([1.0, 2.0], 6.0, "other"),
        ([1.0, 2.0], None, "other"),
    ]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    seconds = [row["event_time"] and row["event_time"] - epoch for row in made.rows["readings"]]
    assert seconds == [timedelta(seconds=0), timedelta(seconds=5), None]


def test_several_tables_explode_the_same_message_each_on_its_own(made: MadeRows) -> None:
    second = READINGS.replace('name = "readings"', 'name = "alarms"')
    second = second.replace("readings ARRAY<STRUCT<t: BIGINT, v: DOUBLE>>", "alarms ARRAY<STRING>")
    second = second.replace('explode = "readings"', 'explode = "alarms"\n    where = "part > 0"')
    whole = READINGS.replace('name = "readings"', 'name = "whole"').replace("explode", "# explode")
    made.make(
        READINGS + whole + second,
        {"readings": [{"t": 1}, {"t": 2}], "alarms": ["x", "y", "z"]},
        {"readings": [{"t": 3}]},
        {"alarms": ["x", "y"]},
        {"alarms": [1, {}], "readings": [{"t": 4}]},
        {"alarms": ["x", "y"], "readings": 7},
    )
    assert made.values("seq", "part", "t") == [(1, 0, 1), (1, 1, 2), (2, 0, 3), (4, 0, 4)]
    assert made.values("seq", "part", "alarms", table="alarms") == [
        *((1, 1, "y"), (1, 2, "z"), (3, 1, "y"), (4, 1, "{}"), (5, 1, "y"))
    ]
    assert [seq for (seq,) in made.values("seq", table="whole")] == [1, 2, 3, 4]
    assert made.rows["whole"][0]["readings"] == [{"t": 1, "v": None}, {"t": 2, "v": None}]
    assert [each["seq"] for each in made.bad["readings"]] == [5]
    assert [each["seq"] for each in made.bad["whole"]] == [5]
    assert not made.bad["alarms"]
    # There is one row for each message and for each element.
    assert made.arrow.num_rows == 5 + 2 + 1 + 1 + 3 + 2 + 2 + 2
    assert count_messages(made.arrow) == 5


def test_a_required_array_that_is_null_is_a_dead_letter_and_an_empty_one_is_not(
    made: MadeRows,
) -> None:
    text = READINGS.replace("v: DOUBLE>>", "v: DOUBLE>> NOT NULL")
    made.make(text, {"readings": None}, {}, {"readings": []}, {"readings": [{"t": 1}]})
    assert [(each["seq"], each["column_name"]) for each in made.bad["readings"]] == [
        *((1, "readings"), (2, "readings"))
    ]
    assert made.values("seq", "part") == [(4, 0)]


def test_a_message_with_too_many_elements_is_a_dead_letter(
    made: MadeRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exploded_rows, "MAX_ELEMENTS", 5_000)
    many = [{"t": each} for each in range(5_001)]
    made.make(READINGS + EVERYTHING, {"readings": many}, {"readings": many[1:]})
    (bad,) = made.bad["readings"]
    assert (bad["seq"], bad["column_name"]) == (1, "readings")
    assert bad["reason"] == "expected at most 5,000 elements, found 5,001"
    assert json.loads(bad["payload"])["readings"] == many
    assert made.values("seq", "part", "t") == [(2, part, part + 1) for part in range(5_000)]
    assert len(made.rows["everything"]) == 2


def test_a_message_whose_elements_would_repeat_a_long_text_is_a_dead_letter(
    made: MadeRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exploded_rows, "MAX_REPEATED_BYTES", 8 * 1024 * 1024)
    many = [{"t": each} for each in range(2_000)]
    made.make(
        READINGS,
        {"device": "x" * 5_000, "readings": many},
        {"device": "x" * 500, "readings": many},
        # Few elements may repeat anything.
        {"device": "x" * 50_000, "readings": many[:1_000]},
    )
    (bad,) = made.bad["readings"]
    assert (bad["seq"], bad["column_name"]) == (1, "readings")
    assert bad["reason"] == (
        "the other columns would have more than 8 MiB in all rows of 2,000 elements"
    )
    assert Counter(seq for (seq,) in made.values("seq")) == {2: 2_000, 3: 1_000}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (('explode = "readings"', 'explode = "reading"'), "explode: there is no column reading: "),
        (('explode = "readings"', 'explode = "device"'), "explode: column device is string, and "),
        (("t: BIGINT", "Device: BIGINT"), "explode: two columns are called "),
        (("t: BIGINT", "plant: BIGINT"), "explode: two columns are called plant"),
        (("t: BIGINT", "SEQ: BIGINT"), "explode: two columns are called seq"),
        (("t: BIGINT", "V: BIGINT"), "column readings[].V appears twice in the schema"),
        (("t: BIGINT", "part: BIGINT"), "explode: two columns are called part"),
        (("device STRING", "part STRING"), "explode: two columns are called part"),
        (
            ("explode =", 'computed = { t = "1" }\n    explode ='),
            "explode: two columns are called t",
        ),
        (("explode =", 'computed = { u = "readings" }\n    explode ='), "computed.u 'readings'"),
        (("explode =", 'where = "t >"\n    explode ='), "where 't >'"),
        (("explode =", 'event_time = "parts"\n    explode ='), "event_time 'parts'"),
        (("explode =", 'partition_by = ["v"]\n    explode ='), "partition_by: v: cannot "),
    ],
)
def test_an_explode_that_makes_no_sense_is_refused_with_table_and_key(
    made: MadeRows, change: tuple[str, str], problem: str
) -> None:
    assert change[0] in READINGS
    with pytest.raises(OptionError) as caught:
        made.make(READINGS.replace(*change), {})
    assert f"table readings: {problem}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        ("t: BIGINT", "readings: BIGINT"),
        ("t: BIGINT", "parts: BIGINT"),
        ("device STRING, ", ""),
        ("explode =", 'computed = { u = "t" }\n    explode ='),
        ("explode =", 'partition_by = ["part"]\n    explode ='),
        ("explode =", 'latest_by = ["t"]\n    explode ='),
    ],
)
def test_what_is_like_a_refused_explode_and_right_is_accepted(
    made: MadeRows, change: tuple[str, str]
) -> None:
    assert change[0] in READINGS
    made.make(READINGS.replace(*change), {"device": "a", "readings": [{"v": 1}, {"v": 2}]})
    assert made.values("part", "v") == [(0, 1.0), (1, 2.0)]


# --- late -----------------------------------------------------------------------------------------


def test_a_message_is_late_if_it_is_received_long_after_its_event_time(made: MadeRows) -> None:
    text = """
    [[table]]
    name = "readings"
    topic = "site/{plant}/readings"
    decoder = "json"
    columns = "at TIMESTAMP"
    event_time = "at"
    late_after = "10m"
    """
    # Message 1 is received a millisecond after START.
    limit = START + timedelta(milliseconds=1) - timedelta(minutes=10)
    times = [limit, limit + timedelta(milliseconds=1), START + timedelta(days=365), None]
    shown = [None if each is None else each.isoformat() for each in times]
    made.make(text, *({"at": each} for each in shown))
    # Received 10 minutes after it, and with each message a millisecond later.
    assert made.values("seq", "late") == [(1, False), (2, False), (3, False), (4, None)]
    made.make(text, *({"at": shown[0]} for _ in range(2)), {"at": "0001-01-01T00:00:00Z"})
    assert made.values("seq", "late") == [(1, False), (2, True), (3, True)]
    names = list(made.rows["readings"][0])
    assert names[-3:] == ["event_time", "late", "date"]
    made.make(text.replace('"10m"', "0.5"), {"at": START.isoformat()})
    assert made.values("late") == [(False,)]


def test_each_element_is_late_or_not(made: MadeRows) -> None:
    begin = int(START.timestamp())
    text = READINGS + '    event_time = "timestamp_seconds(t)"\n    late_after = "1h"\n'
    made.make(text, {"readings": [{"t": begin}, {"t": begin - 3_600}, {"t": None}, None]})
    assert made.values("part", "late") == [(0, False), (1, True), (2, None), (3, None)]


def test_a_column_that_is_called_late_is_refused_beside_late_after(made: MadeRows) -> None:
    text = READINGS.replace("device STRING", "late STRING")
    made.make(text + '    event_time = "received"\n', {"late": "x", "readings": [{}]})
    assert made.values("late") == [("x",)]
    with pytest.raises(OptionError, match="table readings: two columns are called late"):
        made.make(text + '    event_time = "received"\n    late_after = 60\n', {})


# --- landing --------------------------------------------------------------------------------------

FILE = (
    READINGS.replace('explode = "readings"', 'explode = "readings"\n    where = "v < 100"')
    + """
    [[table]]
    name = "newest"
    topic = "site/{plant}/readings"
    decoder = "json"
    columns = "device STRING, readings ARRAY<STRUCT<t: BIGINT, v: DOUBLE>>"
    explode = "readings"
    latest_by = ["device", "t"]
    """
    + EVERYTHING
)


def payload(seq: int) -> bytes:
    """Message `seq` has `seq % 4` readings; every tenth is bad, and every seventh has 100 first."""
    if seq % 10 == 0:
        return b'{"readings": 7}'
    readings = [{"t": part % 2, "v": seq / 8 + part} for part in range(seq % 4)]
    if seq % 7 == 0:
        readings = [{"t": 0, "v": 100}, *readings]
    return json.dumps({"device": f"d{seq % 3}", "readings": readings}).encode()


def expected(last: int) -> Counter[tuple[int, int]]:
    """(seq, part) of the rows of `readings` of the messages 1 to `last`."""
    found: Counter[tuple[int, int]] = Counter()
    for seq in range(1, last + 1):
        if seq % 10:
            readings = json.loads(payload(seq))["readings"]
            found.update((seq, part) for part, each in enumerate(readings) if each["v"] < 100)
    return found


def write(place: Place, first: int, count: int) -> None:
    write_messages(place.root, "all", "n1", first, count, topic="site/a/readings", payload=payload)


def parts_in(place: Place, table: str = "readings") -> Counter[tuple[int, int]]:
    return Counter((row["seq"], row["part"]) for row in place.rows(table))


def holds(place: Place, last: int) -> None:
    """All tables have what is for them of the messages 1 to `last`, each part once."""
    assert parts_in(place) == expected(last)
    assert Counter(row["seq"] for row in place.rows("everything")) == Counter(range(1, last + 1))
    newest: dict[tuple[str, int], tuple[int, int]] = {}
    for seq in range(1, last + 1):
        if seq % 10:
            found = json.loads(payload(seq))
            for part, each in enumerate(found["readings"]):
                newest[(found["device"], each["t"])] = (seq, part)
    assert parts_in(place, "newest") == Counter(newest.values())
    dead = Counter((row["table_name"], row["seq"]) for row in place.rows("dead_letters"))
    assert dead == Counter(
        (table, seq) for table in ("readings", "newest") for seq in range(10, last + 1, 10)
    )


def test_each_part_lands_once_and_can_be_checked_retried_and_backfilled(place: Place) -> None:
    place.describe(FILE)
    write(place, 1, 60)
    found = check_landing(place.spark, place.plan(), 60)
    assert (found.messages, found.unmatched) == (60, 0)
    readings, newest, everything = found.tables
    # Every fourth message is empty, and every tenth is bad.
    assert (readings.taken, readings.rows) == (60, expected(60).total())
    with_rows = len({seq for seq, _ in expected(60)})
    assert (readings.left_out, readings.bad[0].count) == (60 - 6 - with_rows, 6)
    assert newest.rows > readings.rows
    assert (everything.taken, everything.rows, everything.left_out) == (60, 60, 0)
    assert readings.columns["part"] == "int"
    assert readings.sample[0]["part"] in (0, 1, 2)
    place.land(max_rows=25)
    holds(place, 60)
    write(place, 61, 20)
    place.land()
    holds(place, 80)
    # Another table that is new begins with the record, and the others stay exact.
    second = READINGS.replace('name = "readings"', 'name = "second"')
    place.describe(FILE + second)
    plan = place.plan()
    assert plan.file is not None
    only = dataclasses.replace(
        plan,
        file=plan.file.only("second"),
        checkpoint=plan.checkpoint.with_name("_landing-backfill"),
        begin_at="21",
    )
    Landing(only, place.events.append).run(once=True, spark=place.spark)
    write(place, 81, 10)
    place.land()
    assert parts_in(place) == expected(90)
    assert {seq for seq, part in parts_in(place, "second") if part == 0} == {
        seq for seq in range(21, 91) if seq % 10 and json.loads(payload(seq))["readings"]
    }


def test_a_retried_message_lands_with_all_its_parts_once(place: Place) -> None:
    place.describe(READINGS.replace("v: DOUBLE", "v: INT"))
    sent = [
        {"device": "a", "readings": [{"t": 1, "v": 0.5}, {"t": 2, "v": 7}]},
        {"device": "a", "readings": [{"t": 3, "v": 7}]},
        {"device": "b", "readings": [{"t": 4, "v": 1.5}, {"t": 5, "v": -1}, {"t": 6, "v": 2}]},
        {"device": "c", "readings": "none"},
        {"device": "c", "readings": [{"t": 8, "v": -0.5}]},
    ]
    write_messages(
        *(place.root, "all", "n1", 1, len(sent)),
        topic="site/a/readings",
        payload=lambda seq: json.dumps(sent[seq - 1]).encode(),
    )
    place.land()
    assert parts_in(place) == Counter([(2, 0)])
    assert [row["seq"] for row in place.rows("dead_letters")] == [1, 3, 4, 5]
    # The column has another name, because a landing file does not change types.
    place.describe(
        READINGS.replace("t: BIGINT, v: DOUBLE", "t: BIGINT").replace(
            'explode = "readings"', 'explode = "readings"\n    where = "t not in (5, 8)"'
        )
    )
    plan = place.plan()
    assert plan.file is not None
    reports: list[RetryOutcome] = []
    (outcome,) = retry_dead_letters(place.spark, plan, plan.file.tables, reports.append)
    # Messages 1 and 3 with two of their parts each; 5 is left out by the filter; 4 is still bad.
    assert outcome == RetryOutcome("readings", landed=2, known=0, left_out=1, bad=1, waiting=0)
    landed = Counter([(1, 0), (1, 1), (2, 0), (3, 0), (3, 2)])
    assert parts_in(place) == landed
    assert [row["seq"] for row in place.rows("dead_letters")] == [4]
    (again,) = retry_dead_letters(place.spark, plan, plan.file.tables, reports.append)
    assert again == RetryOutcome("readings", bad=1)
    assert parts_in(place) == landed


def test_a_table_can_explode_after_it_had_whole_messages(place: Place) -> None:
    whole = READINGS.replace('explode = "readings"', 'latest_by = ["device"]')
    place.describe(whole)
    write(place, 1, 9)
    place.land()
    assert {row["device"] for row in place.rows("readings")} == {"d0", "d1", "d2"}
    place.describe(whole + '    explode = "readings"\n')
    (found,) = check_landing(place.spark, place.plan(), 9).tables
    assert (found.new_columns, found.problem) == (("part", "t", "v"), None)
    write(place, 10, 2)
    place.land()
    # Message 11 of d2 has three parts, and the last is the newest.
    rows = {row["device"]: row for row in place.rows("readings")}
    assert (rows["d2"]["seq"], rows["d2"]["part"], rows["d2"]["readings"]) == (11, 2, None)
    assert rows["d1"]["part"] is None
    assert rows["d1"]["readings"] is not None
    # The column of an element would have another type than the array.
    place.describe(
        READINGS.replace("ARRAY<STRUCT<t: BIGINT, v: DOUBLE>>", "ARRAY<INT>").replace(
            'explode = "readings"', 'latest_by = ["device"]\n    explode = "readings"'
        )
    )
    (found,) = check_landing(place.spark, place.plan(), 9).tables
    assert found.problem is not None
    assert "column readings is " in found.problem


def test_a_batch_that_is_repeated_adds_only_the_parts_that_a_table_lacks(
    made: MadeRows, tmp_path: Path
) -> None:
    sent = [json.loads(payload(seq)) for seq in range(1, 10)]
    made.make(FILE, *sent)
    write_messages(
        *(tmp_path / "root", "all", "n1", 1, len(sent)),
        topic="site/a/readings",
        payload=payload,
    )
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
    assert TablesPlan.from_json(plan.to_json()) == plan

    def files_of(last: int) -> list[list[DataFile]]:
        splitter = RowSplitter(plan)
        seqs = pa.array([seq <= last for seq in made.arrow.column("seq").to_pylist()])
        splitter.add(made.arrow.filter(seqs))
        return splitter.finish().rows

    def commit(files: list[list[DataFile]], place: int, last: int) -> None:
        covers: dict[str, Span] = {"n1": (1, last)}
        commit_table(plan, place, files[place], [], covers)

    def found(table: str) -> Counter[tuple[int, int]]:
        rows = DeltaTable(str(tmp_path / "lake" / table)).to_pyarrow_table().to_pylist()
        return Counter((row["seq"], row["part"]) for row in rows)

    # The first table is committed, and then the landing is killed: the next run repeats the batch
    # with more messages, because `covers` begins with the first message of the query.
    first = files_of(6)
    commit(first, 0, 6)
    commit(first, 0, 6)
    assert found("readings") == expected(6)
    again = files_of(9)
    for _ in range(2):
        commit(again, 0, 9)
        commit(again, 1, 9)
    assert found("readings") == expected(9)
    rows = made.values("seq", "part", "device", "t", table="newest")
    newest = {(device, t): (seq, part) for seq, part, device, t in sorted(rows)}
    assert found("newest") == Counter(newest.values())


def test_infer_suggests_to_explode_an_array_of_structs(place: Place) -> None:
    sent = {"device": "a", "readings": [{"t": 1, "v": 2.5}], "tags": ["x"]}
    write_messages(
        *(place.root, "all", "n1", 1, 3),
        topic="site/a/readings",
        payload=json.dumps(sent).encode(),
    )
    plan = dataclasses.replace(place.plan(), file=None)
    found = infer_table(place.spark, plan, parse_template("site/{plant}/readings"), 3)
    assert found.arrays == ("readings",)
    line = '# explode = "readings"  # a row for each element'
    assert line in found.as_toml().splitlines()
    place.describe(found.as_toml())
    assert place.land() == 3
    place.describe(
        found.as_toml().replace("# explode", "explode").replace('"readings"', '"rows"', 1)
    )
    (checked,) = check_landing(place.spark, place.plan(), 3).tables
    assert (checked.table, checked.rows) == ("rows", 3)
    assert checked.columns["v"] == "double"
