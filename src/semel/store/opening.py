"""Opens a store from its settings: data folder, tables, streams, and ownership of the record."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from semel.store.archive import Archive
from semel.store.database import Database
from semel.store.disk import DiskStore
from semel.store.folder import StoreFolder, open_folder, store_errors
from semel.store.metadata import KEEPER, NODE
from semel.store.retention import Retention
from semel.store.roots import NotOwned, RootError, open_root
from semel.store.schema import Unusable
from semel.store.settings import StoreSettings, StreamSettings
from semel.store.streams import Stream, Streams

LOG: Final = logging.getLogger("semel.store")

# The kinds of owners of a store. None can use a store of another kind.
BROKER: Final = "broker"
CLIENT: Final = "client"
BRIDGE: Final = "bridge"

# Seconds between two checks whether all rows are sealed.
SEALED_CHECK_SECONDS: Final = 0.05

# The default node name is this many characters of the store's id.
NODE_CHARACTERS: Final = 12


@dataclass
class Opened:
    """An open store, with its folder and its streams."""

    folder: StoreFolder
    store: DiskStore
    streams: Streams
    node: str

    def wait_until_sealed(self, seconds: float) -> None:
        """Wait until all rows are sealed, at most this long. The next start seals the rest."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if all(row.sealed_seq >= row.last_seq for row in self.store.reader.streams()):
                return
            time.sleep(SEALED_CHECK_SECONDS)

    def close(self) -> None:
        """Write all waiting commits, stop the sealer, and release the folder."""
        self.store.close()
        self.folder.close()


def open_store(
    settings: StoreSettings, streams: Sequence[StreamSettings], keeper: str = BROKER
) -> Opened:
    """Open or create the store in the data folder. Raises Unusable, and MissingExtra if there are
    streams but no pyarrow."""
    assert settings.data is not None
    folder = open_folder(settings.data, durability=settings.durability)
    database: Database | None = None
    try:
        for warning in folder.warnings:
            LOG.warning("%s", warning)
        for note in folder.notes:
            LOG.info("%s", note)
        database = folder.open(settings.durability)
        with store_errors(folder.path):
            check_keeper(database, folder.path, keeper)
            node = node_of(database, settings.node)
            recorded = Streams(
                [
                    Stream(row.id, row.name, each.filter, row.last_seq)
                    for each in streams
                    for row in (database.stream(each.name),)
                ]
            )
            has_streams = bool(database.streams())
        archive = None
        if has_streams:
            if not settings.root:
                check_record_folder(folder.streams)
            root = settings.root or str(folder.streams)
            check_record(database, folder.path, root, node)
            archive = Archive(
                database,
                folder.database,
                settings,
                root=root,
                node=node,
                retention={
                    each.name: Retention(each.retain_for, each.retain_bytes) for each in streams
                },
            )
        store = DiskStore(
            folder.database,
            database,
            maximum_unwritten=settings.maximum_unwritten_bytes,
            archive=archive,
        )
        return Opened(folder, store, recorded, node)
    except BaseException:
        if database is not None:
            database.close()
        folder.close()
        raise


def check_record_folder(streams: Path) -> None:
    """Check that no symbolic link leads the record out of the data folder. Raises Unusable."""
    for folder in (streams, *sorted(streams.glob("*")), *sorted(streams.glob("*/*"))):
        if folder.is_symlink():
            raise Unusable(
                f"{folder} is a symbolic link, which is not followed: name the folder that the"
                " record is in with `root`"
            )


def check_keeper(database: Database, folder: Path, keeper: str) -> None:
    """Check that the store belongs to this kind of owner, or assign a new store to it."""
    found = database.get_metadata(KEEPER)
    if found is None:
        database.set_metadata(KEEPER, keeper)
    elif found != keeper:
        raise Unusable(f"{folder} is the store of a {found}, not of a {keeper}: use another folder")


def node_of(database: Database, name: str | None) -> str:
    """The name of this node in the record: the given one, or by default part of the store's id."""
    node = database.unique_id()[:NODE_CHARACTERS] if name is None else name
    if database.get_metadata(NODE) != node:
        database.set_metadata(NODE, node)
    return node


def check_record(database: Database, folder: Path, root: str, node: str) -> None:
    """Check that the record under the root belongs to this store and does not end after it.

    Raises Unusable, also for an invalid address. If the root cannot be reached now, logs a warning:
    the sealer checks it later.
    """
    try:
        opened = open_root(root)
    except RootError as problem:
        raise Unusable(f"[store] root: {problem}") from None
    except OSError as problem:
        LOG.warning("the root of the streams cannot be opened, retrying: %s", problem)
        return
    try:
        for row in database.streams():
            opened.claim(row.name, node, database.unique_id())
            highest = opened.highest_seq(row.name, node)
            if highest > row.last_seq:
                raise Unusable(
                    f"the record of stream {row.name} has row {highest}, but the store ends with"
                    f" row {row.last_seq}: it is older than its record. Continue with `semel store"
                    f" adopt {folder} --stream {row.name} --after {highest}`, or with a new --node"
                )
            if highest < row.sealed_seq:
                LOG.warning(
                    "the record of stream %s ends with row %d, but rows up to %d were sealed:"
                    " segments are missing under %s",
                    row.name,
                    highest,
                    row.sealed_seq,
                    opened.address,
                )
    except NotOwned as problem:
        raise Unusable(str(problem)) from None
    except (RootError, OSError) as problem:
        LOG.warning("the root of the streams cannot be read, retrying: %s", problem)
