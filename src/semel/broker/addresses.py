"""Which peers count as one, where a bound is a share for each address."""

from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

# One subscriber line is given a network of this size, and may use any address in it.
_IPV6_PREFIX: Final = 64


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
