"""Landing notes: the progress of landings, kept under the root so that retention waits for them.

    <root>/<stream>/_landing-<id>.json    {"table": "lake/messages", "landed": {"n1": 4711}, …}

A landing may run on another machine than the broker, with a table that the broker cannot read; what
both share is the root. So a landing writes a note there, when it starts and regularly after that:
for each node, the seq up to which its table has all rows. The sealers of all nodes keep rows that
have not landed, until they have, or until somebody deletes the note. The id is a hash of the
table's address, so that a landing finds its note again. A note may lag behind the table, which only
keeps rows longer; it is never ahead.
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
class LandingNote:
    """The progress of a landing."""

    # The address of the note's file, for messages.
    path: str
    table: str
    # By node: the seq up to which all rows have landed; no rows of a missing node have landed.
    landed: Mapping[str, int]
    # When it was written, for messages.
    at: str


def landing_note_path(stream: str, table: str) -> str:
    """The path of a landing's note. `table` is the address of the table without secrets."""
    check_folder_name("stream", stream)
    return f"{stream}/{PREFIX}{sha256(table.encode()).hexdigest()[:_DIGITS]}{SUFFIX}"


def write_landing_note(
    root: Root, stream: str, table: str, landed: Mapping[str, int], *, at: str
) -> None:
    """Write the progress of a landing. Raises OSError and RootError."""
    note = {"table": table, "landed": dict(landed), "at": at}
    data = json.dumps(note).encode() + b"\n"

    def fill(sink: Any) -> None:
        sink.write(data)

    root.write(landing_note_path(stream, table), fill)


def declare_landing(root: Root, stream: str, table: str, *, at: str) -> None:
    """Write a note without progress, unless there is a note of this landing."""
    path = landing_note_path(stream, table)
    name = path.rpartition("/")[2]
    if not any(entry.name == name for entry in root.entries(stream)):
        write_landing_note(root, stream, table, {}, at=at)


def read_landing_notes(root: Root, stream: str) -> list[LandingNote]:
    """The notes of all landings of a stream. A damaged note counts as one without progress."""
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
        found.append(_parse_note(f"{root.address}/{path}", note))
    return found


def _parse_note(path: str, note: object) -> LandingNote:
    if not isinstance(note, dict) or not isinstance(note.get("landed"), dict):
        return LandingNote(path, "a table whose name is lost (the note is damaged)", {}, "unknown")
    rows = {str(node): seq for node, seq in note["landed"].items() if type(seq) is int and seq >= 0}
    return LandingNote(path, str(note.get("table")), rows, str(note.get("at")))
