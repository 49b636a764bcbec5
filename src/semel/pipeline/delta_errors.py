"""Errors of delta-rs and pyarrow about a table, as one sentence for people.

`table_errors` turns what delta-rs raises into a TableError that names the table and, where the
cause is known, says what to do. `one_line` shortens a message of delta-rs or pyarrow to its first
sentence: without colors, the answers of servers, and traces of Rust.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from semel.extras import need
from semel.pipeline.delta_log import find_damage
from semel.pipeline.errors import TableError
from semel.pipeline.lake_address import local_folder
from semel.store.roots import RootError, open_root, without_secrets

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m|↳")
# Where an answer of a server or a trace of delta-rs itself begins.
_BESIDE_THE_POINT: Final = re.compile(r"<\?xml|\n\s*0: ")
# What delta-rs says of a request that an object store did not answer, or refused.
_UNREACHABLE: Final = re.compile(r"performing \w+ \w+://([^/\s]+).* client error \(Connect\) (.+)")
_REFUSED: Final = re.compile(r"non-2xx status code (40[13] \w+)")
_NO_BUCKET: Final = re.compile(r"performing list request .*non-2xx status code 404")
# How delta-rs says that a table asks for what it cannot do.
_NEWER: Final = ("unsupported: ", "reader version", "writer version", "reader feature")
# How it says that it cannot make sense of a log.
_UNREADABLE: Final = (
    "Json error",
    "Parquet error",
    "Invalid Checkpoint",
    "contiguous commit files",
    "No table metadata or protocol",
)


def one_line(problem: BaseException) -> str:
    """What delta-rs or pyarrow says, in one line, without answers of servers and traces."""
    text = " ".join(_BESIDE_THE_POINT.split(_COLOURS.sub("", str(problem)))[0].split())
    unreachable = _UNREACHABLE.search(text)
    if unreachable is not None:
        return f"the object store at {unreachable[1]} cannot be reached ({unreachable[2]})"
    refused = _REFUSED.search(text)
    if refused is not None:
        return f"the object store says {refused[1]}: check key and secret, and what they may do"
    if _NO_BUCKET.search(text) is not None:
        return "there is no such bucket"
    return text or type(problem).__name__


@contextmanager
def table_errors(address: str) -> Iterator[None]:
    """What delta-rs raises about a table comes out as a TableError that says which.

    A table that is not there, that a newer program has written, or whose log is damaged is told in
    our words.
    """
    exceptions = need("deltalake.exceptions", extra="sql", by="a Delta table")
    shown = without_secrets(address)
    try:
        yield
    except exceptions.TableNotFoundError:
        raise TableError(describe_missing_table(address)) from None
    except (exceptions.DeltaError, OSError, ValueError) as problem:
        text = one_line(problem)
        if _is_newer(text):
            raise TableError(
                f"{shown} needs a newer reader or writer than this: upgrade deltalake ({text})"
            ) from problem
        damage = _damage(address) if any(sign in text for sign in _UNREADABLE) else None
        if damage is not None:
            raise TableError(f"{shown}: its log is damaged: {damage}") from problem
        raise TableError(f"{shown}: {text}") from problem


def _damage(address: str) -> str | None:
    """What is wrong with the log of a table, and what to do; None: that does not show."""
    try:
        return find_damage(open_root(address))
    except (RootError, OSError):
        return None


def _is_newer(text: str) -> bool:
    low = text.lower()
    return any(each in low for each in _NEWER)


def describe_missing_table(address: str) -> str:
    """Why there is no table: one sentence."""
    shown = without_secrets(address)
    folder = local_folder(address)
    if folder is None:
        return f"there is no table at {shown}"
    if not folder.exists():
        return f"there is no table at {shown}: there is no such folder"
    if not folder.is_dir():
        return f"{shown} is no table but a file"
    if (folder / "_delta_log").is_dir():
        return f"{shown} is no table any more: its _delta_log is empty, as if deleted"
    return f"{shown} is no table: it has no _delta_log"
