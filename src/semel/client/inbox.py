"""Received messages that the program has not acknowledged yet.

With a store, a message is in its inbox before the program gets it, and is handed out again after a
restart, with the same key. The client recognizes a message that the server sends again because it
has not received an acknowledgement: at QoS 2 by the identifier in the session, and at QoS 1 by the
identifier that the inbox carries over from one connection to the next.
"""

from collections.abc import Callable
from typing import Final, final

from semel.client.received import Incoming
from semel.client.subscriptions import ClientSubscriptions
from semel.mqtt.delivery import Receipt
from semel.mqtt.message import message_properties
from semel.mqtt.packets.publish import Publish
from semel.mqtt.properties import SUBSCRIPTION_IDENTIFIER
from semel.mqtt.session import Session
from semel.mqtt.session_restore import restore_receipt
from semel.mqtt.side import SENT_QOS_1, SENT_QOS_2, SERVER, Open
from semel.store.commit import Commit, RecordedMessage
from semel.store.store import Store


@final
class Inbox:
    """The inbox of one client."""

    _session: Final[Session]
    _subscriptions: Final[ClientSubscriptions]
    # Whether a store keeps the messages, and the session's row there.
    _is_durable: Final[bool]
    _store_id: Final[int]
    _version: Final[int]
    _run: Final[str]
    _acknowledge: Final[Callable[[Incoming], None]]
    _open: Final[dict[int, Incoming]]
    # QoS 1 messages of an earlier connection, by identifier: the server sends them again.
    _carried: dict[int, Incoming]
    # QoS 1 messages whose PUBACK was not sent yet, by identifier.
    _unsent_pubacks: dict[int, Incoming]
    _last: int

    def __init__(
        self,
        session: Session,
        subscriptions: ClientSubscriptions,
        *,
        is_durable: bool,
        store_id: int,
        version: int,
        run: str,
        acknowledge: Callable[[Incoming], None],
    ) -> None:
        """`run` is unique to this run of the program: keys start with it."""
        self._session = session
        self._subscriptions = subscriptions
        self._is_durable = is_durable
        self._store_id = store_id
        self._version = version
        self._run = run
        self._acknowledge = acknowledge
        self._open = {}
        self._carried = {}
        self._unsent_pubacks = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._open)

    def restore(self, store: Store) -> list[Incoming]:
        """Load the messages of an earlier run, which are handed out again."""
        again: list[Incoming] = []
        for number, key, stored in store.inbox(self._store_id):
            receipt: Receipt | None = None
            if stored.qos == 2 and stored.packet_id:
                receipt = restore_receipt(self._session, stored.packet_id)
            incoming = Incoming(
                number,
                key.rpartition("-")[0],
                self._acknowledge,
                stored.topic_name,
                stored.payload,
                qos=stored.qos,
                retain=stored.retain,
                dup=True,
                packet_id=stored.packet_id,
                properties=stored.properties,
                filters=self._subscriptions.filters_of(stored.topic_name, ()),
                receipt=receipt,
            )
            # Keep it, even if the program no longer subscribes to its topic.
            incoming.is_unfinished = True
            self._last = number
            self._open[number] = incoming
            again.append(incoming)
        return again

    def carry_over(self, has_session: bool) -> list[Open]:
        """The exchanges that the server may repeat on a new connection, if it has the session."""
        opened: list[Open] = []
        self._carried = {}
        if has_session:
            for incoming in self._open.values():
                if incoming.qos == 1 and incoming.is_open:
                    self._carried[incoming.packet_id] = incoming
                    opened.append((SERVER, incoming.packet_id, SENT_QOS_1))
                elif incoming.receipt is not None:
                    opened.append((SERVER, incoming.packet_id, SENT_QOS_2))
        return opened

    def on_disconnected(self) -> None:
        """Drop the Receipts of QoS 1 messages: the server sends these again, with new ones."""
        for incoming in self._open.values():
            if incoming.qos == 1:
                incoming.receipt = None

    def forget_all(self, commit: Commit) -> None:
        """The server has lost the session. The messages stay, with nothing to acknowledge."""
        self._carried = {}
        self._unsent_pubacks = {}
        for incoming in self._open.values():
            incoming.receipt = None
            incoming.is_open = False
            self._store_message(incoming, 0, commit)

    def forget(self, packet_id: int, commit: Commit) -> None:
        """The server has forgotten a QoS 2 message. It stays, with nothing to acknowledge."""
        for incoming in self._open.values():
            if incoming.qos == 2 and incoming.is_open and incoming.packet_id == packet_id:
                incoming.receipt = None
                incoming.is_open = False
                self._store_message(incoming, 0, commit)

    def receive(
        self, packet: Publish, topic: str, receipt: Receipt, commit: Commit
    ) -> Incoming | None:
        """Add a received message. Returns None if it is a repeated one."""
        if packet.qos == 1:
            acknowledged = self._unsent_pubacks.pop(packet.packet_id, None)
            if acknowledged is not None and acknowledged.is_sent_again(packet, topic):
                # The program has acknowledged it, and our PUBACK was not sent.
                self._unsent_pubacks[packet.packet_id] = acknowledged
                self._session.accept(receipt)
                return None
            known = self._carried.pop(packet.packet_id, None)
            if known is not None and known.is_sent_again(packet, topic):
                known.receipt = receipt
                return None
            if known is not None:
                # The server uses this identifier for another message now.
                known.is_open = False
        identifiers: tuple[int, ...] = ()
        if packet.properties.has(SUBSCRIPTION_IDENTIFIER):
            identifiers = packet.properties.subscription_identifiers
        self._last += 1
        incoming = Incoming(
            self._last,
            self._run,
            self._acknowledge,
            topic,
            packet.payload,
            qos=packet.qos,
            retain=packet.retain,
            dup=packet.dup,
            packet_id=packet.packet_id,
            properties=packet.properties,
            filters=self._subscriptions.filters_of(topic, identifiers),
            receipt=receipt if packet.qos else None,
        )
        if packet.qos:
            self._open[incoming.number] = incoming
            self._store_message(incoming, packet.packet_id, commit)
        return incoming

    def acknowledge(self, incoming: Incoming, commit: Commit) -> None:
        """The program has acknowledged a message."""
        del self._open[incoming.number]
        if self._carried.get(incoming.packet_id) is incoming:
            del self._carried[incoming.packet_id]
        if incoming.qos == 1 and incoming.is_open:
            self._unsent_pubacks[incoming.packet_id] = incoming
        receipt = incoming.receipt
        if receipt is not None:
            incoming.receipt = None
            self._session.accept(receipt)
        if self._is_durable:
            commit.inbox.append((self._store_id, incoming.number, "", None))

    def puback_sent(self, packet_id: int) -> None:
        """A PUBACK was sent."""
        self._unsent_pubacks.pop(packet_id, None)

    def _store_message(self, incoming: Incoming, packet_id: int, commit: Commit) -> None:
        if not self._is_durable:
            return
        stored = RecordedMessage(
            0,
            0,
            incoming.topic,
            incoming.payload,
            qos=incoming.qos,
            retain=incoming.retain,
            dup=incoming.dup,
            packet_id=packet_id,
            version=self._version,
            properties=message_properties(incoming.properties),
        )
        commit.inbox.append((self._store_id, incoming.number, incoming.key, stored))
