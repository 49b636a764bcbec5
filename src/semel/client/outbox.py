"""A client's state on disk: its session, messages to send, and messages not acknowledged.

It is a store like the broker's, in a directory that one process at a time may use. It belongs to
one client identifier, because a session does [MQTT-3.1.3-2].
"""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from semel.store.opening import CLIENT, Opened, open_store
from semel.store.schema import Unusable
from semel.store.settings import StoreSettings, StreamSettings

# The row of the session in the store, which has only one.
SESSION: Final = 1


class OtherClientId(Unusable):
    """The store belongs to another client identifier."""

    def __init__(self, folder: Path, client_id: str) -> None:
        super().__init__(
            f"{folder} belongs to the client {client_id!r}: use that client_id, or another"
            " directory"
        )
        self.folder = folder
        self.client_id = client_id


@dataclass
class Outbox:
    """An open store, and the client identifier that it belongs to."""

    opened: Opened
    client_id: str


def make_client_id() -> str:
    """A unique client identifier that every server must accept [MQTT-3.1.3-5]."""
    return f"semel{secrets.token_hex(9)}"


def open_outbox(path: Path, client_id: str, *, durability: str = "disk") -> Outbox:
    """Open or create the outbox. Raises Unusable with one sentence."""
    return check_owner(
        open_store(StoreSettings(data=path, durability=durability), (), CLIENT), client_id
    )


def open_ingest_store(settings: StoreSettings, stream: StreamSettings, client_id: str) -> Outbox:
    """Open or create the store of an ingest. Raises Unusable with one sentence."""
    return check_owner(open_store(settings, (stream,), CLIENT), client_id)


def check_owner(opened: Opened, client_id: str) -> Outbox:
    """Check that an open store belongs to `client_id` ("": any, or a new one)."""
    try:
        saved = opened.store.restore().sessions
        if not saved:
            return Outbox(opened, client_id or make_client_id())
        known = saved[0].client_id
        if client_id and client_id != known:
            raise OtherClientId(opened.folder.path, known)
        return Outbox(opened, known)
    except BaseException:
        opened.close()
        raise
