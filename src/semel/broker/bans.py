"""Bans: clients that an operator keeps out, by client identifier, user name, address or network.

An address is a network of one address. Networks are found by their prefix, so that a lookup costs
one step for each prefix length in use, however many bans there are.
"""

from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, final

# What a ban is about.
CLIENT: Final = "client"
USER: Final = "user"
ADDRESS: Final = "address"
KINDS: Final = (CLIENT, USER, ADDRESS)

MAXIMUM_BANS: Final = 10_000
# Characters of a banned name, and of a reason.
MAXIMUM_NAME: Final = 65_535
MAXIMUM_REASON: Final = 1_000

# `address_of` attributes an IPv6 address to its network of this size.
_ATTRIBUTED_PREFIX: Final = 64
_BITS: Final = {4: 32, 6: 128}


class BanRefused(Exception):
    """Why a ban cannot be added, in one sentence."""


@final
class Ban:
    """One ban. Times are seconds of the wall clock; `expires_at` None: it does not expire."""

    kind: Final[str]
    value: Final[str]
    reason: Final[str]
    created_at: Final[float]
    # The user ID of the operator, or who else has added it.
    created_by: Final[str]
    expires_at: Final[float | None]

    def __init__(
        self,
        kind: str,
        value: str,
        *,
        reason: str = "",
        created_at: float = 0.0,
        created_by: str = "",
        expires_at: float | None = None,
    ) -> None:
        """Raises BanRefused if it is about nothing that can be banned."""
        if kind not in KINDS:
            raise BanRefused(f"{kind!a} cannot be banned: only a client, a user or an address can")
        if not value or len(value) > MAXIMUM_NAME:
            raise BanRefused(f"the {kind} to ban must have 1 to {MAXIMUM_NAME} characters")
        if len(reason) > MAXIMUM_REASON:
            raise BanRefused(f"the reason of a ban has at most {MAXIMUM_REASON} characters")
        self.kind = kind
        self.value = str_of_network(parse_network(value)) if kind == ADDRESS else value
        self.reason = reason
        self.created_at = created_at
        self.created_by = created_by
        self.expires_at = expires_at

    def is_over(self, now: float) -> bool:
        """Whether it has expired."""
        return self.expires_at is not None and now >= self.expires_at

    @property
    def sentence(self) -> str:
        """What a refused client and the log are told."""
        what = {CLIENT: "client identifier", USER: "user", ADDRESS: "address"}[self.kind]
        return f"this {what} is banned: {self.reason}" if self.reason else f"this {what} is banned"


@final
class Bans:
    """All bans, at most one for each client identifier, user name and network."""

    _maximum: Final[int]
    _by_name: Final[dict[tuple[str, str], Ban]]
    # By version of IP and prefix length, then by prefix.
    _networks: Final[dict[tuple[int, int], dict[int, Ban]]]

    def __init__(self, maximum: int = MAXIMUM_BANS) -> None:
        self._maximum = maximum
        self._by_name = {}
        self._networks = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, ban: Ban, now: float) -> None:
        """Add a ban, or replace the one about the same. Raises BanRefused if there is no room."""
        key = (ban.kind, ban.value)
        if key not in self._by_name and len(self._by_name) >= self._maximum:
            self.expire(now)
            if len(self._by_name) >= self._maximum:
                raise BanRefused(
                    f"there are {self._maximum:,} bans already: remove some, or ban a network"
                )
        self._by_name[key] = ban
        if ban.kind == ADDRESS:
            length, prefix = _prefix(parse_network(ban.value))
            self._networks.setdefault(length, {})[prefix] = ban

    def remove(self, kind: str, value: str) -> bool:
        """Remove a ban. Returns whether there was one. Raises BanRefused for a bad address."""
        key = (kind, str_of_network(parse_network(value)) if kind == ADDRESS else value)
        if self._by_name.pop(key, None) is None:
            return False
        if kind == ADDRESS:
            length, prefix = _prefix(parse_network(value))
            networks = self._networks[length]
            del networks[prefix]
            if not networks:
                del self._networks[length]
        return True

    def expire(self, now: float) -> None:
        """Remove all bans that have expired."""
        for ban in list(self._by_name.values()):
            if ban.is_over(now):
                self.remove(ban.kind, ban.value)

    def all(self, now: float) -> list[Ban]:
        """The bans that have not expired, in the order in which they were added."""
        return [ban for ban in self._by_name.values() if not ban.is_over(now)]

    def find(self, client_id: str, user_name: str | None, peer: str, *, now: float) -> Ban | None:
        """The ban of a client at the peer `host:port`; None: it is not banned."""
        if not self._by_name:
            return None
        ban = self._by_name.get((CLIENT, client_id))
        if ban is not None and not ban.is_over(now):
            return ban
        if user_name is not None:
            ban = self._by_name.get((USER, user_name))
            if ban is not None and not ban.is_over(now):
                return ban
        return self._find_network(_host(peer), now, whole=False)

    def find_attributed(self, address: str, now: float) -> Ban | None:
        """The ban of all clients that `address_of` attributes to this address, or None."""
        return self._find_network(address, now, whole=True)

    def _find_network(self, host: str, now: float, *, whole: bool) -> Ban | None:
        """The ban of an address. `whole`: an IPv6 address stands for its network of 64 bits."""
        if not self._networks:
            return None
        try:
            address = ip_address(host)
        except ValueError:
            # A Unix socket, or a peer that has already disconnected.
            return None
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        number, version = int(address), address.version
        for length, networks in self._networks.items():
            if length[0] != version or (whole and version == 6 and length[1] > _ATTRIBUTED_PREFIX):
                continue
            ban = networks.get(number >> (_BITS[version] - length[1]))
            if ban is not None and not ban.is_over(now):
                return ban
        return None


def parse_network(text: str) -> IPv4Network | IPv6Network:
    """An address, or a network in CIDR notation. Raises BanRefused."""
    try:
        network = ip_network(text)
    except ValueError as problem:
        if "host bits set" in str(problem):
            meant = ip_network(text, strict=False)
            raise BanRefused(
                f"{text!a} is an address inside the network {meant}: give one of the two"
            ) from None
        raise BanRefused(f"{text!a} is neither an IP address nor a network in CIDR") from None
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
        # Clients with such an address count as IPv4 clients. The 96 bits before it are fixed.
        return ip_network((int(network.network_address) & 0xFFFF_FFFF, network.prefixlen - 96))
    return network


def str_of_network(network: IPv4Network | IPv6Network) -> str:
    """The canonical text: without a prefix length if it is one address."""
    if network.num_addresses == 1:
        return str(network.network_address)
    return str(network)


def _prefix(network: IPv4Network | IPv6Network) -> tuple[tuple[int, int], int]:
    length = (network.version, network.prefixlen)
    return length, int(network.network_address) >> (_BITS[network.version] - network.prefixlen)


def _host(peer: str) -> str:
    host = peer.rpartition(":")[0]
    return host[1:-1] if host.startswith("[") else host
