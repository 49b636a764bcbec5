"""Histories: what a broker would have a store keep, drawn at random, with the state it leads to.

The sessions are real ones. A `History` does something with them and with all else that lasts, and
says what changed as Commits; so whoever reads back what a store made of these must find the
History as it is now.
"""

import random
from dataclasses import dataclass, field

from semel.mqtt import Message, Properties, PubAck, PubComp, Publish, PubRec, PubRel, Session
from semel.mqtt.packets.connect import Will
from semel.mqtt.packets.subscribe import Subscription
from semel.mqtt.properties import NO_PROPERTIES
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.session_drops import give_up_expired, give_up_shared
from semel.mqtt.session_exchanges import open_exchanges
from semel.mqtt.session_reset import reset_session
from semel.mqtt.side import CLIENT, RECEIVED, RELEASED, SENT_QOS_1, SENT_QOS_2, SERVER
from semel.store.commit import Commit, RecordedMessage

TEXTS = ("", "a", "sensor/1", "größe", "日本語", "🌡", "x" * 300)
TOPICS = ("t", "a/b", "a/b/c", "größe/1", "$SYS/x", "/", "x" * 500)
# Owners of sessions and wills: unknown, with an empty user name, and with an ordinary one.
IDENTITIES = (
    "",
    '{"listener":"default","proof":"anonymous","user_name":""}',
    '{"listener":"default","proof":"anonymous","user_name":"user"}',
)
FILTERS = ("#", "a/+", "a/b", "+/größe", "$share/group/a/#", "$stream/plant/#")


@dataclass
class Live:
    """A session that is not over."""

    number: int
    client_id: str
    expiry: int
    identity: str
    session: Session = field(default_factory=Session)
    # By filter: subscription, identifier, cursor.
    subscriptions: dict[str, tuple[Subscription, int, int | None]] = field(default_factory=dict)
    # What a client's program has not acknowledged, by number: key and message.
    inbox: dict[int, tuple[str, RecordedMessage]] = field(default_factory=dict)
    last_incoming: int = 0

    def opened(self, *stages: int) -> list[int]:
        """Identifiers of exchanges at one of these stages, whoever began them."""
        return [
            each[1] for each in open_exchanges(self.session, SERVER, CLIENT) if each[2] in stages
        ]


