"""`semel version`: which semel this is, whether it is compiled, and which extras are there."""

import json
import platform
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pkgutil import iter_modules

import click

import semel.mqtt
from semel import __version__
from semel.extras import EXTRAS, missing


def is_compiled() -> bool:
    """Whether the modules of semel.mqtt are extension modules. A build compiles all or none."""
    for module in iter_modules(semel.mqtt.__path__, "semel.mqtt."):
        if module.ispkg:
            continue
        spec = find_spec(module.name)
        if spec is not None and spec.origin is not None:
            return spec.origin.endswith(tuple(EXTENSION_SUFFIXES))
    return False


@click.command
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(as_json: bool) -> None:
    """Say which semel this is: version, compiled or interpreted, Python, and extras.

    An extra is a group of optional packages: pip install 'semel[broker]' adds one.
    """
    mode = "compiled" if is_compiled() else "interpreted"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    extras = {extra: list(missing(extra)) for extra in EXTRAS}
    if as_json:
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
