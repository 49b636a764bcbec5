"""The arithmetic of the pipeline's bench: a figure that is wrong is worse than none."""

import argparse
import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from bench.pipeline import (
    aged,
    checksums,
    commits,
    history,
    latency,
    processes,
    queries,
    sustained,
    typed,
)
from bench.pipeline import typed_records as records
from bench.pipeline.aged import AGED, NEW, Aged, Builder, Side
from bench.pipeline.checksums import Verified
from bench.pipeline.commits import Commits
from bench.pipeline.history import HistoryBuilder, HistoryTimes
from bench.pipeline.latency import Latency
from bench.pipeline.processes import Seen
from bench.pipeline.queries import SCALE, SINK, SOURCE, Compared, Contender, Cost, Series
from bench.pipeline.report import PARTS, PipelineReport, parse_parts
from bench.pipeline.running import TableLog, position_in
from bench.pipeline.segments import (
    NODE,
    PAYLOAD,
    SEGMENT_ROWS,
    STREAM,
    TOPICS,
    group,
    make_record,
    numbered,
)
from bench.pipeline.sustained import Sample, Sustained
from bench.pipeline.typed import ONE, RAW, READ_TABLE, SPARK, TABLES, TEN, TYPED
from bench.pipeline.typed_records import (
    FORMATS,
    JSON,
    PROTOBUF,
    VALUES,
    TypedGroup,
    checksum_of,
)
from semel.store.roots import open_root
from semel.store.segment_writer import GROUP_ROWS
from semel.store.segments import check_segment, schema

# --- the record -----------------------------------------------------------------------------------


def test_rows_are_those_of_a_record_with_payloads_of_one_size_that_differ() -> None:
    table = numbered(group(5_000), 7, 5_000)
    assert table.schema.equals(schema())
    assert table.column("seq").to_pylist() == list(range(7, 5_007))
    payloads = table.column("payload").to_pylist()
    assert {len(each) for each in payloads} == {PAYLOAD}
    assert len(set(payloads)) == 5_000
    assert len(json.loads(payloads[0])["values"]) == 11
    assert len(set(table.column("topic").to_pylist())) > TOPICS / 10


def test_a_record_is_of_one_day_and_in_segments_that_hold_what_they_say(tmp_path: Path) -> None:
    rows = SEGMENT_ROWS + 10
    made = make_record(tmp_path, rows, base=group())
    assert made == tmp_path / STREAM / NODE
    root = open_root(tmp_path)
    segments = root.segments(STREAM, NODE)
    assert [each.range for each in segments] == [(1, SEGMENT_ROWS), (SEGMENT_ROWS + 1, rows)]
    for first, last in (each.range for each in segments):
        check_segment(root, STREAM, NODE, first=first, last=last)
    last = numbered(group(1), 16_000_000, 1).column("received")[0].as_py()
    first = numbered(group(1), 1, 1).column("received")[0].as_py()
    assert first.date() == last.date()
    assert SEGMENT_ROWS % GROUP_ROWS == 0


# --- processor time -------------------------------------------------------------------------------


def test_a_process_is_known_by_its_words_and_by_who_started_it() -> None:
    python = "/usr/bin/python"
    assert processes.role_of((python, "-P", "-m", "semel", "broker"), "rest") == "broker"
    assert processes.role_of((python, "-m", "semel.store.sealer", "x"), "broker") == "sealer"
    assert processes.role_of((python, "-m", "semel", "land", "--json"), "rest") == "landing"
    assert processes.role_of((python, "-m", "semel", "load", "u"), "rest") == "publishers"
    assert processes.role_of(("/opt/jdk/bin/java", "-cp", "x"), "landing") == "java"
    assert processes.role_of((python, "-m", "pyspark.daemon"), "java") == "workers"
    assert processes.role_of((python,), "workers") == "workers"
    assert processes.role_of((python, "-m", "semel", "up"), "rest") == "rest"
    # Who has just ended has no command line any more.
    ended = processes.Seen(1, 33.3, 0.0, ("",))
    assert processes.by_role({7: ended}, [7], "publishers") == {"publishers": 33.3}


