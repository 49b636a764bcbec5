"""Tables, sizes and times as commands print them for people."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import click

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print columns below a header row. Numbers are aligned to the right."""
    lines = [[str(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    titles = [f"{name:<{width}}" for name, width in zip(header, widths, strict=True)]
    click.secho("  ".join(titles).rstrip(), bold=True)
    for line in lines:
        cells = [
            f"{cell:>{width}}" if cell.isdigit() else f"{cell:<{width}}"
            for cell, width in zip(line, widths, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def shown_time(microseconds: int, precision: str = "microseconds") -> str:
    """A time since 1970, in UTC and ISO 8601; a number if Python's calendar does not have it."""
    try:
        moment = EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return str(microseconds)
    return moment.replace(tzinfo=None).isoformat(timespec=precision) + "Z"


def shown_size(size: int) -> str:
    """A number of bytes in the largest unit that fits."""
    if size < 1000:
        return f"{size} B"
    amount = float(size)
    for unit in ("kB", "MB", "GB", "TB"):
        amount /= 1000
        if amount < 999.95 or unit == "TB":
            return f"{amount:.1f} {unit}"
    raise AssertionError


def shown_age(seconds: float) -> str:
    """An age in the largest unit that fits."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
