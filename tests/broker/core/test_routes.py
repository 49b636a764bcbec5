"""What is remembered about topics: never out of date, never more than the bound."""

import pytest

from semel.broker.access_control import AccessControl
from semel.broker.authority import Authority
from semel.broker.identity import Identity
from semel.broker.routes import PLAIN, Route, Routes
from semel.broker.session_state import SessionState
from semel.broker.subscriptions import SubscriptionTree
from semel.mqtt import Session, Subscription
from semel.store.streams import Streams


class Rights(Authority):
    """One client may not receive."""

    def receive(self, identity: Identity, topic_name: str) -> bool:
        return identity.client_id != "deaf"


class Shelf:
    """Subscriptions, sessions, and what is cached of them."""

    def __init__(self, maximum: int = 1_000) -> None:
        self.subscriptions = SubscriptionTree()
        self.authority = Rights()
        self.access = AccessControl(self.authority)
        self.sessions: dict[str, SessionState] = {}
        self.routes = Routes(
            self.subscriptions,
            self.access,
            self.sessions,
            Streams([]),
            maximum,
            copies_for_each=False,
        )

    def subscribe(
        self,
        client_id: str,
        topic_filter: str,
        qos: int = 0,
        *,
        identifier: int = 0,
        no_local: bool = False,
    ) -> None:
        self.sessions.setdefault(client_id, SessionState(Identity(client_id), Session(), 0))
        subscription = Subscription(topic_filter, qos, no_local=no_local)
        self.subscriptions.subscribe(client_id, subscription, identifier)

    def learn(self, topic_name: str, rights: str, qos: int = 0) -> None:
        matches = self.subscriptions.match(topic_name)
        self.routes.learn(topic_name, matches, rights=rights, qos=qos)

    def find(self, topic_name: str) -> Route | None:
        self.routes.refresh()
        return self.routes.find(topic_name.encode())


def who(route: Route | None) -> dict[str, int]:
    assert route is not None
    names = [state.client_id for state in route.states]
    return dict(zip(names, route.grants, strict=True))


def test_nothing_is_known_that_was_not_taught() -> None:
    shelf = Shelf()
    shelf.subscribe("a", "t")
    assert shelf.find("t") is None
    shelf.learn("t", "")
    assert who(shelf.find("t")) == {"a": 0}
    assert shelf.find("t/u") is None


def test_a_route_has_each_session_once_with_the_highest_of_its_qos() -> None:
    shelf = Shelf()
    shelf.subscribe("a", "t", 1)
    shelf.subscribe("a", "#", 2)
    shelf.subscribe("a", "+", 0)
    shelf.subscribe("b", "+", 1)
    shelf.subscribe("deaf", "t", 2)
    shelf.learn("t", "")
    assert who(shelf.find("t")) == {"a": 2, "b": 1}


def test_a_session_with_an_identifier_or_no_local_is_served_plainly() -> None:
    shelf = Shelf()
    shelf.subscribe("a", "t", 1, identifier=7)
    shelf.subscribe("a", "#", 2)
    shelf.subscribe("b", "t", 1, no_local=True)
    shelf.subscribe("c", "t", 1)
    shelf.learn("t", "")
    assert who(shelf.find("t")) == {"a": 2 | PLAIN, "b": 1 | PLAIN, "c": 1}


def test_a_topic_that_a_group_shares_is_not_cached() -> None:
    shelf = Shelf()
    shelf.subscribe("a", "$share/g/t")
    shelf.learn("t", "")
    assert shelf.find("t") is None
    shelf.subscriptions.unsubscribe("a", "$share/g/t")
    shelf.learn("t", "")
    assert who(shelf.find("t")) == {}


def test_rights_that_were_not_asked_are_not_allowed() -> None:
    shelf = Shelf()
    shelf.learn("t", "one")
    route = shelf.find("t")
    assert route is not None
    assert route.allows("one", 0)
    assert not route.allows("two", 0)
    shelf.learn("t", "two")
    shelf.learn("t", "three")
    shelf.learn("t", "two")
    assert shelf.find("t") is route
    assert all(route.allows(rights, 0) for rights in ("one", "two", "three"))
    assert not route.allows("four", 0)


