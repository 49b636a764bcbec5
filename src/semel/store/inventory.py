"""Lists and deletes the sessions and retained messages of a store.

Listing only reads, and works while a broker is running. Deleting locks the folder, because a broker
has all of this in memory, too.
"""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, TypeVar, cast

from semel.mqtt.topics import topic_matches
from semel.store.database import Database, checked
from semel.store.folder import (
    STORE,
    known_version,
    open_folder,
    read_only,
    store_errors,
    store_row_errors,
)
from semel.store.metadata import KEEPER
from semel.store.schema import Unusable

Found = TypeVar("Found")

# How many sessions are deleted in one transaction.
CHUNK: Final = 1_000

_COUNTS: Final = {
    "subscriptions": "SELECT session_id, count(*) FROM subscription GROUP BY session_id",
    "queued": "SELECT session_id, count(*) FROM delivery WHERE packet_id = 0 GROUP BY session_id",
    "in_flight": (
        "SELECT session_id, count(*) FROM delivery WHERE packet_id > 0 GROUP BY session_id"
    ),
    "inbound": "SELECT session_id, count(*) FROM inbound GROUP BY session_id",
}


@dataclass(frozen=True)
class StoredSession:
    """A session in a store."""

    number: int
    client_id: str
    # How many seconds it outlives its connection.
    expiry: int
    # When it expires, in seconds of the wall clock; None: never, or its client was connected.
    ends_at: float | None
    # The user name of its owner; None: it has none, or it is unknown.
    user_name: str | None
    subscriptions: int
    queued: int
    in_flight: int
    inbound: int


@dataclass(frozen=True)
class StoredMessage:
    """A retained message in a store."""

    topic: str
    qos: int
    bytes: int
    expires_at: float | None


@dataclass(frozen=True)
class SessionFilter:
    """Selects the sessions of these clients, and those whose client identifier matches one of
    these patterns (`*`, `?`, `[…]`). Without either, selects all."""

    client_ids: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    def has(self, session: StoredSession) -> bool:
        """Whether this session is selected."""
        if not self.client_ids and not self.patterns:
            return True
        return session.client_id in self.client_ids or any(
            fnmatchcase(session.client_id, each) for each in self.patterns
        )


@dataclass(frozen=True)
class TopicFilter:
    """Selects the messages whose topic matches one of these filters. Without any, selects all."""

    filters: tuple[str, ...] = ()

    def has(self, message: StoredMessage) -> bool:
        """Whether this message is selected."""
        return not self.filters or any(topic_matches(each, message.topic) for each in self.filters)


# --- list -----------------------------------------------------------------------------------------


def list_sessions(folder: Path, selected: SessionFilter | None = None) -> list[StoredSession]:
    """Sessions in the order in which they began. Raises Unusable."""
    with store_row_errors(folder), closing(read_only(folder)) as connection:
        connection.execute("BEGIN")
        known_version(connection)
        counts = {name: dict(connection.execute(query)) for name, query in _COUNTS.items()}
        found = []
        for row in connection.execute("SELECT * FROM session ORDER BY id"):
            number, client_id, expiry, ends_at, identity = cast(
                tuple[int, str, int, float | None, str], checked("session", row)
            )
            numbers = {name: each.get(number, 0) for name, each in counts.items()}
            user_name = _user_name_in(identity)
            session = StoredSession(number, client_id, expiry, ends_at, user_name, **numbers)
            if selected is None or selected.has(session):
                found.append(session)
        return found


def _user_name_in(identity: str) -> str | None:
    """The user name in an identity, if it has one. The store does not interpret the rest."""
    try:
        values = json.loads(identity)
    except (ValueError, RecursionError):
        return None
    user_name = values.get("user_name") if isinstance(values, dict) else None
    return user_name if isinstance(user_name, str) else None


def list_retained(folder: Path, selected: TopicFilter | None = None) -> list[StoredMessage]:
    """Retained messages, ordered by the first message of their topic. Raises Unusable."""
    with store_row_errors(folder), closing(read_only(folder)) as connection:
        connection.execute("BEGIN")
        known_version(connection)
        found = []
        for row in connection.execute("SELECT * FROM retained ORDER BY position"):
            _, topic, qos, expires_at, _, payload = cast(
                tuple[int, str, int, float | None, bytes | None, bytes], checked("retained", row)
            )
            message = StoredMessage(topic, qos, len(payload), expires_at)
            if selected is None or selected.has(message):
                found.append(message)
        return found


# --- delete ---------------------------------------------------------------------------------------


def delete_sessions(folder: Path, selected: SessionFilter) -> list[StoredSession]:
    """Delete sessions with all their rows. Returns the deleted ones. Raises Unusable.

    Their wills are kept: a will is due when its session ends, so the next broker publishes it.
    """

    def delete(database: Database) -> list[StoredSession]:
        keeper = database.get_metadata(KEEPER)
        if keeper in ("client", "bridge"):
            raise Unusable(
                f"{folder} is the store of a {keeper}: without its session it would lose messages"
                " that it has not sent yet. To give up all of them, delete the folder"
            )
        found = list_sessions(folder, selected)
        for start in range(0, len(found), CHUNK):
            with database.transaction():
                database.end_sessions([each.number for each in found[start : start + CHUNK]])
        return found

    return _with_store(folder, delete)


def delete_retained(folder: Path, selected: TopicFilter) -> list[StoredMessage]:
    """Delete retained messages. Returns the deleted ones. Raises Unusable."""

    def delete(database: Database) -> list[StoredMessage]:
        found = list_retained(folder, selected)
        with database.transaction():
            database.connection.executemany(
                "DELETE FROM retained WHERE topic = ?", [(each.topic,) for each in found]
            )
        return found

    return _with_store(folder, delete)


def _with_store(folder: Path, use: Callable[[Database], Found]) -> Found:
    if not (folder / STORE).exists():
        raise Unusable(f"{folder} is not a data folder: it has no {STORE}")
    with (
        open_folder(folder) as opened,
        closing(opened.open()) as database,
        store_errors(folder),
    ):
        return use(database)
