"""Checks that an object store refuses to overwrite a file (put-if-absent).

Without that, two writers could commit the same version of a table.
"""

import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.fs import DeltaStorageHandler
from deltalake.schema import Field, PrimitiveType

from semel.pipeline.delta_errors import one_line
from semel.pipeline.errors import TableError
from semel.pipeline.lake_address import local_folder, split_address
from semel.store.roots import without_secrets

# Writers that commit at the same time, and the maximum number of rounds.
CONTENDERS: Final = 6
PROBES: Final = 20
_SCHEMA: Final = Schema([Field("a", PrimitiveType("long"))])


def probe(address: str) -> None:
    """Raise TableError for an object store on which two writers could commit the same version.

    Several writers commit to a small table beside the real one at the same time, repeatedly, until
    the store has rejected one of them or has let two write the same version. A round in which each
    writer sees the commits of the others before its own proves nothing.
    """
    if local_folder(address) is not None:
        return
    uri, storage = split_address(address)
    name = f"_semel_probe-{secrets.token_hex(8)}"
    shown = without_secrets(address)
    try:
        target = f"{uri.rstrip('/')}/{name}"
        DeltaTable.create(target, _SCHEMA, storage_options=storage or None)
        try:
            for number in range(PROBES):
                made, refused = _contend(target, storage, number)
                if made < CONTENDERS - refused:
                    raise TableError(
                        f"{shown}: this object store lets two writers create the same file, so"
                        " exactly-once commits are impossible: use one that supports put-if-absent"
                        " (If-None-Match), or a folder"
                    )
                if refused:
                    return
        finally:
            # pyarrow would leave an empty object with the name of the parent folder.
            DeltaStorageHandler(uri, storage).delete_dir(name)
    except (DeltaError, OSError) as problem:
        raise TableError(f"{shown} cannot be written: {one_line(problem)}") from problem
    raise TableError(
        f"{shown}: {PROBES * CONTENDERS} commits did not show whether this object store rejects"
        " a file that exists already: try again when the machine is less busy"
    )


def _contend(target: str, storage: dict[str, str], number: int) -> tuple[int, int]:
    """Commit to a small table concurrently; returns versions written and commits rejected.

    The commits do not conflict with each other, and delta-rs tries each one twice. So a commit that
    fails was rejected by the store, because another writer had created that version meanwhile.
    """
    together = threading.Barrier(CONTENDERS)

    def load(_: int) -> DeltaTable:
        return DeltaTable(target, storage_options=storage or None)

    def commit(each: int, table: DeltaTable) -> bool:
        transaction = Transaction(f"semel/probe/{number}/{each}", 0)
        properties = CommitProperties(app_transactions=[transaction], max_commit_retries=1)
        together.wait()
        try:
            table.create_write_transaction([], "append", _SCHEMA, commit_properties=properties)
        except CommitFailedError:
            return False
        return True

    with ThreadPoolExecutor(CONTENDERS) as pool:
        tables = list(pool.map(load, range(CONTENDERS)))
        before = tables[0].version()
        won = list(pool.map(commit, range(CONTENDERS), tables))
    return load(0).version() - before, won.count(False)
