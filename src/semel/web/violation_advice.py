"""What to do about a rule that a client broke."""

from typing import Any


def advice_for(violation: dict[str, Any]) -> str:
    """One or two sentences for the operator. `violation` is an entry of `violations.list`."""
    packet = violation["packet"] or "packet"
    if not violation["closed"]:
        return (
            "The broker has continued, as the standard requires. If it happens often, look for "
            "packets that are sent twice, or a session that the client has lost."
        )
    if violation["client"] is None:
        return (
            "The connection was closed before a client was known. If it is not a stranger, check "
            f"with which protocol and version it connects: semel decode {violation['bytes']}"
        )
    return (
        f"The connection was closed. Correct how the client makes its {packet}, or update its "
        f"library; semel rules {violation['rule']} explains the rule."
    )