def test_the_time_of_a_family_is_that_of_all_below_and_of_those_who_ended() -> None:
    seen = {
        1: Seen(0, 100.0, 100.0, ("init",)),
        10: Seen(1, 1.0, 0.25, ("python", "-m", "semel", "land")),
        11: Seen(10, 5.0, 0.5, ("java",)),
        12: Seen(11, 2.0, 0.125, ("python", "-m", "pyspark.daemon")),
    }
    told = processes.by_role(seen, [10])
    assert told == {"landing": 1.25, "java": 5.0, "workers": 2.625}
    assert processes.by_role(seen, [99]) == {}
    assert processes.since({"java": 1.0}, told)["java"] == 4.0
    assert processes.since({"gone": 1.0}, told) == {"java": 5.0, "landing": 1.25, "workers": 2.625}


def test_a_name_with_brackets_and_spaces_does_not_shift_the_fields() -> None:
    fields = " ".join(["S", "77", *["0"] * 9, "100", "50", "30", "20", "0"])
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert processes.parse_stat(f"5 (a) b) {fields}") == pytest.approx((77, 150 * tick, 50 * tick))


def test_the_time_of_a_child_that_ended_is_kept() -> None:
    before = sum(processes.used(os.getpid()).values())
    subprocess.run([sys.executable, "-c", "sum(range(20_000_000))"], check=True)
    assert sum(processes.used(os.getpid()).values()) > before


def test_what_others_had_is_what_was_busy_and_not_ours() -> None:
    assert processes.share(busy=12.0, ours=10.0, elapsed=10.0, processors=2) == 0.1
    assert processes.share(busy=9.0, ours=10.0, elapsed=10.0, processors=2) == 0.0
    assert processes.share(busy=1.0, ours=0.0, elapsed=0.0, processors=2) == 0.0
    tick = 1 / os.sysconf("SC_CLK_TCK")
    line = "cpu  1 2 4 100 200 8 16 300 0 0\ncpu0 9 9 9 9 9 9 9 9 9 9\n"
    assert processes.busy_seconds(line) == pytest.approx(31 * tick)
    assert not processes.busy_machine_warning(0.1)
    assert "25%" in processes.busy_machine_warning(0.25)


# --- queries --------------------------------------------------------------------------------------


def contender(name: str, start: float, whole: float, rows: int = 1_000_000) -> Contender:
    """With three rounds, of which one was disturbed."""
    tiny = Series(1_000, [Cost(start, 0.5, 0.25)] * 2 + [Cost(99.0, 99.0, 99.0)])
    large = Series(rows + 1_000, [Cost(whole, 2.5, 1.25)] * 2 + [Cost(0.1, 0.1, 0.1)])
    return Contender(name, tiny, large)


def test_the_start_is_taken_off_each_contender_and_medians_count() -> None:
    first, second = contender("semel", 2.0, 4.0), contender("native", 1.0, 2.0)
    assert first.rate == pytest.approx(500_000)
    assert second.rate == pytest.approx(1_000_000)
    assert first.microseconds(lambda cost: cost.java) == pytest.approx(2.0)
    assert first.microseconds(lambda cost: cost.python) == pytest.approx(1.0)
    assert first.microseconds(lambda cost: cost.processor) == pytest.approx(3.0)
    assert Compared(SOURCE, [first, second]).ratio == pytest.approx(0.5)
    assert Compared(SOURCE, [first, second]).processor_ratio == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("part", "whole", "sign"),
    [(SOURCE, 3.6, "✓"), (SOURCE, 3.8, "✗"), (SINK, 2.8, "✓"), (SINK, 2.9, "✗")],
)
def test_source_and_sink_are_judged_by_their_ratio(part: str, whole: float, sign: str) -> None:
    # Spark's own takes one second after its start.
    pair = [contender("semel", 2.0, whole), contender("native", 1.0, 2.0)]
    (line,) = queries.targets([Compared(part, pair)])
    assert line.startswith(sign)


