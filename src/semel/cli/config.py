"""`semel config`: show the effective settings, check them, and convert a mosquitto.conf."""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from semel.cli.config_check import check_settings
from semel.cli.config_view import EffectiveSection, effective_sections
from semel.cli.conversion import VERDICTS, Outcome
from semel.cli.flags import CONFIG, ONE_OBJECT
from semel.cli.groups import SuggestingGroup
from semel.cli.mosquitto_config import MosquittoConfigError, read_mosquitto_config
from semel.cli.mosquitto_import import convert
from semel.cli.safe_text import print_warnings
from semel.cli.sections import SECTIONS
from semel.counts import count
from semel.settings import CONFIG_VARIABLE, SettingsError, load

# Only the owner may read a converted file, which may contain passwords of bridges.
PRIVATE: Final = 0o600
# The name of a converted file that is printed.
STANDARD_OUTPUT: Final = "the new file"


@click.group(name="config", cls=SuggestingGroup)
def command() -> None:
    """Show the effective settings, check them, and convert a configuration of Mosquitto."""


# --- show -----------------------------------------------------------------------------------------


@command.command(
    name="show",
    short_help="Print every effective setting and where it comes from.",
    examples=(
        "semel config show",
        "semel config show --config semel.toml --changed",
        "semel config show --section listener --json",
    ),
)
@CONFIG
@click.option("--changed", is_flag=True, help="Print only what differs from the defaults.")
@click.option(
    "--section",
    "names",
    multiple=True,
    metavar="NAME",
    type=click.Choice([each.section for each in SECTIONS]),
    help="Print only this section. May be repeated.",
)
@ONE_OBJECT
def show(config: Path | None, changed: bool, names: tuple[str, ...], is_json: bool) -> None:
    """Print every effective setting, and where its value comes from.

    That is the default, a line of the file, or an environment variable; flags of a command such as
    `semel broker` override them. The output can be read as a file of settings. A secret is printed
    as a comment without its value.
    """
    settings = load(SECTIONS, path=config, environ=os.environ, flags={})
    chosen = [each for each in SECTIONS if not names or each.section in names]
    sections = effective_sections(settings, chosen, only_changed=changed)
    if is_json:
        path = os.environ.get(CONFIG_VARIABLE) if config is None else str(config)
        tables = [each.to_json() for each in sections]
        click.echo(json.dumps({"file": path, "sections": tables}))
    else:
        print_sections(sections)


def print_sections(sections: Sequence[EffectiveSection]) -> None:
    for number, section in enumerate(sections):
        if number:
            click.echo()
        for line in section.lines():
            click.echo(line)


# --- check ----------------------------------------------------------------------------------------


@command.command(
    name="check",
    short_help="Check settings, and the files that they name.",
    examples=("semel config check semel.toml", "semel config check --json"),
)
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@ONE_OBJECT
def check(file: Path | None, is_json: bool) -> None:
    """Check all sections of the settings, and the files that they name.

    These are certificates and keys, the password file, and the rights file. Everything that is
    wrong is listed, and the exit code is then 1. Without FILE, it is the one that SEMEL_CONFIG
    names. Environment variables count, too.
    """
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    try:
        warnings = check_settings(load(SECTIONS, path=file, environ=os.environ, flags={}))
    except SettingsError as problem:
        if not is_json:
            raise
        problems = problem.problems
    if is_json:
        found = {"valid": not problems, "problems": problems, "warnings": warnings}
        click.echo(json.dumps(found))
    else:
        print_warnings(warnings)
        click.echo("the settings are valid")
    if problems:
        sys.exit(1)


# --- import ---------------------------------------------------------------------------------------


@command.command(
    name="import",
    short_help="Convert a configuration of Mosquitto.",
    examples=(
        "semel config import /etc/mosquitto/mosquitto.conf --output semel.toml",
        "semel config import mosquitto.conf > semel.toml",
        "semel config import mosquitto.conf --json",
    ),
)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the settings to this new file. By default they are printed.",
)
@ONE_OBJECT
def convert_file(file: Path, output: Path | None, is_json: bool) -> None:
    """Convert FILE, a mosquitto.conf, with the files of its include_dir, into settings of semel.

    Password and ACL files are not copied: semel reads them where they are. What became of each
    directive is listed on standard error, and in comments: it was converted, perhaps with a
    difference, is not needed, or has no equivalent. A listener that would admit more clients than
    in Mosquitto is written as a comment.
    """
    try:
        mosquitto = read_mosquitto_config(file)
        conversion = convert(mosquitto)
    except MosquittoConfigError as problem:
        raise click.ClickException(str(problem)) from None
    outcomes = conversion.in_order(mosquitto.directives)
    text = conversion.render(outcomes)
    problems = find_problems(text, str(output or STANDARD_OUTPUT))
    if output is not None:
        write_private(output, text)
    if is_json:
        found = {
            "settings": None if output is not None else text,
            "directives": [each.to_json() for each in outcomes],
            "problems": problems,
        }
        click.echo(json.dumps(found))
        return
    if output is None:
        click.echo(text, nl=False)
    print_outcomes(outcomes, problems)


def find_problems(text: str, name: str) -> tuple[str, ...]:
    """What `semel config check` says about converted settings."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "semel.toml")
        path.write_text(text, "utf-8")
        try:
            check_settings(load(SECTIONS, path=path, environ={}, flags={}))
        except SettingsError as problem:
            return tuple(each.replace(str(path), name) for each in problem.problems)
    return ()


def write_private(path: Path, text: str) -> None:
    """Create a file that only its owner can read. Raises ClickException, also if it exists."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    except FileExistsError:
        raise click.ClickException(
            f"{path} exists: remove it, or choose another --output"
        ) from None
    except OSError as problem:
        raise click.ClickException(
            f"{path}: cannot be written: {problem.strerror or problem}"
        ) from None
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def print_outcomes(outcomes: Sequence[Outcome], problems: Sequence[str]) -> None:
    """Print what became of each directive, a summary, and what is still to do."""
    for outcome in outcomes:
        click.echo(outcome.line, err=True)
    counts = [
        f"{sum(each.verdict == verdict for each in outcomes)} {verdict}" for verdict in VERDICTS
    ]
    click.echo(f"{count(len(outcomes), 'directive')}: {', '.join(counts)}", err=True)
    for problem in problems:
        click.echo(f"to do before the first start: {problem}", err=True)
