"""How the log reports an exception.

The fault domain of everything that the loop calls is one connection or one session. An exception,
whether from a hook, from reading the store or from a bug, is caught where the affected client is
known. Its connection is closed, the log says why, and all others are served in the same tick.
"""

from traceback import format_exc

from semel.store.schema import Unusable


def fault_report(problem: Exception) -> str:
    """The log text for the exception that is being handled.

    The message of `Unusable` says what is wrong with the store. Any other exception is a bug in a
    hook or in the broker, for which the traceback is needed.
    """
    return str(problem) if isinstance(problem, Unusable) else format_exc()
