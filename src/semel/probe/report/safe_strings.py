"""Text of a subject, made safe for files: no control characters, no lone surrogates."""

import re


def visible_text(text: str) -> str:
    """The text on one line; what is not printable is written as an escape sequence."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )


def spaced_hex(data: bytes) -> str:
    """Bytes as people read them: "30 03 00 00 78"."""
    return data.hex(" ")


def file_stem(case: str, version: str) -> str:
    """A name for a file of a case, safe on every system; not unique if the case has odd signs."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{case[:100]}-{version[:10]}")
    return stem.lstrip(".-") or "case"
