"""A strict reader of Prometheus text 0.0.4 and OpenMetrics 1.0, independent of the writer.

It refuses what the formats forbid: lines out of order, a family twice or in pieces, a sample whose
name does not belong to its family, the same labels twice, buckets that are not cumulative, a
missing end.
"""

import math
import re
from dataclasses import dataclass, field

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
NUMBER = re.compile(r"[+-]?(\d+(\.\d+)?([eE][+-]?\d+)?|Inf)|NaN")
# The suffixes of samples, by the kind of a family.
SUFFIXES_0_0_4 = {
    "counter": ("",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
}
SUFFIXES_OPEN = {
    "counter": ("_total",),
    "gauge": ("",),
    "info": ("_info",),
    "histogram": ("_bucket", "_sum", "_count"),
}

Labels = tuple[tuple[str, str], ...]


@dataclass
class Parsed:
    """One family as it was read."""

    name: str
    kind: str
    help: str = ""
    unit: str = ""
    # By name of the sample and sorted labels.
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def values(self) -> dict[str, float]:
        """The values by the labels' values, joined; for families without histograms."""
        return {
            ",".join(value for _, value in labels): number
            for (_, labels), number in self.samples.items()
        }


class Exposition(dict[str, Parsed]):
    """All families by name."""

    def value(self, name: str, **labels: str) -> float:
        """The value of one sample, by its full name."""
        wanted = (name, tuple(sorted(labels.items())))
        found = [family.samples[wanted] for family in self.values() if wanted in family.samples]
        assert len(found) == 1, f"{name}{labels} is there {len(found)} times"
        return found[0]

    def series(self) -> set[tuple[str, frozenset[str]]]:
        """The full name of each sample, with the names of its labels."""
        return {
            (name, frozenset(label for label, _ in labels))
            for family in self.values()
            for name, labels in family.samples
        }


def read_exposition(text: str, *, is_open: bool) -> Exposition:
    """The families of a response. Raises AssertionError if it breaks its format."""
    assert text.endswith("\n") or (not text and not is_open)
    assert "\r" not in text
    lines = text[:-1].split("\n") if text else []
    if is_open:
        assert lines.pop() == "# EOF"
    assert "# EOF" not in lines
    found = Exposition()
    family: Parsed | None = None
    for line in lines:
        if line.startswith("# "):
            family = read_metadata(line, family, found, is_open=is_open)
        else:
            assert family is not None, f"a sample before its family: {line}"
            read_sample(line, family, is_open=is_open)
    for each in found.values():
        assert each.help, f"{each.name} has no help"
        assert each.samples, f"{each.name} has no samples"
        if each.kind == "histogram":
            check_histogram(each)
        if each.kind != "gauge":
            assert all(value >= 0 for value in each.samples.values())
    return found


def read_metadata(line: str, family: Parsed | None, found: Exposition, *, is_open: bool) -> Parsed:
    word, name, rest = line[2:].split(" ", 2)
    assert NAME.fullmatch(name), line
    if word == "TYPE":
        assert name not in found, f"{name} is there twice"
        assert rest in (SUFFIXES_OPEN if is_open else SUFFIXES_0_0_4), line
        assert not is_open or not name.endswith(("_total", "_info"))
        found[name] = Parsed(name, rest)
        return found[name]
    assert family is not None
    assert name == family.name, f"metadata of {name} between those of {family.name}"
    assert not family.samples, f"metadata after the samples: {line}"
    if word == "UNIT":
        assert is_open, "text 0.0.4 has no units"
        assert not family.unit
        assert name.endswith(f"_{rest}"), line
        family.unit = rest
    else:
        assert word == "HELP", line
        assert not family.help
        assert re.fullmatch(r'(?:[^\\"]|\\[\\"n])*' if is_open else r"(?:[^\\]|\\[\\n])*", rest)
        family.help = rest
    return family


def read_sample(line: str, family: Parsed, *, is_open: bool) -> None:
    match = SAMPLE.fullmatch(line)
    assert match, f"this is not a sample: {line!r}"
    name, inside, number = match.groups()
    assert NUMBER.fullmatch(number), line
    suffixes = (SUFFIXES_OPEN if is_open else SUFFIXES_0_0_4)[family.kind]
    assert name in [family.name + suffix for suffix in suffixes], f"{name} is not of {family.name}"
    labels = read_labels(inside or "")
    assert ("le" in dict(labels)) == name.endswith("_bucket")
    assert (name, labels) not in family.samples, f"twice: {line}"
    if family.kind == "info":
        assert number == "1"
    family.samples[name, labels] = float(number)


def read_labels(text: str) -> Labels:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = LABEL.match(text, at)
        assert match, f"these are not labels: {text!r}"
        name, value, comma = match.groups()
        assert name not in labels
        assert bool(comma) == (match.end() < len(text))
        unescaped = re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), value)
        labels[name] = unescaped
        at = match.end()
    return tuple(sorted(labels.items()))


def check_histogram(family: Parsed) -> None:
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for (name, labels), value in family.samples.items():
        if name.endswith("_bucket"):
            bound = float(dict(labels)["le"])
            others = tuple(each for each in labels if each[0] != "le")
            groups.setdefault(others, []).append((bound, value))
    assert groups
    for labels, buckets in groups.items():
        bounds = [bound for bound, _ in buckets]
        counts = [count for _, count in buckets]
        assert bounds == sorted({*bounds})
        assert bounds[-1] == math.inf
        assert counts == sorted(counts), "buckets are cumulative"
        assert family.samples[f"{family.name}_count", labels] == counts[-1]
        assert family.samples[f"{family.name}_sum", labels] >= 0