class History:
    """All that lasts, as it is after the commits that were made so far."""

    def __init__(self, seed: int, *, clients: int = 6, large: bool = True) -> None:
        self.random = random.Random(seed)
        self.client_ids = [f"client-{n}{'é' * n}" for n in range(clients)]
        self.large = large
        self.now = 1_700_000_000.0
        self.live: dict[str, Live] = {}
        self.last_number = 0
        self.retained: dict[str, Message] = {}
        self.wills: dict[str, tuple[str, Will, float | None]] = {}
        # By number of the stream: its records so far.
        self.records: dict[int, list[RecordedMessage]] = {1: [], 2: []}
        # What the store says of itself.
        self.metadata: dict[str, str] = {}
        self._commit = Commit()
        self._touched: set[str] = set()

    # --- values -----------------------------------------------------------------------------------

    def properties(self, *, will: bool = False) -> Properties:
        choose = self.random
        if choose.random() < 0.6:
            return NO_PROPERTIES
        some = choose.random
        return Properties(
            payload_format_indicator=choose.choice((None, 0, 1)),
            content_type=choose.choice((None, "", "text/plain")),
            response_topic=choose.choice((None, "answers/1")),
            correlation_data=choose.choice((None, b"", b"\0\xff")),
            user_properties=[("k", "v"), ("k", "größe")] if some() < 0.5 else (),
            subscription_identifiers=[] if will else [1, 268_435_455] if some() < 0.3 else (),
            will_delay_interval=5 if will and some() < 0.5 else None,
        )

    def payload(self, *, text: bool) -> bytes:
        size = self.random.choice((0, 1, 20, 200))
        if self.large and self.random.random() < 0.2:
            size = self.random.choice((4095, 4096, 4097, 20_000))
        return b"x" * size if text else self.random.randbytes(size)

    def message(self, *, qos: int, retain: bool = False) -> Message:
        properties = self.properties()
        return Message(
            self.random.choice(TOPICS),
            self.payload(text=properties.payload_format_indicator == 1),
            qos=qos,
            retain=retain,
            properties=properties,
            expires_at=self.random.choice((None, None, self.now + self.random.randrange(1, 40))),
        )

    # --- commits ----------------------------------------------------------------------------------

    def commit(self, acts: int | None = None) -> Commit:
        """Do something, and say what is to be kept of it."""
        commit = self._commit = Commit()
        self._touched = set()
        self.now += self.random.random() * 3
        for _ in range(self.random.randrange(1, 12) if acts is None else acts):
            self._act()
        for live in self.live.values():
            for change in live.session.drain()[0]:
                commit.changes.append((live.number, change))
        commit.at = self.now
        return commit

    def end_all(self) -> Commit:
        """Every session is over, nothing is retained, no will is left."""
        self._commit = Commit()
        for client_id in list(self.live):
            self._end(client_id)
        for topic in list(self.retained):
            self._retain(topic, None)
        for client_id in list(self.wills):
            self._will(client_id, None)
        return self._commit

    def _act(self) -> None:
        choose = self.random
        act = choose.randrange(100)
        client_id = choose.choice(self.client_ids)
        live = self.live.get(client_id)
        if act < 8:
            self._retain_something()
        elif act < 14:
            self._record_something()
        elif act < 19:
            self._will_something(client_id)
        elif live is None:
            self._begin(client_id)
        elif act < 22:
            # A session that ends has no other change in the commit of its end.
            if client_id not in self._touched:
                self._end(client_id)
                if choose.random() < 0.6:
                    self._begin(client_id)
        else:
            self._touched.add(client_id)
            self._use(live, act)

    def _begin(self, client_id: str) -> None:
        self._touched.add(client_id)
        self.last_number += 1
        expiry = self.random.choice((60, 3600, NEVER_EXPIRES))
        live = Live(self.last_number, client_id, expiry, self.random.choice(IDENTITIES))
        self.live[client_id] = live
        self._store(live)
        live.session.connect(5, receive_maximum=self.random.choice((1, 3, 20)))

    def _store(self, live: Live) -> None:
        kept = (live.number, live.client_id, live.expiry, live.identity)
        self._commit.sessions.append(kept)

    def _end(self, client_id: str) -> None:
        live = self.live.pop(client_id)
        live.session.drain()
        self._commit.ended.append(live.number)

    def _use(self, live: Live, act: int) -> None:
        choose = self.random
        session = live.session
        if act < 28:
            if session.connected:
                session.disconnect(self.now, live.expiry)
            else:
                if choose.random() < 0.3:
                    # Its peer has lost the session.
                    reset_session(session)
                    self._note_something()
                session.connect(5, receive_maximum=choose.choice((1, 3, 20)))
        elif act < 32:
            live.expiry = choose.choice((60, 3600, NEVER_EXPIRES))
            live.identity = choose.choice(IDENTITIES)
            self._store(live)
        elif act < 42:
            self._subscribe_something(live)
        elif act < 62:
            self._send_to_some()
        elif act < 68:
            session.poll(self.now)
        elif act < 71:
            give_up_expired(session, self.now)
        elif act < 73:
            give_up_shared(session, choose.choice((None, {"$share/group/a/#"})), sent=False)
        elif act < 85:
            self._answer(live)
        elif act < 94:
            self._receive(live)
        else:
            self._hand_out(live)

    def _send_to_some(self) -> None:
        """The same message to several: a large payload is kept once."""
        choose = self.random
        message = self.message(qos=choose.choice((1, 2)), retain=choose.random() < 0.1)
        for live in self.live.values():
            if choose.random() < 0.5:
                self._touched.add(live.client_id)
                share = "$share/group/a/#" if choose.random() < 0.1 else ""
                live.session.send(message, self.now, share)

    def _answer(self, live: Live) -> None:
        choose = self.random
        session = live.session
        if not session.connected:
            return
        sent = live.opened(SENT_QOS_1, SENT_QOS_2, RELEASED)
        for packet_id in choose.sample(sent, min(len(sent), choose.randrange(1, 5))):
            if packet_id in live.opened(SENT_QOS_1):
                session.receive_puback(PubAck(packet_id))
            elif packet_id in live.opened(SENT_QOS_2):
                session.receive_pubrec(PubRec(packet_id))
            else:
                session.receive_pubcomp(PubComp(packet_id))
        session.poll(self.now)

    def _receive(self, live: Live) -> None:
        choose = self.random
        session = live.session
        if not session.connected:
            return
        there = live.opened(RECEIVED)
        if there and choose.random() < 0.5:
            session.receive_pubrel(PubRel(choose.choice(there)))
            return
        packet_id = choose.choice((1, 2, 3, 200))
        receipt = session.receive_publish(Publish("t", b"", qos=2, packet_id=packet_id))
        if receipt is not None:
            session.accept(receipt)

    def _hand_out(self, live: Live) -> None:
        """A message for a client's program, or what becomes of one that it has."""
        choose = self.random
        act = choose.random()
        if live.inbox and act < 0.4:
            number = choose.choice(list(live.inbox))
            del live.inbox[number]
            self._commit.inbox.append((live.number, number, "", None))
            return
        if live.inbox and act < 0.5:
            # Its server has forgotten it.
            number = choose.choice(list(live.inbox))
            key, held = live.inbox[number]
            packet_id, version = 0, held.version
            message = Message(
                held.topic_name, held.payload, qos=held.qos, properties=held.properties
            )
        else:
            live.last_incoming += 1
            number = live.last_incoming
            key = f"{choose.choice(TEXTS)}-{number}"
            packet_id, version = choose.choice((1, 65_535)), choose.choice((4, 5))
            message = self.message(qos=choose.choice((1, 2)))
        held = RecordedMessage(
            0,
            0,
            message.topic_name,
            message.payload,
            qos=message.qos,
            retain=choose.random() < 0.2,
            dup=choose.random() < 0.2,
            packet_id=packet_id,
            version=version,
            properties=message.properties if version == 5 else NO_PROPERTIES,
        )
        live.inbox[number] = (key, held)
        self._commit.inbox.append((live.number, number, key, held))

    def _note_something(self) -> None:
        name = f"break:1:{self.random.randrange(5)}"
        self.metadata[name] = self.random.choice(TEXTS)
        self._commit.metadata.append((name, self.metadata[name]))

    def _subscribe_something(self, live: Live) -> None:
        choose = self.random
        topic_filter = choose.choice(FILTERS)
        kept = live.subscriptions.get(topic_filter)
        act = choose.random()
        if kept is not None and act < 0.3:
            del live.subscriptions[topic_filter]
            self._commit.subscriptions.append((live.number, topic_filter, None, 0))
        elif kept is not None and act < 0.5:
            seq = choose.randrange(1000)
            live.subscriptions[topic_filter] = (kept[0], kept[1], seq)
            self._commit.cursors.append((live.number, topic_filter, seq))
        else:
            subscription = Subscription(
                topic_filter,
                choose.randrange(3),
                no_local=not topic_filter.startswith("$share/") and choose.random() < 0.5,
                retain_as_published=choose.random() < 0.5,
                retain_handling=choose.randrange(3),
            )
            identifier = choose.choice((0, 1, 268_435_455))
            # One that is replaced goes on where it was.
            cursor = None if kept is None else kept[2]
            live.subscriptions[topic_filter] = (subscription, identifier, cursor)
            entry = (live.number, topic_filter, subscription, identifier)
            self._commit.subscriptions.append(entry)

    def _retain_something(self) -> None:
        message = self.message(qos=self.random.randrange(3), retain=True)
        if self.random.random() < 0.3 or not message.payload:
            self._retain(message.topic_name, None)
        else:
            self._retain(message.topic_name, message)

    def _retain(self, topic_name: str, message: Message | None) -> None:
        self._commit.retained.append((topic_name, message))
        if message is None:
            self.retained.pop(topic_name, None)
        else:
            self.retained[topic_name] = message

    def _will_something(self, client_id: str) -> None:
        if self.random.random() < 0.4:
            self._will(client_id, None)
            return
        properties = self.properties(will=True)
        will = Will(
            self.random.choice(TOPICS),
            self.payload(text=properties.payload_format_indicator == 1),
            qos=self.random.randrange(3),
            retain=self.random.random() < 0.5,
            properties=properties,
        )
        due_at = self.random.choice((None, self.now + 5))
        self._will(client_id, (self.random.choice(IDENTITIES), will, due_at))

    def _will(self, client_id: str, kept: tuple[str, Will, float | None] | None) -> None:
        if kept is None:
            self.wills.pop(client_id, None)
            self._commit.wills.append((client_id, "", None, None))
        else:
            self.wills[client_id] = kept
            self._commit.wills.append((client_id, *kept))

    def _record_something(self) -> None:
        choose = self.random
        for stream, records in self.records.items():
            if choose.random() < 0.5:
                continue
            qos = choose.randrange(3)
            version = choose.choice((4, 5))
            message = self.message(qos=qos)
            record = RecordedMessage(
                stream,
                len(records) + 1,
                message.topic_name,
                message.payload,
                qos=qos,
                retain=choose.random() < 0.2,
                dup=qos > 0 and choose.random() < 0.2,
                client_id=choose.choice(TEXTS),
                user_name=choose.choice((None, *TEXTS)),
                packet_id=choose.choice((0, 1, 65_535)) if qos else 0,
                version=version,
                properties=message.properties if version == 5 else NO_PROPERTIES,
            )
            records.append(record)
            self._commit.records.append(record)
