"""Counts for people have a singular and a plural."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.counts import count

SOURCES = Path(__file__).resolve().parent.parent / "src" / "semel"
# A formatted value, and right after it a plural that a user may read as "1 messages".
PLURAL = re.compile(
    r"\x00 (?:more )?"
    r"(bytes|messages|packets|rows|files|reconnects|times|commits|transactions|sessions)\b"
)
# Rooms that print; but not what is for those who work on semel, and a format that is mosquitto's.
FOR_USERS = ("broker/", "cli/", "lab/", "pipeline/", "store/", "up/", "settings")
NOT_FOR_USERS = ("cli/packet_lines.py",)


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1234, "1,234 rows")]
)
def test_only_one_is_singular(number: int, text: str) -> None:
    assert count(number, "row") == text


def test_a_plural_may_be_irregular() -> None:
    assert count(1, "process", "processes") == "1 process"
    assert count(3, "process", "processes") == "3 processes"


def plurals(text: str) -> Iterator[tuple[int, str]]:
    """Formatted strings in which a value that may be 1 is followed by a plural, with their line.

    Constants (names in capitals) and rates ("messages/s") are another matter.
    """
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.JoinedStr):
            continue
        words = "".join(
            part.value
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
            else "CONSTANT"
            if isinstance(part, ast.FormattedValue) and ast.unparse(part.value).isupper()
            else "\x00"
            for part in node.values
        )
        for found in PLURAL.finditer(words):
            before = words[: found.start()]
            if words[found.end() : found.end() + 2] != "/s" and not before.endswith(" of "):
                yield node.lineno, found[0].replace("\x00", "{}")


def test_the_search_for_plurals_finds_one_and_leaves_a_count_alone() -> None:
    assert list(plurals('f"{number:,} messages"')) == [(1, "{} messages")]
    assert not list(plurals("f\"{count(number, 'message')} landed\""))
    assert not list(plurals('f"{rate} messages/s, at most {LIMIT} bytes, {one} of {all} rows"'))


# Where the number is known to be another than 1.
KNOWN_TO_BE_MORE = {
    # Said of more than one alone.
    "broker/throttled_log.py": ["{} times"],
    "broker/access/failures.py": ["{} times"],
    "broker/access/http_hook.py": ["{} times"],
    # Limits of many bytes, or what is beyond one.
    "broker/access/file_reading.py": ["{} bytes"],
    "broker/network/listener_settings.py": ["{} bytes"],
    "broker/network/proxy_protocol.py": ["{} bytes"],
    "broker/network/websocket_handshake.py": ["{} bytes"],
    # A mistake of ours, which users should never read.
    "store/sealing.py": ["{} rows"],
    # A packet that is secret has a fixed header; one that is cut has more than SHOWN_BYTES.
    "lab/recording.py": ["{} bytes", "{} bytes"],
    # Duplicates.
    "lab/demo_reconciliation.py": ["{} times", "{} times"],
    # A sum of constants.
    "lab/fleet/devices.py": ["{} bytes"],
}


def test_no_text_for_users_puts_a_plural_after_a_number_that_may_be_1() -> None:
    found: dict[str, list[str]] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        name = str(path.relative_to(SOURCES))
        if name.startswith(FOR_USERS) and not name.startswith(NOT_FOR_USERS):
            for _, words in plurals(path.read_text(encoding="utf-8")):
                found.setdefault(name, []).append(words)
    assert found == KNOWN_TO_BE_MORE
