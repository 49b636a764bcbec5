"""Text that a peer has chosen, for a terminal."""


def shown_text(text: str) -> str:
    """What is not printable is escaped, so that it cannot act on the terminal."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )
