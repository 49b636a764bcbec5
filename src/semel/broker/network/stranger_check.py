"""Refuses a listener that would let strangers in without anybody having decided so."""

import ipaddress
import socket
from collections.abc import Iterable

from semel.broker.identity import DEFAULT_LISTENER
from semel.broker.network.listener_settings import UNIX, ListenerSettings
from semel.settings import SettingsError


def reachable_addresses(addresses: Iterable[str]) -> list[str]:
    """Those addresses that other machines can reach."""
    return sorted(
        {
            address
            for address in addresses
            if not ipaddress.ip_address(address.partition("%")[0]).is_loopback
        }
    )


def stranger_problem(
    listener: ListenerSettings, addresses: Iterable[str], *, has_users: bool
) -> str | None:
    """Why a listener on these IP addresses must not be opened, in one sentence; or None.

    `has_users`: somebody decides who may connect, by users or otherwise.
    """
    what = f"listener {listener.name} ({listener.address})"
    if has_users or listener.anonymous is True:
        return None
    if listener.anonymous is False:
        return (
            f"nobody could connect to {what}: it refuses anonymous clients, and no users are "
            "configured. Configure users, or remove anonymous = false"
        )
    reachable = reachable_addresses(addresses)
    if not reachable:
        return None
    way_out = f"anonymous = true in [[listener]] {listener.name}"
    if listener.name == DEFAULT_LISTENER:
        way_out = "--anonymous (or anonymous = true in its section)"
    return (
        f"{what} would let strangers in: other machines can reach {', '.join(reachable)}, and "
        "anonymous clients may read and publish everything. Configure users in [users], or "
        f"permit this by {way_out}"
    )


def check_listener(listener: ListenerSettings, *, has_users: bool) -> None:
    """Check a listener before it is opened. Raises SettingsError.

    A host name is resolved. If that fails, opening the listener reports it.
    """
    addresses: list[str] = []
    if listener.transport != UNIX:
        try:
            found = socket.getaddrinfo(listener.host, None, type=socket.SOCK_STREAM)
            addresses = [str(each[4][0]) for each in found]
        except (OSError, UnicodeError):
            pass
    problem = stranger_problem(listener, addresses, has_users=has_users)
    if problem is not None:
        raise SettingsError([problem])
