"""The thread that writes: groups, order, lack of space, failure. Real files, a real full disk."""

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from semel.mqtt.delivery import QUEUED, Change
from semel.mqtt.message import Message
from semel.store.commit import Commit, RecordedMessage
from semel.store.database import Database
from semel.store.writer import Sealing, StoreWriter

PATIENCE = 60.0


class Owner:
    """Whoever the writer reports to."""

    def __init__(self) -> None:
        self.safe: list[Commit] = []
        self.full: list[bool] = []
        self.failed: list[str] = []
        self.event = threading.Condition()

    def note_safe(self, commits: list[Commit]) -> None:
        with self.event:
            self.safe += commits
            self.event.notify_all()

    def note_full(self, full: bool) -> None:
        with self.event:
            self.full.append(full)
            self.event.notify_all()

    def note_failed(self, why: str) -> None:
        with self.event:
            self.failed.append(why)
            self.event.notify_all()

    def wait(self, for_what: Callable[[], bool]) -> None:
        with self.event:
            assert self.event.wait_for(for_what, PATIENCE)


def started(database: Database) -> tuple[StoreWriter, Owner]:
    owner = Owner()
    writer = StoreWriter(
        database, safe=owner.note_safe, full=owner.note_full, failed=owner.note_failed
    )
    writer.start()
    return writer, owner


def message(at: int, size: int = 10) -> Commit:
    """A commit that queues a message for session 1."""
    commit = Commit()
    if at == 1:
        commit.sessions.append((1, "a", 100, ""))
    queued = Change(QUEUED, number=at, message=Message("t", bytes(size), qos=1))
    commit.changes.append((1, queued))
    return commit


def test_commits_are_safe_in_the_order_in_which_they_were_put(tmp_path: Path) -> None:
    writer, owner = started(Database.open(tmp_path / "store.db"))
    commits = [message(at) for at in range(1, 501)]
    for commit in commits:
        writer.put(commit)
    owner.wait(lambda: len(owner.safe) == 500)
    assert owner.safe == commits
    writer.stop()
    with sqlite3.connect(tmp_path / "store.db") as connection:
        assert connection.execute("SELECT count(*) FROM delivery").fetchone() == (500,)
    assert owner.failed == []


def test_transactions_are_timed_and_their_commits_and_rows_counted(tmp_path: Path) -> None:
    writer, owner = started(Database.open(tmp_path / "store.db"))
    for at in range(1, 301):
        writer.put(message(at))
    owner.wait(lambda: len(owner.safe) == 300)
    writer.stop()
    times = writer.times
    transactions = times.seconds.read().total
    assert 1 <= transactions <= 300
    assert times.commits.read().total == times.rows.read().total == transactions
    assert times.commits.sum == times.rows.sum == 300
    assert 0 < times.seconds.sum < PATIENCE


def test_what_is_reported_safe_is_there_for_another_connection(tmp_path: Path) -> None:
    writer, owner = started(Database.open(tmp_path / "store.db"))
    other = sqlite3.connect(tmp_path / "store.db", check_same_thread=False)
    seen: list[int] = []

    def look(commits: list[Commit]) -> None:
        seen.append(other.execute("SELECT max(number) FROM delivery").fetchone()[0])
        owner.note_safe(commits)

    writer.safe = look
    for at in range(1, 51):
        writer.put(message(at))
        owner.wait(lambda at=at: len(owner.safe) == at)  # type: ignore[misc]
    assert seen == list(range(1, 51))
    writer.stop()
    other.close()


def test_the_end_writes_what_is_there_first(tmp_path: Path) -> None:
    writer, owner = started(Database.open(tmp_path / "store.db"))
    for at in range(1, 101):
        writer.put(message(at))
    writer.stop()
    assert len(owner.safe) == 100


def limit(database: Database, pages: int) -> None:
    """No more pages than so many: SQLite says of it what it says of a full disk."""
    database.connection.execute(f"PRAGMA max_page_count = {pages}")


