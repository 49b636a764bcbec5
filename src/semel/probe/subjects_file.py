"""The file of `semel probe matrix`: the subjects that are examined side by side.

[[subject]]
name = "mosquitto 2.0.11"
broker = "mqtt://127.0.0.1:1883"

[[subject]]
name = "paho-mqtt 2.1"
codec = "python -m semel.probe.adapters.paho_codec"
"""

import json
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from semel.client.address import BadAddress, parse_address

VERSIONS: Final = {"3.1.1": 4, "5.0": 5}
# The kinds of subjects: one of these keys says what it is.
KINDS: Final = ("broker", "client", "codec")
TEXTS: Final = ("name", *KINDS, "start", "stop", "kill", "prefix", "cafile")


class BadSubjects(ValueError):
    """The file is wrong: where, what was expected, and what was found, in one sentence."""


@dataclass(frozen=True)
class MatrixSubject:
    """One subject. Exactly one of `broker`, `client` and `codec` is not empty."""

    name: str
    broker: str = ""
    client: str = ""
    codec: str = ""
    versions: list[str] = field(default_factory=lambda: list(VERSIONS))
    # Of a broker: the command that starts it before the examination, and that ends it.
    start: str = ""
    stop: str = ""
    kill: str = ""
    prefix: str = "semel-probe"
    cafile: str = ""
    timeout: float = 5.0

    @property
    def kind(self) -> str:
        return next(kind for kind in KINDS if getattr(self, kind))

    def as_text(self) -> str:
        """The subject as one JSON text, for another process."""
        return json.dumps(asdict(self))


def subject_from_text(text: str) -> MatrixSubject:
    """The subject that `as_text` wrote."""
    return MatrixSubject(**json.loads(text))


def read_subjects(path: Path) -> list[MatrixSubject]:
    """The subjects of a file, in its order. Raises BadSubjects."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise BadSubjects(f"{path}: {problem.strerror or problem}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise BadSubjects(f"{path} is not TOML: {problem}") from None
    unknown = sorted(set(content) - {"subject"})
    if unknown:
        raise BadSubjects(f"{path}: unknown key {unknown[0]!r}; subjects are tables [[subject]]")
    entries = content.get("subject")
    if not isinstance(entries, list) or not entries:
        raise BadSubjects(f"{path} has no [[subject]]")
    subjects = [_subject(path, number, entry) for number, entry in enumerate(entries, 1)]
    names = [subject.name for subject in subjects]
    for name in names:
        if names.count(name) > 1:
            raise BadSubjects(f"{path}: two subjects have the name {name!r}")
    return subjects


def _subject(path: Path, number: int, entry: object) -> MatrixSubject:
    where = f"{path}, subject {number}"
    if not isinstance(entry, dict):
        raise BadSubjects(f"{where} is not a table: write [[subject]]")
    unknown = sorted(set(entry) - {*TEXTS, "versions", "timeout"})
    if unknown:
        raise BadSubjects(f"{where}: unknown key {unknown[0]!r}")
    for key in TEXTS:
        if not isinstance(entry.get(key, ""), str):
            raise BadSubjects(f"{where}: {key} is not a text")
    if not entry.get("name"):
        raise BadSubjects(f"{where} has no name")
    kinds = [kind for kind in KINDS if entry.get(kind)]
    if len(kinds) != 1:
        raise BadSubjects(f"{where}: give one of {', '.join(KINDS)}")
    if kinds[0] == "broker":
        try:
            parse_address(entry["broker"])
        except BadAddress as problem:
            raise BadSubjects(f"{where}: broker: {problem}") from None
    elif entry.get("start") or entry.get("stop") or entry.get("kill"):
        raise BadSubjects(f"{where}: only a broker has start, stop and kill")
    versions = entry.get("versions", list(VERSIONS))
    if not isinstance(versions, list) or not versions or not set(versions) <= set(VERSIONS):
        raise BadSubjects(f"{where}: versions is not a list of {', '.join(VERSIONS)}")
    timeout = entry.get("timeout", 5.0)
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or timeout <= 0:
        raise BadSubjects(f"{where}: timeout is not a number of seconds")
    return MatrixSubject(**{**entry, "versions": versions, "timeout": float(timeout)})
