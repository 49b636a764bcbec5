"""Text for a terminal: what a peer has chosen, and a line that is written over."""

from typing import Final

# Goes to the beginning of the line, and empties it.
CLEAR_LINE: Final = "\r\x1b[K"
# Of a terminal that does not say how wide it is.
MOST_COLUMNS: Final = 200


def shown_text(text: str) -> str:
    """What is not printable is escaped, so that it cannot act on the terminal."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )
