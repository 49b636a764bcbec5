"""Errors of delta-rs and pyarrow about a table, as one sentence for people.

`table_errors` turns what delta-rs raises into a TableError that names the table and, where the
cause is known, says what to do. `one_line` shortens a message of delta-rs or pyarrow to its first
sentence: without colors, the answers of servers, and traces of Rust.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from semel.extras import need
from semel.pipeline.delta_log import find_damage
from semel.pipeline.errors import TableError
from semel.pipeline.lake_address import local_folder
from semel.store.roots import RootError, open_root, without_secrets

if TYPE_CHECKING:
    from deltalake import DeltaTable

_COLORS: Final = re.compile(r"\x1b\[[0-9;]*m|↳")
# The start of a server's answer, or of a trace of delta-rs.
_DETAILS: Final = re.compile(r"<\?xml|\n\s*0: ")
# Messages of delta-rs about a request that an object store did not answer, or refused.
_UNREACHABLE: Final = re.compile(r"performing \w+ \w+://([^/\s]+).* client error \(Connect\) (.+)")
_REFUSED: Final = re.compile(r"non-2xx status code (40[13] \w+)")
_NO_BUCKET: Final = re.compile(r"performing list request .*non-2xx status code 404")
# Messages of delta-rs about a table that requires a feature it does not support.
_NEWER: Final = ("unsupported: ", "reader version", "writer version", "reader feature")
_COLUMN_MAPPING: Final = "delta.columnMapping.mode"
# Messages of delta-rs about a log that it cannot parse.
_UNREADABLE: Final = (
    "Json error",
    "Parquet error",
    "Invalid Checkpoint",
    "contiguous commit files",
    "No table metadata or protocol",
)


def one_line(problem: BaseException) -> str:
    """The message of an error of delta-rs or pyarrow as one line, without details."""
    text = " ".join(_DETAILS.split(_COLORS.sub("", str(problem)))[0].split())
    unreachable = _UNREACHABLE.search(text)
    if unreachable is not None:
        return f"the object store at {unreachable[1]} cannot be reached ({unreachable[2]})"
    refused = _REFUSED.search(text)
    if refused is not None:
        return f"the object store answered {refused[1]}: check key, secret and permissions"
    if _NO_BUCKET.search(text) is not None:
        return "there is no such bucket"
    return text or type(problem).__name__


@contextmanager
def table_errors(address: str) -> Iterator[None]:
    """Turn errors of delta-rs about a table into a TableError that names the table.

    A table that does not exist, that requires a newer version, or whose log is damaged is reported
    with advice.
    """
    exceptions = need("deltalake.exceptions", extra="sql", by="a Delta table")
    shown = without_secrets(address)
    try:
        yield
    except exceptions.TableNotFoundError:
        raise TableError(describe_missing_table(address)) from None
    except (exceptions.DeltaError, OSError, ValueError) as problem:
        text = one_line(problem)
        folder = local_folder(address)
        if folder is not None and folder.is_file():
            raise TableError(
                f"{shown} is a file, and not the folder of a table: move it away, or choose another"
                " name for the table"
            ) from None
        if _is_newer(text):
            raise TableError(
                f"{shown} requires a newer version of deltalake: upgrade it ({text})"
            ) from problem
        damage = _damage(address) if any(sign in text for sign in _UNREADABLE) else None
        if damage is not None:
            raise TableError(f"{shown}: its log is damaged: {damage}") from problem
        raise TableError(f"{shown}: {text}") from problem


def check_column_mapping(address: str, table: "DeltaTable") -> None:
    """Raise TableError for a table whose files have other names of columns than its schema.

    delta-rs 1.6 refuses such a table only if it names its reader features. In one of reader version
    2, from before they had names, every column would be null.
    """
    mode = table.metadata().configuration.get(_COLUMN_MAPPING) or "none"
    if mode != "none":
        raise TableError(
            f"{without_secrets(address)} has {_COLUMN_MAPPING}={mode}, which semel does not"
            " support: read it with the program that writes it, or copy it to a table without"
        )


def _damage(address: str) -> str | None:
    """What is wrong with the log of a table, and what to do; None if nothing is found."""
    try:
        return find_damage(open_root(address))
    except (RootError, OSError):
        return None


def _is_newer(text: str) -> bool:
    low = text.lower()
    return any(each in low for each in _NEWER)


def describe_missing_table(address: str) -> str:
    """One sentence that says why there is no table at an address."""
    shown = without_secrets(address)
    folder = local_folder(address)
    if folder is None:
        return f"there is no table at {shown}"
    if not folder.exists():
        return f"there is no table at {shown}: there is no such folder"
    if not folder.is_dir():
        return f"{shown} is not a table but a file"
    if (folder / "_delta_log").is_dir():
        return f"{shown} is no longer a table: its _delta_log is empty"
    return f"{shown} is not a table: it has no _delta_log"
