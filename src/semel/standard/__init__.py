"""The normative statements of MQTT 3.1.1 and 5.0, in our words, and what covers each.

`statements` gives the numbered ones of a version and those requirements that have no number (keys
U3-nn and U5-nn are ours). 121 numbers exist in both versions and about half of them say something
else there, so that version and id together identify a statement.

A statement that a packet or a sequence of packets can break is claimed by a rule of semel.mqtt.
`accounts` tells how the others are covered, and what a rule leaves open:

    duty      a test, named in `by`, exercises it
    owed      not yet implemented: the room in `by` will do what `why` describes
    neither   it cannot be tested, for the reason in `why`
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

NUMBERED = {"3.1.1": "mqtt311-statements.csv", "5.0": "mqtt5-statements.csv"}
UNNUMBERED = "mqtt-unnumbered-requirements.csv"
ACCOUNTING = "accounting.csv"

DUTY = "duty"
OWED = "owed"
NEITHER = "neither"


@dataclass(frozen=True)
class Statement:
    """One statement. `observable` is where it shows: encode, decode, exchange, trace, or no."""

    version: str
    id: str
    section: str
    actor: str
    packets: tuple[str, ...]
    paraphrase: str
    observable: tuple[str, ...]
    bad_input: str


@dataclass(frozen=True)
class StatementAccount:
    """How a statement is covered that no rule claims, or only in part."""

    version: str
    id: str
    kind: str
    by: str
    why: str


def statements(version: str) -> list[Statement]:
    """All statements of "3.1.1" or "5.0", the numbered ones first."""
    found = [_statement(version, row["id"], row) for row in _rows(NUMBERED[version])]
    for row in _rows(UNNUMBERED):
        if row["version"] == version:
            found.append(_statement(version, row["key"], row))
    return found


def statement_id(text: str) -> str:
    """The identifier of a statement as people may write it: 3.3.2-2, mqtt-3.3.2-2 or u5-03."""
    given = text.strip().upper()
    return given if given.startswith("U") else f"MQTT-{given.removeprefix('MQTT-')}"


def accounts() -> list[StatementAccount]:
    """The rows of the accounting."""
    return [
        StatementAccount(row["version"], row["id"], row["kind"], row["by"], row["why"])
        for row in _rows(ACCOUNTING)
    ]


def _statement(version: str, identifier: str, row: dict[str, str]) -> Statement:
    return Statement(
        version,
        identifier,
        row["section_title"],
        row["actor"],
        tuple(row["packet"].split("|")),
        row["paraphrase"],
        tuple(row["observable"].split("|")),
        row["bad_input"],
    )


def _rows(name: str) -> Iterator[dict[str, str]]:
    text = files(__name__).joinpath(name).read_text(encoding="utf-8")
    return csv.DictReader(text.splitlines())
