"""What `semel up` knows about a record and a table: positions, rates, lag and deaths.

The events are those of a landing, as a line of it reports them.
"""

import json

from semel.up.parts import BROKER, LANDING, parse_landing_line
from semel.up.positions import RecordExtent
from semel.up.status import FinalTotals, UpStatus
from semel.up.supervisor import DIED, READY, STDOUT, Event

RECORDED = 7
EXTENT = RecordExtent("n1", RECORDED, RECORDED)


def landing_event(name: str, **facts: object) -> Event:
    """The event that a line of a landing becomes."""
    line = json.dumps({"at": "2026-11-16T09:10:46+00:00", "event": name, **facts})
    line_event = parse_landing_line(STDOUT, line)
    return Event(line_event.kind, LANDING, line_event.text, line_event.facts)


def batch(landed: int, **facts: object) -> Event:
    found = {"batch": 1, "rows": 1, "landed": landed, "lag_rows": 0, "lag_seconds": 1.25}
    return landing_event("batch", **found, **facts)


def status_after(*events: Event) -> UpStatus:
    status = UpStatus(EXTENT, 0.0)
    for event in events:
        status.take_event(event, 0.0)
    return status


# --- positions ------------------------------------------------------------------------------------


def test_rows_of_other_nodes_are_not_ours() -> None:
    ready = landing_event("ready", landed_before=500, positions={"n2": 500})
    found = status_after(ready).snapshot(0.0)
    assert (found.landed, found.lag_rows) == (0, RECORDED)
    found = status_after(ready, batch(3, positions={"n1": 3, "n2": 500})).snapshot(0.0)
    assert found.recorded == RECORDED
    assert found.landed == 3
    assert found.lag_rows == 4
    assert found.table_rows == 503


def test_rows_that_retention_deleted_before_they_landed_are_not_lag() -> None:
    ready = landing_event("ready", landed_before=0, positions={})
    found = status_after(ready, batch(2, positions={"n1": RECORDED})).snapshot(0.0)
    assert found.lag_rows == 0
    assert found.landed == RECORDED
    assert found.table_rows == 2
    found = status_after(ready, batch(2, positions={"n1": RECORDED - 1})).snapshot(0.0)
    assert found.lag_rows == 1


def test_a_batch_of_other_nodes_leaves_our_position() -> None:
    ready = landing_event("ready", landed_before=5, positions={"n1": 5})
    found = status_after(ready, batch(9, positions={"n2": 9})).snapshot(0.0)
    assert (found.landed, found.lag_rows) == (5, 2)


def test_a_landing_that_is_ahead_of_the_last_extent_has_no_lag() -> None:
    ready = landing_event("ready", landed_before=9, positions={"n1": 9})
    found = status_after(ready).snapshot(0.0)
    assert (found.landed, found.lag_rows) == (9, 0)


def test_without_positions_the_lag_is_unknown() -> None:
    found = status_after(landing_event("ready", landed_before=500), batch(3)).snapshot(0.0)
    assert found.landed is None
    assert found.lag_rows is None
    assert found.waiting_seconds is None
    assert found.table_rows == 503
    found = status_after().snapshot(0.0)
    assert found.table_rows is None
    assert found.recorded == RECORDED


def test_without_a_record_nothing_is_known_of_what_has_landed() -> None:
    status = UpStatus(None, 0.0)
    status.take_event(landing_event("ready", landed_before=9, positions={"n1": 9}), 0.0)
    assert (status.recorded, status.landed, status.node) == (0, None, "")
    status.take_extent(EXTENT, 1.0)
    assert (status.recorded, status.landed, status.node) == (RECORDED, 9, "n1")


# --- rate and lag ---------------------------------------------------------------------------------


def test_the_rate_is_that_since_the_extent_before() -> None:
    status = UpStatus(EXTENT, 10.0)
    assert status.snapshot(10.0).rate == 0.0
    status.take_extent(RecordExtent("n1", 27, 7), 12.0)
    assert status.snapshot(12.0).rate == 10.0
    # An extent that cannot be read changes nothing.
    status.take_extent(None, 13.0)
    assert (status.recorded, status.snapshot(13.0).rate) == (27, 0.0)
    status.take_extent(RecordExtent("n1", 30, 7), 14.0)
    assert status.snapshot(14.0).rate == 3.0
    status.stop_measuring()
    assert status.snapshot(15.0).rate == 0.0


def test_the_latency_is_that_of_a_recent_batch_and_rows_wait_until_they_have_landed() -> None:
    status = status_after(
        landing_event("ready", landed_before=0, positions={"n1": 0}),
        batch(3, positions={"n1": 3}),
    )
    found = status.snapshot(0.0)
    assert (found.lag_rows, found.lag_seconds, found.waiting_seconds) == (4, 1.25, 0.0)
    found = status.snapshot(42.0)
    assert (found.lag_rows, found.lag_seconds, found.waiting_seconds) == (4, None, 42.0)
    status.take_event(batch(4, positions={"n1": RECORDED}), 42.0)
    found = status.snapshot(42.0)
    assert (found.lag_rows, found.lag_seconds, found.waiting_seconds) == (0, 1.25, 0.0)
    assert status.snapshot(84.0).lag_seconds is None


# --- deaths and totals ----------------------------------------------------------------------------


def test_a_death_is_repeated_until_the_part_is_ready_or_dies_of_something_else() -> None:
    no_java, killed = Event(DIED, LANDING, "no Java"), Event(DIED, LANDING, "signal 9")
    status = status_after()
    assert not status.has_died(LANDING)
    assert not status.is_repeated_death(no_java)
    status.take_event(no_java, 0.0)
    assert status.has_died(LANDING)
    assert not status.has_died(BROKER)
    assert status.is_repeated_death(no_java)
    assert not status.is_repeated_death(killed)
    status.take_event(Event(READY, LANDING), 0.0)
    assert not status.has_died(LANDING)
    assert not status.is_repeated_death(no_java)


def test_totals_are_since_the_start_and_in_all() -> None:
    status = status_after()
    status.take_extent(RecordExtent("n1", 10, 10), 1.0)
    assert status.totals(4) == FinalTotals(10, 3, 4)
    assert status.totals(4).waiting == 6
    assert status.totals(12).waiting == 0
    assert status.totals(None).waiting is None