@pytest.mark.parametrize(("whole", "sign"), [(6.0, "✓"), (6.9, "✓"), (7.1, "✗"), (5.1, "✗")])
def test_scale_is_judged_both_ways(whole: float, sign: str) -> None:
    pair = [contender("many", 2.0, whole, 4_000_000), contender("few", 2.0, 3.0)]
    (line,) = queries.targets([Compared(SCALE, pair)])
    assert line.startswith(sign)


def test_a_part_with_a_fault_meets_no_target_and_is_not_hidden() -> None:
    result = Compared(SINK, [contender("semel", 1.0, 2.0)], fault="semel wrote 1 of 2 rows")
    assert queries.targets([result]) == ["✗ sink: semel wrote 1 of 2 rows"]
    assert "wrote 1 of 2" in "\n".join(queries.lines([result]))
    assert result.as_json()["ratio"] is None


def test_the_table_has_as_many_cells_in_each_row() -> None:
    pair = [contender("semel", 2.0, 4.0), contender("native", 1.0, 2.0)]
    told = queries.lines([Compared(SOURCE, pair), Compared(SINK, fault="x")])
    assert {line.count("|") for line in told} == {9}
    told = queries.lines([Compared(SOURCE, pair, others=0.5), Compared(SINK, pair, others=0.5)])
    assert [line for line in told if line.startswith("⚠")] == [processes.busy_machine_warning(0.5)]


def test_the_first_round_is_thrown_away_unless_all_is_warm() -> None:
    costs = iter([Cost(float(number)) for number in range(10)])
    one, two = Series(1), Series(2)
    jobs = [("one", one, lambda: next(costs)), ("two", two, lambda: next(costs))]
    queries.interleaved(jobs, 2, warm=False)
    assert [each.seconds for each in one.costs] == [2.0, 4.0]
    assert [each.seconds for each in two.costs] == [3.0, 5.0]
    queries.interleaved(jobs[:1], 2, warm=True)
    assert [each.seconds for each in one.costs] == [2.0, 4.0, 6.0, 7.0]


# --- commits, latency -----------------------------------------------------------------------------


def test_median_and_the_slowest_twentieth_are_told_apart() -> None:
    assert commits.parts([1.0] * 94 + [9.0] * 6) == (1.0, 9.0)
    assert commits.parts([1.0] * 96 + [9.0] * 4) == (1.0, 1.0)
    assert commits.parts([]) == (0.0, 0.0)


def test_commits_are_judged_by_their_median() -> None:
    assert commits.targets(Commits([100.0] * 9 + [900.0]))[0].startswith("✓")
    assert commits.targets(Commits([101.0] * 9 + [1.0]))[0].startswith("✗")
    assert commits.targets(Commits([1.0] * 9, fault="no space")) == ["✗ commit: no space"]


def test_a_table_of_a_year_is_judged_by_the_slowest_twentieth_of_a_new_one() -> None:
    new = Side(commits=[10.0] * 19 + [20.0] * 2, queries=[50.0] * 20)
    old = Side(commits=[15.0] * 19 + [60.0] * 2, queries=[90.0] * 20)
    first, second = aged.targets(Aged(new, old))
    assert first.startswith("✗")
    assert first.endswith("3.00")
    assert second.startswith("✓")
    assert second.endswith("1.80")
    cells = [line.count("|") for line in aged.lines(Aged(new, old)) if line.startswith("|")]
    assert len(set(cells)) == 1
    (fault,) = aged.targets(Aged(new, old, fault="no space"))
    assert fault == "✗ aged: no space"


