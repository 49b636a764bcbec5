"""A Python function that decides whether a client may connect.

`module:function` is imported when the broker starts, and called with a `ConnectRequest` in a worker
thread, where it may block. It returns True or False, an `Identity` or a `Denied`.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Final

from semel.broker.access.connect_request import ConnectRequest
from semel.broker.authority import Denied
from semel.broker.identity import Identity
from semel.settings import SettingsError

HookResult = bool | Identity | Denied


class PythonHook:
    """The function that [users] python_hook names."""

    def __init__(self, name: str) -> None:
        """Import it. Raises SettingsError if that is not possible."""
        self._function: Final = _import(name)

    def decide(self, request: ConnectRequest) -> HookResult:
        """What the function returns. Raises what it raises, and TypeError for another result."""
        result = self._function(request)
        if not isinstance(result, bool | Identity | Denied):
            raise TypeError(
                f"the python_hook returned {type(result).__name__}, but must return True, False, "
                "an Identity or a Denied"
            )
        return result


def _import(name: str) -> Callable[[ConnectRequest], object]:
    module, _, path = name.partition(":")
    context = f"[users] python_hook is {name}, but"
    try:
        found: object = import_module(module)
    except Exception as problem:  # whatever the code of a module raises when it is imported
        words = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
        raise SettingsError([f"{context} {module} cannot be imported: {words}"]) from None
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise SettingsError([f"{context} {module} has no function {path}"])
    return found
