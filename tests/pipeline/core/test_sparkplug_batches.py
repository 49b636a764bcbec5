"""Batches of Sparkplug messages without Spark: killed at every commit, divided in every way."""

import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from semel.cli.land_sparkplug import sparkplug
from semel.pipeline.errors import PipelineError, TableError
from semel.pipeline.landing_plan import LandingPlan, SparkplugTables, make_plan, sparkplug_plan
from semel.pipeline.landing_target import SparkplugTarget, make_target
from semel.pipeline.settings import LandSettings
from semel.pipeline.sparkplug import batches
from semel.pipeline.sparkplug.batches import LIMITS, SparkplugLanding, SparkplugLimits, StateTable
from semel.pipeline.sparkplug.protobuf_schema import payload_class
from semel.pipeline.sparkplug.rows import RECORD_COLUMNS
from semel.pipeline.table import CommitOutcome, LandingBatch, Table
from tests.pipeline.made import received_at, write_messages

TABLES = ("sparkplug_metrics", "sparkplug_nodes", "sparkplug_gaps", "dead_letters")
TOPICS = "spBv1.0/plant"
Message = tuple[str, bytes]


def encoded(seq: int | None, *metrics: dict[str, Any]) -> bytes:
    payload = payload_class()(timestamp=1_700_000_000_000)
    if seq is not None:
        payload.seq = seq
    for each in metrics:
        payload.metrics.add(**each)
    data: bytes = payload.SerializeToString()
    return data