def test_the_table_of_a_year_is_as_maintenance_leaves_it(tmp_path: Path) -> None:
    """A pass right before the next batch has nothing to do but what the next batches bring."""
    from deltalake import DeltaTable

    from semel.pipeline.compaction import plan_due
    from semel.pipeline.live_files import list_files
    from semel.pipeline.settings import LandSettings

    wanted = LandSettings()
    builder, side = Builder(tmp_path), Side()
    place = builder.build(AGED, side)
    files = list_files(DeltaTable(place))
    assert len(files) == side.files
    assert len({file.partition for file in files}) == aged.DAYS
    now = max(file.modified for file in files) / 1000
    due = plan_due(files, wanted.target_file_size, small_files=wanted.small_files, now=now)
    assert due == []
    assert side.removed == 6 * 3600 * aged.FILES
    assert side.log_files > wanted.log_entries
    fresh = Side()
    builder.build(NEW, fresh)
    assert fresh.files < wanted.small_files
    assert fresh.removed == 0


def test_queries_of_a_year_are_judged_by_those_of_a_day_and_by_rows_that_are_not_sorted() -> None:
    def times(**more: float) -> HistoryTimes:
        found = {"day": 100.0, "year": 150.0, "plain": 600.0, "sorted": 100.0} | more
        return HistoryTimes(
            {
                (query, history.SQL, span, order): [
                    *(Cost(9.0, driver=found[name] / 1e3) for _ in range(2)),
                    Cost(9.0, driver=99.0),
                ]
                for name, query, span, order in (
                    ("day", history.LAST_HOUR, history.ONE_DAY, history.CLUSTERED),
                    ("year", history.LAST_HOUR, history.YEAR, history.CLUSTERED),
                    ("plain", history.WEEK, history.YEAR, history.PLAIN),
                    ("sorted", history.WEEK, history.YEAR, history.CLUSTERED),
                )
            }
        )

    first, second = history.targets(times())
    assert (first[0], first[-4:]) == ("✓", "1.50")
    assert (second[0], second[-4:]) == ("✓", "6.00")
    assert history.targets(times(year=201.0))[0].startswith("✗")
    assert history.targets(times(plain=499.0))[1].startswith("✗")
    cells = [line.count("|") for line in history.lines(times()) if line.startswith("|")]
    assert len(set(cells)) == 1
    assert history.targets(HistoryTimes(fault="no space")) == ["✗ history: no space"]


@pytest.mark.long
def test_all_tables_of_the_history_have_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "PAYLOADS", 100)
    # A past day is compacted from few files.
    monkeypatch.setattr(history, "SOURCES", 4)
    builder = HistoryBuilder(tmp_path, rate=2, days=history.PAST + 2)
    places = builder.build()
    assert builder.in_past_day > builder.in_past_hour > 0
    assert (
        builder.result.live_files[history.ONE_DAY] + history.PAST + 1
        == (builder.result.live_files[history.YEAR])
    )
    for query in builder.queries():
        for (span, _), place in places.items():
            if span == history.YEAR or not query.is_past:
                assert history.by_sql(place, query) == query.expected
                assert history.by_polars(place, query) == query.expected


def test_latency_is_judged_by_its_slowest_twentieth() -> None:
    assert latency.targets(Latency([2.0] * 99 + [60.0]))[0].startswith("✓")
    assert latency.targets(Latency([2.0] * 90 + [6.0] * 10))[0].startswith("✗")
    assert latency.targets(Latency())[0].startswith("✗")
    assert latency.targets(Latency([1.0] * 9, fault="landing died"))[0] == "✗ latency: landing died"


def entry(**transactions: int) -> str:
    actions: list[dict[str, Any]] = [{"commitInfo": {}}]
    actions += [
        {"txn": {"appId": f"semel/stream/all/{node}", "version": version}}
        for node, version in transactions.items()
    ]
    return "\n".join(json.dumps(each) for each in actions)


