"""The options of `format("semel_delta")` for reading, parsed once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from semel.pipeline.errors import OptionError
from semel.pipeline.lake_address import local_folder, split_address
from semel.pipeline.source_options import boolean, near
from semel.pipeline.table_filters import Filters, parse_filters
from semel.store.roots import without_secrets

KNOWN: Final = (
    "path",
    "version",
    "timestamp",
    "startingVersion",
    "skipChangeCommits",
    "maxVersionsPerBatch",
    "filters",
)
LATEST: Final = "latest"


@dataclass(frozen=True)
class TableOptions:
    """Parsed options of a table to read."""

    path: str = field(repr=False)
    # For batch reads; None: the current version.
    version: int | None = None
    timestamp: datetime | None = None
    # For streams: a version; the next one; or neither: the whole table first.
    starting_version: int | None = None
    starts_at_latest: bool = False
    skip_changes: bool = False
    versions_per_batch: int | None = None
    # Which rows to read; none: all.
    filters: Filters = ()

    @property
    def shown(self) -> str:
        """The address, without secrets."""
        return without_secrets(self.path)

    def check_batch(self) -> None:
        """Raise OptionError for an option that is for streams only."""
        for value, name in (
            (self.starting_version is not None or self.starts_at_latest, "startingVersion"),
            (self.skip_changes, "skipChangeCommits"),
            (self.versions_per_batch is not None, "maxVersionsPerBatch"),
        ):
            if value:
                raise OptionError(f"option {name} is for readStream: read returns one version")

    def check_stream(self) -> None:
        """Raise OptionError for an option that is for batch reads only."""
        for value, name in (
            (self.version is not None, "version"),
            (self.timestamp is not None, "timestamp"),
        ):
            if value:
                raise OptionError(f"option {name} is for read: give readStream startingVersion")


def parse_table_options(given: Mapping[str, str]) -> TableOptions:
    """Parse options: strings with case-insensitive names. Raises OptionError."""
    names = {name.lower(): name for name in KNOWN}
    values: dict[str, str] = {}
    for name, value in given.items():
        known = names.get(name.lower())
        if known is None:
            meant = near(name, names)
            hint = f"did you mean {meant}?" if meant else f"the options are {', '.join(KNOWN)}"
            raise OptionError(f"semel_delta has no option {name} for reading: {hint}")
        values[known] = value
    path = values.get("path", "").strip()
    if not path:
        raise OptionError("the table is missing: give its path by .load(path) or option path")
    split_address(path)
    folder = local_folder(path)
    version, timestamp = _number(values, "version"), _time(values, "timestamp")
    if version is not None and timestamp is not None:
        raise OptionError("give option version or option timestamp, not both")
    starts_at_latest = values.get("startingVersion", "").strip().lower() == LATEST
    if starts_at_latest:
        del values["startingVersion"]
    return TableOptions(
        # Tasks may have another working directory.
        path=path if folder is None else str(folder.absolute()),
        version=version,
        timestamp=timestamp,
        starting_version=_number(values, "startingVersion"),
        starts_at_latest=starts_at_latest,
        skip_changes=boolean(values, "skipChangeCommits", False),
        versions_per_batch=_number(values, "maxVersionsPerBatch", least=1),
        filters=parse_filters(values.get("filters", "[]")),
    )


def _number(values: Mapping[str, str], name: str, *, least: int = 0) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdecimal()) or int(stripped) < least:
        raise OptionError(f"option {name} must be a whole number, at least {least}, not {text!r}")
    return int(stripped)


def _time(values: Mapping[str, str], name: str) -> datetime | None:
    text = values.get(name)
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise OptionError(
            f"option {name} must be a time such as 2026-03-01T12:00:00Z, not {text!r}"
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found
