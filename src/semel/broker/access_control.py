"""The one place that asks the Authority what a client may do.

Every message passes here, whatever its path:

    publish     a PUBLISH, a will (at CONNECT and again when it is published)
    subscribe   a SUBSCRIBE, also to a shared subscription, to $SYS or to a stream; and every
                subscription again after the rights have changed
    receive     each delivery: routed, shared, retained, replayed, and queued or in flight when the
                client returns

`Admission` asks who a client is; nothing else calls the Authority, and a test makes sure of that.
"""

from traceback import format_exc
from typing import Final, final

from semel.broker.authority import Authority
from semel.broker.cursors import STREAM_TOPICS
from semel.broker.identity import Identity
from semel.broker.session_state import SessionState
from semel.mqtt.reasons import FAILURE, NOT_AUTHORIZED

# The prefix of the topics that the broker itself publishes. They are never stored.
OWN_TOPICS: Final = "$SYS/"


@final
class AccessControl:
    """Decides, by the Authority, what the clients may do."""

    # Clients for which the authority failed in this tick, with the first failure of each.
    faults: dict[str, str]
    _authority: Final[Authority]
    _generation: int
    _version: int

    def __init__(self, authority: Authority) -> None:
        self.faults = {}
        self._authority = authority
        self._generation = authority.generation
        self._version = 0

    @property
    def generation(self) -> int:
        """Changes when the rights of the authority change."""
        return self._authority.generation

    def version(self) -> int:
        """A number that increases whenever a decision may differ from an earlier one."""
        if self._generation != self._authority.generation:
            self._generation = self._authority.generation
            self._version += 1
        return self._version

    def set_owner(self, state: SessionState, identity: Identity) -> None:
        """The session belongs to this client from now on, perhaps with other rights."""
        # Without subscriptions nothing has been decided about messages to come.
        before = self.rights(state) if state.subscriptions else ""
        state.set_owner(identity)
        if not state.subscriptions:
            # It may still have messages of subscriptions that have ended.
            state.checked_version = -1
        elif before != self.rights(state):
            self._version += 1

    def rights(self, state: SessionState) -> str:
        """A key for what the client of this session may do: equal keys mean equal rights."""
        rights = state.rights
        if rights is None or state.rights_version != self.version():
            rights = state.rights = self._authority.rights(state.identity)
            state.rights_version = self._version
        return rights

    def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
        """Return SUCCESS, or the reason code with which to refuse a message of this client."""
        if topic_name.startswith((OWN_TOPICS, STREAM_TOPICS)):
            return NOT_AUTHORIZED
        return self._authority.publish(identity, topic_name, qos=qos, retain=retain)

    def subscribe(self, state: SessionState, topic_filter: str, *, qos: int) -> int:
        """Return the QoS to grant, at most `qos`, or the reason code with which to refuse."""
        granted = self._authority.subscribe(state.identity, topic_filter, qos=qos)
        return granted if granted >= FAILURE else min(granted, qos)

    def receive(self, state: SessionState, topic_name: str) -> bool:
        """Whether the client of this session may receive messages of this topic.

        A replayed message has the rights of its original topic. A failure of the authority affects
        only this client, not the publisher or other receivers.
        """
        if topic_name.startswith(STREAM_TOPICS):
            topic_name = topic_name[len(STREAM_TOPICS) :].partition("/")[2]
        try:
            return self._authority.receive(state.identity, topic_name)
        except Exception:
            self.faults.setdefault(state.client_id, format_exc())
            return False

    def has_left(self, state: SessionState) -> None:
        """Tell the authority that the connection of this client has ended."""
        self._authority.left(state.identity)