def test_the_log_of_a_table_says_how_far_it_is(tmp_path: Path) -> None:
    assert position_in(entry(plant=7), "semel/stream/all/") == 7
    assert position_in(entry(plant=7), "semel/query/") is None
    log = TableLog(tmp_path / "_delta_log", "semel/stream/all/")
    assert log.look() == 0
    (tmp_path / "_delta_log").mkdir()
    for number, text in enumerate([entry(), entry(plant=5), entry(plant=9), entry()]):
        (tmp_path / "_delta_log" / f"{number:020}.json").write_text(text)
    assert log.look() == 9
    (tmp_path / "_delta_log" / f"{4:020}.json").write_text(entry(plant=11))
    assert log.look() == 11


# --- sustained ------------------------------------------------------------------------------------


def run(lag_per_second: float, *, rate: int = 10_000, true: float = 1.0) -> Sustained:
    """A minute with batches of three seconds, so that the lag goes up and down."""
    samples = []
    for second in range(60):
        lag = rate * (second % 3) + lag_per_second * second
        samples.append(Sample(second, rate * second, round(rate * second - lag), 1.5))
    return Sustained(rate, int(rate * 60 * true), 60.0, samples, {"java": 40.0, "broker": 9.0})


def test_a_lag_that_goes_up_and_down_is_bounded_and_one_that_grows_is_not() -> None:
    assert abs(run(0).growth) < 200
    assert run(0).is_bounded
    assert run(2_000).growth == pytest.approx(2_000, rel=0.1)
    assert not run(2_000).is_bounded
    assert run(-500).is_bounded


def test_a_rate_that_was_not_reached_is_not_sustained() -> None:
    assert not run(0, true=0.9).is_bounded
    faulty = run(0)
    faulty.fault = "landing died"
    assert not faulty.is_bounded
    assert not Sustained(10_000, 600_000, 60.0).is_bounded


def test_samples_are_what_was_told_between_two_moments() -> None:
    status: dict[str, Any] = {"event": "status", "recorded": 9, "landed": 4, "lag_seconds": None}
    early = status | {"landed": None}
    said: dict[str, Any] = {"event": "said"}
    events = [(1.0, status), (10.0, status), (11.0, said), (12.0, early)]
    assert sustained.samples(events, 5.0, 20.0) == [Sample(5.0, 9, 4, None)]
    assert Sample(5.0, 9, 4, None).lag == 5


def test_the_first_bounded_rate_is_told() -> None:
    slow = run(2_000, rate=30_000)
    (line,) = sustained.targets([slow, run(0, rate=20_000)])
    assert (line[0], line.endswith("20,000 messages/s")) == ("✗", True)
    assert sustained.targets([run(0, rate=30_000)])[0].startswith("✓")
    assert sustained.targets([slow])[0].endswith("none of those tried")
    assert sustained.targets([]) == []


def test_progress_shows_some_samples_always_the_last_and_the_busiest_first() -> None:
    told = sustained.lines([run(0), Sustained(5, fault="did not start")])
    assert {line.count("|") for line in told[:4]} == {told[0].count("|")}
    assert sustained.chosen(run(0))[-1].second == 59
    assert "java 40.0, broker 9.0" in told[5]
    assert told[-1] == "sustained, 5/s: ⚠ did not start"


# --- the report -----------------------------------------------------------------------------------


def test_parts_are_taken_in_their_order_and_unknown_ones_refused() -> None:
    assert parse_parts("") == list(PARTS)
    assert parse_parts("scale,source") == ["source", "scale"]
    with pytest.raises(argparse.ArgumentTypeError, match="no part speed"):
        parse_parts("source,speed")


def test_a_report_of_nothing_says_nothing() -> None:
    assert (PipelineReport().lines(), PipelineReport().targets()) == ([], [])
    assert json.loads(json.dumps(PipelineReport().as_json()))["compared"] == []


