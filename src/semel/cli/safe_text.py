"""Text of a peer on a terminal."""


def shown_text(text: str) -> str:
    """Escape what is not printable, so that it cannot control the terminal."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )
