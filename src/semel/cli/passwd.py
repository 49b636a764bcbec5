"""`semel passwd`: add, remove, check and list the users of a password file."""

import json
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from semel.broker.access.names import file_name_problem
from semel.broker.access.password_file import (
    PasswordFile,
    UserEntry,
    check_groups,
    load_password_file,
    remove_user,
    set_user,
)
from semel.broker.access.password_hashes import hash_password
from semel.broker.access.scram_keys import ScramKeys, make_keys
from semel.broker.access.users_settings import UsersSettings
from semel.cli.errors import one_sentence
from semel.cli.flags import CONFIG, shared_option
from semel.cli.flags import ONE_OBJECT as JSON
from semel.cli.groups import SuggestingGroup
from semel.cli.safe_text import print_warnings, shown_text
from semel.cli.sections import SECTIONS
from semel.cli.text_tables import print_table
from semel.client.scram import prepare_text
from semel.mqtt.wire import MAXIMUM_TWO_BYTES
from semel.settings import load

PASSWORD_STDIN: Final = click.option(
    "--password-stdin",
    is_flag=True,
    help="Read the password from standard input instead of the terminal. A line end after it is "
    "ignored.",
)


def password_file(function: Callable[..., None]) -> Callable[..., None]:
    """Add --file and --config. The function receives the password file as `path`."""

    @wraps(function)
    def with_path(*, path: Path | None, config: Path | None, **values: Any) -> None:
        if path is None:
            settings = load(SECTIONS, path=config, environ=os.environ, flags={})
            path = settings.of(UsersSettings).password_file
        if path is None:
            raise click.UsageError(
                "no password file is given: use --file FILE, or set [users] password_file"
            )
        with one_sentence():
            function(path=path, **values)

    decorated: Callable[..., None] = with_path
    for option in (
        shared_option(
            "--file",
            "path",
            type=click.Path(path_type=Path),
            help="The password file.  [or SEMEL_USERS_PASSWORD_FILE]",
        ),
        CONFIG,
    ):
        decorated = option(decorated)
    return decorated


@click.group(name="passwd", cls=SuggestingGroup)
def command() -> None:
    """Add, remove, check and list the users of a password file.

    The broker uses the file that [users] password_file names, and reads it at start and at a
    reload. A file of mosquitto_passwd can be used, too.
    """


@command.command(
    short_help="Add a user, or change its password.",
    examples=(
        "semel passwd add ann --file users.txt",
        "semel passwd add ann --file users.txt --group ops --group staff --scram",
        "cat secret | semel passwd add ann --file users.txt --password-stdin",
    ),
)
@click.argument("name", metavar="NAME")
@password_file
@PASSWORD_STDIN
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="NAME",
    help="A group of the user, for rules. May be repeated. Without it, a user that exists keeps "
    "its groups.",
)
@click.option(
    "--scram",
    is_flag=True,
    help="Also store keys for SCRAM-SHA-256, by which MQTT 5.0 clients do not send the password.",
)
@click.option(
    "--no-password",
    is_flag=True,
    help="Give the user no password: for groups of a user who has a client certificate.",
)
@JSON
def add(
    name: str,
    path: Path,
    password_stdin: bool,
    groups: tuple[str, ...],
    scram: bool,
    no_password: bool,
    is_json: bool,
) -> None:
    """Add a user, or change its password and groups.

    The password is prompted for twice. It is stored as an argon2id hash. A file that does not
    exist is created, readable by its owner only.
    """
    check_name(name)
    if no_password and (scram or password_stdin):
        other = "--scram" if scram else "--password-stdin"
        raise click.UsageError(f"give one of --no-password and {other}")
    if scram:
        check_scram_name(name)
    try:
        check_groups(groups)
    except ValueError as problem:
        raise click.UsageError(f"--group: {problem}") from None
    # Before the prompt, so that nobody types a password in vain.
    old = read_users(path).users.get(name) if path.exists() else None
    if old is not None and not groups:
        groups = old.groups
    hashed, keys = None, None
    if not no_password:
        password = read_password(name, from_stdin=password_stdin, is_new=True)
        hashed = hash_password(password)
        keys = scram_keys(password) if scram else None
    is_new = set_user(path, UserEntry(name, hashed, groups, keys))
    if is_json:
        found = {"user": name, "file": str(path), "new": is_new, "groups": list(groups)}
        click.echo(json.dumps(found))
    elif is_new:
        click.echo(f"added user {shown_text(name)} to {path}")
    else:
        click.echo(f"changed user {shown_text(name)} in {path}")


