"""Opening a store by its settings: the folder, the tables, the streams, and whose the record is."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from semel.store.archive import Archive
from semel.store.database import Database
from semel.store.disk import DiskStore
from semel.store.folder import Folder, explained, open_folder
from semel.store.retention import Retention
from semel.store.roots import NotOwned, RootError, open_root
from semel.store.schema import Unusable
from semel.store.settings import StoreSettings, StreamSettings
from semel.store.streams import Stream, Streams

LOG: Final = logging.getLogger("semel.store")

# Who keeps its state in a store; neither can do anything with the other's.
BROKER: Final = "broker"
CLIENT: Final = "client"

# How often it is looked whether all is sealed.
SETTLE_LOOK: Final = 0.05

# Characters of a store's id that name its node, if nobody names it otherwise.
NODE_CHARACTERS: Final = 12


@dataclass
class Opened:
    """A store that is ready to be given to a broker."""

    folder: Folder
    store: DiskStore
    streams: Streams
    node: str

    def settle(self, seconds: float) -> None:
        """Let all rows be sealed, but not for longer than this: the rest is for the next start."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if all(row.sealed >= row.last_seq for row in self.store.reader.streams()):
                return
            time.sleep(SETTLE_LOOK)

    def close(self) -> None:
        """Write what waits, end the sealer, and let others have the folder."""
        self.store.close()
        self.folder.close()


def open_store(
    settings: StoreSettings, streams: Sequence[StreamSettings], keeper: str = BROKER
) -> Opened:
    """Open, or make, the store in the data folder. Raises Unusable, and MissingExtra for pyarrow
    if there are streams."""
    assert settings.data is not None
    folder = open_folder(settings.data, durability=settings.durability)
    database: Database | None = None
    try:
        for warning in folder.warnings:
            LOG.warning("%s", warning)
        for note in folder.notes:
            LOG.info("%s", note)
        database = folder.open(settings.durability)
        with explained(folder.path):
            check_keeper(database, folder.path, keeper)
            node = node_of(database, settings.node)
        recorded = Streams(
            [
                Stream(row.id, row.name, each.filter, row.last_seq)
                for each in streams
                for row in (database.stream(each.name),)
            ]
        )
        archive = None
        if database.streams():
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
    """No link leads the record out of the data folder, unless `root` says so. Raises Unusable."""
    for folder in (streams, *sorted(streams.glob("*")), *sorted(streams.glob("*/*"))):
        if folder.is_symlink():
            raise Unusable(
                f"{folder} is a symbolic link, which is not followed: name the folder that the"
                " record is in with `root`"
            )


def check_keeper(database: Database, folder: Path, keeper: str) -> None:
    """Whether the store is of this kind; a new one becomes it."""
    found = database.fact("keeper")
    if found is None:
        database.set_fact("keeper", keeper)
    elif found != keeper:
        raise Unusable(f"{folder} is the store of a {found}, not of a {keeper}: use another folder")


def node_of(database: Database, name: str | None) -> str:
    """What this node is called in the record: as it is told, or by the id of its store."""
    node = database.identity()[:NODE_CHARACTERS] if name is None else name
    if database.fact("node") != node:
        database.set_fact("node", node)
    return node


def check_record(database: Database, folder: Path, root: str, node: str) -> None:
    """Whether the record under the root is this store's, and no longer than the store knows.

    A root that cannot be reached now is looked at by the sealer, who tries again. An address that
    is none is refused.
    """
    try:
        opened = open_root(root)
    except RootError as problem:
        raise Unusable(f"[store] root: {problem}") from None
    except OSError as problem:
        LOG.warning("the root of the streams cannot be opened now: %s", problem)
        return
    try:
        for row in database.streams():
            opened.claim(row.name, node, database.identity())
            highest = opened.highest_seq(row.name, node)
            if highest > row.last_seq:
                raise Unusable(
                    f"the record of stream {row.name} has row {highest}, the store knows no row"
                    f" after {row.last_seq}: it is older than its record. Go on with `semel store"
                    f" adopt {folder} --stream {row.name} --after {highest}`, or with a new --node"
                )
            if highest < row.sealed:
                LOG.warning(
                    "the record of stream %s ends with row %d, but rows up to %d were sealed:"
                    " segments are missing under %s",
                    row.name,
                    highest,
                    row.sealed,
                    opened.address,
                )
    except NotOwned as problem:
        raise Unusable(str(problem)) from None
    except (RootError, OSError) as problem:
        LOG.warning("the root of the streams cannot be looked at now: %s", problem)
