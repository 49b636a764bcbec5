"""What a user gets while its rights change: the account can fail, and does not when all is well."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kills import wire
from tests.kills.account import DUE, MAYBE, NEVER, Named, Verdict, payload_of
from tests.kills.driver import Driver
from tests.kills.guests import Guest, GuestPublisher, rights_of
from tests.kills.raw import OPEN, SUBSCRIBE_ID
from tests.kills.rights import KINDS, NO_RECEIVE, NO_RULE, NO_USER, STEADY, Rights

USER = "guest-5"


@pytest.fixture
def rights(tmp_path: Path) -> Rights:
    return rights_of(tmp_path, seed=1)


@pytest.fixture
def driver(tmp_path: Path, rights: Rights) -> Iterator[Driver]:
    """A driver that is never run: there is no broker."""
    made = Driver(1, 1, tmp_path / "journal", cut_rate=0.0, patience=1.0, rights=rights)
    made.populate()
    yield made
    made.selector.close()
    made.journal.close()


@pytest.fixture
def guest(driver: Driver) -> Guest:
    (found,) = [each for each in driver.clients if each.name == USER]
    assert isinstance(found, Guest)
    found.state = OPEN
    subscribe(found, 2)
    return found


def subscribe(guest: Guest, code: int) -> None:
    """The guest asks, and gets this answer."""
    guest.is_asking = True
    guest.asking = guest.rights.now(USER)
    guest.answered(SUBSCRIBE_ID, bytes([code]), wire.SUBACK)


def send(guest: Guest, n: int, *, qos: int = 2, is_done: bool = True) -> None:
    """A message of a publisher, acknowledged or not."""
    guest.ledger.submit(("p", n), "load/p/0", qos)
    if is_done:
        guest.ledger.mark(("p", n), "PUBCOMP", 1, DUE)


def deliver(guest: Guest, n: int, *, qos: int = 2) -> None:
    payload = payload_of("p", n, qos)
    message = wire.Message("load/p/0", payload, qos, False, False, n, {})
    guest.arrived(message, message.topic, Named(("p", n), qos))
    guest.take(Named(("p", n), qos), None)


def change(rights: Rights, kind: str | None = None) -> None:
    """Take the rights of the user away, or give them back, and apply that."""
    while True:
        rights.change(USER)
        if kind in (None, rights.kinds[USER]):
            break
    rights.applied()


def kinds_of_faults(guest: Guest) -> set[str]:
    verdict = Verdict()
    guest.settle(verdict)
    return {kind for kind, _ in guest.ledger.seen} | set(verdict.faults)


# --- the files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_files_take_the_rights_of_one_user_away_and_give_them_back(
    rights: Rights, kind: str
) -> None:
    before = rights.rights_file.read_text(), rights.users_file.read_text()
    assert f"allow user:{USER} subscribe load/#" in before[0]
    change(rights, kind)
    rules, users = rights.rights_file.read_text(), rights.users_file.read_text()
    assert (rules == before[0]) == (kind == NO_USER)
    assert (users == before[1]) == (kind != NO_USER)
    assert f"allow user:{STEADY} all #" in rules
    assert f"{STEADY}:" in users
    assert (f"deny user:{USER} receive" in rules) == (kind == NO_RECEIVE)
    change(rights, "")
    assert (rights.rights_file.read_text(), rights.users_file.read_text()) == before


def test_nothing_is_known_while_a_change_is_not_applied(rights: Rights) -> None:
    period = rights.now(USER)
    assert period is not None
    assert not period.is_revoked
    rights.change(USER)
    assert rights.now(USER) is None
    rights.applied()
    revoked = rights.now(USER)
    assert revoked is not None
    assert revoked.is_revoked
    assert not revoked.covers(period.end)
    assert (rights.count(revoked=True), rights.count(revoked=False)) == (1, 0)


# --- what is right --------------------------------------------------------------------------------


def test_a_guest_that_gets_what_it_may_is_clean(guest: Guest, rights: Rights) -> None:
    for n in (1, 2):
        send(guest, n)
    deliver(guest, 1)
    assert guest.is_changeable()
    # The second was still queued: it is withdrawn.
    change(rights, NO_RULE)
    subscribe(guest, 0x87)
    send(guest, 3)
    # Sent while nothing was allowed, and processed when it was again.
    send(guest, 4, is_done=False)
    change(rights, "")
    guest.ledger.mark(("p", 4), "PUBCOMP", 1, DUE)
    guest.subscribed = False
    assert not guest.is_changeable()
    subscribe(guest, 2)
    deliver(guest, 4)
    send(guest, 5)
    assert guest.owed() == [("p", 5)]
    deliver(guest, 5)
    assert guest.owed() == []
    assert kinds_of_faults(guest) == set()
    assert guest.withheld() == 1


def test_a_message_that_was_on_its_way_may_come_on_the_same_connection(
    guest: Guest, rights: Rights
) -> None:
    guest.will()
    send(guest, 1)
    change(rights)
    deliver(guest, 1)
    assert kinds_of_faults(guest) == set()


@pytest.mark.parametrize(
    ("kind", "code", "is_fine"),
    [
        (NO_USER, 0x86, True),
        (NO_USER, 0x04, True),
        (NO_RULE, 0x87, True),
        (NO_RULE, 0x86, False),
        ("", 0x87, False),
    ],
)
def test_a_guest_is_refused_or_disconnected_only_without_rights(
    guest: Guest, rights: Rights, kind: str, code: int, is_fine: bool
) -> None:
    change(rights)
    change(rights, kind)
    # The answer to a CONNECT of before may be a refusal in any case.
    assert guest.may_be_refused(0x86)
    guest.will()
    assert guest.may_be_refused(code) == is_fine


# --- what is wrong --------------------------------------------------------------------------------


def test_a_message_that_is_sent_and_delivered_without_rights_is_found(
    guest: Guest, rights: Rights
) -> None:
    change(rights)
    send(guest, 1)
    deliver(guest, 1)
    assert kinds_of_faults(guest) == {"sent and delivered while revoked", "sent while revoked"}


def test_a_message_of_before_that_comes_on_a_new_connection_is_found(
    guest: Guest, rights: Rights
) -> None:
    send(guest, 1)
    change(rights)
    guest.will()
    deliver(guest, 1)
    assert kinds_of_faults(guest) == {"delivered to a connection without rights"}


def test_a_message_that_was_kept_until_the_rights_were_given_back_is_found(
    guest: Guest, rights: Rights
) -> None:
    change(rights)
    send(guest, 1)
    time.sleep(0.001)
    change(rights, "")
    deliver(guest, 1)
    assert kinds_of_faults(guest) == {"sent while revoked"}


@pytest.mark.parametrize(("kind", "is_fine"), [(NO_RULE, False), (NO_RECEIVE, True)])
def test_a_subscription_that_is_granted_without_rights_is_found(
    guest: Guest, rights: Rights, kind: str, is_fine: bool
) -> None:
    change(rights, kind)
    subscribe(guest, 2)
    assert kinds_of_faults(guest) == (set() if is_fine else {"subscribed though revoked"})


def test_a_subscription_that_is_refused_with_rights_is_found(guest: Guest) -> None:
    subscribe(guest, 0x87)
    assert kinds_of_faults(guest) == {"subscription refused"}


def test_a_message_that_is_lost_between_others_is_found(guest: Guest, rights: Rights) -> None:
    for n in (1, 2, 3):
        send(guest, n)
    deliver(guest, 1)
    deliver(guest, 3)
    change(rights)
    assert guest.owed() == [("p", 2)]
    assert kinds_of_faults(guest) == {"lost"}


def test_messages_before_one_that_was_sent_again_after_a_change_are_not_lost(
    guest: Guest, rights: Rights
) -> None:
    send(guest, 1)
    send(guest, 2, is_done=False)
    # The first is withdrawn from the queue. The second had not arrived.
    change(rights)
    change(rights, "")
    guest.subscribed = False
    subscribe(guest, 2)
    guest.ledger.mark(("p", 2), "PUBCOMP", 1, DUE)
    deliver(guest, 2)
    assert guest.owed() == []
    assert kinds_of_faults(guest) == set()


def test_messages_before_one_that_waited_on_disk_during_a_change_are_not_lost(
    guest: Guest, rights: Rights
) -> None:
    for n in (1, 2, 3):
        send(guest, n)
    deliver(guest, 1)
    # The second is withdrawn from memory. The third is only on disk, and read afterwards.
    change(rights)
    change(rights, "")
    deliver(guest, 3)
    assert guest.owed() == []
    assert kinds_of_faults(guest) == set()


def test_a_message_that_is_duplicated_or_out_of_order_is_found(guest: Guest) -> None:
    for n in (1, 2):
        send(guest, n)
    for n in (2, 1, 2):
        deliver(guest, n)
    assert kinds_of_faults(guest) == {"doubled", "out of order"}


def test_a_message_at_qos_1_may_come_twice_and_one_that_nobody_sent_may_not(guest: Guest) -> None:
    send(guest, 1, qos=1)
    deliver(guest, 1, qos=1)
    deliver(guest, 1, qos=1)
    assert kinds_of_faults(guest) == set()
    deliver(guest, 9)
    assert kinds_of_faults(guest) == {"never sent"}


# --- publishers -----------------------------------------------------------------------------------


@pytest.fixture(params=["guest-p-5", "guest-p-311"])
def publisher(driver: Driver, request: pytest.FixtureRequest) -> GuestPublisher:
    (found,) = [each for each in driver.clients if each.name == request.param]
    assert isinstance(found, GuestPublisher)
    return found


def fates(publisher: GuestPublisher, *reasons: int) -> list[str]:
    """Messages of a publisher that are answered with these codes: what must become of them."""
    found = []
    for reason in reasons:
        publisher.counter += 1
        key = (publisher.name, publisher.counter)
        sent = publisher.ledger.submit(key, "load/x", 1)
        publisher.decided(key, reason)
        found.append(sent.fate)
    return found


def test_messages_of_a_publisher_with_rights_are_accepted(publisher: GuestPublisher) -> None:
    assert not publisher.is_changeable()
    assert fates(publisher, 0, 0x10) == [DUE, DUE]
    assert publisher.is_changeable()
    assert publisher.ledger.seen == []
    assert fates(publisher, 0x87) == [MAYBE]
    assert [kind for kind, _ in publisher.ledger.seen] == ["message refused"]


@pytest.mark.parametrize("reason", [0x87, 0x97, 0])
def test_messages_of_a_publisher_without_rights_may_not_come(
    publisher: GuestPublisher, rights: Rights, reason: int
) -> None:
    rights.change(publisher.user)
    rights.applied()
    is_version_5 = publisher.version == wire.V5
    is_accepted = reason == 0 and is_version_5
    assert fates(publisher, reason) == [DUE if is_accepted else NEVER]
    kinds = [kind for kind, _ in publisher.ledger.seen]
    if reason == 0x97:
        assert kinds == ["message refused"]
    else:
        # In 3.1.1 that is how a message is refused.
        assert kinds == (["accepted though revoked"] if is_accepted else [])


def test_a_message_that_is_answered_after_a_change_may_have_come(
    publisher: GuestPublisher, rights: Rights
) -> None:
    key = (publisher.name, 1)
    sent = publisher.ledger.submit(key, "load/x", 1)
    rights.change(publisher.user)
    rights.applied()
    publisher.decided(key, 0x87)
    assert sent.fate == MAYBE
    assert publisher.ledger.seen == []
    assert publisher.ledger.verdict().is_clean
