"""What the tables give back is what the commits said, however these are grouped."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from semel.mqtt import Message, Properties, PubRec, Session, Will
from semel.mqtt.delivery import ASSIGNED, FINISHED, QUEUED, RECALLED, STORED, Change
from semel.mqtt.packets.subscribe import Subscription
from semel.mqtt.properties import NO_PROPERTIES
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.session_restore import restore_backlog, restore_exchanges
from semel.store.commit import SHARED_PAYLOAD, Commit, RecordedMessage
from semel.store.database import Database, checked, is_disk_full
from semel.store.forensics.check import CheckReport, check_tables
from semel.store.rows import properties_from
from semel.store.store import RestoredState
from semel.store.write_batch import WriteBatch
from tests.modes import repeats
from tests.mqtt.snapshots import session_snapshot
from tests.store.histories import History

Facts = tuple[object, ...]


@contextmanager
def opened(path: Path | str = ":memory:") -> Iterator[Database]:
    database = Database.open(path)
    try:
        for name in ("one", "two"):
            database.stream(name)
        yield database
    finally:
        database.close()


def findings(database: Database) -> list[tuple[str, str, str]]:
    report = CheckReport()
    check_tables(database.connection, report)
    return [(each.table, each.row, each.problem) for each in report.findings]


def count(database: Database, table: str) -> int:
    found: int = database.connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return found


def facts_of(session: Session) -> Facts:
    """What a store has to keep of a session."""
    waiting, in_flight, stored, _ = session_snapshot(session)
    return waiting, in_flight, stored, session.ends_at, session.backlog.size


def restored(database: Database, saved: RestoredState) -> dict[str, Facts]:
    """Every session as a broker would have it back, by client identifier."""
    found: dict[str, Facts] = {}
    for each in saved.sessions:
        session = Session()
        restore_backlog(
            session,
            each.waiting,
            each.waiting_bytes,
            each.first_waiting,
            each.next_expiry,
            each.last_delivery,
        )
        session.ends_at = each.ends_at
        restore_exchanges(session, *database.exchanges(each.store_id))
        assert len(session.backlog) == each.waiting
        if each.waiting:
            session.backlog.refill(
                database.queue(each.store_id, each.first_waiting, each.waiting + 1)
            )
        found[each.client_id] = facts_of(session)
    return found


def values_of(held: RecordedMessage) -> tuple[object, ...]:
    """A message in an inbox, as values that can be compared."""
    flags = (held.qos, held.retain, held.dup, held.packet_id, held.version)
    return (held.stream, held.seq, held.topic_name, held.payload, *flags, held.properties)


def compare(database: Database, history: History) -> None:
    saved = database.restore()
    assert [
        (each.store_id, each.client_id, each.expiry_interval, each.identity)
        for each in saved.sessions
    ] == sorted(
        (live.number, live.client_id, live.expiry, live.identity) for live in history.live.values()
    )
    assert restored(database, saved) == {
        live.client_id: facts_of(live.session) for live in history.live.values()
    }
    assert saved.next_session > max((each.store_id for each in saved.sessions), default=0)
    assert sorted(saved.subscriptions, key=lambda each: (each[0], each[1].topic_filter)) == sorted(
        (
            (live.number, subscription, identifier)
            for live in history.live.values()
            for subscription, identifier, _ in live.subscriptions.values()
        ),
        key=lambda each: (each[0], each[1].topic_filter),
    )
    assert sorted(saved.cursors) == sorted(
        (live.number, topic_filter, cursor)
        for live in history.live.values()
        for topic_filter, (_, _, cursor) in live.subscriptions.items()
        if cursor is not None
    )
    assert saved.retained == list(history.retained.values())
    wills = {each.client_id: (each.identity, each.will, each.due_at) for each in saved.wills}
    assert wills == history.wills
    for live in history.live.values():
        found = [
            (number, key, values_of(held)) for number, key, held in database.inbox(live.number)
        ]
        assert found == [
            (number, key, values_of(held)) for number, (key, held) in sorted(live.inbox.items())
        ]
    for name, value in history.metadata.items():
        assert database.get_metadata(name) == value
    compare_expiries(database, saved, history)


def compare_expiries(database: Database, saved: RestoredState, history: History) -> None:
    for each in saved.sessions:
        waiting = session_snapshot(history.live[each.client_id].session)[0]
        assert isinstance(waiting, tuple)
        due = {
            number: (message.expires_at, message.size)
            for number, message, _ in waiting
            if message.expires_at is not None
        }
        assert each.next_expiry == min((at for at, _ in due.values()), default=None)
        if each.first_waiting:
            now = history.now
            expired = database.expired(each.store_id, each.first_waiting, now)
            assert sorted(expired) == sorted(
                (n, size) for n, (at, size) in due.items() if at <= now
            )
            later = [at for at, _ in due.values() if at > now]
            found = database.next_expiry(each.store_id, each.first_waiting, now)
            assert found == min(later, default=None)


def compare_records(database: Database, history: History) -> None:
    for stream, records in history.records.items():
        rows = database.connection.execute(
            "SELECT * FROM record WHERE stream_id = ? ORDER BY seq", (stream,)
        ).fetchall()
        assert len(rows) == len(records)
        for row, record in zip(rows, records, strict=True):
            content = checked("record", row)
            _, seq, _, flags, packet_id, version, client_id, user_name, topic, *rest = content
            section, payload = rest
            assert section is None or isinstance(section, bytes)
            assert (seq, packet_id, version) == (record.seq, record.packet_id, record.version)
            assert flags == record.qos | record.retain << 2 | record.dup << 3
            assert (client_id, user_name) == (record.client_id, record.user_name)
            assert (topic, payload) == (record.topic_name, record.payload)
            assert properties_from(section) == record.properties
        row = next(each for each in database.streams() if each.id == stream)
        assert row.last_seq == len(records)


# --- histories ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(repeats(16, 4)))
def test_what_is_read_back_is_what_was_committed_in_groups_of_any_size(seed: int) -> None:
    history = History(seed)
    with opened() as database:
        for _ in range(30):
            group = [history.commit() for _ in range(history.random.choice((1, 1, 2, 5, 20)))]
            database.apply(group)
            compare(database, history)
            assert findings(database) == []
        compare_records(database, history)
        database.apply([history.end_all()])
        compare(database, history)
        for table in (
            "session",
            "subscription",
            "inbound",
            "delivery",
            "delivery_extra",
            "shared_payload",
            "inbox",
        ):
            assert count(database, table) == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40, repeats(46, 42)))
def test_a_store_that_is_closed_and_opened_again_goes_on(seed: int, tmp_path: Path) -> None:
    """Numbers of bodies and places among the PUBRECs go on from what is there."""
    history = History(seed)
    for _ in range(6):
        with opened(tmp_path / "store.db") as database:
            compare(database, history)
            for _ in range(5):
                database.apply([history.commit() for _ in range(history.random.choice((1, 4)))])
            compare(database, history)
            assert findings(database) == []


@pytest.mark.parametrize("seed", range(50, repeats(56, 52)))
def test_one_group_leads_where_single_commits_lead(seed: int) -> None:
    one, other = History(seed), History(seed)
    with opened() as together, opened() as excluded:
        for _ in range(12):
            together.apply([one.commit() for _ in range(8)])
            for _ in range(8):
                excluded.apply([other.commit()])
            for table in (
                *("session", "subscription", "inbound", "retained", "will", "stream"),
                *("delivery", "inbox", "metadata"),
            ):
                question = f"SELECT * FROM {table} ORDER BY 1, 2"
                if table == "delivery":
                    # Of `release_number` the order counts.
                    question = (
                        "SELECT session_id, number, packet_id, release_number > 0, flags"
                        " FROM delivery"
                    )
                if table == "metadata":
                    question = (
                        "SELECT * FROM metadata WHERE name NOT IN ('commit', 'epoch') ORDER BY 1"
                    )
                rows = together.connection.execute(question).fetchall()
                if table == "retained":
                    # The order counts, not the numbers.
                    assert [row[2:] for row in rows] == [
                        row[2:] for row in excluded.connection.execute(question)
                    ]
                else:
                    assert rows == excluded.connection.execute(question).fetchall()
            compare(together, one)
            compare(excluded, other)


# --- one thing at a time --------------------------------------------------------------------------


def session_commit(number: int, client_id: str) -> Commit:
    commit = Commit()
    commit.sessions.append((number, client_id, NEVER_EXPIRES, ""))
    return commit


def queued(number: int, message: Message, share: str = "") -> Change:
    return Change(QUEUED, number=number, message=message, share=share)


def test_a_session_that_begins_anew_under_its_client_id_has_nothing_of_the_old() -> None:
    with opened() as database:
        first = session_commit(1, "a")
        first.changes.append((1, queued(1, Message("t", b"old", qos=1))))
        first.changes.append((1, Change(STORED, packet_id=7)))
        first.subscriptions.append((1, "t", Subscription("t"), 0))
        second = session_commit(2, "a")
        second.ended.append(1)
        database.apply([first])
        database.apply([second])
        (session,) = database.restore().sessions
        assert (session.store_id, session.client_id, session.waiting) == (2, "a", 0)
        assert database.restore().subscriptions == []
        assert database.exchanges(1) == ([], [])
        assert database.queue(1, 0, 10) == []


@pytest.mark.parametrize("groups", [1, 4])
def test_a_topic_that_is_retained_again_after_its_deletion_has_a_new_place(groups: int) -> None:
    commits: list[Commit] = []
    for topic, payload in (("a", b"1"), ("b", b"2"), ("a", None), ("a", b"3")):
        commit = Commit()
        message = None if payload is None else Message(topic, payload, retain=True)
        commit.retained.append((topic, message))
        commits.append(commit)
    with opened() as database:
        size = len(commits) // groups
        for start in range(0, len(commits), size):
            database.apply(commits[start : start + size])
        assert [each.topic_name for each in database.restore().retained] == ["b", "a"]


@pytest.mark.parametrize("groups", [1, 4])
def test_a_topic_whose_retained_message_is_replaced_keeps_its_place(groups: int) -> None:
    commits: list[Commit] = []
    for topic, payload in (("a", b"1"), ("b", b"2"), ("c", b"3"), ("a", b"4")):
        commit = Commit()
        commit.retained.append((topic, Message(topic, payload, retain=True)))
        commits.append(commit)
    with opened() as database:
        size = len(commits) // groups
        for start in range(0, len(commits), size):
            database.apply(commits[start : start + size])
        assert [each.payload for each in database.restore().retained] == [b"4", b"2", b"3"]


@pytest.mark.parametrize("groups", [1, 3])
def test_a_cursor_goes_with_its_subscription(groups: int) -> None:
    """One that is given up and made again begins anew; one that is replaced goes on."""
    first = session_commit(1, "a")
    for topic_filter in ("x", "y"):
        first.subscriptions.append((1, topic_filter, Subscription(topic_filter), 0))
        first.cursors.append((1, topic_filter, 5))
    second = Commit()
    second.subscriptions.append((1, "x", None, 0))
    third = Commit()
    third.subscriptions.append((1, "x", Subscription("x", 1), 0))
    third.subscriptions.append((1, "y", Subscription("y", 1), 0))
    commits = [first, second, third]
    with opened() as database:
        size = len(commits) // groups
        for start in range(0, len(commits), size):
            database.apply(commits[start : start + size])
        saved = database.restore()
        assert [each[1].qos for each in saved.subscriptions] == [1, 1]
        assert saved.cursors == [(1, "y", 5)]


@pytest.mark.parametrize("size", [SHARED_PAYLOAD - 1, SHARED_PAYLOAD])
def test_a_large_payload_is_kept_once_until_nobody_waits_for_it(size: int) -> None:
    message = Message("t", b"x" * size, qos=2)
    sessions = [Session() for _ in range(3)]
    commit = Commit()
    for number, session in enumerate(sessions, 1):
        commit.sessions.append((number, f"client {number}", NEVER_EXPIRES, ""))
        session.connect(5)
        session.send(message, 0.0)
        commit.changes.extend([(number, change) for change in session.drain()[0]])
    with opened() as database:
        database.apply([commit])
        kept = 1 if size >= SHARED_PAYLOAD else 0
        assert count(database, "shared_payload") == kept
        assert [database.exchanges(n)[0][0].message for n in (1, 2, 3)] == [message] * 3
        # One is released, one ends, one is refused.
        for number, session in enumerate(sessions, 1):
            assert count(database, "shared_payload") == kept
            commit = Commit()
            if number == 2:
                commit.ended.append(2)
            else:
                session.receive_pubrec(PubRec(1, 0 if number == 1 else 0x97))
                commit.changes.extend([(number, change) for change in session.drain()[0]])
            database.apply([commit])
            assert findings(database) == []
        assert count(database, "shared_payload") == 0
        assert count(database, "delivery") == 1


# --- what a client keeps --------------------------------------------------------------------------


def held(payload: bytes, packet_id: int = 1) -> RecordedMessage:
    return RecordedMessage(0, 0, "t", payload, qos=2, packet_id=packet_id)


def inbox_commit(*entries: tuple[int, str, RecordedMessage | None]) -> Commit:
    commit = Commit()
    for number, key, message in entries:
        commit.inbox.append((1, number, key, message))
    return commit


def keys(database: Database) -> list[tuple[int, str, bytes, int]]:
    return [(at, key, each.payload, each.packet_id) for at, key, each in database.inbox(1)]


@pytest.mark.parametrize("together", [True, False])
def test_of_an_inbox_there_is_what_was_put_in_and_not_taken_out(together: bool) -> None:
    commits = [
        session_commit(1, "a"),
        inbox_commit((1, "r-1", held(b"one")), (2, "r-2", held(b"two"))),
        inbox_commit((1, "", None), (3, "r-3", held(b"three"))),
        # What is replaced is the same message: its server has forgotten it.
        inbox_commit((3, "r-3", held(b"three", 0)), (4, "r-4", held(b"four"))),
        inbox_commit((4, "", None)),
    ]
    with opened() as database:
        for group in [commits] if together else [[commit] for commit in commits]:
            database.apply(group)
        assert keys(database) == [(2, "r-2", b"two", 1), (3, "r-3", b"three", 0)]
        assert findings(database) == []
        # A number that is free may be another's, in another run of the program.
        database.apply([inbox_commit((4, "s-4", held(b"new")))])
        assert keys(database)[-1] == (4, "s-4", b"new", 1)


def test_a_message_that_is_taken_out_and_put_in_again_in_one_group_is_there() -> None:
    with opened() as database:
        database.apply([session_commit(1, "a"), inbox_commit((1, "r-1", held(b"one")))])
        database.apply([inbox_commit((1, "", None)), inbox_commit((1, "s-1", held(b"new")))])
        assert keys(database) == [(1, "s-1", b"new", 1)]


def test_messages_of_an_inbox_come_back_by_their_numbers_and_only_the_sessions_own() -> None:
    with opened() as database:
        database.apply([session_commit(1, "a"), session_commit(2, "b")])
        database.apply([inbox_commit((9, "r-9", held(b"x")), (2, "r-2", held(b"y")))])
        assert [number for number, _, _ in database.inbox(1)] == [2, 9]
        assert database.inbox(2) == []


@pytest.mark.parametrize("together", [True, False])
def test_an_inbox_ends_with_its_session(together: bool) -> None:
    end = Commit()
    end.ended.append(1)
    commits = [session_commit(1, "a"), inbox_commit((1, "r-1", held(b"one"))), end]
    with opened() as database:
        for group in [commits] if together else [[commit] for commit in commits]:
            database.apply(group)
        assert count(database, "inbox") == count(database, "session") == 0


def moved(*changes: Change) -> Commit:
    commit = Commit()
    commit.changes.extend((1, change) for change in changes)
    return commit


RECALLS = [
    moved(Change(ASSIGNED, number=1, packet_id=7), Change(ASSIGNED, number=2, packet_id=8)),
    moved(
        Change(RECALLED, number=2, packet_id=8),
        Change(RECALLED, number=1, packet_id=7),
    ),
    moved(Change(ASSIGNED, number=1, packet_id=9)),
]


@pytest.mark.parametrize("queued_before", [True, False], ids=["on disk", "in the same group"])
@pytest.mark.parametrize("grouped", [1, 2, 3])
def test_a_delivery_that_is_assigned_recalled_and_assigned_again_has_its_last_identifier(
    queued_before: bool, grouped: int
) -> None:
    large = Message("t", b"L" * SHARED_PAYLOAD, qos=1)
    begin = [
        session_commit(1, "a"),
        moved(queued(1, large), queued(2, Message("t", b"two", qos=2))),
    ]
    with opened() as database:
        group = begin
        if queued_before:
            database.apply(begin)
            group = []
        group += RECALLS[:grouped]
        database.apply(group)
        expected = {1: [(1, 7), (2, 8)], 2: [(1, 0), (2, 0)], 3: [(1, 9), (2, 0)]}[grouped]
        rows = database.connection.execute("SELECT number, packet_id FROM delivery").fetchall()
        assert rows == expected
        assert findings(database) == []
        # Nothing of the message is lost by that.
        assert database.queue(1, 1, 9)[0].message == large


@pytest.mark.parametrize("together", [True, False])
def test_a_delivery_that_is_recalled_and_given_up_is_gone(together: bool) -> None:
    commits = [
        session_commit(1, "a"),
        moved(queued(1, Message("t", b"L" * SHARED_PAYLOAD, qos=1))),
        moved(Change(ASSIGNED, number=1, packet_id=7)),
        moved(Change(RECALLED, number=1, packet_id=7)),
        moved(Change(FINISHED, number=1)),
    ]
    with opened() as database:
        for group in [commits] if together else [[commit] for commit in commits]:
            database.apply(group)
        for table in ("delivery", "delivery_extra", "shared_payload"):
            assert count(database, table) == 0


@pytest.mark.parametrize("together", [True, False])
def test_of_a_fact_the_last_value_is_kept(together: bool) -> None:
    commits = []
    for name, value in (("break:1:4", "a"), ("break:1:9", "b"), ("break:1:4", "c")):
        commit = Commit()
        commit.metadata.append((name, value))
        assert not commit.is_empty()
        commits.append(commit)
    with opened() as database:
        for group in [commits] if together else [[commit] for commit in commits]:
            database.apply(group)
        assert (database.get_metadata("break:1:4"), database.get_metadata("break:1:9")) == (
            "c",
            "b",
        )
        assert database.get_metadata("break:1:5") is None
        assert findings(database) == []


def test_a_commit_counts_what_its_inbox_takes_while_it_waits() -> None:
    commit = inbox_commit((1, "r-1", held(b"x" * 1_000)))
    assert commit.size() >= 1_000
    assert not commit.is_empty()
    assert 0 < inbox_commit((1, "", None)).size() < 1_000


def test_a_commit_counts_each_row_and_a_shared_payload_once() -> None:
    for size, counted in ((SHARED_PAYLOAD - 1, 100), (SHARED_PAYLOAD, 1)):
        commit = Commit()
        message = Message("t", bytes(size), qos=1)
        for number in range(100):
            commit.changes.append((number, Change(QUEUED, number=1, message=message)))
        rows = commit.size() - counted * size
        assert 100 * 400 < rows < 100 * 700
        commit.changes.append((1, Change(QUEUED, number=2, message=Message("u", bytes(5_000)))))
        assert 5_000 < commit.size() - rows - counted * size < 6_000


def test_a_commit_counts_subscriptions_sessions_and_wills() -> None:
    for size in (100, 1_000):
        name = "x" * size
        commit = Commit()
        commit.subscriptions.append((1, name, Subscription(name), 0))
        commit.sessions.append((1, name, 100, name))
        commit.wills.append((name, name, Will(name, name.encode()), None))
        commit.wills.append((name, "", None, None))
        assert 6 * size < commit.size() < 6 * size + 500


def test_records_keep_every_property_and_the_time_of_their_commit() -> None:
    properties = Properties(
        payload_format_indicator=1,
        message_expiry_interval=60,
        content_type="text/plain",
        response_topic="answers",
        correlation_data=b"\0\xff",
        user_properties=[("b", "1"), ("a", "2"), ("b", "1")],
    )
    commit = Commit()
    commit.at = 1_700_000_000.123456
    commit.records.append(
        RecordedMessage(1, 1, "t", b"x", qos=2, properties=properties, packet_id=3)
    )
    commit.records.append(RecordedMessage(1, 2, "t", b"", properties=NO_PROPERTIES))
    with opened() as database:
        database.apply([commit])
        rows = database.connection.execute("SELECT received_at, properties FROM record").fetchall()
        assert [row[0] for row in rows] == [1_700_000_000_123_456] * 2
        assert properties_from(rows[0][1]) == properties
        assert rows[1][1] is None


def test_pubrels_leave_in_the_order_of_their_pubrecs_after_a_restart(tmp_path: Path) -> None:
    """[MQTT-4.6.0-4]"""
    path = tmp_path / "store.db"
    session = Session()
    session.connect(5)
    commit = session_commit(1, "a")
    for _ in range(4):
        session.send(Message("t", qos=2), 0.0)

    def store(database: Database, commit: Commit) -> None:
        commit.changes.extend([(1, change) for change in session.drain()[0]])
        database.apply([commit])

    with opened(path) as database:
        store(database, commit)
        for packet_id in (3, 1):
            session.receive_pubrec(PubRec(packet_id))
            store(database, Commit())
    with opened(path) as database:
        database.restore()
        for packet_id in (4, 2):
            session.receive_pubrec(PubRec(packet_id))
            store(database, Commit())
    with opened(path) as database:
        in_flight, _ = database.exchanges(1)
        in_flight.sort(key=lambda each: each.released)
        assert [each.packet_id for each in in_flight] == [3, 1, 4, 2]


# --- failing --------------------------------------------------------------------------------------


def everything(database: Database) -> dict[str, list[tuple[object, ...]]]:
    names = database.connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    return {
        name: database.connection.execute(f"SELECT * FROM {name}").fetchall()
        for (name,) in names.fetchall()
    }


def failure(database: Database, batch: WriteBatch) -> sqlite3.Error | None:
    try:
        database.write(batch)
    except sqlite3.Error as problem:
        return problem
    return None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60, 63))
def test_a_transaction_without_space_changes_nothing_and_succeeds_later(
    seed: int, tmp_path: Path
) -> None:
    history = History(seed)
    full = 0
    with opened(tmp_path / "store.db") as database:
        limit = database.connection.execute("PRAGMA max_page_count").fetchone()[0]
        for _ in range(25):
            batch = database.batch([history.commit() for _ in range(4)])
            pages = database.connection.execute("PRAGMA page_count").fetchone()[0]
            before = everything(database)
            database.connection.execute(f"PRAGMA max_page_count = {pages}")
            problem = failure(database, batch)
            database.connection.execute(f"PRAGMA max_page_count = {limit}")
            if problem is not None:
                full += 1
                assert is_disk_full(problem)
                assert everything(database) == before
                # The same, whole, when there is space again.
                database.write(batch)
            compare(database, history)
        assert findings(database) == []
    assert full > 3


def test_a_transaction_that_breaks_a_rule_of_the_tables_changes_nothing() -> None:
    with opened() as database:
        database.apply([session_commit(1, "a")])
        before = everything(database)
        commit = session_commit(2, "b")
        commit.sessions.append((3, "a", 0, ""))
        with pytest.raises(sqlite3.IntegrityError) as caught:
            database.apply([commit])
        assert not is_disk_full(caught.value)
        assert everything(database) == before
        assert not database.connection.in_transaction
        database.apply([session_commit(2, "b")])


def test_the_number_of_a_session_is_never_given_again(tmp_path: Path) -> None:
    """Also if the session is over, and whether or not it was there for a transaction."""
    path = tmp_path / "store.db"

    def next_number(*numbers: int, ended: Sequence[int] = ()) -> int:
        with closing(Database.open(path)) as database:
            commit = Commit()
            commit.sessions.extend((number, f"client {number}", 60, "") for number in numbers)
            end = Commit()
            end.ended.extend(ended)
            database.apply([commit, end])
        with closing(Database.open(path)) as database:
            return database.restore().next_session

    assert next_number() == 1
    assert next_number(1, 2, 3) == 4
    assert next_number(ended=[2, 3]) == 4
    assert next_number(4, ended=[4]) == 5
    assert next_number(ended=[1]) == 5
    assert next_number(5) == 6
