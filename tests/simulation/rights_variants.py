"""Worlds that do not respect rights: the simulation must detect each of them.

Each forgets to ask in one place, or does not apply the answer to something.
"""

from typing import Final

from semel.broker.authority import Authority, Denied, Proof
from semel.broker.connection import Connection
from semel.broker.core import Broker
from semel.broker.identity import Identity, PeerInfo
from semel.mqtt import Connect
from semel.mqtt.delivery import Delivery
from semel.mqtt.packet_types import CONNECT
from semel.mqtt.reasons import SUCCESS
from semel.store.commit import Commit
from tests.simulation.faults import Faults, Hooks
from tests.simulation.rights import Rights
from tests.simulation.store import Pending, SimulatedStore, empty_database
from tests.simulation.variants import Noted, Variant


class UnnoticedRights(Variant):
    """Rights change without a new generation."""

    name = "rights unnoticed"
    fault = "a change of rights applies to new decisions only"

    def rights_changed(self, authority: Authority, rights: Rights) -> None:
        pass


class InFlightHooks(Hooks):
    """While sessions are checked, allows what is in flight to a client without a connection."""

    # The broker that checks its sessions now.
    checking: Broker | None = None

    def receive(self, identity: Identity, topic_name: str) -> bool:
        if self.checking is not None:
            state = self.checking.router.sessions[identity.client_id]
            if not state.session.connected:
                for delivery in state.session.deliveries_in_flight():
                    if delivery.message is not None and delivery.message.topic_name == topic_name:
                        return True
        return super().receive(identity, topic_name)


class InFlightKept(Variant):
    """Sessions are checked as if they had nothing in flight."""

    name = "in flight kept"
    fault = "a change of rights does not withdraw messages in flight"

    def authority(self, faults: Faults, rights: Rights) -> Authority:
        self._hooks = InFlightHooks(faults, rights)
        return self._hooks

    def receive(self, broker: Broker, connection: Connection, data: bytes, now: float) -> None:
        self._hooks.checking = broker if data[0] >> 4 == CONNECT else None
        try:
            super().receive(broker, connection, data, now)
        finally:
            self._hooks.checking = None

    def flush(self, broker: Broker, store: SimulatedStore, now: float) -> None:
        self._hooks.checking = broker
        super().flush(broker, store, now)
        self._hooks.checking = None


class UncheckedStore(SimulatedStore):
    """Announces the deliveries that it returns, so that nobody asks about them."""

    def __init__(self, noted: Noted) -> None:
        super().__init__(empty_database(), noted)
        # How many questions about deliveries that were just read are answered with yes.
        self.unasked = 0

    def queue(self, session: int, first: int, limit: int) -> list[Delivery]:
        deliveries = super().queue(session, first, limit)
        self.unasked = len(deliveries)
        return deliveries


class UncheckedQueueHooks(Hooks):
    """Allows the deliveries that the store has just returned."""

    def __init__(self, faults: Faults, rights: Rights, store: UncheckedStore) -> None:
        super().__init__(faults, rights)
        self._store = store

    def receive(self, identity: Identity, topic_name: str) -> bool:
        if self._store.unasked:
            self._store.unasked -= 1
            return True
        return super().receive(identity, topic_name)


class UncheckedQueue(Variant):
    """The part of a queue that only the store has is loaded without a check."""

    name = "queue on disk kept"
    fault = "messages that are read from the queue on disk are sent without asking"

    def store(self, noted: Noted) -> SimulatedStore:
        self._store = UncheckedStore(noted)
        return self._store

    def authority(self, faults: Faults, rights: Rights) -> Authority:
        return UncheckedQueueHooks(faults, rights, self._store)


class OutdatedRoutes(Variant):
    """The cache of routes does not notice that rights have changed."""

    name = "outdated route"
    fault = "the hot path repeats decisions that were made with other rights"

    def receive(self, broker: Broker, connection: Connection, data: bytes, now: float) -> None:
        assert broker.hot_path is not None
        broker.hot_path.routes._access_version = broker.router.access.version()
        broker.receive(connection, data, now)


