"""How far landings are, noted under the root: retention deletes nothing that they still need.

    <root>/<stream>/_landing-<id>.json    {"table": "lake/messages", "landed": {"n1": 4711}, …}

A landing may run on another machine than the broker, and its table may be where the broker cannot
read it; the root is what both have. So a landing notes there, when it begins and from time to time,
up to which row of each node its table has all rows. From then on the stream has a landing, and the
sealers of all nodes keep what it has not landed, until it has or until somebody deletes the note.
The id is that of the table, so that a landing finds its own note again. A note may be older than
the table, never newer: it only keeps more.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from semel.store.roots import Root, check_folder_name

PREFIX: Final = "_landing-"
SUFFIX: Final = ".json"
_DIGITS: Final = 16


@dataclass(frozen=True)
class Landed:
    """What is noted of a landing."""

    # The file of the note, for people.
    path: str
    table: str
    # By node, the row up to which all have landed. A node that is not in it has none.
    landed: Mapping[str, int]
    # When it was noted, for people.
    at: str


def landing_place(stream: str, table: str) -> str:
    """The path of the note of a landing. `table` is the address without secrets."""
    check_folder_name("stream", stream)
    return f"{stream}/{PREFIX}{sha256(table.encode()).hexdigest()[:_DIGITS]}{SUFFIX}"


def note_landed(root: Root, stream: str, table: str, landed: Mapping[str, int], *, at: str) -> None:
    """Note how far a landing is. Raises OSError and RootError."""
    note = {"table": table, "landed": dict(landed), "at": at}
    data = json.dumps(note).encode() + b"\n"

    def fill(sink: Any) -> None:
        sink.write(data)

    root.write(landing_place(stream, table), fill)


def declare_landing(root: Root, stream: str, table: str, *, at: str) -> None:
    """Note that there is a landing, unless it has noted something itself."""
    path = landing_place(stream, table)
    name = path.rpartition("/")[2]
    if not any(entry.name == name for entry in root.entries(stream)):
        note_landed(root, stream, table, {}, at=at)


def landings_of(root: Root, stream: str) -> list[Landed]:
    """The landings of a stream. Of a note that cannot be understood, nothing has landed."""
    check_folder_name("stream", stream)
    found = []
    for entry in root.entries(stream):
        if entry.is_folder or not entry.name.startswith(PREFIX) or not entry.name.endswith(SUFFIX):
            continue
        path = f"{stream}/{entry.name}"
        try:
            with root.read(path) as file:
                note = json.loads(bytes(file.read()))
        except FileNotFoundError:
            continue
        except (ValueError, RecursionError):
            note = None
        found.append(_landed(f"{root.address}/{path}", note))
    return found


def _landed(path: str, note: object) -> Landed:
    if not isinstance(note, dict) or not isinstance(note.get("landed"), dict):
        return Landed(path, "a table that its damaged note does not name", {}, "unknown")
    rows = {str(node): seq for node, seq in note["landed"].items() if type(seq) is int and seq >= 0}
    return Landed(path, str(note.get("table")), rows, str(note.get("at")))
