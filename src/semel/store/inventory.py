"""Sessions and retained messages of a store, one by one: what there is, and how to be rid of it.

Listing only reads, and works beside a broker. Deleting needs the folder for itself: a broker has
all of this in memory as well.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, TypeVar, cast

from semel.mqtt.topics import topic_matches
from semel.store.database import Database, checked
from semel.store.facts import KEEPER
from semel.store.folder import (
    STORE,
    explained,
    known_version,
    open_folder,
    read_only,
    rows_explained,
)
from semel.store.schema import Unusable

Found = TypeVar("Found")

# Sessions that are ended in one transaction.
CHUNK: Final = 1_000

_COUNTS: Final = {
    "subscriptions": "SELECT session, count(*) FROM subscription GROUP BY session",
    "queued": "SELECT session, count(*) FROM delivery WHERE packet_id = 0 GROUP BY session",
    "in_flight": "SELECT session, count(*) FROM delivery WHERE packet_id > 0 GROUP BY session",
    "inbound": "SELECT session, count(*) FROM inbound GROUP BY session",
}


@dataclass(frozen=True)
class StoredSession:
    """A session as a store has it."""

    number: int
    client_id: str
    # Seconds that it outlives its connection.
    expiry: int
    # When it expires, in seconds of the wall clock; None: never, or its connection was open.
    ends_at: float | None
    subscriptions: int
    queued: int
    in_flight: int
    inbound: int


@dataclass(frozen=True)
class StoredMessage:
    """A retained message as a store has it."""

    topic: str
    qos: int
    bytes: int
    expires_at: float | None


@dataclass(frozen=True)
class SessionFilter:
    """Which sessions: those of these clients, and those whose client identifier looks like one of
    these patterns (`*`, `?`, `[…]`). Without either: all."""

    client_ids: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    def has(self, session: StoredSession) -> bool:
        """Whether this one is meant."""
        if not self.client_ids and not self.patterns:
            return True
        return session.client_id in self.client_ids or any(
            fnmatchcase(session.client_id, each) for each in self.patterns
        )


@dataclass(frozen=True)
class TopicFilter:
    """Which retained messages: those whose topics one of these MQTT filters matches; none: all."""

    filters: tuple[str, ...] = ()

    def has(self, message: StoredMessage) -> bool:
        """Whether this one is meant."""
        return not self.filters or any(topic_matches(each, message.topic) for each in self.filters)


# --- looking --------------------------------------------------------------------------------------


def list_sessions(folder: Path, wanted: SessionFilter | None = None) -> list[StoredSession]:
    """Sessions in the order in which they began. Raises Unusable."""
    with rows_explained(folder), closing(read_only(folder)) as connection:
        connection.execute("BEGIN")
        known_version(connection)
        counts = {name: dict(connection.execute(ask)) for name, ask in _COUNTS.items()}
        found = []
        for row in connection.execute("SELECT * FROM session ORDER BY number"):
            content = cast(tuple[int, str, int, float | None], checked("session", row))
            numbers = {name: each.get(content[0], 0) for name, each in counts.items()}
            session = StoredSession(*content, **numbers)
            if wanted is None or wanted.has(session):
                found.append(session)
        return found


def list_retained(folder: Path, wanted: TopicFilter | None = None) -> list[StoredMessage]:
    """Retained messages in the order in which their topics got a first one. Raises Unusable."""
    with rows_explained(folder), closing(read_only(folder)) as connection:
        connection.execute("BEGIN")
        known_version(connection)
        found = []
        for row in connection.execute("SELECT * FROM retained ORDER BY place"):
            _, topic, qos, expires_at, _, payload = cast(
                tuple[int, str, int, float | None, bytes | None, bytes], checked("retained", row)
            )
            message = StoredMessage(topic, qos, len(payload), expires_at)
            if wanted is None or wanted.has(message):
                found.append(message)
        return found


# --- deleting -------------------------------------------------------------------------------------


def delete_sessions(folder: Path, wanted: SessionFilter) -> list[StoredSession]:
    """End sessions, with all that is kept for them; those that were there. Raises Unusable.

    A will stays: the end of a session is when it is due, and the next broker publishes it.
    """

    def delete(database: Database) -> list[StoredSession]:
        if database.fact(KEEPER) == "client":
            raise Unusable(
                f"{folder} is the store of a client: without its session it would lose what it has"
                " not sent yet. Delete the folder to be rid of all of it"
            )
        found = list_sessions(folder, wanted)
        for start in range(0, len(found), CHUNK):
            with database.transaction():
                database.end_sessions([each.number for each in found[start : start + CHUNK]])
        return found

    return _changed(folder, delete)


def delete_retained(folder: Path, wanted: TopicFilter) -> list[StoredMessage]:
    """Delete retained messages; those that were there. Raises Unusable."""

    def delete(database: Database) -> list[StoredMessage]:
        found = list_retained(folder, wanted)
        with database.transaction():
            database.connection.executemany(
                "DELETE FROM retained WHERE topic = ?", [(each.topic,) for each in found]
            )
        return found

    return _changed(folder, delete)


def _changed(folder: Path, act: Callable[[Database], Found]) -> Found:
    if not (folder / STORE).exists():
        raise Unusable(f"{folder} is no data folder: it has no {STORE}")
    with (
        open_folder(folder) as opened,
        closing(opened.open()) as database,
        explained(folder),
    ):
        return act(database)
