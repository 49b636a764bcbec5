"""The flags that several commands have: one concept has one flag, one short form and one metavar.

`shared_option` declares such a flag, and the flags of settings follow the same table.
tests/cli/test_conventions.py checks every command against it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from semel.cli.numbers import MqttVersion
from semel.cli.option_groups import GENERAL, grouped_option
from semel.settings import CONFIG_VARIABLE

# What `--help` prints after each shared flag that takes a value.
METAVARS: Final[Mapping[str, str]] = {
    "--cafile": "FILE",
    "--capath": "DIR",
    "--cert": "FILE",
    "--ciphers": "LIST",
    "--client-id": "ID",
    "--config": "FILE",
    "--count": "N",
    "--data": "DIR",
    "--duration": "DURATION",
    "--file": "FILE",
    "--host": "HOST",
    "--interval": "DURATION",
    "--keep-alive": "DURATION",
    "--key": "FILE",
    "--lake": "ADDRESS",
    "--landing": "FILE",
    "--mqtt-version": "3.1.1|5",
    "--node": "NAME",
    "--password-file": "FILE",
    "--port": "PORT",
    "--prefix": "TOPIC",
    "--qos": "0|1|2",
    "--rate": "RATE",
    "--root": "ADDRESS",
    "--seed": "N",
    "--session-expiry": "DURATION",
    "--socket": "PATH",
    "--table": "NAME",
    "--timeout": "DURATION",
    "--tls-alpn": "NAME",
    "--tls-version": "tlsv1.2|tlsv1.3",
    "--username": "NAME",
    "--window": "N",
}
# The short forms, which are Mosquitto's.
SHORT_FLAGS: Final[Mapping[str, str]] = {
    "--client-id": "-i",
    "--file": "-f",
    "--keep-alive": "-k",
    "--mqtt-version": "-V",
    "--qos": "-q",
    "--topic": "-t",
    "--username": "-u",
}


def flag_names(name: str) -> tuple[str, ...]:
    """A flag with its short form, if it has one."""
    short = SHORT_FLAGS.get(name)
    return (name,) if short is None else (short, name)


def shared_option(
    name: str, *more: str, section: str = GENERAL, **others: Any
) -> Callable[[Any], Any]:
    """A flag of METAVARS; `more` are other spellings, and the name of the parameter."""
    metavar = METAVARS[name]
    return grouped_option(*flag_names(name), *more, section=section, metavar=metavar, **others)


def mqtt_version_option(help: str, *more: str, section: str = GENERAL) -> Callable[[Any], Any]:
    """-V, as all commands have it. The parameter is `mqtt_version: int | None`."""
    return shared_option("--mqtt-version", *more, section=section, type=MqttVersion(), help=help)


def json_option(help: str, *, section: str = GENERAL) -> Callable[[Any], Any]:
    """--json. The parameter is `is_json: bool`."""
    return grouped_option("--json", "is_json", section=section, is_flag=True, help=help)


def data_option(help: str) -> Callable[[Any], Any]:
    """--data. The parameter is `data: Path | None`."""
    return shared_option("--data", type=click.Path(path_type=Path), help=help)


CONFIG: Final = shared_option(
    "--config",
    type=click.Path(path_type=Path),
    help=f"Read settings from this file.  [or {CONFIG_VARIABLE}]",
)
ONE_OBJECT: Final = json_option("Print one JSON object.")
QUIET: Final = click.option("--quiet", is_flag=True, help="Report problems only.")
DRY_RUN: Final = click.option(
    "--dry-run", is_flag=True, help="List what would be deleted, and delete nothing."
)
YES: Final = click.option("--yes", is_flag=True, help="Delete without asking for confirmation.")
