"""A payload as the page shows it: as text, number, JSON or hexadecimal, bounded in size."""

import json
import math
from typing import Any, Final

TEXT_CHARACTERS: Final = 4_096
HEX_BYTES: Final = 256
# A number is a short text.
_NUMBER_BYTES: Final = 40
# A larger payload is not parsed as JSON.
_JSON_BYTES: Final = 64 * 1024


def describe_payload(payload: bytes) -> dict[str, Any]:
    """What the page shows of a payload."""
    text = _decode(payload)
    shown = None if text is None else text[:TEXT_CHARACTERS]
    is_cut = len(payload) > HEX_BYTES if text is None else len(text) > TEXT_CHARACTERS
    kind, number = _kind(payload, text)
    return {
        "size": len(payload),
        "kind": kind,
        "text": shown,
        "hex": payload[:HEX_BYTES].hex(),
        "cut": is_cut,
        "number": number,
    }


def _decode(payload: bytes) -> str | None:
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _kind(payload: bytes, text: str | None) -> tuple[str, float | None]:
    """The kind of a payload, and its value if it is a number."""
    if not payload:
        return "empty", None
    if text is None:
        return "binary", None
    number = _number(payload, text)
    if number is not None:
        return "number", number
    if len(payload) <= _JSON_BYTES and text.lstrip()[:1] in ("{", "["):
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return "text", None
        return "json", None
    return "text", None


def _number(payload: bytes, text: str) -> float | None:
    if len(payload) > _NUMBER_BYTES or "_" in text:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
