"""A listener that would let strangers in is refused, with the two ways out."""

from pathlib import Path

import pytest

from semel.broker.network.listener_settings import ListenerSettings
from semel.broker.network.stranger_check import check_listener, reachable_addresses
from semel.settings import SettingsError


def listener(host: str, *, anonymous: bool | None = None, name: str = "web") -> ListenerSettings:
    return ListenerSettings(name=name, host=host, port=1883, anonymous=anonymous)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_a_listener_of_this_machine_admits_everyone(host: str) -> None:
    check_listener(listener(host), has_users=False)
    check_listener(listener(host), has_users=True)


def test_a_unix_socket_admits_everyone() -> None:
    own = ListenerSettings(name="web", transport="unix", path=Path("socket"))
    check_listener(own, has_users=False)


@pytest.mark.parametrize(
    ("host", "address"),
    [("0.0.0.0", "0.0.0.0:1883"), ("::", "[::]:1883"), ("192.0.2.1", "192.0.2.1:1883")],
)
def test_a_listener_that_others_can_reach_needs_users_or_consent(host: str, address: str) -> None:
    check_listener(listener(host), has_users=True)
    check_listener(listener(host, anonymous=True), has_users=False)
    check_listener(listener(host, anonymous=True), has_users=True)
    with pytest.raises(SettingsError) as caught:
        check_listener(listener(host), has_users=False)
    assert caught.value.problems == (
        f"listener web ({address}) would let strangers in: other machines can reach {host}, and "
        "anonymous clients may read and publish everything. Configure users in [users], or "
        "permit this by anonymous = true in [[listener]] web",
    )


def test_for_the_listener_of_the_broker_section_there_is_a_flag() -> None:
    with pytest.raises(SettingsError, match=r"or permit this by --anonymous \(or anonymous = tr"):
        check_listener(listener("0.0.0.0", name="default"), has_users=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_listener_that_admits_nobody_is_refused(host: str) -> None:
    check_listener(listener(host, anonymous=False), has_users=True)
    with pytest.raises(SettingsError, match=r"nobody could connect to listener web"):
        check_listener(listener(host, anonymous=False), has_users=False)


@pytest.mark.parametrize("host", ["no such host", "a..b"])
def test_a_host_that_cannot_be_resolved_is_left_to_the_opening(host: str) -> None:
    check_listener(listener(host), has_users=False)


def test_addresses_are_listed_once_and_in_order() -> None:
    found = reachable_addresses(["fe80::1%lo", "10.0.0.1", "127.0.0.1", "::1", "10.0.0.1"])
    assert found == ["10.0.0.1", "fe80::1%lo"]