# --- typed tables ---------------------------------------------------------------------------------


def decoded(kind: str, rows: TypedGroup, folder: Path) -> Any:
    """The payloads of a group by semel's decoder; JSON, which Spark decodes, by Python's."""
    import pyarrow as pa

    from semel.pipeline.decoders.formats import make_decoder

    schema = pa.Table.from_pylist(records.readings(1)).schema
    place = schema.get_field_index("cycles")
    schema = schema.set(place, pa.field("cycles", pa.int32()))
    payloads = rows.base.column("payload").combine_chunks()
    if kind == JSON:
        found = [json.loads(each) for each in payloads.to_pylist()]
        times = [datetime.fromisoformat(each["at"]) for each in found]
        return [each | {"at": at} for each, at in zip(found, times, strict=True)]
    (folder / "reading.desc").write_bytes(records.descriptor_set())
    message = {"descriptor_file": str(folder / "reading.desc"), "message": records.MESSAGE}
    options = {PROTOBUF: message, records.AVRO: {"schema": json.dumps(records.avro_schema())}}
    made = make_decoder(kind, schema, options.get(kind, {}))(payloads)
    assert not made.problems
    return made.values.to_pylist()


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_has_the_readings_that_a_table_is_compared_with(
    kind: str, tmp_path: Path
) -> None:
    import pyarrow as pa

    rows = TypedGroup(kind, 300)
    values = pa.Table.from_pylist(decoded(kind, rows, tmp_path))
    table = values.append_column("seq", pa.array(range(1, 301), pa.int64()))
    expected = rows.typed_checksum(300)
    found = checksum_of(table, VALUES)
    assert found.items() <= expected.items()
    assert set(expected) - set(found) == set(records.LEVELS)
    # A value that is in a wrong row, and one that is missing.
    other = checksum_of(
        table.set_column(0, "value", table["value"].take([1, 0, *range(2, 300)])), VALUES
    )
    assert {name for name in found if found[name] != other[name]} == {"value"}
    first = table["status"].to_pylist()[1:]
    other = checksum_of(table.set_column(2, "status", pa.array([None, *first])), VALUES)
    assert {name for name in found if found[name] != other[name]} == {"status"}


def test_a_record_repeats_its_group_and_channels_are_parts_of_it(tmp_path: Path) -> None:
    rows = TypedGroup(JSON, 1_000)
    sizes = {len(each) for each in rows.base.column("payload").to_pylist()}
    assert 130 < min(sizes) <= max(sizes) < 160
    parts = [rows.typed_checksum(2_500, channel) for channel in range(records.CHANNELS)]
    whole: dict[str, int] = {}
    for each in parts:
        assert each["rows"] > 150
        whole = records.added(whole, each)
    assert whole == rows.typed_checksum(2_500)
    values = [each["value"] for each in records.readings(1_000)]
    assert rows.value_sum(999, 1_002) == sum([*values[-2:], *values[:2]])
    assert rows.value_sum(1, 2_500) == sum(values) * 2 + sum(values[:500])
    # The root is made of whole row groups.
    whole_group = TypedGroup(JSON)
    whole_group.make(tmp_path, 1_200)
    (segment,) = (tmp_path / STREAM / NODE).glob("*.parquet")
    found = typed.checksum_of_files([segment], ("payload", "topic"))
    assert found == whole_group.raw_checksum(1_200)
    typed.check_equal("landing", found, found)
    with pytest.raises(queries.Wrong, match="wrote wrong values of topic"):
        typed.check_equal("landing", found, found | {"topic": 1})
    with pytest.raises(queries.Wrong, match="wrote 7 of 1,200 rows"):
        typed.check_equal("landing", found, {"rows": 7})