@pytest.mark.slow
def test_a_full_disk_is_waited_for_and_nothing_is_lost_or_done_twice(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "store.db")
    limit(database, database.connection.execute("PRAGMA page_count").fetchone()[0] + 4)
    writer, owner = started(database)
    for at in range(1, 21):
        writer.put(message(at, 3_000))
    owner.wait(lambda: owner.full == [True])
    saved = len(owner.safe)
    assert saved < 20
    # It tries again, the same, and still nothing is safe.
    time.sleep(1.5)
    assert len(owner.safe) == saved
    assert owner.failed == []
    limit(database, 10_000)
    owner.wait(lambda: len(owner.safe) == 20)
    owner.wait(lambda: owner.full == [True, False])
    writer.stop()
    with sqlite3.connect(tmp_path / "store.db") as connection:
        assert connection.execute("SELECT count(*) FROM delivery").fetchone() == (20,)


def test_ending_on_a_full_disk_gives_up_what_was_not_acknowledged_and_says_so(
    tmp_path: Path,
) -> None:
    database = Database.open(tmp_path / "store.db")
    limit(database, database.connection.execute("PRAGMA page_count").fetchone()[0])
    writer, owner = started(database)
    for at in range(1, 21):
        writer.put(message(at, 3_000))
    owner.wait(lambda: owner.full == [True])
    writer.stop()
    assert ["full" in why for why in owner.failed] == [True]
    assert len(owner.safe) < 20


def test_any_other_problem_ends_it_with_a_sentence(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "store.db")
    database.connection.execute("DROP TABLE delivery")
    writer, owner = started(database)
    writer.put(message(1))
    owner.wait(lambda: bool(owner.failed))
    assert owner.safe == []
    assert "no such table" in owner.failed[0]
    writer.put(message(2))
    writer.stop()
    assert owner.safe == []
    assert len(owner.failed) == 1


class Sealer:
    """Seals at once what is due after every third commit."""

    def __init__(self) -> None:
        self.last = 0
        self.begun = 0
        self.ranges: list[tuple[int, int, int]] = []
        self.finished: list[tuple[int, int]] = []
        self.writer: StoreWriter | None = None

    def committed(self, commits: Sequence[Commit], now: float) -> None:
        for commit in commits:
            for record in commit.records:
                assert record.seq == self.last + 1
                self.last = record.seq

    def due(self, now: float) -> list[tuple[int, int, int]]:
        if self.last - self.begun < 3:
            return []
        due = (1, self.begun + 1, self.last)
        self.begun = self.last
        return [due]

    def begin(self, ranges: Sequence[tuple[int, int, int]]) -> None:
        assert self.writer is not None
        self.ranges += ranges
        for stream, _, last in ranges:
            row = self.writer.database.streams()[0]
            # Noted before anybody seals it.
            assert row.sealing_seq == last
            self.writer.sealed(stream, last)

    def wait(self, now: float) -> float | None:
        return 0.01

    def done(self, stream: int, through: int) -> None:
        self.finished.append((stream, through))


def test_rows_go_when_they_are_sealed_and_not_before(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "store.db")
    database.chunk = 2
    database.stream("s")
    owner, sealer = Owner(), Sealer()
    writer = StoreWriter(
        database,
        safe=owner.note_safe,
        full=owner.note_full,
        failed=owner.note_failed,
        sealing=sealer,
    )
    sealer.writer = writer
    writer.start()
    for seq in range(1, 101):
        commit = Commit()
        commit.records.append(RecordedMessage(1, seq, "t", b"x"))
        writer.put(commit)
    owner.wait(lambda: len(owner.safe) == 100)
    deadline = time.monotonic() + PATIENCE
    while (writer.deleting or sum(n for _, n in sealer.finished[-1:]) < 98) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.01)
    writer.stop()
    assert owner.failed == []
    assert next(first for _, first, _ in sealer.ranges) == 1
    with sqlite3.connect(tmp_path / "store.db") as connection:
        (sealed, last) = connection.execute("SELECT sealed_seq, last_seq FROM stream").fetchone()
        left = [row[0] for row in connection.execute("SELECT seq FROM record ORDER BY seq")]
    assert last == 100
    assert left == list(range(sealed + 1, 101))
    assert sealed >= 98


