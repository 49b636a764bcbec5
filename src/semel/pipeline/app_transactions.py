"""Delta app transactions: what a commit records beside its files.

An app transaction is a name with a number, which Delta keeps forever:

    semel/query/<checkpoint>      the last batch of a query, for rows that do not have node and seq
    semel/stream/<stream>/<node>  the last seq landed, for rows of a stream
    semel/copy/<stream>/<node>    the same number again
    semel/owner/<stream>/<node>   the store that numbered these rows: its ID as a number

    semel/dead/<stream>/<table>/<node>             in the dead letters: the seq of the last one
    semel/letters/<dead letters>/<stream>/<node>   in the table that they are of: the same

Neither Delta's log nor delta-rs has checksums. With a flipped bit in the last seq, rows would be
skipped or land again, so each is there twice, and nothing is committed if the two differ.
"""

from collections.abc import Iterable
from hashlib import sha256

from deltalake import DeltaTable, Transaction

from semel.pipeline.errors import TableError
from semel.pipeline.lake_address import local_folder
from semel.store.roots import without_secrets


def position_id(stream: str, node: str) -> str:
    """The app transaction whose version is the last seq landed of a stream and node."""
    return f"{stream_id(stream)}/{node}"


def copy_id(stream: str, node: str) -> str:
    """The app transaction with the copy of that number."""
    return f"semel/copy/{stream}/{node}"


def position_transactions(stream: str, node: str, seq: int) -> list[Transaction]:
    """What a commit after which `seq` is the last one landed records about that."""
    return [Transaction(make(stream, node), seq) for make in (position_id, copy_id)]


def owner_id(stream: str, node: str) -> str:
    """The app transaction that identifies the store whose rows were landed for a node."""
    return f"semel/owner/{stream}/{node}"


def owner_number(store: str) -> int:
    """The id of a store, as the version of an app transaction."""
    return int.from_bytes(sha256(store.encode()).digest()[:7])


def stream_id(stream: str) -> str:
    """The name in the metadata of a table in which a stream is landed."""
    return f"semel/stream/{stream}"


def dead_id(stream: str, table: str, node: str) -> str:
    """The app transaction whose version is the seq of the last dead letter of a table and node."""
    return f"{dead_prefix(stream)}{table}/{node}"


def dead_prefix(stream: str) -> str:
    """How the names of these app transactions begin."""
    return f"semel/dead/{stream}/"


def letters_id(dead_letters: str, stream: str, node: str) -> str:
    """The app transaction in which that table has the same number."""
    return f"semel/letters/{dead_letters}/{stream}/{node}"


def query_id(checkpoint: str) -> str:
    """The app transaction whose version is the last batch of a query."""
    return f"semel/query/{checkpoint}"


def positions_in(table: DeltaTable, stream: str, nodes: Iterable[str]) -> dict[str, int]:
    """The last seq landed of each node that has one, in one version of a table.

    Raises TableError if the log has two different numbers for a node.
    """
    found = {}
    for node in nodes:
        at = table.transaction_version(position_id(stream, node))
        # Earlier versions of semel wrote no copies.
        copy = table.transaction_version(copy_id(stream, node))
        if copy not in (None, at):
            raise TableError(_damaged(table, stream, node, at, copy))
        if at is not None:
            found[node] = at
    return found


def _damaged(table: DeltaTable, stream: str, node: str, at: int | None, copy: int) -> str:
    """The message for two different numbers."""
    shown = local_folder(table.table_uri) or without_secrets(table.table_uri)
    return (
        f"{shown}: its log is damaged: of stream {stream}, node {node}, it"
        f" says that row {copy} is the last that has landed, and also that"
        f" {'none has' if at is None else f'row {at} is'}; restore _delta_log from a backup, or"
        " delete the table: the record fills it again as far as it reaches"
    )
