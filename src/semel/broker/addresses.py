"""Fair eviction: which address has the most of something that is bounded.

When a bound is reached, the address that has the most loses its oldest entry: a flood from one
address evicts its own entries, and not those of others.
"""

from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, final

# One subscriber line gets a network of this size, and may use any address in it.
_IPV6_PREFIX: Final = 64

# A client identifier, or the number of a connection.
Key = str | int


def address_of(peer: str) -> str:
    """The address that a peer `host:port` counts for; for IPv6 its /64 network."""
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
    """What one address has: its weight, and its entries that may be evicted, the oldest first."""

    weight: int
    evictable: Final[dict[Key, None]]

    def __init__(self) -> None:
        self.weight = 0
        self.evictable = {}


@final
class AddressShares:
    """What all addresses have. Not everything that is counted is evictable."""

    weight: int
    _evictable: Final[dict[Key, None]]
    _shares: Final[dict[str, Share]]
    # The address that has the most, as far as is known.
    _heaviest: Share

    def __init__(self) -> None:
        self.weight = 0
        self._evictable = {}
        self._shares = {}
        self._heaviest = Share()

    def count(self, address: str, weight: int) -> None:
        """Add to, or subtract from, the weight of an address."""
        share = self._shares.get(address)
        if share is None:
            share = self._shares[address] = Share()
        share.weight += weight
        self.weight += weight
        if share.weight > self._heaviest.weight:
            self._heaviest = share
        elif not share.weight:
            assert not share.evictable, "evictable entries are counted"
            del self._shares[address]

    def make_evictable(self, key: Key, address: str) -> None:
        """This may be evicted, after all others."""
        self._evictable[key] = None
        self._shares[address].evictable[key] = None

    def protect(self, key: Key, address: str) -> None:
        """This may not be evicted any more."""
        if key in self._evictable:
            del self._evictable[key]
            del self._shares[address].evictable[key]

    def evictable_keys(self) -> list[Key]:
        """All evictable entries, the oldest first."""
        return list(self._evictable)

    def has_evictable(self) -> bool:
        """Whether anything may be evicted."""
        return bool(self._evictable)

    def next_to_evict(self) -> Key | None:
        """The oldest of the address that has the most, or of all if that has none."""
        # With less than the average it cannot have the most any more.
        if self._heaviest.weight * len(self._shares) < self.weight:
            for share in self._shares.values():
                if share.weight > self._heaviest.weight:
                    self._heaviest = share
        if self._heaviest.evictable:
            return next(iter(self._heaviest.evictable))
        return next(iter(self._evictable)) if self._evictable else None
