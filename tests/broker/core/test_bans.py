"""Bans: which clients they find, when they expire, and how many there may be."""

import pytest

from semel.broker.bans import ADDRESS, CLIENT, USER, Ban, BanRefused, Bans
from semel.mqtt import MQTT5, MQTT311, ConnAck, Connect
from tests.broker.world import World

PEER = "10.1.2.3:4711"


def banned(*found: Ban) -> Bans:
    made = Bans()
    for each in found:
        made.add(each, 0.0)
    return made


def is_banned(found: Bans, peer: str, *, client_id: str = "a", user: str | None = None) -> bool:
    return found.find(client_id, user, peer, now=0.0) is not None


def test_nobody_is_banned_without_bans() -> None:
    assert not is_banned(Bans(), PEER)
    assert Bans().find_attributed("10.1.2.3", 0.0) is None
    assert len(Bans()) == 0


def test_a_client_and_a_user_are_found_by_exactly_their_names() -> None:
    found = banned(Ban(CLIENT, "bad"), Ban(USER, "eve"))
    assert is_banned(found, PEER, client_id="bad")
    assert is_banned(found, PEER, user="eve")
    assert not is_banned(found, PEER, client_id="eve")
    assert not is_banned(found, PEER, client_id="bad ")
    assert not is_banned(found, PEER, user="bad")
    assert not is_banned(found, PEER, user="#")
    assert not is_banned(banned(Ban(USER, "+")), PEER, user="eve")


@pytest.mark.parametrize(
    ("value", "inside", "outside"),
    [
        ("10.1.2.3", "10.1.2.3:1", "10.1.2.4:1"),
        ("10.1.0.0/16", "10.1.255.9:1", "10.2.0.1:1"),
        ("0.0.0.0/0", "9.9.9.9:1", "[2001:db8::1]:1"),
        ("2001:db8::7", "[2001:db8::7]:1", "[2001:db8::8]:1"),
        ("2001:db8::/32", "[2001:db8:ffff::1]:1", "[2001:db9::1]:1"),
        ("::ffff:10.1.2.3", "10.1.2.3:1", "10.1.2.4:1"),
        ("::ffff:10.1.0.0/112", "[::ffff:10.1.9.9]:1", "[::ffff:10.2.9.9]:1"),
    ],
)
def test_an_address_and_a_network_are_found_by_their_prefix(
    value: str, inside: str, outside: str
) -> None:
    found = banned(Ban(ADDRESS, value))
    assert is_banned(found, inside)
    assert not is_banned(found, outside)
    assert not is_banned(found, "unix:socket#1")
    assert not is_banned(found, "?")
    assert found.remove(ADDRESS, value)
    assert not is_banned(found, inside)
    assert not found.remove(ADDRESS, value)


def test_before_connect_an_ipv6_ban_counts_only_if_it_has_the_whole_line() -> None:
    found = banned(
        Ban(ADDRESS, "2001:db8::7"), Ban(ADDRESS, "2001:db9::/48"), Ban(ADDRESS, "9.9.9.9")
    )
    assert found.find_attributed("2001:db8::", 0.0) is None
    assert found.find_attributed("2001:db9::", 0.0) is not None
    assert found.find_attributed("9.9.9.9", 0.0) is not None
    assert found.find_attributed("9.9.9.8", 0.0) is None


def test_networks_of_one_length_are_separate() -> None:
    found = banned(Ban(ADDRESS, "10.1.2.3"), Ban(ADDRESS, "10.1.2.4"))
    assert found.remove(ADDRESS, "10.1.2.3")
    assert not is_banned(found, "10.1.2.3:1")
    assert is_banned(found, "10.1.2.4:1")


