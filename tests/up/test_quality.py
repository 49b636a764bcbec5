"""Device quality is measured from hand-made records whose defects are known."""

import json
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from semel.mqtt.topics import check_topic_filter, topic_matches
from semel.mqtt.violation import Violation
from semel.store.roots import open_root
from semel.store.segment_writer import write_segment
from semel.store.segments import table_of
from semel.up.quality import (
    QualityTotals,
    find_source,
    measure,
    received_times,
)
from semel.up.quality_sql import BUCKETS, QualityQuery, is_json_path, topic_pattern
from semel.up.sql import LakeSql, RecordLocation, SqlError
from tests.up.landed import land_rows, with_date

SECOND = 1_000_000
# 2026-03-01T12:00:00Z, the begin of the range of an hour.
BEGIN = 1_772_366_400 * SECOND
HOUR = 3_600 * SECOND
DUP = 1 << 3

# A message: seconds after BEGIN, payload, and what differs from the default.
Message = tuple[float, bytes | str | dict[str, object]]


class MadeRecord:
    """A record of hand-made messages, in one segment per node."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.root.mkdir()
        self.lake = folder / "lake"
        self._rows: dict[str, list[tuple[Any, ...]]] = {}

    def add(
        self,
        messages: Sequence[Message],
        *,
        client_id: str | None = "c",
        topic: str = "t",
        node: str = "n1",
        dup: bool = False,
    ) -> None:
        rows = self._rows.setdefault(node, [])
        for seconds, content in messages:
            payload = content
            if isinstance(content, dict):
                payload = json.dumps(content)
            if isinstance(payload, str):
                payload = payload.encode()
            at = BEGIN + round(seconds * SECOND)
            flags = 1 | (DUP if dup else 0)
            row = (len(rows) + 1, at, flags, 7, 5, client_id, None, topic, None, payload)
            rows.append(row)

    def seal(self, *, landed: int = 0) -> None:
        """Write the segments, and land the first rows of node n1."""
        for node, rows in self._rows.items():
            table = table_of(rows, node)
            tables = partial(iter, [table])
            write_segment(open_root(self.root), "plant", node, tables, first=1, last=len(rows))
            if landed and node == "n1":
                land_rows(self.lake, with_date(table.slice(0, landed)))

    def sql(self) -> LakeSql:
        self.lake.mkdir(exist_ok=True)
        record = RecordLocation(str(self.root), None, "plant", "messages")
        return LakeSql(str(self.lake), record=record)

    def measured(self, **options: Any) -> list[dict[str, Any]]:
        if not any(self.root.iterdir()):
            self.seal()
        query = QualityQuery(**{"begin": BEGIN, "end": BEGIN + HOUR, **options})
        with self.sql() as sql:
            source, note = find_source(sql, str(self.lake), "messages")
            assert note is None
            with measure(sql, source, query) as result:
                return [row for batch in result.batches for row in batch.to_pylist()]

    def device(self, **options: Any) -> dict[str, Any]:
        (row,) = self.measured(**options)
        return row


@pytest.fixture
def made(tmp_path: Path) -> MadeRecord:
    return MadeRecord(tmp_path)


def numbered(*numbers: object, every: float = 10.0) -> list[Message]:
    return [(every * at, {"seq": number}) for at, number in enumerate(numbers)]


def at(*seconds: float) -> list[Message]:
    """Messages with different payloads at these times."""
    return [(each, f"{place:04}") for place, each in enumerate(seconds)]


# --- counts and rates -----------------------------------------------------------------------------


def test_messages_bytes_times_and_rate_are_those_of_the_range(made: MadeRecord) -> None:
    made.add([(-1, "before"), (0, "abc"), (30, "de"), (60, ""), (3_600, "at its end")])
    row = made.device()
    assert (row["client_id"], row["topic"]) == ("c", "t")
    assert (row["messages"], row["bytes"], row["per_minute"]) == (3, 5, 2.0)
    assert row["first_received"].isoformat() == "2026-03-01T12:00:00+00:00"
    assert row["last_received"].isoformat() == "2026-03-01T12:01:00+00:00"
    assert row["since_last"] == 3_540.0
    assert row["chart"] == [3] + [0] * (BUCKETS - 1)


def test_landed_and_recorded_messages_count_once_each(made: MadeRecord) -> None:
    made.add(numbered(*range(10)))
    made.seal(landed=6)
    row = made.device(sequence="$.seq")
    assert (row["messages"], row["missing"], row["repeats"]) == (10, 0, 0)


def test_one_message_has_no_rate_and_no_rhythm(made: MadeRecord) -> None:
    made.add(numbered(7))
    row = made.device(sequence="$.seq", event_time="$.at")
    unknown = ("per_minute", "rhythm", "longest_silence", "is_silent", "lateness_median")
    assert [row[name] for name in unknown] == [None] * 5
    assert (row["missing"], row["repeats"], row["size_outliers"]) == (0, 0, 0)
    assert (row["late"], row["without_time"]) == (0, 1)


def test_equal_times_have_no_rate_and_make_nothing_silent(made: MadeRecord) -> None:
    made.add(at(3_599, 3_599, 3_599))
    row = made.device()
    assert (row["per_minute"], row["rhythm"], row["silences"]) == (None, 0.0, 0)
    assert row["is_silent"] is False


def test_clients_and_topics_are_apart_and_a_client_may_be_unknown(made: MadeRecord) -> None:
    for client in ("a", "b", None):
        for topic in ("t", "u"):
            made.add(at(0, 1), client_id=client, topic=topic)
    found = [(row["client_id"], row["topic"], row["messages"]) for row in made.measured()]
    assert sorted(found, key=str) == sorted(
        [(client, topic, 2) for client in ("a", "b", None) for topic in ("t", "u")], key=str
    )


def test_the_chart_shows_when_messages_came(made: MadeRecord) -> None:
    made.add(at(0, 150, 150, 3_599))
    assert made.device()["chart"] == [1, 2] + [0] * 21 + [1]


# --- the sequence ---------------------------------------------------------------------------------

MEASURED = ("missing", "restarts", "out_of_order", "repeats", "without_number")


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        # missing, restarts, out of order, repeats, without a number
        ((1, 2, 3, 4), (0, 0, 0, 0, 0)),
        ((1, 2, 5, 6), (2, 0, 0, 0, 0)),
        ((5, 6, 9), (2, 0, 0, 0, 0)),
        # A late message fills its gap.
        ((1, 2, 4, 3, 5), (0, 0, 1, 0, 0)),
        ((1, 2, 5, 3, 6), (1, 0, 1, 0, 0)),
        # The same number again.
        ((1, 2, 2, 3), (0, 0, 0, 1, 0)),
        ((1, 2, 3, 1), (0, 0, 0, 1, 0)),
        ((2, 1, 1), (0, 0, 1, 1, 0)),
        # Restarts: to 0 to 10, by more than 10, or by more than 1,000.
        ((20, 21, 1, 2), (0, 1, 0, 0, 0)),
        ((20, 21, 10, 11), (0, 1, 0, 0, 0)),
        ((10, 11, 0, 1), (0, 1, 0, 0, 0)),
        ((9, 10, 0, 1), (7, 0, 2, 0, 0)),
        ((21, 22, 11), (9, 0, 1, 0, 0)),
        ((3_000, 1_999), (0, 1, 0, 0, 0)),
        ((3_000, 2_000), (999, 0, 1, 0, 0)),
        # The numbers of a run do not repeat those of another.
        ((100, 101, 0, 1, 3, 100, 101, 0, 1), (97, 2, 0, 0, 0)),
        # Other values.
        ((-3, -2, 0), (1, 0, 0, 0, 0)),
        ((-2, -13), (10, 0, 1, 0, 0)),
        ((1, "2", "4"), (1, 0, 0, 0, 0)),
        ((1, 2.0, 4.0), (1, 0, 0, 0, 0)),
        ((1, 2.5, "x", None, True, [3], "", 4), (2, 0, 0, 0, 6)),
        ((2**63 - 1, 2**63 + 1), (1, 0, 0, 0, 0)),
        ((2**64 - 1, 0, 1), (0, 1, 0, 0, 0)),
        ((2**64, -(2**63) - 1, 10**30, 1), (0, 0, 0, 0, 3)),
        ((2**31 - 1, -(2**31), 1 - 2**31), (0, 1, 0, 0, 0)),
        ((-(2**63), 2**64 - 1), (2**63 - 1, 0, 0, 0, 0)),
    ],
)
def test_numbers_are_counted(
    made: MadeRecord, numbers: tuple[object, ...], expected: tuple[int, ...]
) -> None:
    made.add(numbered(*numbers))
    row = made.device(sequence="$.seq")
    assert tuple(row[name] for name in MEASURED) == expected


def counted_plainly(numbers: Sequence[tuple[int, bool]]) -> tuple[int, int, int, int]:
    """Missing, restarts, out of order and repeats of numbers with DUP, one after the other."""
    missing = restarts = below = repeats = 0
    seen: set[int] = set()
    before: int | None = None
    for number, dup in numbers:
        fall = 0 if before is None else before - number
        if fall > 1_000 or (0 <= number <= 10 and fall > 10):
            restarts += 1
            missing += max(seen) - min(seen) + 1 - len(seen)
            seen = set()
        if number in seen:
            repeats += not dup
        elif seen and number < max(seen):
            below += 1
        seen.add(number)
        before = number
    return missing + max(seen) - min(seen) + 1 - len(seen), restarts, below, repeats


def test_numbers_of_any_devices_are_counted_as_one_by_one(made: MadeRecord) -> None:
    chance = random.Random(3)
    expected = {}
    for device in range(60):
        number, series = chance.randrange(-5, 30), []
        for _ in range(chance.randrange(1, 80)):
            series.append((number, chance.random() < 0.2))
            step = chance.choice((1, 1, 1, 1, 0, -1, 2, 3, -3, 900, -900, -1_100, None))
            number = chance.randrange(13) if step is None else number + step
        for place, (each, dup) in enumerate(series):
            made.add([(10.0 * place, {"seq": each})], client_id=str(device), dup=dup)
        expected[str(device)] = counted_plainly(series)
    found = made.measured(sequence="$.seq")
    assert {
        row["client_id"]: tuple(row[each] for each in MEASURED[:4]) for row in found
    } == expected
    assert all(sum(each[kind] for each in expected.values()) > 50 for kind in range(4))


def test_without_a_sequence_nothing_is_missing_and_nothing_is_known(made: MadeRecord) -> None:
    made.add(numbered(1, 5, 2))
    row = made.device()
    assert [row[name] for name in MEASURED] == [None, None, None, 0, None]


def test_payloads_that_are_not_json_have_no_number_and_harm_nothing(made: MadeRecord) -> None:
    payloads = [b"\xff\xfe", b"", b"{", b"text", b'{"seq": 1}', b'{"seq": 3}', b'{"other": 2}']
    made.add([(10.0 * place, each) for place, each in enumerate(payloads)])
    row = made.device(sequence="$.seq", event_time="$.seq.deep")
    assert (row["missing"], row["without_number"], row["without_time"]) == (1, 5, 7)


@pytest.mark.parametrize(
    ("path", "payloads"),
    [
        ("$", ["1", "3"]),
        ("$.head.seq", [{"head": {"seq": 1}}, {"head": {"seq": 3}}]),
        ("$.values[1]", [{"values": [9, 1]}, {"values": [9, 3]}]),
        ('$."a.b c"', [{"a.b c": 1}, {"a.b c": 3}]),
        ("$.it's", [{"it's": 1}, {"it's": 3}]),
    ],
)
def test_a_path_finds_its_value(made: MadeRecord, path: str, payloads: list[Any]) -> None:
    assert is_json_path(path)
    made.add([(10.0 * place, each) for place, each in enumerate(payloads)])
    assert made.device(sequence=path)["missing"] == 1


@pytest.mark.parametrize("path", ["", "seq", "$.", "$.*", "$[*]", "$..seq", "$.a b", "$[x]", "$x"])
def test_what_is_not_a_path_to_one_value_is_refused(path: str) -> None:
    assert not is_json_path(path)


# --- repeats --------------------------------------------------------------------------------------


def test_an_equal_payload_within_a_short_time_is_a_repeat(made: MadeRecord) -> None:
    # Not: later than a second, another payload between, or exactly a second.
    made.add([(0, "a"), (0.5, "a"), (5, "a"), (5.1, "b"), (5.2, "a"), (6.2, "a"), (6.2, "a")])
    assert made.device()["repeats"] == 2
    assert made.device(repeat_within=10.0)["repeats"] == 4
    assert made.device(repeat_within=0.0)["repeats"] == 0


def test_messages_with_dup_are_counted_apart(made: MadeRecord) -> None:
    made.add([(0, {"seq": 1})])
    made.add([(0.1, {"seq": 1})], dup=True)
    made.add([(0.2, {"seq": 1})])
    made.add([(10, {"seq": 3})], dup=True)
    made.add([(10.1, {"seq": 3})])
    row = made.device()
    assert (row["dup"], row["repeats"]) == (2, 2)
    row = made.device(sequence="$.seq")
    assert (row["dup"], row["repeats"], row["missing"]) == (2, 2, 1)


def test_with_a_sequence_equal_payloads_are_repeats_only_without_a_number(
    made: MadeRecord,
) -> None:
    made.add([(0, {"seq": 1}), (0.1, {"seq": 2}), (0.2, "x"), (0.3, "x"), (0.4, {"seq": 2})])
    assert made.device(sequence="$.seq")["repeats"] == 2


# --- lateness -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        "2026-03-01T12:00:07Z",
        "2026-03-01T12:00:07",
        "2026-03-01 14:00:07+02:00",
        "2026-03-01T12:00:07.000000Z",
        1_772_366_407,
        1_772_366_407.0,
        1_772_366_407_000,
        "1772366407",
    ],
)
def test_event_times_have_several_forms(made: MadeRecord, event: object) -> None:
    made.add([(10, {"at": event})])
    row = made.device(event_time="$.at")
    assert (row["lateness_median"], row["without_time"]) == (3.0, 0)


@pytest.mark.parametrize(
    "event", [None, "", "yesterday", "infinity", "epoch", "2026-13-01", True, [1], 1e15, "12:00"]
)
def test_what_is_no_event_time_is_counted_as_such(made: MadeRecord, event: object) -> None:
    made.add([(10, {"at": event})])
    row = made.device(event_time="$.at")
    assert (row["lateness_median"], row["without_time"], row["late"]) == (None, 1, 0)


def test_lateness_has_median_percentile_maximum_and_counts(made: MadeRecord) -> None:
    start = BEGIN / SECOND
    late = [1.0] * 97 + [60.0, 61.0, 100.0]
    times = [float(10 + place * 10) for place in range(100)]
    made.add([(when, {"at": start + when - by}) for when, by in zip(times, late, strict=True)])
    row = made.device(event_time="$.at")
    assert row["lateness_median"] == 1.0
    assert (row["lateness_p99"], row["lateness_maximum"]) == (61.0, 100.0)
    # Exactly 60 s is not late.
    assert (row["late"], row["from_future"]) == (2, 0)
    assert made.device(event_time="$.at", late_after=100.0)["late"] == 0


def test_messages_from_the_future_are_more_than_a_second_ahead(made: MadeRecord) -> None:
    start = BEGIN / SECOND
    made.add([(10, {"at": start + 11}), (20, {"at": start + 21.001}), (30, {"at": start + 90})])
    row = made.device(event_time="$.at")
    assert (row["from_future"], row["late"]) == (2, 0)
    assert row["lateness_median"] == pytest.approx(-1.001)


# --- silence --------------------------------------------------------------------------------------


def test_a_silence_is_longer_than_five_times_the_usual_interval(made: MadeRecord) -> None:
    made.add(at(0, 10, 20, 30, 80, 90, 141, 151))
    row = made.device(end=BEGIN + 201 * SECOND)
    assert (row["rhythm"], row["longest_silence"], row["silences"]) == (10.0, 51.0, 1)
    assert row["is_silent"] is False
    assert made.device(silence=4.9)["silences"] == 2
    assert made.device(silence=5.1)["silences"] == 0


def test_a_device_is_silent_if_the_range_ends_long_after_its_last_message(
    made: MadeRecord,
) -> None:
    made.add(at(0, 10, 20))
    assert made.device(end=BEGIN + 70 * SECOND)["is_silent"] is False
    assert made.device(end=BEGIN + 71 * SECOND)["is_silent"] is True
    assert made.device(end=BEGIN + 71 * SECOND)["since_last"] == 51.0


def test_a_fast_device_may_pause_for_five_seconds(made: MadeRecord) -> None:
    made.add(at(0, 0.01, 0.02, 0.03, 5.03, 10.04))
    assert made.device(end=BEGIN + 15 * SECOND)["silences"] == 1
    assert made.device(end=BEGIN + 15 * SECOND)["is_silent"] is False


def test_a_clock_that_is_set_back_makes_no_silence_and_keeps_the_order(made: MadeRecord) -> None:
    made.add([(1_000 + 10 * n, {"seq": n}) for n in range(5)])
    made.add([(500 + 10 * n, {"seq": n}) for n in range(5, 10)])
    row = made.device(sequence="$.seq")
    assert (row["missing"], row["out_of_order"], row["restarts"]) == (0, 0, 0)
    assert (row["rhythm"], row["longest_silence"], row["silences"]) == (10.0, 10.0, 0)


def test_the_messages_of_a_client_that_moved_to_another_node_are_merged(made: MadeRecord) -> None:
    numbers = numbered(*range(20))
    made.add(numbers[:5] + numbers[15:], node="n2")
    made.add(numbers[5:15], node="n1")
    row = made.device(sequence="$.seq")
    assert (row["messages"], row["missing"], row["out_of_order"]) == (20, 0, 0)
    assert (row["restarts"], row["rhythm"], row["longest_silence"]) == (0, 10.0, 10.0)


# --- outliers -------------------------------------------------------------------------------------


def sized(*sizes: int) -> list[Message]:
    return [(float(10 * place), "x" * size) for place, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "outliers"),
    [
        # The deviation is 0 and counts as 1: 5 more or less are usual.
        ((20, 20, 20, 25, 15), 0),
        ((20, 20, 20, 26, 15), 1),
        ((20, 20, 20, 26, 14), 2),
        # Of 1,000 it counts as 50.
        ((1_000, 1_000, 1_000, 1_250), 0),
        ((1_000, 1_000, 1_000, 1_251), 1),
        # Median 100, deviation 10.
        ((80, 90, 100, 110, 150), 0),
        ((80, 90, 100, 110, 151), 1),
        # Two values have the same distance from their median.
        ((1, 1_000_000), 0),
        ((0,), 0),
    ],
)
def test_sizes_beyond_the_bound_are_outliers(
    made: MadeRecord, sizes: tuple[int, ...], outliers: int
) -> None:
    made.add(sized(*sizes))
    assert made.device()["size_outliers"] == outliers


def test_the_number_of_deviations_can_be_chosen(made: MadeRecord) -> None:
    made.add(sized(80, 90, 100, 110, 151))
    assert made.device(deviations=5.1)["size_outliers"] == 0
    assert made.device(deviations=1.9)["size_outliers"] == 2


def test_rates_are_those_of_complete_minutes_with_messages(made: MadeRecord) -> None:
    per_minute = [2, 10, 10, 10, 0, 10, 16, 3]
    times = [
        60.0 * minute + 30 + place for minute, n in enumerate(per_minute) for place in range(n)
    ]
    made.add(at(*times))
    row = made.device()
    # The first and the last minute are incomplete, and the empty one is a silence.
    assert (row["rate_median"], row["rate_outliers"]) == (10.0, 1)
    assert row["silences"] == 6


# --- order, filters, totals -----------------------------------------------------------------------


def test_the_worst_is_first(made: MadeRecord) -> None:
    end = 600
    event = BEGIN / SECOND

    def steady(numbers: Sequence[int], *, late: float = 0, until: int = end) -> list[Message]:
        begin = until - 10 * len(numbers)
        return [
            (begin + 10 * place, {"seq": n, "at": event + begin + 10 * place - late})
            for place, n in enumerate(numbers)
        ]

    twice = [1, 2, 3, 3, 4, 5]
    whole = [1, 2, 3, 4, 5, 6]
    outlier = steady(whole)
    outlier[3] = (outlier[3][0], {**dict(outlier[3][1]), "long": "x" * 500})  # type: ignore[arg-type]
    made.add(steady(whole), client_id="good")
    made.add(outlier, client_id="outlier")
    made.add(steady(twice), client_id="twice")
    made.add(steady(whole, late=100), client_id="late")
    made.add(steady([1, 2, 3, 4, 6, 7]), client_id="gap")
    made.add(steady([1, 2, 3, 4, 9, 10]), client_id="big gap")
    made.add(steady(whole, until=end - 100), client_id="silent")
    rows = made.measured(sequence="$.seq", event_time="$.at", end=BEGIN + end * SECOND)
    assert [row["client_id"] for row in rows] == [
        *("silent", "big gap", "gap", "late", "twice", "outlier", "good"),
    ]


def test_totals_are_the_sums(made: MadeRecord) -> None:
    made.add(numbered(1, 2, 4), client_id="a")
    made.add(numbered(1, 1, 2), client_id="b")
    made.add(at(3_580, 3_590, 3_599), client_id="b", topic="u")
    made.seal()
    with made.sql() as sql:
        query = QualityQuery(BEGIN, BEGIN + HOUR, sequence="$.seq")
        totals = QualityTotals()
        with measure(sql, "messages_now", query) as result:
            for batch in result.batches:
                totals.add(batch)
    found = totals.measures()
    assert (found["devices"], found["clients"], found["messages"]) == (3, 2, 9)
    assert (found["missing"], found["repeats"], found["without_number"]) == (1, 1, 3)
    assert (found["silent"], found["with_problems"], found["late"]) == (2, 2, None)


def test_a_client_and_a_topic_filter_select_messages(made: MadeRecord) -> None:
    made.add(at(0), client_id="it's", topic="a/b")
    made.add(at(0), client_id="other", topic="a/c")
    assert made.device(client_id="it's")["topic"] == "a/b"
    assert made.device(topic="a/c")["client_id"] == "other"
    assert len(made.measured(topic="a/+")) == 2
    assert made.measured(topic="a") == []
    assert made.measured(client_id="nobody") == []


LEVELS = (
    "",
    "a",
    "b",
    "$a",
    "$SYS",
    "ä",
    "a.b",
    "a b",
    "(",
    "\\",
    "*",
    "a\nb",
    "'",
    "日本",
    "^",
    "]",
)
FILTERS = ("#", "+", "+/#", "+/+", "/", "/#", "/+", "a/#", "a/+/#", "$SYS/#", "$a/+", "+/a/#")


def test_the_pattern_of_a_filter_matches_what_the_filter_matches() -> None:
    chance = random.Random(7)

    def levels(choices: Sequence[str]) -> str:
        return "/".join(chance.choice(choices) for _ in range(chance.randrange(1, 5)))

    filters = {*FILTERS, *(levels((*LEVELS[:5], "+", "+", "#")) for _ in range(400))}
    filters |= {levels((*LEVELS, "+")) for _ in range(200)}
    names = {levels(LEVELS[:5]) for _ in range(300)} | {levels(LEVELS) for _ in range(300)}
    topics = pa.table({"topic": sorted(names - {""})})
    matched = checked = 0
    connection = duckdb.connect()
    connection.register("topics", topics)
    for each in sorted(filters):
        try:
            check_topic_filter(each, None)
        except Violation:
            continue
        found = connection.execute(
            "select topic from topics where regexp_full_match(topic, ?)", [topic_pattern(each)]
        ).fetchall()
        names_found = {name for (name,) in found}
        assert names_found == {
            name for name in topics["topic"].to_pylist() if topic_matches(each, name)
        }, each
        matched += len(names_found)
        checked += 1
    assert checked > 300
    assert matched > 1_500


# --- sources --------------------------------------------------------------------------------------


def test_a_table_without_a_stream_is_reported_with_those_that_exist(made: MadeRecord) -> None:
    made.add(at(0))
    made.seal(landed=1)
    with made.sql() as sql:
        assert find_source(sql, str(made.lake), "messages") == ("messages_now", None)
        with pytest.raises(SqlError, match=r"table mesages: did you mean messages\?"):
            find_source(sql, str(made.lake), "mesages")


def test_without_a_record_landed_messages_are_measured_with_a_note(made: MadeRecord) -> None:
    made.add(at(0, 1, 2))
    made.seal(landed=2)
    with LakeSql(str(made.lake)) as sql:
        source, note = find_source(sql, str(made.lake), "messages")
        assert source == "messages"
        assert note is not None
        assert "only messages that have landed" in note
        with measure(sql, source, QualityQuery(BEGIN, BEGIN + HOUR)) as result:
            assert [batch.column("messages").to_pylist() for batch in result.batches] == [[2]]


def test_a_table_without_payloads_is_refused(made: MadeRecord) -> None:
    made.add(at(0, 1))
    made.seal()
    columns = {"seq": [1], "node": ["n1"], "date": pa.array([0], pa.date32())}
    land_rows(made.lake, pa.table(columns), table="other")
    with made.sql() as sql, pytest.raises(SqlError, match="other does not contain messages as"):
        find_source(sql, str(made.lake), "other")


def test_the_times_of_a_record_are_known(made: MadeRecord) -> None:
    made.add(at(5, 0, 7))
    made.seal()
    with made.sql() as sql:
        times = received_times(sql, "messages_now")
    assert (times.first, times.last) == (BEGIN, BEGIN + 7 * SECOND)
