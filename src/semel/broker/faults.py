"""How the log tells what failed.

The fault domain of everything that the loop calls is one connection or one session: whatever a
hook, a read of the store or a mistake of ours raises is caught where it is known whom it concerns.
That one pays with its connection, the log says why, and everybody else is served in the same tick.
"""

from traceback import format_exc

from semel.store.schema import Unusable


def fault_report(problem: Exception) -> str:
    """What the log says of an exception that is being handled.

    A store that cannot be read says in one sentence what is wrong and what to do. Anything else is
    a mistake in a hook or in the broker, and only the place where it happened helps.
    """
    return str(problem) if isinstance(problem, Unusable) else format_exc()
