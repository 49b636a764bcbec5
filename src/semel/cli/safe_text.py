"""Text of a peer on a terminal."""

from typing import Final

# Moves to the start of the line and clears it.
CLEAR_LINE: Final = "\r\x1b[K"
# The width of a terminal that does not report one.
MOST_COLUMNS: Final = 200


def shown_text(text: str) -> str:
    """Escape what is not printable, so that it cannot control the terminal."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )
