"""The chapters of the standard, for summaries: "3.1 CONNECT" has all sections that begin so."""

import re
from collections.abc import Iterable
from typing import Final

from semel.probe.outcomes import StatementVerdict, totals

# Titles by number, where the versions agree. A chapter is what two numbers name.
_TITLES: Final = {
    "1.5": "Data representation",
    "3.1": "CONNECT",
    "3.2": "CONNACK",
    "3.3": "PUBLISH",
    "3.4": "PUBACK",
    "3.5": "PUBREC",
    "3.6": "PUBREL",
    "3.7": "PUBCOMP",
    "3.8": "SUBSCRIBE",
    "3.9": "SUBACK",
    "3.10": "UNSUBSCRIBE",
    "3.11": "UNSUBACK",
    "3.12": "PINGREQ",
    "3.13": "PINGRESP",
    "3.14": "DISCONNECT",
    "3.15": "AUTH",
    "4.1": "Storing state",
    "4.2": "Network connections",
    "4.3": "Quality of Service levels",
    "4.4": "Message delivery retry",
    "4.5": "Message receipt",
    "4.6": "Message ordering",
    "4.7": "Topic names and topic filters",
    "6": "WebSocket as a network transport",
    "7": "Conformance",
}
_TITLES_BY_VERSION: Final = {
    "3.1.1": {"2.2": "Fixed header", "2.3": "Variable header", "4.8": "Handling errors"},
    "5.0": {
        "2.1": "Structure of packets",
        "2.2": "Variable header",
        "4.8": "Subscriptions",
        "4.9": "Flow control",
        "4.12": "Enhanced authentication",
        "4.13": "Handling errors",
    },
}


def chapter(version: str, section: str) -> str:
    """The chapter of a section: of "3.1.2.1 Protocol Name", it is "3.1 CONNECT"."""
    numbers = re.match(r"\d+(?:\.\d+)?", section)
    if numbers is None:
        return section
    number = "7" if numbers[0].startswith("7") else numbers[0]
    title = _TITLES.get(number) or _TITLES_BY_VERSION.get(version, {}).get(number, "")
    return f"{number} {title}".rstrip()


def totals_by_chapter(
    verdicts: Iterable[StatementVerdict],
) -> dict[tuple[str, str], dict[str, int]]:
    """By version and chapter, in the order of the standard: how many statements by verdict."""
    found: dict[tuple[str, str], list[StatementVerdict]] = {}
    for each in verdicts:
        found.setdefault((each.version, chapter(each.version, each.section)), []).append(each)
    ordered = sorted(found, key=lambda key: (key[0], _numbers(key[1])))
    return {key: totals(found[key]) for key in ordered}


def _numbers(text: str) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", text.split(" ")[0])]