class ForgetfulWillHooks(Hooks):
    """Asks about a will once only."""

    def __init__(self, faults: Faults, rights: Rights, *, at_connect: bool) -> None:
        super().__init__(faults, rights)
        self._at_connect = at_connect
        self._connecting = ""

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        self._connecting = packet.client_id if packet.will is not None else ""
        return super().connect(packet, peer)

    def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
        if topic_name.startswith("w/"):
            is_connecting = identity.client_id == self._connecting
            self._connecting = ""
            if is_connecting != self._at_connect:
                return SUCCESS
        return super().publish(identity, topic_name, qos=qos, retain=retain)


class ForgetfulWill(Variant):
    """A will is not asked about at CONNECT, or not when it is published."""

    def __init__(self, name: str, fault: str, *, at_connect: bool) -> None:
        self.name = name
        self.fault = fault
        self._at_connect = at_connect

    def authority(self, faults: Faults, rights: Rights) -> Authority:
        return ForgetfulWillHooks(faults, rights, at_connect=self._at_connect)


class LenientHooks(Hooks):
    """Lets everybody use every session."""

    def may_use_session(self, identity: Identity, owner: Identity) -> bool:
        return True


class Theft(Variant):
    """A thief may use a session."""

    name = "theft"
    fault = "a client may use the session of another user"

    def authority(self, faults: Faults, rights: Rights) -> Authority:
        return LenientHooks(faults, rights)


class AllPublishHooks(Hooks):
    """Lets everybody publish everything but wills."""

    def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
        reason = super().publish(identity, topic_name, qos=qos, retain=retain)
        return reason if topic_name.startswith("w/") else SUCCESS


class AllPublish(Variant):
    """The right to publish is not asked about."""

    name = "publish unasked"
    fault = "a client may publish without the right"

    def authority(self, faults: Faults, rights: Rights) -> Authority:
        return AllPublishHooks(faults, rights)


class KeptSubscriptionsStore(SimulatedStore):
    """Does not write the end of subscriptions."""

    def write(self, commit: Commit) -> bool:
        safe = super().write(commit)
        last = self.pending[-1]
        kept = [each for each in commit.subscriptions if each[2] is not None]
        commit.subscriptions[:] = kept
        self.pending[-1] = Pending(commit, last.number, last.snapshot)
        return safe


class KeptSubscriptions(Variant):
    """Subscriptions that have ended come back."""

    name = "kept subscription"
    fault = "the end of a subscription never reaches the disk"

    def store(self, noted: Noted) -> SimulatedStore:
        return KeptSubscriptionsStore(empty_database(), noted)


class FormerOwnerHooks(Hooks):
    """Decides about a session by the user who connected first."""

    def __init__(self, faults: Faults, rights: Rights) -> None:
        super().__init__(faults, rights)
        self._first: dict[str, Identity] = {}

    def receive(self, identity: Identity, topic_name: str) -> bool:
        first = self._first.setdefault(identity.client_id, identity)
        return super().receive(first, topic_name)


class FormerOwner(Variant):
    """A session is not decided about by its owner."""

    name = "former owner"
    fault = "what a session receives depends on the user who connected before"

    def authority(self, faults: Faults, rights: Rights) -> Authority:
        return FormerOwnerHooks(faults, rights)


class NothingWithheld(Variant):
    """Packets that wait are sent as they are, whatever has changed."""

    name = "nothing withheld"
    fault = "a message that waits for its commit is sent although its right is gone"

    def flush(self, broker: Broker, store: SimulatedStore, now: float) -> None:
        broker._flushing._withholding._generation = broker.router.access.generation
        super().flush(broker, store, now)


RIGHTS: Final[tuple[Variant, ...]] = (
    UnnoticedRights(),
    NothingWithheld(),
    InFlightKept(),
    UncheckedQueue(),
    OutdatedRoutes(),
    ForgetfulWill(
        "will unasked", "a will is published without asking whether it still may", at_connect=True
    ),
    ForgetfulWill(
        "will accepted", "a CONNECT is accepted with a will that is not allowed", at_connect=False
    ),
    Theft(),
    AllPublish(),
    KeptSubscriptions(),
    FormerOwner(),
)