@pytest.mark.parametrize("topic_filter", ["t", "#", "$share/g/t", "$share/g/+"])
def test_a_new_subscription_makes_a_route_unknown(topic_filter: str) -> None:
    shelf = Shelf()
    shelf.subscribe("a", "t")
    shelf.learn("t", "")
    assert shelf.find("t") is not None
    shelf.subscribe("b", topic_filter)
    assert shelf.find("t") is None


@pytest.mark.parametrize("topic_filter", ["t", "#"])
def test_a_subscription_given_up_makes_a_route_unknown(topic_filter: str) -> None:
    shelf = Shelf()
    shelf.subscribe("a", topic_filter)
    for forget in (False, True):
        shelf.subscribe("a", topic_filter)
        shelf.learn("t", "")
        assert shelf.find("t") is not None
        if forget:
            shelf.subscriptions.forget("a")
        else:
            shelf.subscriptions.unsubscribe("a", topic_filter)
        assert shelf.find("t") is None


def test_an_exact_subscription_leaves_other_routes_alone() -> None:
    shelf = Shelf()
    shelf.learn("t", "")
    shelf.learn("u", "")
    shelf.subscribe("a", "t")
    assert shelf.find("t") is None
    assert shelf.find("u") is not None


def test_new_rights_make_all_routes_unknown() -> None:
    shelf = Shelf()
    shelf.learn("t", "")
    assert shelf.find("t") is not None
    shelf.authority.generation += 1
    assert shelf.find("t") is None


def test_the_cache_is_bounded_and_keeps_what_is_used() -> None:
    shelf = Shelf(maximum=20)
    shelf.learn("used", "")
    for number in range(1_000):
        shelf.learn(f"t/{number}", "")
        assert len(shelf.routes) <= 20
        assert shelf.find("used") is not None
    assert shelf.find("t/0") is None
    assert shelf.find("t/999") is not None


def test_sessions_and_rights_count_as_entries() -> None:
    shelf = Shelf(maximum=20)
    for number in range(9):
        shelf.subscribe(f"c{number}", "crowd/#")
    for number in range(9):
        shelf.learn(f"crowd/{number}", "")
    # Ten entries each, ten in each half.
    assert len(shelf.routes) == 2
    shelf.subscribe("one more", "crowd/#")
    shelf.learn("crowd/1", "")
    assert shelf.find("crowd/1") is None
    for number in range(50):
        shelf.learn("t", f"rights {number}")
    shelf.learn("u", "")
    shelf.learn("v", "")
    assert len(shelf.routes) <= 3


def test_a_route_that_is_dropped_gives_back_all_its_entries() -> None:
    """Otherwise the cache would rotate earlier and earlier."""
    shelf = Shelf(maximum=20)
    for time in range(50):
        for number in range(5):
            shelf.learn("t", f"rights {number}")
        shelf.subscribe("a", "t", qos=time % 2)
        assert shelf.find("t") is None
    for number in range(20):
        shelf.learn(f"u/{number}", "")
    # Ten in each half.
    assert len(shelf.routes) == 20


def test_a_route_in_the_old_half_is_forgotten_with_the_others() -> None:
    shelf = Shelf(maximum=4)
    for topic_name in ("a", "b", "c"):
        shelf.learn(topic_name, "")
    shelf.subscribe("x", "a")
    assert shelf.find("a") is None
    assert shelf.find("b") is not None


def test_a_bound_of_0_keeps_nothing() -> None:
    shelf = Shelf(maximum=0)
    shelf.learn("t", "")
    assert shelf.find("t") is None
    assert len(shelf.routes) == 0


def test_very_long_names_are_not_kept() -> None:
    shelf = Shelf()
    shelf.learn("x" * 513, "")
    shelf.learn("x" * 512, "")
    assert len(shelf.routes) == 1
