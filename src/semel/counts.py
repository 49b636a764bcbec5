"""Counts for people: "1 message", "2,000 messages"."""


def count(number: int, thing: str, things: str = "") -> str:
    """A number and its noun; `things` is the plural if it is not `thing` with an s."""
    if number == 1:
        return f"1 {thing}"
    return f"{number:,} {things or thing + 's'}"