def test_a_ban_is_over_at_its_time() -> None:
    found = banned(
        Ban(CLIENT, "c", expires_at=5.0),
        Ban(USER, "u", expires_at=5.0),
        Ban(ADDRESS, "10.1.2.3", expires_at=5.0),
        Ban(CLIENT, "forever"),
    )
    for name, user, peer in (("c", None, "?"), ("x", "u", "?"), ("x", None, PEER)):
        assert found.find(name, user, peer, now=4.9) is not None
        assert found.find(name, user, peer, now=5.0) is None
    assert len(found.all(4.9)) == 4
    assert [each.value for each in found.all(5.0)] == ["forever"]
    found.expire(5.0)
    assert len(found) == 1


def test_a_ban_about_the_same_replaces_the_older_one() -> None:
    found = banned(
        Ban(ADDRESS, "10.1.2.3", reason="old"), Ban(ADDRESS, "10.1.2.3/32", reason="new")
    )
    assert [each.reason for each in found.all(0.0)] == ["new"]


def test_the_number_of_bans_is_bounded() -> None:
    found = Bans(maximum=2)
    found.add(Ban(CLIENT, "a"), 0.0)
    found.add(Ban(CLIENT, "b", expires_at=5.0), 0.0)
    with pytest.raises(BanRefused, match="there are 2 bans already: remove some"):
        found.add(Ban(CLIENT, "c"), 4.0)
    found.add(Ban(CLIENT, "a", reason="again"), 4.0)
    # One has expired: there is room.
    found.add(Ban(CLIENT, "c"), 5.0)
    assert [each.value for each in found.all(5.0)] == ["a", "c"]


@pytest.mark.parametrize(
    ("kind", "value", "sentence"),
    [
        ("topic", "a", "'topic' cannot be banned: only a client, a user or an address can"),
        (CLIENT, "", "the client to ban must have 1 to 65535 characters"),
        (USER, "x" * 65_536, "the user to ban must have 1 to 65535 characters"),
        (ADDRESS, "localhost", "'localhost' is neither an IP address nor a network in CIDR"),
        (ADDRESS, "10.0.0.5/8", "'10.0.0.5/8' is an address inside the network 10.0.0.0/8: give "),
        (ADDRESS, "10.0.0.0/33", "'10.0.0.0/33' is neither an IP address nor a network"),
    ],
)
def test_what_cannot_be_banned_is_a_sentence(kind: str, value: str, sentence: str) -> None:
    with pytest.raises(BanRefused) as caught:
        Ban(kind, value)
    assert sentence in str(caught.value)


def test_a_long_reason_is_refused() -> None:
    assert Ban(CLIENT, "a", reason="x" * 1_000).reason
    with pytest.raises(BanRefused, match="at most 1000 characters"):
        Ban(CLIENT, "a", reason="x" * 1_001)


def test_an_ipv6_network_that_has_mapped_addresses_and_others_is_kept() -> None:
    assert Ban(ADDRESS, "::fffe:0:0/95").value == "::fffe:0:0/95"
    assert Ban(ADDRESS, "::ffff:0:0/96").value == "0.0.0.0/0"


# --- a broker with bans ---------------------------------------------------------------------------


def refusal(world: World, client_id: str, version: int, peer: str = "10.9.9.9:1") -> ConnAck:
    client = world.open(version, peer=peer)
    (connack,) = client.send(Connect(client_id, version=version))
    assert isinstance(connack, ConnAck)
    assert client.is_closed()
    return connack


def test_a_banned_client_is_refused_and_others_are_not() -> None:
    world = World()
    world.broker.oversight.bans.add(Ban(CLIENT, "bad", reason="it floods"), world.now)
    world.broker.oversight.bans.add(Ban(ADDRESS, "10.1.0.0/16"), world.now)
    connack = refusal(world, "bad", MQTT5)
    assert connack.reason == 0x8A
    assert connack.properties.reason_string == "this client identifier is banned: it floods"
    assert refusal(world, "bad", MQTT311).reason == 5
    connack = refusal(world, "good", MQTT5, peer="10.1.9.9:5")
    assert connack.properties.reason_string == "this address is banned"
    world.connect("good", peer="10.2.0.1:5")
    assert "'bad': 0x8a, 'this client identifier is banned: it floods'" in world.log[0]