class RaisingSealer(Sealer):
    """Raises at the next calls of one of its methods."""

    def __init__(self, name: str, times: int) -> None:
        super().__init__()
        self.name = name
        self.times = times

    def check(self, name: str) -> None:
        if name == self.name and self.times:
            self.times -= 1
            raise RuntimeError(f"{name} is broken")

    def committed(self, commits: Sequence[Commit], now: float) -> None:
        self.check("committed")
        super().committed(commits, now)

    def due(self, now: float) -> list[tuple[int, int, int]]:
        self.check("due")
        return super().due(now)

    def begin(self, ranges: Sequence[tuple[int, int, int]]) -> None:
        self.check("begin")
        super().begin(ranges)

    def wait(self, now: float) -> float | None:
        self.check("wait")
        return super().wait(now)

    def done(self, stream: int, through: int) -> None:
        self.check("done")
        super().done(stream, through)


def seal(tmp_path: Path, sealer: Sealer) -> Owner:
    """A hundred rows, and the sealer that is told of them."""
    database = Database.open(tmp_path / "store.db")
    database.stream("s")
    owner = Owner()
    writer = StoreWriter(
        database,
        safe=owner.note_safe,
        full=owner.note_full,
        failed=owner.note_failed,
        sealing=sealer,
    )
    sealer.writer = writer
    writer.start()
    for seq in range(1, 101):
        commit = Commit()
        commit.records.append(RecordedMessage(1, seq, "t", b"x"))
        writer.put(commit)
    owner.wait(lambda: len(owner.safe) == 100 or bool(owner.failed))
    deadline = time.monotonic() + PATIENCE
    while not owner.failed and time.monotonic() < deadline:
        if sealer.finished and sealer.finished[-1][1] >= 98 and not writer.deleting:
            break
        time.sleep(0.01)
    writer.stop()
    return owner


SEALING = [name for name in vars(Sealing) if not name.startswith("_")]


@pytest.mark.slow
@pytest.mark.parametrize("name", SEALING)
def test_what_seals_may_raise_once_and_is_told_again_in_order(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every commit is safe all the same; `Sealer` asserts that it is told of each row once."""
    assert set(SEALING) == {"committed", "due", "begin", "wait", "done"}
    sealer = RaisingSealer(name, 1)
    owner = seal(tmp_path, sealer)
    assert owner.failed == []
    assert sealer.times == 0
    assert len(owner.safe) == 100
    assert len([record for record in caplog.records if "sealing failed" in record.message]) == 1
    with sqlite3.connect(tmp_path / "store.db") as connection:
        (sealed,) = connection.execute("SELECT sealed_seq FROM stream").fetchone()
    assert sealed >= 98


@pytest.mark.parametrize("name", ["committed", "due"])
def test_what_seals_and_raises_again_and_again_ends_the_writer_with_its_words(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.store.writer.RETRY_SECONDS", 0.01)
    owner = seal(tmp_path, RaisingSealer(name, 1_000_000))
    (why,) = owner.failed
    assert f"{name} is broken" in why


@pytest.mark.parametrize("durability", ["disk", "os"])
def test_a_store_is_synced_as_it_is_told(tmp_path: Path, durability: str) -> None:
    database = Database.open(tmp_path / "store.db", durability)
    level = database.connection.execute("PRAGMA synchronous").fetchone()[0]
    assert level == {"disk": 2, "os": 1}[durability]
    assert database.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    database.close()


def test_the_size_of_what_is_not_sealed_is_judged_by_its_first_rows(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "store.db")
    row = database.stream("s")
    assert database.unsealed_size(row) == 0
    commit = Commit()
    for seq in range(1, 3_001):
        commit.records.append(RecordedMessage(row.id, seq, "topic", bytes(200)))
    database.apply([commit])
    assert database.unsealed_size(database.stream("s")) == 3_000 * (100 + 5 + 200)
    database.end_sealing(row.id, 1_000)
    assert database.unsealed_size(database.stream("s")) == 2_000 * (100 + 5 + 200)
    database.close()
