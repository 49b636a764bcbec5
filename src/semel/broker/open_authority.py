"""The Authority of a broker without users: every client may do everything."""

from collections.abc import Callable
from typing import Final, final

from semel.broker.authority import Authority
from semel.mqtt.packets.connect import Connect
from semel.mqtt.reasons import SUCCESS


@final
class OpenAuthority(Authority):
    """Allows everything. Warns once, when the first client sends credentials."""

    _warn: Final[Callable[[str], None]]
    _has_warned: bool

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._has_warned = False

    def connect(self, packet: Connect, peer: str) -> int:
        """SUCCESS for every user name and password."""
        has_credentials = packet.user_name is not None or packet.password is not None
        if has_credentials and not self._has_warned:
            self._has_warned = True
            self._warn(
                f"{peer} connects with a user name or password, which are not checked: this "
                "broker has no users, and allows every client everything"
            )
        return SUCCESS
