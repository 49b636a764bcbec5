"""Fair eviction: counts entries per address, and chooses which one to evict.

When a bound is reached, the address with the most entries loses its oldest one, so that a flood
from one address evicts its own entries, and not those of others.
"""

from ipaddress import IPv6Address, ip_network
from typing import Final, final

# A subscriber line usually gets a network of this size, and may use any address in it.
_IPV6_PREFIX: Final = 64

# A client identifier, or the number of a connection.
Key = str | int


def address_of(peer: str) -> str:
    """The address to which a peer `host:port` is attributed; for IPv6 its /64 network."""
    host = peer.rpartition(":")[0]
    if host.startswith("["):
        host = host[1:-1]
    if ":" not in host:
        # An IPv4 address, or the name of a host.
        return host
    try:
        address = IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    network = ip_network((int(address), _IPV6_PREFIX), strict=False)
    return str(network.network_address)


@final
class Share:
    """The entries of one address: their total weight, and the evictable ones, oldest first."""

    weight: int
    evictable: Final[dict[Key, None]]

    def __init__(self) -> None:
        self.weight = 0
        self.evictable = {}


@final
class AddressShares:
    """The entries of all addresses. Not all counted entries are evictable."""

    weight: int
    _evictable: Final[dict[Key, None]]
    _shares: Final[dict[str, Share]]
    # An estimate of the heaviest address; `next_to_evict` corrects it if it is below the average.
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
        """Allow the eviction of an entry, after all others."""
        self._evictable[key] = None
        self._shares[address].evictable[key] = None

    def protect(self, key: Key, address: str) -> None:
        """Do not evict this entry."""
        if key in self._evictable:
            del self._evictable[key]
            del self._shares[address].evictable[key]

    def evictable_keys(self) -> list[Key]:
        """All evictable entries, oldest first."""
        return list(self._evictable)

    def has_evictable(self) -> bool:
        """Whether anything may be evicted."""
        return bool(self._evictable)

    def next_to_evict(self) -> Key | None:
        """The oldest evictable entry of the heaviest address, or of all if that has none."""
        # An address below the average cannot be the heaviest.
        if self._heaviest.weight * len(self._shares) < self.weight:
            for share in self._shares.values():
                if share.weight > self._heaviest.weight:
                    self._heaviest = share
        if self._heaviest.evictable:
            return next(iter(self._heaviest.evictable))
        return next(iter(self._evictable)) if self._evictable else None
