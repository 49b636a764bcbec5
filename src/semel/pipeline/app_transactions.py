"""Delta app transactions: what a commit records beside its files.

An app transaction is a name with a number, which Delta keeps forever:

    semel/query/<checkpoint>      the last batch of a query, for rows that do not have node and seq
    semel/stream/<stream>/<node>  the last seq landed, for rows of a stream
    semel/owner/<stream>/<node>   the store that numbered these rows: its ID as a number
"""

from collections.abc import Iterable
from hashlib import sha256

from deltalake import DeltaTable


def position_id(stream: str, node: str) -> str:
    """The app transaction whose version is the last seq landed of a stream and node."""
    return f"{stream_id(stream)}/{node}"


def owner_id(stream: str, node: str) -> str:
    """The app transaction that identifies the store whose rows were landed for a node."""
    return f"semel/owner/{stream}/{node}"


def owner_number(store: str) -> int:
    """The id of a store, as the version of an app transaction."""
    return int.from_bytes(sha256(store.encode()).digest()[:7])


def stream_id(stream: str) -> str:
    """The name in the metadata of a table in which a stream is landed."""
    return f"semel/stream/{stream}"


def query_id(checkpoint: str) -> str:
    """The app transaction whose version is the last batch of a query."""
    return f"semel/query/{checkpoint}"


def positions_in(table: DeltaTable, stream: str, nodes: Iterable[str]) -> dict[str, int]:
    """The last seq landed of each node that has one, in one version of a table."""
    found = {}
    for node in nodes:
        at = table.transaction_version(position_id(stream, node))
        if at is not None:
            found[node] = at
    return found
