"""Which peers count as one, and which address has the most of something that is bounded.

Where a bound is reached, whoever has the most loses the oldest of what it has: a flood from one
address costs that address its own, and not what others have.
"""

from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, final

# One subscriber line is given a network of this size, and may use any address in it.
_IPV6_PREFIX: Final = 64

# What is counted, by a name or a number.
Key = str | int


def address_of(peer: str) -> str:
    """The address that a peer, `host:port`, counts for: of IPv6 its network of 64 bits."""
    host = peer.rpartition(":")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        network = ip_network((int(address), _IPV6_PREFIX), strict=False)
        return str(network.network_address)
    return host


@final
class Share:
    """What one address has: how much in all, and what of it may go, the oldest first."""

    weight: int
    evictable: Final[dict[Key, None]]

    def __init__(self) -> None:
        self.weight = 0
        self.evictable = {}


@final
class AddressShares:
    """What all addresses have. What is counted need not be what may go."""

    weight: int
    _evictable: Final[dict[Key, None]]
    _shares: Final[dict[str, Share]]
    # As far as is known, the address that has the most.
    _heaviest: Share

    def __init__(self) -> None:
        self.weight = 0
        self._evictable = {}
        self._shares = {}
        self._heaviest = Share()

    def count(self, address: str, weight: int) -> None:
        """The address has so much more, or less."""
        share = self._shares.get(address)
        if share is None:
            share = self._shares[address] = Share()
        share.weight += weight
        self.weight += weight
        if share.weight > self._heaviest.weight:
            self._heaviest = share
        elif not share.weight:
            assert not share.evictable, "what may go is counted"
            del self._shares[address]

    def make_evictable(self, key: Key, address: str) -> None:
        """This may go, after all that may go already."""
        self._evictable[key] = None
        self._shares[address].evictable[key] = None

    def protect(self, key: Key, address: str) -> None:
        """This may not go, if it might before."""
        if key in self._evictable:
            del self._evictable[key]
            del self._shares[address].evictable[key]

    def evictable_keys(self) -> list[Key]:
        """All that may go, the oldest first."""
        return list(self._evictable)

    def has_evictable(self) -> bool:
        """Whether there is anything that may go."""
        return bool(self._evictable)

    def next_to_evict(self) -> Key | None:
        """The oldest of the address that has the most, or of all if it has none that may go."""
        # With less than the average it has lost too much since to have the most.
        if self._heaviest.weight * len(self._shares) < self.weight:
            for share in self._shares.values():
                if share.weight > self._heaviest.weight:
                    self._heaviest = share
        if self._heaviest.evictable:
            return next(iter(self._heaviest.evictable))
        return next(iter(self._evictable)) if self._evictable else None
