"""How the log reports an exception.

The fault domain of everything that the loop calls is one connection or one session: an exception of
a hook, of a read of the store or of a bug is caught where the affected client is known. Its
connection is closed, the log says why, and everybody else is served in the same tick.
"""

from traceback import format_exc

from semel.store.schema import Unusable


def fault_report(problem: Exception) -> str:
    """The text for the log about an exception that is being handled.

    A store that cannot be read explains itself in one sentence. Anything else is a bug in a hook or
    in the broker, for which the traceback is needed.
    """
    return str(problem) if isinstance(problem, Unusable) else format_exc()
