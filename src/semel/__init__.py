"""semel: strict MQTT 3.1.1 and 5.0. Each rule is stated once; each message lands once.

Importing this package imports nothing else. The names that programs need most, `semel.Client` and
the types of its arguments and results, are imported from their packages on first use. Import
everything else from its own package (`semel.mqtt`, `semel.client`, ...).
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from semel.client import Client as Client
    from semel.client import Disconnected as Disconnected
    from semel.client import Messages as Messages
    from semel.client import Received as Received
    from semel.client import Refused as Refused
    from semel.mqtt import MQTT5 as MQTT5
    from semel.mqtt import MQTT311 as MQTT311
    from semel.mqtt import Properties as Properties
    from semel.mqtt import Subscription as Subscription
    from semel.mqtt import Violation as Violation
    from semel.mqtt import Will as Will

# The only definition of the version: the build reads it from this file, without importing it.
__version__: Final = "0.1.0"

_EXPORTS: Final = {
    "semel.client": ("Client", "Disconnected", "Messages", "Received", "Refused"),
    "semel.mqtt": ("MQTT5", "MQTT311", "Properties", "Subscription", "Violation", "Will"),
}


def __getattr__(name: str) -> object:
    for room, names in _EXPORTS.items():
        if name in names:
            return getattr(import_module(room), name)
    raise AttributeError(f"module 'semel' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The re-exported names, the packages imported so far, and Python's own names."""
    own = (
        name
        for name, value in globals().items()
        if name.startswith("__") or isinstance(value, ModuleType)
    )
    return [*own, *(name for names in _EXPORTS.values() for name in names)]
