"""The URL of a broker as an argument, and the password for it: for commands that connect to one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import click

from semel.client.address import Address, BadAddress, parse_address
from semel.mqtt import Violation


def parse_url(
    context: click.Context, argument: click.Parameter, text: str | None
) -> Address | None:
    """The address of a broker; None if an optional one is not given."""
    if text is None:
        return None
    try:
        return parse_address(text)
    except BadAddress as problem:
        raise click.BadParameter(str(problem)) from None


def password_of(address: Address, file: BinaryIO | None, variable: str) -> bytes | None:
    """The password of --password-file, of this environment variable or of the URL."""
    if file is not None:
        return file.read().removesuffix(b"\n").removesuffix(b"\r")
    given = os.environ.get(variable)
    return address.password if given is None else os.fsencode(given)


@contextmanager
def usage(options: str) -> Iterator[None]:
    """Report a Violation in the block as wrong usage of these options."""
    try:
        yield
    except Violation as violation:
        message = f"{options}: {violation.rule.sentence} Seen: {violation.seen}."
        raise click.UsageError(message) from None
