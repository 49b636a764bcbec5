"""Messages that came in and that the program has not acknowledged yet.

With a store they are in its inbox before the program gets them, and come back from there after a
restart, each under its key. A message that the server sends again because it has seen no
acknowledgement is the one that is here: at QoS 2 the session knows its identifier, at QoS 1 this
file does, from one connection to the next.
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
    """Of one client."""

    _session: Final[Session]
    _subscriptions: Final[ClientSubscriptions]
    # Whether there is a store that keeps them, and the number of the session there.
    _is_durable: Final[bool]
    _number: Final[int]
    _version: Final[int]
    _run: Final[str]
    _acknowledge: Final[Callable[[Incoming], None]]
    _open: Final[dict[int, Incoming]]
    # Those of QoS 1 of an earlier connection, by identifier: the server sends them again.
    _carried: dict[int, Incoming]
    # QoS 1 messages that were acknowledged, and whose PUBACK has not left, by identifier.
    _unsent_pubacks: dict[int, Incoming]
    _last: int

    def __init__(
        self,
        session: Session,
        subscriptions: ClientSubscriptions,
        *,
        is_durable: bool,
        number: int,
        version: int,
        run: str,
        acknowledge: Callable[[Incoming], None],
    ) -> None:
        """`run` is a word that no other run of the program uses: keys begin with it."""
        self._session = session
        self._subscriptions = subscriptions
        self._is_durable = is_durable
        self._number = number
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
        """What an earlier run left: it is handed out once more."""
        again: list[Incoming] = []
        for number, key, held in store.inbox(self._number):
            receipt: Receipt | None = None
            if held.qos == 2 and held.packet_id:
                receipt = restore_receipt(self._session, held.packet_id)
            incoming = Incoming(
                number,
                key.rpartition("-")[0],
                self._acknowledge,
                held.topic_name,
                held.payload,
                qos=held.qos,
                retain=held.retain,
                dup=True,
                packet_id=held.packet_id,
                properties=held.properties,
                filters=self._subscriptions.of(held.topic_name, ()),
                receipt=receipt,
            )
            # Whatever the program is subscribed to now.
            incoming.is_unfinished = True
            self._last = number
            self._open[number] = incoming
            again.append(incoming)
        return again

    def connecting(self, has_session: bool) -> list[Open]:
        """A connection begins: what the server may send again, if it has the session."""
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

    def disconnected(self) -> None:
        """A QoS 1 message will be sent again, with a Receipt of its own."""
        for incoming in self._open.values():
            if incoming.qos == 1:
                incoming.receipt = None

    def start_over(self, commit: Commit) -> None:
        """The server has forgotten them all. They are the program's yet."""
        self._carried = {}
        self._unsent_pubacks = {}
        for incoming in self._open.values():
            incoming.receipt = None
            incoming.is_open = False
            self._keep(incoming, 0, commit)

    def forget(self, packet_id: int, commit: Commit) -> None:
        """The server has forgotten a QoS 2 message, if it is here. It is the program's yet."""
        for incoming in self._open.values():
            if incoming.qos == 2 and incoming.is_open and incoming.packet_id == packet_id:
                incoming.receipt = None
                incoming.is_open = False
                self._keep(incoming, 0, commit)

    def take(
        self, packet: Publish, topic: str, receipt: Receipt, commit: Commit
    ) -> Incoming | None:
        """A message has come. None if it is here already, or was."""
        if packet.qos == 1:
            acknowledged = self._unsent_pubacks.pop(packet.packet_id, None)
            if acknowledged is not None and acknowledged.is_sent_again(packet, topic):
                # The program has had it: it is our PUBACK that did not leave.
                self._unsent_pubacks[packet.packet_id] = acknowledged
                self._session.accept(receipt)
                return None
            known = self._carried.pop(packet.packet_id, None)
            if known is not None and known.is_sent_again(packet, topic):
                known.receipt = receipt
                return None
            if known is not None:
                # The server has another under this identifier.
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
            filters=self._subscriptions.of(topic, identifiers),
            receipt=receipt if packet.qos else None,
        )
        if packet.qos:
            self._open[incoming.number] = incoming
            self._keep(incoming, packet.packet_id, commit)
        return incoming

    def release(self, incoming: Incoming, commit: Commit) -> None:
        """The program has done with a message what it had to do."""
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
            commit.inbox.append((self._number, incoming.number, "", None))

    def puback_sent(self, packet_id: int) -> None:
        """A PUBACK leaves."""
        self._unsent_pubacks.pop(packet_id, None)

    def _keep(self, incoming: Incoming, packet_id: int, commit: Commit) -> None:
        if not self._is_durable:
            return
        held = RecordedMessage(
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
        commit.inbox.append((self._number, incoming.number, incoming.key, held))
