"""`cluster_by` and `retention` as settings and as keys of a landing file, without Spark."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema

from semel.pipeline.errors import DataLoss, OptionError
from semel.pipeline.landing_check import check_dead_letters
from semel.pipeline.landing_file import LandedTable, read_landing_file
from semel.pipeline.landing_plan import SparkplugTables, make_plan, sparkplug_plan
from semel.pipeline.landing_target import FileTables, make_target
from semel.pipeline.live_files import list_files
from semel.pipeline.maintenance import Task, run_pass
from semel.pipeline.maintenance_process import Policy
from semel.pipeline.settings import LandSettings
from semel.pipeline.table_options import TableOptions
from semel.pipeline.table_reading import (
    appended_files,
    open_version,
    partitions_of,
    read_files,
    schema_of,
)
from semel.pipeline.table_retention import remove_expired
from semel.settings import SettingsError
from tests.pipeline.core.test_table_retention import NINETY, at, three_days
from tests.pipeline.landing_rows import land_seqs, rows_of
from tests.pipeline.spark.test_maintenance import POLICY, land_many

TABLE = '[[table]]\nname = "t"\ntopic = "a/{b}"\n'
DAY = 86_400.0


def read(folder: Path, text: str) -> LandedTable:
    (folder / "landing.toml").write_text(TABLE + text)
    (table,) = read_landing_file(folder / "landing.toml").tables
    return table


# --- options --------------------------------------------------------------------------------------


def test_a_table_is_clustered_by_topic_and_keeps_its_rows_unless_it_says_otherwise(
    tmp_path: Path,
) -> None:
    table = read(tmp_path, "")
    assert (table.cluster_by, table.retention) == (("topic",), None)
    assert read(tmp_path, 'partition_by = ["topic"]').cluster_by == ()
    assert read(tmp_path, 'latest_by = ["topic"]').cluster_by == ("topic",)
    assert read(tmp_path, "cluster_by = []").cluster_by == ()
    table = read(tmp_path, 'cluster_by = ["b", "received"]\nretention = "90d"')
    assert (table.cluster_by, table.retention) == (("b", "received"), 90 * DAY)
    assert read(tmp_path, "retention = 3600").retention == 3600.0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('cluster_by = "topic"', "cluster_by must be a list"),
        ('cluster_by = ["b", "b"]', "cluster_by names something twice"),
        ('retention = "90 days"', 'retention is "90 days", but must be a duration such as 90'),
        ('retention = "1s"', 'retention is "1s", but must be a duration'),
        ("retention = true", "retention is true, but must be a duration"),
        ('retention = ""', 'retention is "", but must be a duration'),
        (
            'retention = "90d"\nlatest_by = ["topic"]',
            "retention cannot be used with latest_by: such a table has the newest row",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_table_and_key(
    tmp_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(OptionError) as caught:
        read(tmp_path, text)
    assert f"table t: {problem}" in str(caught.value)


def settings(folder: Path, **given: Any) -> LandSettings:
    return LandSettings(root=str(folder / "root"), lake=str(folder / "lake"), **given)


def test_the_one_table_of_a_landing_has_settings(tmp_path: Path) -> None:
    policy = make_plan(settings(tmp_path)).maintenance
    assert policy is not None
    assert (policy.cluster_by, policy.retention) == (("topic",), None)
    given = settings(tmp_path, cluster_by=("client_id", "topic"), retention=30 * DAY)
    (watched,) = make_target(make_plan(given)).watched
    assert watched.policy is not None
    assert (watched.policy.cluster_by, watched.policy.retention) == (
        ("client_id", "topic"),
        30 * DAY,
    )
    assert Policy.from_json(json.loads(json.dumps(watched.policy.__dict__))) == watched.policy
    (watched,) = make_target(make_plan(replace(given, maintenance=False))).watched
    assert watched.policy is None
    for wrong, problem in {
        ("payload",): "cluster_by: payload: rows cannot be sorted by a binary column",
        ("topics",): "cluster_by: there is no column topics: did you mean topic",
        ("date",): "cluster_by: the table is partitioned by date",
    }.items():
        with pytest.raises(OptionError, match=problem):
            make_plan(settings(tmp_path, cluster_by=wrong))
    with pytest.raises(SettingsError, match="retention"):
        settings(tmp_path, retention=60.0)


def test_the_tables_of_a_landing_file_have_their_own(tmp_path: Path) -> None:
    path = tmp_path / "landing.toml"
    second = TABLE.replace('"t"', '"u"') + 'cluster_by = ["b"]\nretention = "7d"\n'
    path.write_text(TABLE + second)
    target = make_target(make_plan(settings(tmp_path, landing=path)))
    assert isinstance(target, FileTables)
    found = {
        each.name: (each.policy.cluster_by, each.policy.retention)
        for each in target.watched
        if each.policy is not None
    }
    assert found == {
        "t": (("topic",), None),
        "u": (("b",), 7 * DAY),
        "dead_letters": ((), None),
    }
    # Those of the one table would be ignored.
    for given in ({"retention": 90 * DAY}, {"cluster_by": ("client_id",)}):
        with pytest.raises(OptionError, match=r"is for landing without a landing file: set \w+ of"):
            make_plan(settings(tmp_path, landing=path, **given))


def test_dead_letters_stay_unless_the_landing_file_says_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "landing.toml"
    path.write_text('dead_letters_retention = "30d"\n' + TABLE)
    plan = make_plan(settings(tmp_path, landing=path))
    *_, watched = make_target(plan).watched
    assert watched.policy is not None
    assert (watched.name, watched.policy.retention) == ("dead_letters", 30 * DAY)
    assert plan.file is not None
    assert plan.file.only("t").dead_letters_retention == 30 * DAY
    path.write_text('dead_letters_retention = "1s"\n' + TABLE)
    with pytest.raises(OptionError, match=r'dead_letters_retention is "1s", but must be a dura'):
        read_landing_file(path)


@pytest.mark.slow
def test_a_table_that_cannot_take_dead_letters_is_refused_before_there_are_any(
    tmp_path: Path,
) -> None:
    path = tmp_path / "landing.toml"
    path.write_text('dead_letters = "messages"\n' + TABLE)
    plan = make_plan(settings(tmp_path, landing=path))
    schema = Schema.from_arrow(rows_of(1, 1).schema).to_json()
    check_dead_letters(plan, schema)
    three_days(str(tmp_path / "lake" / "messages"))
    with pytest.raises(OptionError, match=r"dead letters cannot land: .*messages is the table of"):
        check_dead_letters(plan, schema)
    path.write_text(TABLE)
    check_dead_letters(make_plan(settings(tmp_path, landing=path)), schema)


def test_sparkplug_tables_are_clustered_by_node_and_keep_their_rows(tmp_path: Path) -> None:
    plan = sparkplug_plan(make_plan(settings(tmp_path, retention=DAY)), SparkplugTables())
    found = {each.name: each.policy for each in make_target(plan).watched}
    assert {name: policy.cluster_by for name, policy in found.items() if policy is not None} == {
        "sparkplug_metrics": ("group_id", "edge_node_id", "device_id", "name"),
        "sparkplug_nodes": ("group_id", "edge_node_id"),
        "sparkplug_gaps": ("group_id", "edge_node_id"),
        "sparkplug_state": (),
        "dead_letters": (),
    }
    assert {policy.retention for policy in found.values() if policy is not None} == {None}


# --- passes ---------------------------------------------------------------------------------------


def topics_in(address: str) -> list[str]:
    """The topics of the largest file of a table, in its order."""
    one = max(list_files(DeltaTable(address)), key=lambda file: file.size)
    found: list[str] = pq.read_table(Path(address) / one.disk_path)["topic"].to_pylist()
    return found


@pytest.mark.slow
def test_a_pass_sorts_what_it_merges_and_records_how(address: str) -> None:
    land_many(address, 1, 12)
    run_pass(Task(address, POLICY, False), print)
    assert topics_in(address) == sorted(topics_in(address))
    assert len(topics_in(address)) == 60
    # A landing that says otherwise changes what is merged from then on.
    land_many(address, 61, 12)
    run_pass(Task(address, replace(POLICY, cluster_by=()), False), print)
    assert DeltaTable(address).metadata().configuration["semel.clusterBy"] == "[]"
    newest = max(list_files(DeltaTable(address)), key=lambda file: file.modified)
    found = pq.read_table(Path(address) / newest.disk_path)["seq"].to_pylist()
    assert found == list(range(61, 121))


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stream_reads_what_was_appended_though_retention_has_removed_it(address: str) -> None:
    three_days(address)
    last = DeltaTable(address).version()
    done = remove_expired(address, DeltaTable(address), NINETY, now=at(1_000))
    assert done is not None
    land_seqs(address, 61, 65, day=2)
    options = TableOptions(address)
    table = open_version(options)
    # A query that has read the rows, and one that has not.
    assert appended_files(options, table, last + 1, done.version) == []
    assert len(appended_files(options, table, last + 1, done.version + 1)) == 1
    files = appended_files(options, table, 1, done.version + 1)
    assert len(files) == 13
    schema = schema_of(DeltaTable(address))
    (partition,) = partitions_of(files)
    rows = sum(batch.num_rows for batch in read_files(options, schema, partition))
    assert rows == 65
    # When a vacuum has deleted the files, the query is told so.
    (Path(address) / files[0].path).unlink()
    with pytest.raises(DataLoss, match="was deleted by a vacuum: give the query a new checkpoint"):
        list(read_files(options, schema, partition))