@command.command(
    short_help="Remove a user.", examples=("semel passwd remove ann --file users.txt",)
)
@click.argument("name", metavar="NAME")
@password_file
@JSON
def remove(name: str, path: Path, is_json: bool) -> None:
    """Remove a user. After a reload of the broker it has no rights, even while it is connected."""
    read_users(path)
    if not remove_user(path, name):
        raise click.ClickException(f"{path} has no user {shown_text(name)}")
    if is_json:
        click.echo(json.dumps({"user": name, "file": str(path)}))
    else:
        click.echo(f"removed user {shown_text(name)} from {path}")


@command.command(
    short_help="Check the password of a user.",
    examples=(
        "semel passwd check ann --file users.txt",
        "cat secret | semel passwd check ann --file users.txt --password-stdin",
    ),
)
@click.argument("name", metavar="NAME")
@password_file
@PASSWORD_STDIN
@JSON
def check(name: str, path: Path, password_stdin: bool, is_json: bool) -> None:
    """Check the password of a user. Exits with 1 if it is wrong, or there is no such user."""
    found = read_users(path)
    is_right = found.verify(name, read_password(name, from_stdin=password_stdin, is_new=False))
    if is_json:
        click.echo(json.dumps({"user": name, "file": str(path), "right": is_right}))
    elif is_right:
        click.echo(f"the password of {shown_text(name)} is right")
    else:
        click.echo(f"{shown_text(name)}: {why_wrong(found, name)}")
    if not is_right:
        sys.exit(1)


def why_wrong(found: PasswordFile, name: str) -> str:
    entry = found.users.get(name)
    if entry is None:
        return "there is no such user"
    return "the user has no password" if entry.password is None else "the password is wrong"


@command.command(
    name="list",
    short_help="List the users.",
    examples=("semel passwd list --file users.txt", "semel passwd list --config semel.toml --json"),
)
@password_file
@JSON
def list_users(path: Path, is_json: bool) -> None:
    """List the users, what kind of hash each password has, and their groups."""
    users = read_users(path).users.values()
    if is_json:
        rows = [
            {
                "user": each.name,
                "password": None if each.password is None else each.password.kind,
                "scram": each.scram is not None,
                "groups": list(each.groups),
            }
            for each in users
        ]
        click.echo(json.dumps({"file": str(path), "users": rows}))
        return
    print_table(
        ("user", "password", "SCRAM", "groups"),
        [
            (
                shown_text(each.name),
                "none" if each.password is None else each.password.kind,
                "no" if each.scram is None else "yes",
                shown_text(", ".join(each.groups)),
            )
            for each in users
        ],
    )


def read_users(path: Path) -> PasswordFile:
    """The users of the file. Prints warnings about it to standard error."""
    found = load_password_file(path)
    print_warnings(found.warnings)
    return found


# --- names and passwords --------------------------------------------------------------------------


def check_name(name: str) -> None:
    problem = file_name_problem(name)
    if problem is not None:
        raise click.UsageError(f"NAME {shown_text(name)!r} {problem}")


def check_scram_name(name: str) -> None:
    """A client sends the name as SASLprep prepares it, so the file must have it in this form."""
    try:
        prepared = prepare_text(name)
    except ValueError as problem:
        raise click.UsageError(f"--scram: NAME {problem}") from None
    if prepared != name:
        raise click.UsageError(f"--scram: clients send this NAME as {shown_text(prepared)!r}")


def read_password(name: str, *, from_stdin: bool, is_new: bool) -> bytes:
    """The password, from the terminal without echo, or from standard input."""
    if from_stdin:
        password = sys.stdin.buffer.read(MAXIMUM_TWO_BYTES + 3)
        password = password.removesuffix(b"\n").removesuffix(b"\r")
    elif not sys.stdin.isatty():
        raise click.UsageError("standard input is not a terminal: use --password-stdin")
    else:
        question = f"Password of {shown_text(name)}"
        typed: str = click.prompt(question, hide_input=True, confirmation_prompt=is_new, err=True)
        password = os.fsencode(typed)
    if not password:
        raise click.ClickException("the password is empty")
    if len(password) > MAXIMUM_TWO_BYTES:
        raise click.ClickException(
            f"the password has more than {MAXIMUM_TWO_BYTES:,} bytes, the maximum of MQTT"
        )
    return password


def scram_keys(password: bytes) -> ScramKeys:
    try:
        return make_keys(password.decode())
    except UnicodeDecodeError:
        raise click.ClickException("--scram: the password is not UTF-8") from None
    except ValueError as problem:
        raise click.ClickException(f"--scram: the password {problem}") from None
