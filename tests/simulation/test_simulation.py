"""Two thousand schedules in which every guarantee is kept; and tests of the simulation itself.

The compiled broker runs all of them, the interpreted one only a few.
"""

import pytest

from semel.mqtt import MQTT5, MQTT311, topic_matches
from tests.modes import repeats
from tests.simulation.broken_variants import BROKEN
from tests.simulation.clock import Broken
from tests.simulation.final_checks import check
from tests.simulation.finishing import play
from tests.simulation.ledger import matches
from tests.simulation.record import BEGIN, END, File, Root, Sealer
from tests.simulation.runs import main, run_seeds
from tests.simulation.schedule import (
    KINDS,
    NEVER,
    PUBLISHER,
    SUBSCRIBER,
    Action,
    Part,
    Plan,
    Schedule,
    schedule_of,
)
from tests.simulation.shrinking import failure_of, shrunk, story, traced
from tests.simulation.store import empty_database
from tests.simulation.variants import FAITHFUL, Blind
from tests.simulation.world import World

COUNT = repeats(500, 150)
PARTS = repeats(4, 1)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_guarantee_is_kept_in_every_schedule(part: int) -> None:
    outcome = run_seeds(1 + part * COUNT, COUNT)
    assert outcome.failures == []
    assert outcome.schedules == COUNT
    # Each kind of fault has occurred in each part.
    for what in (
        "crashes in a commit",
        "restarts with commits lost",
        "cuts",
        "messages in again",
        "messages out again",
        "messages out at QoS 1",
        "messages out at QoS 2",
        "messages refused",
        "connections refused",
        "held up by the store",
        "read from the queue on disk",
        "messages dropped",
        "wills",
        "segments",
        "hooks raised",
        "sessions damaged",
        "connections refused over damage",
        "not read from for a reader",
        "rights taken",
        "rights given",
        "messages refused over rights",
        "subscriptions ended",
        "thefts",
    ):
        assert outcome.tally[what] > 0, what


def test_a_seed_stands_for_one_schedule() -> None:
    assert schedule_of(7) == schedule_of(7)
    assert schedule_of(7) != schedule_of(8)


def test_a_schedule_runs_in_the_same_way_every_time() -> None:
    assert traced(schedule_of(11)) == traced(schedule_of(11))


def test_every_kind_of_action_can_happen() -> None:
    seen = {action.kind for seed in range(200) for action in schedule_of(seed).actions}
    assert seen == set(KINDS)


def test_an_unknown_action_is_refused() -> None:
    world = World(schedule_of(1).plan)
    with pytest.raises(ValueError, match="explode"):
        world.act(Action("explode", 0, 0, 0))


def plan(**changes: object) -> Plan:
    """A publisher and a durable subscriber, and one stream."""
    parts = (
        Part("p0", PUBLISHER, MQTT5, NEVER, 100, 2),
        Part("s1", SUBSCRIBER, MQTT311, NEVER, 65_535, 2),
    )
    return Plan(0, parts, (("all", "#"),), **changes)  # type: ignore[arg-type] # by name


START = [
    Action("connect", 0, 0, 0),
    Action("connect", 1, 0, 0),
    Action("settle", 0, 3, 0),
    Action("subscribe", 1, 1, 0),
    Action("settle", 0, 3, 0),
]
# QoS 2, topic `a`, small, not retained, without expiry.
MESSAGE = Action("publish", 0, 0, 530)


def finished(actions: list[Action], **changes: object) -> World:
    """Execute these actions, and check the world."""
    world = World(plan(**changes), trace=True)
    play(world, [*START, *actions])
    check(world)
    return world


def test_a_qos_2_message_passes_through_a_quiet_world() -> None:
    world = finished([MESSAGE, Action("settle", 0, 3, 0)])
    [sent] = world.clients[0].published
    [got] = world.clients[1].got
    assert (got.payload, got.qos, got.dup) == (sent.payload, 2, False)
    assert [row[3] for row in world.sealers[0].record(world.database)] == [sent.payload]


@pytest.mark.parametrize("how", range(4))
@pytest.mark.parametrize("before", range(8))
def test_a_crash_at_any_point_of_an_exchange_neither_loses_nor_duplicates(
    how: int, before: int
) -> None:
    actions = [MESSAGE, *[Action("step", 0, 0, 0)] * before, Action("crash", 0, how + 4 * 9, 1)]
    world = finished(actions)
    [sent] = world.clients[0].published
    assert [got.payload for got in world.clients[1].got] == [sent.payload]


@pytest.mark.slow
@pytest.mark.parametrize("cut", range(40))
def test_a_cut_at_any_byte_neither_loses_nor_duplicates(cut: int) -> None:
    for who in (0, 1):
        for steps in range(4):
            actions = [MESSAGE, *[Action("step", 0, 0, 0)] * steps, Action("cut", who, cut, cut)]
            world = finished(actions)
            [sent] = world.clients[0].published
            assert [got.payload for got in world.clients[1].got] == [sent.payload]


@pytest.mark.parametrize(
    ("topic_filter", "topic"),
    [
        (topic_filter, topic)
        for topic_filter in ("#", "a", "a/#", "+", "+/b", "a/+", "a/b/#", "+/+", "c/d")
        for topic in ("a", "a/b", "a/b/c", "b", "c/d", "w/p0")
    ],
)
def test_the_ledger_matches_topics_as_the_standard_does(topic_filter: str, topic: str) -> None:
    assert matches(topic_filter, topic) == topic_matches(topic_filter, topic)
    assert matches(f"$share/g/{topic_filter}", topic) == topic_matches(topic_filter, topic)


