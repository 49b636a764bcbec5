"""`semel version`: the version, whether it is compiled, and which extras are installed."""

import json
import platform
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pkgutil import iter_modules

import click

import semel.mqtt
from semel import __version__
from semel.cli.flags import ONE_OBJECT
from semel.cli.option_groups import SemelCommand
from semel.extras import EXTRAS, missing


def is_compiled() -> bool:
    """Whether the modules of semel.mqtt are compiled. A build compiles all or none."""
    for module in iter_modules(semel.mqtt.__path__, "semel.mqtt."):
        if module.ispkg:
            continue
        spec = find_spec(module.name)
        if spec is not None and spec.origin is not None:
            return spec.origin.endswith(tuple(EXTENSION_SUFFIXES))
    return False


@click.command(cls=SemelCommand, examples=("semel version", "semel version --json"))
@ONE_OBJECT
def command(is_json: bool) -> None:
    """Print the version of semel, whether it is compiled, and which extras are installed.

    An extra is a group of optional packages: pip install 'semel[broker]' installs one.
    """
    mode = "compiled" if is_compiled() else "interpreted"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    extras = {extra: list(missing(extra)) for extra in EXTRAS}
    if is_json:
        facts = {
            "version": __version__,
            "mode": mode,
            "python": python,
            "extras": {
                extra: {"installed": not absent, "missing": absent}
                for extra, absent in extras.items()
            },
        }
        click.echo(json.dumps(facts))
        return
    click.echo(f"semel {__version__} ({mode}) on {python}")
    for extra, absent in extras.items():
        state = f"not installed, lacks {', '.join(absent)}" if absent else "installed"
        click.echo(f"extra {extra}: {state}")