def session_of(edge_node: str, bd_seq: int, count: int) -> Iterator[Message]:
    """A session with a device, a lost message, an alias that nobody knows, and a bad payload."""
    number = {"name": "bdSeq", "datatype": 8, "long_value": bd_seq}
    declared = {"name": "speed", "alias": 1, "datatype": 3, "int_value": 0}
    level = {"name": "level", "alias": 2, "datatype": 10, "double_value": 0.0}
    yield f"{TOPICS}/NBIRTH/{edge_node}", encoded(0, number, declared)
    yield f"{TOPICS}/DBIRTH/{edge_node}/d", encoded(1, level)
    for at in range(count):
        seq = (2 + at + (at > count // 2)) % 256
        if at % 2:
            data = encoded(seq, {"alias": 1, "int_value": at})
            yield f"{TOPICS}/NDATA/{edge_node}", data
        else:
            data = encoded(seq, {"alias": 2, "double_value": at / 4})
            yield f"{TOPICS}/DDATA/{edge_node}/d", data
        yield f"plant/{edge_node}", b"not of Sparkplug"
    unknown = encoded((3 + count) % 256, {"alias": 9, "int_value": 1})
    yield f"{TOPICS}/NDATA/{edge_node}", unknown
    yield f"{TOPICS}/NDATA/{edge_node}", b"\xff"
    yield f"{TOPICS}/NDEATH/{edge_node}", encoded(None, number)
    yield "spBv1.0/STATE/host", b'{"online": true, "timestamp": 1700000000000}'


def messages_of(node: str, sessions: int = 3) -> list[Message]:
    """Two edge nodes side by side, one of which is called the same on each node of the record."""
    found: list[Message] = []
    for bd_seq in range(sessions):
        one = session_of("shared", bd_seq, 7)
        two = session_of(f"{node}-only", bd_seq, 7)
        for pair in zip(one, two, strict=True):
            found += pair
    return found


MESSAGES = {node: messages_of(node) for node in ("n1", "n2")}


class BatchPlace:
    """A root with all messages, and a lake."""

    def __init__(self, folder: Path, messages: Mapping[str, list[Message]]) -> None:
        self.messages = messages
        self.lake = folder / "lake"
        for node, there in messages.items():
            write_messages(
                folder / "root",
                "all",
                node,
                1,
                len(there),
                topic=lambda seq, there=there: there[seq - 1][0],  # type: ignore[misc]
                payload=lambda seq, there=there: there[seq - 1][1],  # type: ignore[misc]
            )
        made = make_plan(LandSettings(root=str(folder / "root"), lake=str(self.lake)))
        self.plan: LandingPlan = sparkplug_plan(made, SparkplugTables())

    def start(self, limits: SparkplugLimits = LIMITS) -> SparkplugLanding:
        return SparkplugLanding(self.plan, SparkplugTables(), limits=limits)

    def batch(self, spans: Mapping[str, tuple[int, int]]) -> pa.Table:
        """The Sparkplug messages of some rows, in no order."""
        rows = []
        for node, (first, last) in spans.items():
            for seq in range(first, last + 1):
                topic, payload = self.messages[node][seq - 1]
                at = received_at(seq)
                if topic.startswith("spBv1.0/"):
                    rows.append((node, seq, at, topic, payload, at.date()))
        random.Random(0).shuffle(rows)
        schema = batches.empty_batch().schema
        return pa.Table.from_pylist(
            [dict(zip(RECORD_COLUMNS, row, strict=True)) for row in rows], schema
        )

    def land_rest(self, landing: SparkplugLanding, chance: random.Random, most: int) -> None:
        """Land in batches of random sizes, from the positions of the state to the end."""
        began = landing.positions
        at = dict(began)
        while any(at.get(node, 0) < len(there) for node, there in self.messages.items()):
            spans = {}
            for node, there in self.messages.items():
                first = at.get(node, 0) + 1
                last = min(len(there), first - 1 + chance.randrange(most))
                if last >= first:
                    spans[node] = (first, last)
                    at[node] = last
            covers = {node: (began.get(node, 0) + 1, last) for node, last in at.items()}
            landing.land(
                self.batch(spans), {node: each for node, each in covers.items() if each[1]}
            )
        landing.finish()

    def all_rows(self) -> dict[str, list[dict[str, Any]]]:
        found = {}
        for table in TABLES:
            rows = DeltaTable(str(self.lake / table)).to_pyarrow_table().to_pylist()
            found[table] = sorted(rows, key=lambda row: [str(each) for each in row.values()])
        return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The rows of one batch with all messages."""
    place = BatchPlace(tmp_path_factory.mktemp("once"), MESSAGES)
    spans = {node: (1, len(there)) for node, there in MESSAGES.items()}
    place.start().land(place.batch(spans), spans)
    return place.all_rows()


def test_a_batch_becomes_metrics_births_gaps_and_dead_letters(
    expected: dict[str, list[dict[str, Any]]],
) -> None:
    metrics = expected["sparkplug_metrics"]
    # In each of 12 sessions: 3 of births, 7 of data, an unknown one, and the bdSeq of the death.
    assert len(metrics) == 12 * 12
    speeds = [row for row in metrics if row["name"] == "speed" and row["message_type"] == "NDATA"]
    assert sorted(row["value_long"] for row in speeds) == [1] * 12 + [3] * 12 + [5] * 12
    assert {row["edge_node_id"] for row in speeds} == {"shared", "n1-only", "n2-only"}
    assert {row["payload_time"].year for row in metrics} == {2023}
    (unknown,) = {(row["alias"], row["value_text"]) for row in metrics if not row["is_resolved"]}
    assert unknown == (9, "1")
    levels = [row for row in metrics if row["device_id"] == "d"]
    assert {row["datatype"] for row in levels} == {"Double"}
    events = [row["event"] for row in expected["sparkplug_nodes"]]
    assert {name: events.count(name) for name in set(events)} == {
        "birth": 24,
        "death": 12,
        "stale": 12,
        "host_online": 12,
    }
    # A lost message, one that could not be decoded would be the next, and an unknown alias.
    gaps = [row["kind"] for row in expected["sparkplug_gaps"]]
    assert {name: gaps.count(name) for name in set(gaps)} == {
        "sequence_gap": 12,
        "unknown_metric": 12,
    }
    letters = expected["dead_letters"]
    assert len(letters) == 12
    assert {row["table_name"] for row in letters} == {"sparkplug"}
    assert {row["payload"] for row in letters} == {b"\xff"}
    assert {row["reason"] for row in letters} == {
        "the payload is not a valid message of Sparkplug B"
    }


class Killed(Exception):
    """The process was killed."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_rows_are_the_same_if_a_landing_is_killed_at_any_commit(
    seed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: dict[str, list[dict[str, Any]]],
) -> None:
    """Each third commit on average is the last one of a process, done or not."""
    chance = random.Random(seed)
    # The state table is replaced now and then.
    limits = SparkplugLimits(appended_commits=3, chunk_messages=7)
    place = BatchPlace(tmp_path, MESSAGES)
    commit = Table.commit

    def commit_or_die(self: Table, batch: LandingBatch) -> CommitOutcome:
        fate = chance.random()
        if fate < 0.15:
            raise Killed
        outcome = commit(self, batch)
        if fate > 0.85:
            raise Killed
        return outcome

    monkeypatch.setattr(Table, "commit", commit_or_die)
    kills = 0
    while True:
        try:
            place.land_rest(place.start(limits), chance, 60)
            break
        except Killed:
            kills += 1
    assert kills
    assert place.all_rows() == expected
    monkeypatch.undo()
    # Nothing is left to do, and a new start finds the same states.
    landing = place.start()
    assert landing.positions == {node: len(there) for node, there in MESSAGES.items()}
    landing.finish()
    assert place.all_rows() == expected


@pytest.mark.slow
def test_the_state_table_stays_small(tmp_path: Path) -> None:
    limits = SparkplugLimits(obsolete_rows=10, appended_commits=5)
    place = BatchPlace(tmp_path, {"n1": messages_of("n1", 4)})
    place.land_rest(place.start(limits), random.Random(1), 20)
    table = DeltaTable(str(place.lake / "sparkplug_state"))
    assert table.version() > 12
    assert len(table.file_uris()) <= 6
    # Two edge nodes, each with a session, a birth and that of a device.
    assert table.to_pyarrow_table().num_rows <= 4 * 6 + 10
    stored = StateTable(table.table_uri, "all", ["n1"]).states
    assert {key[2] for key in stored} == {"shared", "n1-only"}
    assert {each.bd_seq for each in stored.values()} == {3}


@pytest.mark.slow
def test_the_states_of_a_node_that_has_left_the_record_are_kept(tmp_path: Path) -> None:
    """A broker was retired, and its folder deleted: the state table is replaced nevertheless."""
    place = BatchPlace(tmp_path, MESSAGES)
    place.land_rest(place.start(), random.Random(3), 60)
    shutil.rmtree(tmp_path / "root" / "all" / "n2")
    landing = place.start(SparkplugLimits(appended_commits=0))
    at = len(MESSAGES["n1"])
    place.messages = {"n1": [*MESSAGES["n1"], (f"{TOPICS}/NDATA/shared", encoded(0))]}
    span = {"n1": (at + 1, at + 1)}
    landing.land(place.batch(span), span)
    table = str(place.lake / "sparkplug_state")
    stored = StateTable(table, "all", ["n1", "n2"])
    assert stored.positions == {"n1": at + 1, "n2": len(MESSAGES["n2"])}
    assert {(key[0], key[2]) for key in stored.states} == {
        *(("n1", "shared"), ("n1", "n1-only"), ("n2", "shared"), ("n2", "n2-only"))
    }


@pytest.mark.slow
def test_a_second_landing_is_refused_by_the_state(tmp_path: Path) -> None:
    place = BatchPlace(tmp_path, MESSAGES)
    first, second = place.start(), place.start()
    spans = {"n1": (1, 20)}
    first.land(place.batch(spans), spans)
    more = {"n1": (1, 30)}
    with pytest.raises(TableError, match="was changed by another landing of stream all"):
        second.land(place.batch(more), more)
    place.land_rest(place.start(), random.Random(2), 60)


@pytest.mark.slow
def test_a_batch_that_has_failed_is_not_passed_over_at_the_end(tmp_path: Path) -> None:
    place = BatchPlace(tmp_path, MESSAGES)
    landing = place.start()
    first, both = {"n1": (1, 20)}, {"n1": (1, 30)}
    landing.land(place.batch(first), first)

    # The state is committed last, and its table is away for a moment.
    folder = place.lake / "sparkplug_state"
    folder.rename(tmp_path / "away")
    with pytest.raises(TableError):
        landing.land(place.batch({"n1": (21, 30)}), both)
    shutil.rmtree(folder)
    (tmp_path / "away").rename(folder)
    landing.finish()
    assert place.start().positions == {"n1": 20}


@pytest.mark.slow
def test_a_deleted_table_is_refused_and_filled_again_without_the_state(
    tmp_path: Path, expected: dict[str, list[dict[str, Any]]]
) -> None:
    place = BatchPlace(tmp_path, MESSAGES)
    place.land_rest(place.start(), random.Random(3), 60)
    SparkplugTarget(place.plan).check()
    (place.lake / "sparkplug_gaps").rename(tmp_path / "gone")
    with pytest.raises(PipelineError, match="sparkplug_gaps lacks messages that"):
        SparkplugTarget(place.plan).check()
    (place.lake / "sparkplug_state").rename(tmp_path / "gone too")
    SparkplugTarget(place.plan).check()
    place.land_rest(place.start(), random.Random(4), 60)
    assert place.all_rows() == expected


@pytest.mark.slow
def test_a_damaged_file_of_states_is_refused_and_the_advice_is_right(
    tmp_path: Path, expected: dict[str, list[dict[str, Any]]]
) -> None:
    place = BatchPlace(tmp_path, MESSAGES)
    begun = {"n1": (1, 30), "n2": (1, 20)}
    place.start().land(place.batch(begun), begun)
    stored = place.start().positions
    assert stored == {"n1": 30, "n2": 20}
    folder = place.lake / "sparkplug_state"
    (file,) = folder.glob("*.parquet")
    good = file.read_bytes()
    footer = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    advice = (
        f"sparkplug_state: file {file.name} cannot be read as it was written: .*restore it from a"
        r" backup of the table, or delete .*/sparkplug_state, and landing begins"
    )
    states = StateTable(str(folder), "all", ["n1", "n2"])
    for column in ("node", "seq", "state"):
        at = good.index(column.encode(), footer)
        file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(TableError, match=advice):
            place.start()
    # Wherever a bit is flipped, the states are the same or refused.
    refused: list[str] = []
    for at in range(0, len(good), 11):
        file.write_bytes(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
        try:
            found = StateTable(str(folder), "all", ["n1", "n2"])
            assert found.states == states.states, f"byte {at} of {len(good)}, footer {footer}"
        except TableError as problem:
            refused.append(str(problem))
    assert len(refused) > 20
    assert all(file.name in each for each in refused)
    file.unlink()
    with pytest.raises(TableError, match=advice):
        place.start()
    shutil.rmtree(folder)
    SparkplugTarget(place.plan).check()
    assert place.start().positions == {}
    place.land_rest(place.start(), random.Random(5), 60)
    assert place.all_rows() == expected


@pytest.mark.slow
@pytest.mark.parametrize("table", ["sparkplug_metrics", "sparkplug_nodes", "sparkplug_gaps"])
def test_a_table_that_is_deleted_while_messages_land_does_not_begin_in_the_middle(
    tmp_path: Path, table: str
) -> None:
    place = BatchPlace(tmp_path, MESSAGES)
    landing = place.start()
    first, both = {"n1": (1, 20)}, {"n1": (1, 30)}
    landing.land(place.batch(first), first)
    (place.lake / table).rename(tmp_path / "gone")
    with pytest.raises(TableError, match=f"{table} was deleted or replaced while rows landed"):
        landing.land(place.batch({"n1": (21, 30)}), both)
    with pytest.raises(PipelineError, match=f"{table} lacks messages that"):
        SparkplugTarget(place.plan).check()


def test_a_batch_without_sparkplug_messages_commits_nothing_until_the_end(tmp_path: Path) -> None:
    place = BatchPlace(tmp_path, {"n1": [("plant/a", b"")] * 20})
    landing = place.start()
    landing.land(batches.empty_batch(), {"n1": (1, 10)})
    assert not place.lake.exists()
    landing.land(batches.empty_batch(), {"n1": (1, 20)})
    landing.finish()
    assert place.start().positions == {"n1": 20}
    version = DeltaTable(str(place.lake / "sparkplug_state")).version()
    landing.finish()
    assert DeltaTable(str(place.lake / "sparkplug_state")).version() == version


def test_the_command_plans_the_tables_that_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[LandingPlan] = []

    def remember(
        settings: LandSettings, *, change: Callable[[LandingPlan], LandingPlan], **others: Any
    ) -> None:
        plans.append(change(make_plan(settings)))
        assert others == {"once": True, "is_json": True, "quiet": False}

    monkeypatch.setattr("semel.cli.land_sparkplug.run_landing", remember)
    words = ["--data", str(tmp_path), "--table", "line", "--interval", "5s", "--once", "--json"]
    result = CliRunner().invoke(sparkplug, words)
    assert result.exit_code == 0, result.output
    (plan,) = plans
    assert plan.sparkplug is not None
    assert plan.sparkplug.names == ("line_metrics", "line_nodes", "line_gaps", "line_state")
    assert (plan.interval, plan.table) == (5, str(tmp_path / "lake"))
    assert plan.checkpoint == tmp_path / "lake" / "_checkpoints" / "_line-all"
    assert isinstance(make_target(plan), SparkplugTarget)
    chosen = tmp_path / "spark"
    result = CliRunner().invoke(sparkplug, [*words, "--checkpoint", str(chosen)])
    assert plans[1].checkpoint == chosen
    result = CliRunner().invoke(sparkplug, ["--data", str(tmp_path), "--table", "../x"])
    assert result.exit_code == 1
