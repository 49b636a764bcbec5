"""Text of a peer on a terminal."""

from collections.abc import Iterable

import click


def shown_text(text: str) -> str:
    """Escape what is not printable, so that it cannot control the terminal."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )


def print_warnings(sentences: Iterable[str]) -> None:
    """Print sentences to standard error, each as a warning."""
    for each in sentences:
        click.echo(f"Warning: {shown_text(each)}", err=True)