def test_landing_files_of_the_bench_take_each_topic_once(tmp_path: Path) -> None:
    from semel.pipeline.landing_file import read_landing_file

    path = tmp_path / "landing.toml"
    topics = set(group(2_000).column("topic").to_pylist())
    for kind in FORMATS:
        for count in (1, records.CHANNELS):
            path.write_text(typed.landing_file(kind, [f"t{place}" for place in range(count)]))
            tables = read_landing_file(path).tables
            assert len(tables) == count
            for topic in topics:
                assert sum(each.template.explain(topic) is None for each in tables) == 1


def test_typed_tables_are_judged_by_their_ratios() -> None:
    # Seconds per million rows after the start: 2, 1 and 4.
    landed = [contender(JSON, 1.0, 3.0), contender(RAW, 1.0, 2.0), contender(SPARK, 1.0, 5.0)]
    first, second = typed.targets([Compared(TYPED, landed)])
    assert (first[0], first.endswith("at least 0.6: 0.50")) == ("✗", True)
    assert (second[0], second.endswith("at least 1: 2.00")) == ("✓", True)
    several = [contender(TEN, 4.0, 7.0), contender(ONE, 3.0, 5.0)]
    whole, rest = typed.targets([Compared(TABLES, several)])
    assert (whole[0], whole.endswith("at most 1.6: 1.40")) == ("✓", True)
    assert (rest[0], rest.endswith("at most 1.6: 1.50")) == ("✓", True)
    names = ("scan, read_table", "scan, parquet", "filter, read_table", "filter, parquet")
    reads = [
        contender(name, 0.0, seconds) for name, seconds in zip(names, (2, 2, 3, 2), strict=True)
    ]
    assert [each[0] for each in typed.targets([Compared(READ_TABLE, reads)])] == ["✓", "✗"]
    kinds = [contender(name, 1.0, 3.0) for name in (PROTOBUF, RAW, *FORMATS[2:])]
    (line,) = typed.targets([Compared(PROTOBUF, kinds)])
    assert line.startswith("✓ protobuf")
    assert len(typed.ratios(Compared(PROTOBUF, kinds))) == 4


def test_typed_tables_with_a_fault_are_not_hidden() -> None:
    results = [Compared(TYPED, fault="raw landing of json wrote 1 of 2 rows"), Compared(TABLES)]
    results[1].contenders = [contender(TEN, 4.0, 7.0), contender(ONE, 3.0, 5.0)]
    told = typed.lines(results)
    assert {line.count("|") for line in told[: told.index("")]} == {10}
    assert "wrote 1 of 2" in told[2]
    assert typed.targets(results)[0] == "✗ typed: raw landing of json wrote 1 of 2 rows"
    found = json.loads(json.dumps(PipelineReport(typed=results).as_json()))["typed"]
    assert [each["contenders"] == [] for each in found] == [True, False]
    assert found[1]["ratios"][0]["is_met"] is True


# --- checksums ------------------------------------------------------------------------------------


def test_the_cost_of_verification_is_judged_by_the_worst(tmp_path: Path) -> None:
    good = Verified(checksums.RANDOM, 20, 100, 2_000, plain=0.1, verified=0.105)
    bad = Verified(checksums.RANDOM, 10_000, 100, 1_000_000, plain=0.027, verified=0.046)
    assert checksums.targets([]) == []
    assert checksums.targets([good])[0].startswith("✓")
    (told,) = checksums.targets([good, bad])
    assert told.startswith("✗")
    assert told.endswith("1.70 (random payloads of 10,000 bytes)")
    assert checksums.lines([bad])[-1] == "| random | 10,000 | 1.0 | 27 | 46 | 1.70 |"
    assert good.as_json()["ratio"] == pytest.approx(1.05)


def test_both_ways_of_reading_read_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksums, "SIZES", (200,))
    monkeypatch.setattr(checksums, "SEGMENT_BYTES", 20_000)
    found = checksums.measure_checksums(tmp_path, 1)
    assert [(each.kind, each.rows) for each in found] == [("random", 100), ("hexadecimal", 100)]
