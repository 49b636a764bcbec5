"""A client's state on disk: its session, what it has to send, what it has not acknowledged.

It is a store like the broker's, in a folder of its own that one process at a time may use, and
belongs to one client identifier: the state of a session is nothing without it [MQTT-3.1.3-2].
"""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from semel.store.opening import CLIENT, Opened, open_store
from semel.store.schema import Unusable
from semel.store.settings import StoreSettings, StreamSettings

# The one session of the store.
SESSION: Final = 1


class OtherClientId(Unusable):
    """A store has the session of another client."""

    def __init__(self, folder: Path, client_id: str) -> None:
        super().__init__(
            f"{folder} belongs to the client {client_id!r}: use that client_id, or another folder"
        )
        self.folder = folder
        self.client_id = client_id


@dataclass
class Outbox:
    """An open store, and the client identifier that it belongs to."""

    opened: Opened
    client_id: str


def made_client_id() -> str:
    """A client identifier that nobody else has, and that every server takes [MQTT-3.1.3-5]."""
    return f"semel{secrets.token_hex(9)}"


def open_outbox(path: Path, client_id: str, *, durability: str = "disk") -> Outbox:
    """Open it, or make it. Raises Unusable, in one sentence."""
    return adopt(open_store(StoreSettings(data=path, durability=durability), (), CLIENT), client_id)


def open_record(settings: StoreSettings, stream: StreamSettings, client_id: str) -> Outbox:
    """The same for a client that records what it gets in a stream."""
    return adopt(open_store(settings, (stream,), CLIENT), client_id)


def adopt(opened: Opened, client_id: str) -> Outbox:
    """Whose session an open store has."""
    try:
        saved = opened.store.restore().sessions
        if not saved:
            return Outbox(opened, client_id or made_client_id())
        known = saved[0].client_id
        if client_id and client_id != known:
            raise OtherClientId(opened.folder.path, known)
        return Outbox(opened, known)
    except BaseException:
        opened.close()
        raise
