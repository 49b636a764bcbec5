"""Small stores made by hand and large ones made by chance, and ways to break them."""

import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from semel.mqtt import Message, Properties, PubRec, Session
from semel.mqtt.delivery import QUEUED, STORED, Change
from semel.mqtt.packets.connect import Will
from semel.mqtt.packets.subscribe import Subscription
from semel.mqtt.session import NEVER_EXPIRES
from semel.store.commit import Commit, RecordedMessage
from semel.store.folder import open_folder
from semel.store.forensics.pages import Page, Pages
from semel.store.schema import TABLES, content_of, with_checksum
from tests.modes import repeats
from tests.store.histories import History

# Of session 1 of a small store, and of its will.
OWNER = '{"listener":"tls","proof":"password","user_name":"ann"}'
WILL_OWNER = '{"listener":"default","proof":"anonymous","user_name":"user"}'
LARGE = Message("large", b"L" * 10_000, qos=1)
PARTICULAR = Message(
    "t",
    b"\xff\x00",
    qos=2,
    properties=Properties(user_properties=[("k", "v")], content_type="x", correlation_data=b"\xfe"),
    expires_at=2_000_000_000.5,
)


def make_small(path: Path) -> Path:
    """A data folder with something in every table.

    Session 1, client "a": delivery 1 is sent, 2 is released, 3 to 5 wait. Session 2, client "b":
    1 waits, with the same payload as a's fifth. Stream plant has five rows, stream yard none. The
    program of client "a" has two messages that it has not acknowledged.
    """
    commit = Commit()
    commit.at = 1_700_000_000.0
    for number, client_id, owner in ((1, "a", OWNER), (2, "b", "")):
        commit.sessions.append((number, client_id, NEVER_EXPIRES, owner))
        commit.subscriptions.append((number, "t/#", Subscription("t/#", 1), 5))
    session = Session()
    session.connect(5, receive_maximum=2)
    session.send(Message("t", b"one", qos=1), 0.0)
    session.send(Message("t", b"two", qos=2), 0.0)
    session.receive_pubrec(PubRec(2))
    session.disconnect(0.0, 60)
    session.send(Message("t", "drei ß".encode(), qos=1), 0.0)
    session.send(PARTICULAR, 0.0, "$share/g/t")
    session.send(LARGE, 0.0)
    commit.changes.extend((1, change) for change in session.drain()[0])
    commit.changes.append((1, Change(STORED, packet_id=7)))
    other = Session()
    other.send(LARGE, 0.0)
    commit.changes.extend((2, change) for change in other.drain()[0])
    commit.wills.append(("a", WILL_OWNER, Will("gone", b"\x00\x80", qos=1), 5.0))
    for topic in ("t", "u"):
        commit.retained.append((topic, Message(topic, b"kept", retain=True)))
    for seq in range(1, 6):
        commit.records.append(RecordedMessage(1, seq, "t", b"%d" % seq, qos=1, packet_id=seq))
    commit.inbox.append(
        (1, 1, "run-1", RecordedMessage(0, 0, "t", b"\xff", qos=1, dup=True, packet_id=3))
    )
    properties = Properties(content_type="x", user_properties=[("k", "v")])
    kept = RecordedMessage(0, 0, "u", b"in", qos=2, retain=True, packet_id=4, properties=properties)
    commit.inbox.append((1, 4, "run-4", kept))
    with open_folder(path) as opened, closing(opened.open()) as database:
        database.stream("plant")
        database.stream("yard")
        database.apply([commit])
    return path


def make_large(path: Path) -> Path:
    """A data folder whose tables are trees of some depth."""
    history = History(1, clients=60, large=False)
    with open_folder(path) as opened, closing(opened.open()) as database:
        for name in ("one", "two"):
            database.stream(name)
        database.apply([history.commit(acts=40) for _ in range(repeats(30, 15))])
        commit = Commit()
        # Client identifiers long enough for an index of several pages.
        for number in range(5_000, 5_600):
            commit.sessions.append((number, f"one of many clients, number {number}", 60, ""))
            commit.changes.append((number, queued(1, b"waits")))
        for number in range(1, 300):
            commit.changes.append((5_300, queued(number + 1, b"x" * 100)))
        for records in history.records.values():
            for _ in range(1_000):
                record = RecordedMessage(
                    records[0].stream, len(records) + 1, "a/b", b"payload of a row"
                )
                records.append(record)
                commit.records.append(record)
        for number in range(150):
            topic = f"retained/{number}"
            commit.retained.append((topic, Message(topic, b"r" * 200, retain=True)))
            commit.wills.append((f"will {number}", "", Will("gone", b"w" * 200), None))
        database.apply([commit])
    return path


def queued(number: int, payload: bytes) -> Change:
    return Change(QUEUED, number=number, message=Message("t", payload, qos=1))


def rows(folder: Path, question: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(folder / "store.db")) as connection:
        return connection.execute(question).fetchall()


def change(folder: Path, *statements: str) -> None:
    """Write something wrong with SQL, as a mistake of ours would: with checksums that fit."""
    damage(folder, *statements)
    with closing(sqlite3.connect(folder / "store.db", isolation_level=None)) as connection:
        connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        there = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
        for table in TABLES:
            if table in there:
                write_checksums(connection, table)


def damage(folder: Path, *statements: str) -> None:
    """Change a store behind our back: checksums stay as they are."""
    with closing(sqlite3.connect(folder / "store.db", isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def write_checksums(connection: sqlite3.Connection, table: str) -> None:
    """Give every row of a table the checksum that fits it."""
    keys = TABLES[table].key_size
    same = " AND ".join(f"CAST({each} AS BLOB) = ?" for each in TABLES[table].key_names)
    for row in connection.execute(f"SELECT * FROM {table}").fetchall():
        checksum = with_checksum(table, content_of(table, row))[keys]
        if checksum != row[keys]:
            key = [str(each).encode("utf-8", "surrogateescape") for each in row[:keys]]
            connection.execute(f"UPDATE {table} SET checksum = ? WHERE {same}", (checksum, *key))


def contents(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    """All rows of all tables; but for its epoch, which a copy does not have."""
    names = rows(folder, "SELECT name FROM sqlite_schema WHERE type = 'table'")
    found = {str(name): rows(folder, f"SELECT * FROM {name}") for (name,) in names}
    table = "metadata" if "metadata" in found else "fact"
    found[table] = [row if row[0] != "epoch" else ("epoch", 0, "") for row in found[table]]
    return found


def pages_of(folder: Path, name: str) -> tuple[list[int], list[int]]:
    """The inner pages and the leaves of a table, or an index, without its root."""
    with Pages(folder / "store.db") as pages:
        roots = {each: root for _, each, root in pages.tables()}
        before = set(pages.used)
        for _ in pages.walk(roots[name]):
            pass
        found: tuple[list[int], list[int]] = ([], [])
        for number in sorted(pages.used - before - {roots[name]}):
            data = pages.page(number)
            # A page that a payload goes on in begins with the number of the next.
            if data[0]:
                found[not Page(pages, number).is_interior].append(number)
        return found


def root_of(folder: Path, name: str) -> int:
    with Pages(folder / "store.db") as pages:
        return {each: root for _, each, root in pages.tables()}[name]


def wipe(folder: Path, numbers: Iterable[int], content: bytes = b"\0") -> None:
    """Overwrite pages of a store that has no log."""
    path = folder / "store.db"
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    for number in numbers:
        data[(number - 1) * size : number * size] = content * size
    path.write_bytes(data)


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target