def test_a_reader_takes_no_file_that_another_covers() -> None:
    root = Root()
    rows = [(seq, "p0", "a", b"%d" % seq) for seq in range(1, 7)]
    root.files = [
        File(rows[:2], 1, 2, True, True, True),
        File(rows[2:4], 3, 4, True, True, True),
        File(rows[:4], 1, 4, True, True, True),
        File(rows[4:], 5, 6, True, True, True),
    ]
    assert [file.name for file in root.segments()] == [(1, 4), (5, 6)]
    assert root.rows() == rows


def test_a_segment_that_overlaps_another_is_noticed() -> None:
    root = Root()
    rows = [(seq, "p0", "a", b"") for seq in range(1, 5)]
    root.files = [File(rows[:3], 1, 3, True, True, True), File(rows[1:], 2, 4, True, True, True)]
    with pytest.raises(Broken, match="overlaps"):
        root.rows()


def test_a_crash_takes_a_name_that_was_not_safe_and_bytes_that_were_not_synced() -> None:
    root = Root()
    rows = [(seq, "p0", "a", b"") for seq in (1, 2)]
    root.files = [
        File(rows, 1, 2, named=True, bytes_safe=True, name_safe=True),
        File(rows, 3, 4, named=True, bytes_safe=True),
        File(rows, 5, 6, named=False, bytes_safe=True),
        File(rows, 7, 8, named=True, name_safe=True),
    ]
    root.crash(0)
    assert [(file.name, len(file.rows)) for file in root.files] == [((1, 2), 2), ((7, 8), 1)]


def test_a_sealer_that_is_interrupted_seals_the_same_range_again() -> None:
    world = finished([MESSAGE, MESSAGE, Action("settle", 0, 3, 0)])
    database = world.database
    sealer = Sealer(world.sealers[0].stream)
    for steps in range(BEGIN, END + 1):
        sealer = Sealer(sealer.stream)
        for _ in range(steps):
            sealer.go_on(database, 3)
        sealer.crash(database, 0b10_0000)
        sealer.go_on(database, 3)
        assert len(sealer.record(database)) == 2
    while sealer.step != BEGIN:
        sealer.go_on(database, 3)
    assert [file.name for file in sealer.root.segments()] == [(1, 2)]
    assert database.connection.execute("SELECT count(*) FROM record").fetchone() == (0,)


@pytest.mark.slow
def test_a_transaction_can_be_interrupted_at_any_step_and_leaves_nothing() -> None:
    """A crash inside a commit is an interrupt: SQLite rolls the transaction back."""
    whole = interrupted = 0
    for steps in range(0, 300, 3):
        world = World(plan())
        for action in [*START, MESSAGE, Action("up", 0, 0, 0), Action("tick", 0, 0, 0)]:
            world.act(action)
        before = list(world.database.connection.iterdump())
        snapshot = world.store.apply_and_crash(9, steps)
        world.store.crash()
        if snapshot is None:
            interrupted += 1
            assert list(world.database.connection.iterdump()) == before
        else:
            whole += 1
    assert interrupted > 10
    assert whole > 10


def test_a_failing_schedule_shrinks_to_a_short_one_that_fails_as_well() -> None:
    variant = next(each for each in BROKEN if each.name == "lost will")
    seed = next(seed for seed in range(500) if failure_of(schedule_of(seed), variant))
    schedule = schedule_of(seed)
    small = shrunk(schedule, variant)
    assert len(small.actions) < len(schedule.actions) // 2
    assert failure_of(small, variant) is not None
    assert failure_of(small, FAITHFUL) is None
    assert shrunk(schedule, variant) == small
    reported = story(small, variant)
    assert f"seed {seed}" in reported
    assert "BROKEN: " in reported


def test_what_does_not_fail_cannot_shrink() -> None:
    with pytest.raises(ValueError, match="does not fail"):
        shrunk(Schedule(plan(), START))


def test_a_blind_witness_does_not_change_a_faithful_world() -> None:
    assert failure_of(schedule_of(3), Blind(FAITHFUL)) is None


def test_an_empty_database_has_the_tables_of_a_new_one() -> None:
    database = empty_database()
    assert database.restore().sessions == []
    database.close()


def test_the_command_counts_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "20", "--processes", "1"]) == 0
    shown = capsys.readouterr().out
    assert "schedules  20" in shown
    assert "guarantees broken  0" in shown


def test_the_command_replays_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "5"]) == 0
    assert "every guarantee is kept" in capsys.readouterr().out
    assert main(["--seed", "5", "--trace"]) == 0
    assert "nothing is wrong" in capsys.readouterr().out


def test_the_command_shows_a_broken_world(capsys: pytest.CaptureFixture[str]) -> None:
    variant = next(each for each in BROKEN if each.name == "early ack")
    seed = next(seed for seed in range(50) if failure_of(schedule_of(seed), variant))
    assert main(["--seed", str(seed), "--variant", "early ack"]) == 1
    assert "BROKEN: " in capsys.readouterr().out


def test_the_command_knows_its_variants(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--seed", "1", "--variant", "no such"])
    assert "early ack" in capsys.readouterr().err
