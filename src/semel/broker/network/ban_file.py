"""The file of bans in the data folder: one JSON object per line."""

import json
import os
from pathlib import Path
from typing import Final

from semel.broker.bans import Ban, BanRefused, Bans
from semel.store.private_files import open_private, sync, write_private
from semel.store.schema import Unusable

BAN_FILE: Final = "bans.jsonl"

# Longer than the longest name with every character escaped, and a reason.
MAXIMUM_LINE: Final = 1024 * 1024

_KEYS: Final = {"kind", "value", "reason", "created_at", "created_by", "expires_at"}


class BanFileUnusable(Exception):
    """What is wrong with a file of bans, in one sentence that names the file and the line."""


def read_bans(path: Path, bans: Bans, now: float) -> None:
    """Add the bans of a file; nothing if there is none. Raises BanFileUnusable."""
    if not os.path.lexists(path):
        return
    try:
        with open(open_private(path), "rb") as file:
            number = 0
            while line := file.readline(MAXIMUM_LINE + 1):
                number += 1
                try:
                    if len(line) > MAXIMUM_LINE:
                        raise BanRefused(f"it has more than {MAXIMUM_LINE} bytes")
                    if line.strip():
                        bans.add(parse_ban(line), now)
                except BanRefused as problem:
                    raise BanFileUnusable(
                        f"{path}, line {number}: {problem}. Correct or delete the line"
                    ) from None
    except (OSError, Unusable) as problem:
        raise BanFileUnusable(f"the bans cannot be read: {problem}") from None
    bans.expire(now)


def parse_ban(line: bytes) -> Ban:
    """The ban of one line. Raises BanRefused."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise BanRefused("it is not JSON") from None
    if not isinstance(found, dict):
        raise BanRefused("it is not a JSON object")
    for key in found:
        if key not in _KEYS:
            raise BanRefused(f"{key!a} is not a key of a ban")
    expires_at = found.get("expires_at")
    return Ban(
        _text(found, "kind", ""),
        _text(found, "value", ""),
        reason=_text(found, "reason", ""),
        created_at=_number(found.get("created_at", 0.0), "created_at"),
        created_by=_text(found, "created_by", ""),
        expires_at=None if expires_at is None else _number(expires_at, "expires_at"),
    )


def write_bans(path: Path, bans: list[Ban]) -> None:
    """Replace the file, atomically. Raises OSError."""
    lines = [json.dumps(ban_values(ban)) for ban in bans]
    temporary = path.with_name(f"{path.name}.new")
    write_private(temporary, "".join(f"{line}\n" for line in lines).encode())
    os.replace(temporary, path)
    sync(path.parent)


def ban_values(ban: Ban) -> dict[str, object]:
    """A ban, as values for JSON."""
    return {
        "kind": ban.kind,
        "value": ban.value,
        "reason": ban.reason,
        "created_at": ban.created_at,
        "created_by": ban.created_by,
        "expires_at": ban.expires_at,
    }


def _text(found: dict[str, object], key: str, default: str) -> str:
    value = found.get(key, default)
    if not isinstance(value, str):
        raise BanRefused(f"{key} is not a string")
    return value


def _number(value: object, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BanRefused(f"{key} is not a number")
    return float(value)
