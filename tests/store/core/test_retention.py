"""Retention: whole segments by age or bytes, the oldest first, and numbers are never forgotten."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.store.compaction import Compaction, merge
from semel.store.landing_notes import (
    declare_landing,
    landing_note_path,
    read_landing_notes,
    write_landing_note,
)
from semel.store.node_segments import NodeSegments, SealRequest
from semel.store.retention import Retention, delete_through, last_expired_seq, trim
from semel.store.retention_clock import RetentionClock
from semel.store.roots import Segment
from semel.store.segment_names import segment_name
from semel.store.segment_writer import seal_rows
from semel.store.segments import pick
from tests.store.memory_root import MemoryRoot
from tests.store.recorded import insert, make_database, read_records, received

SECOND = 1_000_000


def in_a_row(*sizes: int) -> list[Segment]:
    """Segments of ten rows side by side, of these sizes."""
    return [Segment(at * 10 + 1, at * 10 + 10, size, 0.0) for at, size in enumerate(sizes)]


def never(segment: Segment) -> tuple[int, int]:
    raise AssertionError(f"nobody needs the time of {segment}")


def each_second(segment: Segment) -> tuple[int, int]:
    """Row n is received at second n."""
    return segment.first * SECOND, segment.last * SECOND


# --- what is too much -----------------------------------------------------------------------------


def test_without_limits_everything_stays() -> None:
    assert last_expired_seq(in_a_row(5, 5, 5), Retention(), never, now=1e12) == 0


@pytest.mark.parametrize(
    ("limit", "through"),
    [(15, 0), (14, 10), (10, 10), (9, 20), (5, 20), (4, 20), (0, 20)],
)
def test_bytes_count_from_the_newest_and_the_newest_stays(limit: int, through: int) -> None:
    assert last_expired_seq(in_a_row(5, 5, 5), Retention(None, limit), never, now=0.0) == through


@pytest.mark.parametrize(
    ("now", "through"),
    [(10.0, 0), (110.0, 0), (110.5, 10), (120.0, 10), (120.5, 20), (130.5, 20), (1e9, 20)],
)
def test_a_segment_is_as_old_as_its_newest_row(now: float, through: int) -> None:
    segments = in_a_row(5, 5, 5)
    assert last_expired_seq(segments, Retention(100.0, None), each_second, now=now) == through


def test_whichever_limit_is_passed_counts() -> None:
    segments = in_a_row(5, 5, 5)
    assert last_expired_seq(segments, Retention(100.0, 10), each_second, now=0.0) == 10
    assert last_expired_seq(segments, Retention(100.0, 10), each_second, now=125.0) == 20


def test_only_as_many_times_are_read_as_needed() -> None:
    asked: list[int] = []

    def times(segment: Segment) -> tuple[int, int]:
        asked.append(segment.first)
        return each_second(segment)

    last_expired_seq(in_a_row(*[5] * 50), Retention(100.0, None), times, now=125.0)
    assert asked == [1, 11, 21]


def test_an_old_segment_behind_a_young_one_stays() -> None:
    """A clock was set back: only a beginning is ever cut off."""
    segments = in_a_row(5, 5, 5)

    def times(segment: Segment) -> tuple[int, int]:
        return (0, 0) if segment.first == 11 else (900 * SECOND, 900 * SECOND)

    assert last_expired_seq(segments, Retention(100.0, None), times, now=950.0) == 0


def test_covered_segments_do_not_count_as_bytes() -> None:
    segments = [*in_a_row(5, 5, 5), Segment(1, 20, 8, 0.0)]
    assert last_expired_seq(segments, Retention(None, 13), never, now=0.0) == 0
    assert last_expired_seq(segments, Retention(None, 12), never, now=0.0) == 20


# --- deleting -------------------------------------------------------------------------------------


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    connection = make_database(":memory:")
    insert(connection, 1, 200)
    yield connection
    connection.close()


@pytest.fixture
def root(database: sqlite3.Connection) -> MemoryRoot:
    """Rows 1 to 100 in segments of ten, of which the first five are merged too."""
    root = MemoryRoot()
    for first in range(1, 100, 10):
        seal_rows(database, root, "plant", "n1", stream_id=1, first=first, last=first + 9)
    merge(root, "plant", "n1", root.segments("plant", "n1")[:5])
    return root


def ranges(root: MemoryRoot) -> list[tuple[int, int]]:
    return [each.range for each in root.segments("plant", "n1")]


@pytest.mark.parametrize("gone", [[], [1, 11, 21, 41]])
@pytest.mark.parametrize("through", [50, 60, 90, 100])
def test_at_every_moment_a_record_without_its_beginning_is_left(
    root: MemoryRoot, through: int, gone: list[int]
) -> None:
    # Of those that are covered, some may have been deleted already.
    for first in gone:
        root.delete(root.file_path("plant", "n1", segment_name(first, first + 9)))
    highest: list[int] = []
    begins: list[int] = []

    def moment(what: str, path: str) -> None:
        twin = root.copy()
        highest.append(twin.highest_seq("plant", "n1"))
        chosen = pick(ranges(twin))
        begins.append(chosen[0][0] if chosen else 101)
        if chosen:
            assert chosen[-1][1] == 100
        # What is gone is written down before.
        assert begins[-1] <= twin.trimmed("plant", "n1") + 1

    root.hook = moment
    left = delete_through(root, "plant", "n1", root.segments("plant", "n1"), through)
    root.hook = lambda what, path: None
    assert set(highest) == {100}
    assert begins == sorted(begins)
    assert [each.range for each in left] == ranges(root)
    assert begins[-1] == through + 1


def test_what_covers_others_is_deleted_after_them() -> None:
    root = MemoryRoot()
    for first, last in ((1, 10), (3, 6), (11, 20)):
        root.files[f"plant/n1/{segment_name(first, last)}"] = (b"x", 0.0)
    deleted: list[str] = []
    root.hook = lambda what, path: deleted.append(path) if what == "delete" else None
    delete_through(root, "plant", "n1", root.segments("plant", "n1"), 10)
    # After the first alone, rows 7 to 10 would be a gap.
    assert [path.rsplit("/", 1)[-1] for path in deleted] == [
        segment_name(3, 6),
        segment_name(1, 10),
    ]


def test_when_all_is_deleted_the_highest_seq_is_still_known(root: MemoryRoot) -> None:
    delete_through(root, "plant", "n1", root.segments("plant", "n1"), 100)
    assert ranges(root) == []
    assert root.highest_seq("plant", "n1") == 100


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_wherever_it_stops_it_can_go_on(data: st.DataObject) -> None:
    root = MemoryRoot()
    first = 1
    for length in data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=8)):
        root.files[f"plant/n1/{segment_name(first, first + length - 1)}"] = (b"x", 0.0)
        first += length
    level = ranges(root)
    for _ in range(data.draw(st.integers(0, 2))):
        low = data.draw(st.integers(0, len(level) - 1))
        high = data.draw(st.integers(low, len(level) - 1))
        # Of what is covered now, any part may be deleted already.
        for each in level[low : high + 1]:
            if high > low and data.draw(st.booleans()):
                del root.files[f"plant/n1/{segment_name(*each)}"]
        level[low : high + 1] = [(level[low][0], level[high][1])]
        root.files[f"plant/n1/{segment_name(*level[low])}"] = (b"x", 0.0)
    through = data.draw(st.sampled_from(level))[1]
    fuse = data.draw(st.integers(0, 20))

    def burn(what: str, path: str) -> None:
        nonlocal fuse
        fuse -= 1
        if fuse < 0:
            raise InterruptedError

    root.hook = burn
    try:
        delete_through(root, "plant", "n1", root.segments("plant", "n1"), through)
    except InterruptedError:
        root.hook = lambda what, path: None
        chosen = pick(ranges(root))
        assert not chosen or chosen[-1] == level[-1]
        assert root.highest_seq("plant", "n1") == level[-1][1]
        delete_through(root, "plant", "n1", root.segments("plant", "n1"), through)
    root.hook = lambda what, path: None
    assert pick(ranges(root)) == [each for each in level if each[0] > through]
    assert root.highest_seq("plant", "n1") == level[-1][1]


# --- a command ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "through"), [(1, 0), (50, 0), (51, 50), (60, 50), (61, 60), (100, 90), (999, 100)]
)
def test_trimming_before_a_seq_keeps_it(root: MemoryRoot, before: int, through: int) -> None:
    assert trim(root, "plant", "n1", before_seq=before) == through
    left = read_records(root, "plant", "n1", 1, 1_000)
    assert [each.seq for each in left] == list(range(through + 1, 101))
    assert root.highest_seq("plant", "n1") == 100


@pytest.mark.parametrize(
    ("row", "through"), [(1, 0), (50, 0), (51, 50), (61, 60), (100, 90), (101, 100)]
)
def test_trimming_before_a_time_keeps_what_came_then(
    root: MemoryRoot, row: int, through: int
) -> None:
    assert trim(root, "plant", "n1", before_time=received(row) / 1e6) == through
    left = read_records(root, "plant", "n1", 1, 1_000)
    assert [each.seq for each in left] == list(range(through + 1, 101))


def test_trimming_needs_one_limit(root: MemoryRoot) -> None:
    with pytest.raises(ValueError, match="either a seq or a time"):
        trim(root, "plant", "n1")
    with pytest.raises(ValueError, match="either a seq or a time"):
        trim(root, "plant", "n1", before_seq=1, before_time=1.0)


def test_trimming_nothing_writes_nothing() -> None:
    root = MemoryRoot()
    assert trim(root, "plant", "n1", before_seq=100) == 0
    assert root.files == {}


# --- in the sealer --------------------------------------------------------------------------------


def sealer_of(database: sqlite3.Connection, root: MemoryRoot, retention: Retention) -> NodeSegments:
    return NodeSegments(
        database,
        root,
        node="n1",
        store="s",
        retention={"plant": retention},
        compaction=Compaction(files=3, grace=0.0),
    )


def seal_tens(sealer: NodeSegments, root: MemoryRoot, last: int) -> None:
    for first in range(1, last, 10):
        sealer.seal(SealRequest("plant", 1, first, first + 9), now=root.now)


def test_old_segments_go_and_numbers_go_on(database: sqlite3.Connection) -> None:
    root = MemoryRoot()
    sealer = sealer_of(database, root, Retention(60.0, None))
    seal_tens(sealer, root, 100)
    sealer.clean_up("plant", now=received(100) / 1e6 + 59.0)
    assert len(ranges(root)) == 10
    # Rows come a millisecond apart.
    sealer.clean_up("plant", now=received(35) / 1e6 + 60.0)
    assert ranges(root)[0] == (31, 40)
    sealer.clean_up("plant", now=received(100) / 1e6 + 61.0)
    assert ranges(root) == [(91, 100)]
    assert root.trimmed("plant", "n1") == 90
    sealer.seal(SealRequest("plant", 1, 101, 110), now=root.now)
    sealer.clean_up("plant", now=received(100) / 1e6 + 61.0)
    assert ranges(root) == [(101, 110)]
    assert root.highest_seq("plant", "n1") == 110


def test_a_stream_without_retention_keeps_everything(database: sqlite3.Connection) -> None:
    root = MemoryRoot()
    sealer = sealer_of(database, root, Retention(1.0, 1))
    for first in range(1, 100, 10):
        sealer.seal(SealRequest("other", 1, first, first + 9), now=root.now)
    sealer.clean_up("other", now=1e12)
    assert len(root.segments("other", "n1")) == 10


def test_bytes_are_kept_below_the_limit(database: sqlite3.Connection) -> None:
    root = MemoryRoot()
    seal_tens(sealer_of(database, root, Retention()), root, 100)
    sizes = [each.size for each in root.segments("plant", "n1")]
    sealer_of(database, root, Retention(None, sum(sizes[-4:]))).clean_up("plant", now=root.now)
    assert ranges(root) == [(71, 80), (81, 90), (91, 100)] or len(ranges(root)) == 4


def test_segments_are_merged_within_a_tenth_of_the_time_they_are_kept(
    database: sqlite3.Connection,
) -> None:
    """Else one merged segment would keep its oldest rows as long as its newest."""
    root = MemoryRoot()
    # Ten rows are ten milliseconds: so are three segments' worth of a tenth of this.
    sealer = sealer_of(database, root, Retention(0.3, None))
    seal_tens(sealer, root, 200)
    while sealer.compact("plant"):
        pass
    for first, last in pick(ranges(root)):
        assert last - first < 40
    free = MemoryRoot()
    sealer = sealer_of(database, free, Retention())
    seal_tens(sealer, free, 200)
    while sealer.compact("plant"):
        pass
    assert len(pick(ranges(free))) < len(pick(ranges(root)))


def test_segments_with_a_tenth_of_the_bytes_that_are_kept_are_not_merged(
    database: sqlite3.Connection,
) -> None:
    root = MemoryRoot()
    seal_tens(sealer_of(database, root, Retention()), root, 200)
    smallest = min(each.size for each in root.segments("plant", "n1"))
    assert not sealer_of(database, root, Retention(None, 10 * smallest)).compact("plant")
    assert sealer_of(database, root, Retention(None, 100 * smallest)).compact("plant")


# --- the newest segment, and what has not landed --------------------------------------------------

TEN_YEARS = 10 * 365.25 * 86_400.0


@pytest.mark.parametrize(
    "retention", [Retention(60.0, None), Retention(None, 1), Retention(1.0, 1)]
)
def test_the_newest_segment_stays_whatever_the_clock_and_the_size_say(
    database: sqlite3.Connection, retention: Retention
) -> None:
    root = MemoryRoot()
    sealer = sealer_of(database, root, retention)
    seal_tens(sealer, root, 100)
    sealer.clean_up("plant", now=received(100) / 1e6 + TEN_YEARS)
    assert ranges(root) == [(91, 100)]


def noted(root: MemoryRoot, table: str, **landed: int) -> None:
    write_landing_note(root, "plant", table, landed, at="2026-01-01T00:00:00+00:00")


def test_what_has_not_landed_stays_and_that_is_told_once_a_day(
    database: sqlite3.Connection,
) -> None:
    root = MemoryRoot()
    told: list[str] = []
    sealer = NodeSegments(
        database,
        root,
        node="n1",
        store="s",
        retention={"plant": Retention(60.0, None)},
        notify=told.append,
    )
    seal_tens(sealer, root, 100)
    now = received(100) / 1e6 + TEN_YEARS
    declare_landing(root, "plant", "lake/messages", at="2026-01-01T00:00:00+00:00")
    sealer.clean_up("plant", now=now)
    assert len(ranges(root)) == 10
    # Row 35 is in the middle of a segment, and another node is of no interest.
    noted(root, "lake/messages", n1=35, n2=1_000)
    sealer.clean_up("plant", now=now)
    assert ranges(root)[0] == (31, 40)
    # A second landing is behind the first one.
    noted(root, "lake/messages", n1=80)
    noted(root, "lake/other", n1=60)
    sealer.clean_up("plant", now=now)
    assert ranges(root)[0] == (61, 70)
    assert len(told) == 2
    assert "keeps rows 1 to 90, which have not landed in lake/messages" in told[0]
    assert "which have not landed in lake/other" in told[1]
    sealer.clean_up("plant", now=now + 86_400.0)
    assert len(told) == 4
    noted(root, "lake/other", n1=100)
    noted(root, "lake/messages", n1=100)
    sealer.clean_up("plant", now=now)
    assert ranges(root) == [(91, 100)]


def test_a_landing_that_has_noted_something_is_not_declared_anew() -> None:
    root = MemoryRoot()
    noted(root, "lake/messages", n1=35)
    declare_landing(root, "plant", "lake/messages", at="later")
    (landing,) = read_landing_notes(root, "plant")
    assert landing.landed == {"n1": 35}
    assert root.nodes("plant") == []


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"landed": 7}', b'{"landed": {"n1": "x"}}', b"[" * 100_000]
)
def test_of_a_note_that_is_damaged_nothing_has_landed(
    database: sqlite3.Connection, data: bytes
) -> None:
    root = MemoryRoot()
    sealer = sealer_of(database, root, Retention(1.0, None))
    seal_tens(sealer, root, 100)
    noted(root, "lake/messages", n1=100)
    root.files[landing_note_path("plant", "lake/messages")] = (data, 0.0)
    sealer.clean_up("plant", now=1e12)
    assert len(ranges(root)) == 10
    root.delete(landing_note_path("plant", "lake/messages"))
    sealer.clean_up("plant", now=1e12)
    assert ranges(root) == [(91, 100)]


# --- the clock ------------------------------------------------------------------------------------

DAY = 86_400.0
NOW = 1_800_000_000.0


class Machine:
    """A machine with a clock that can be set, and a sealer's clock that looks every minute."""

    def __init__(self, path: Path | None = None, longest: float = 30 * DAY) -> None:
        self.path = path
        self.longest = longest
        self.wall = NOW
        self.boot = 1_000.0
        self.said: list[str] = []
        self.restart()

    def restart(self) -> None:
        self.clock = RetentionClock(self.path, longest=self.longest)

    def look(self, newest: float | None = None) -> float:
        now, said = self.clock.now(self.wall, self.boot, newest=newest)
        assert now <= self.wall
        self.said += [said] if said else []
        return now

    def run(self, seconds: float, step: float = 60.0) -> float:
        now = self.wall
        for _ in range(int(seconds // step)):
            self.wall += step
            self.boot += step
            now = self.look()
        return now


def test_a_clock_that_runs_is_believed() -> None:
    machine = Machine()
    machine.look()
    assert machine.run(DAY) == machine.wall
    # Now and then it is set by some seconds.
    machine.wall += 5.0
    assert machine.run(DAY) == machine.wall
    machine.wall -= 5.0
    assert machine.run(DAY) == machine.wall
    assert machine.said == []


def test_a_clock_that_jumps_ahead_is_not_believed_until_it_is_set_right() -> None:
    machine = Machine()
    machine.look()
    machine.run(3_600.0)
    right = machine.wall
    machine.wall += TEN_YEARS
    assert machine.run(3_600.0) == pytest.approx(right + 3_600.0)
    assert len(machine.said) == 1
    assert "jumped ahead by 10.0 years" in machine.said[0]
    machine.wall -= TEN_YEARS
    assert machine.run(3_600.0) == machine.wall
    assert machine.said[1:] == ["the clock is correct again: retention follows it"]


def test_after_the_time_that_rows_are_kept_the_clock_is_believed_again() -> None:
    """What was there before the jump is old by then."""
    machine = Machine(longest=30 * DAY)
    machine.look()
    right = machine.wall
    machine.wall += 100 * DAY
    assert machine.run(29 * DAY, step=600.0) == pytest.approx(right + 29 * DAY)
    assert machine.run(2 * DAY, step=600.0) == machine.wall
    assert len(machine.said) == 2


def test_a_clock_that_goes_back_makes_rows_young_and_nothing_else() -> None:
    machine = Machine()
    machine.look()
    machine.wall -= TEN_YEARS
    assert machine.run(3_600.0) == machine.wall
    machine.wall += TEN_YEARS
    assert machine.run(3_600.0) < machine.wall - 9 * 365 * DAY
    assert len(machine.said) == 1


def test_a_jump_is_remembered_and_seen_over_a_restart(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "clock.json")
    machine.look()
    machine.run(3_600.0)
    right = machine.wall
    # While nobody looks.
    machine.wall += TEN_YEARS
    machine.boot = 5.0
    machine.restart()
    assert machine.look() == pytest.approx(right)
    assert len(machine.said) == 1
    # The next one knows it, and a day without a sealer is no jump.
    machine.wall += DAY
    machine.boot = 5.0
    machine.restart()
    assert machine.look() == pytest.approx(right + DAY)
    machine.wall -= TEN_YEARS
    machine.restart()
    assert machine.look() == pytest.approx(right + DAY)
    assert machine.run(120.0) == machine.wall


def test_a_week_without_a_sealer_is_no_jump(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "clock.json")
    machine.look()
    machine.wall += 7 * DAY
    machine.restart()
    assert machine.look() == machine.wall
    assert machine.said == []


@pytest.mark.parametrize("note", [None, b"", b"[]", b'{"wall": "x"}', b'{"wall": 1e400}'])
def test_without_a_note_the_newest_row_tells_what_time_it_was(
    tmp_path: Path, note: bytes | None
) -> None:
    path = tmp_path / "clock.json"
    if note is not None:
        path.write_bytes(note)
    machine = Machine(path)
    assert not machine.clock.is_known
    assert machine.look(newest=NOW - TEN_YEARS) == NOW - TEN_YEARS
    assert len(machine.said) == 1
    path.unlink()
    machine = Machine(path)
    assert machine.look(newest=NOW - DAY) == NOW
    path.unlink()
    machine = Machine(path)
    assert machine.look(newest=None) == NOW
    assert machine.said == []


def test_a_clock_ten_years_ahead_deletes_nothing_that_is_young(
    database: sqlite3.Connection,
) -> None:
    root = MemoryRoot()
    sealer = sealer_of(database, root, Retention(3_600.0, None))
    seal_tens(sealer, root, 100)
    machine = Machine(longest=3_600.0)
    machine.wall = received(100) / 1e6
    newest = sealer.newest_received()
    assert newest == received(100) / 1e6
    sealer.clean_up("plant", now=machine.wall, retention_now=machine.look(newest))
    machine.wall += TEN_YEARS
    for _ in range(50):
        machine.wall += 60.0
        machine.boot += 60.0
        sealer.clean_up("plant", now=machine.wall, retention_now=machine.look())
    assert len(ranges(root)) == 10
    for _ in range(20):
        machine.wall += 60.0
        machine.boot += 60.0
        sealer.clean_up("plant", now=machine.wall, retention_now=machine.look())
    assert ranges(root) == [(91, 100)]
