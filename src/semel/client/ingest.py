"""Ingest: a client of any broker that puts what it gets into a stream. See docs/data/ingest.md.

    broker ─▶ Link, Core ─▶ one transaction: message and packet identifier ─▶ segments
              ◀─ PUBACK, PUBREC, PUBCOMP: when the transaction is on disk

The session outlives connections and processes, on both sides: what the broker has of it, and what
this end has in its store. `make_plan` turns settings into all that an `Ingest` needs, or says what
is wrong with them.
"""

import asyncio
import logging
import re
import sqlite3
import ssl
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Final

from semel.client.address import Address, BadAddress, parse_address
from semel.client.core import Core
from semel.client.errors import Disconnected, Refused
from semel.client.events import PublishOutcome, SubscriptionAnswer
from semel.client.greeting import Greeting
from semel.client.ingest_settings import VERSIONS, IngestSettings
from semel.client.link import BrokerLink
from semel.client.outbox import SESSION, Outbox, made_client_id, open_record
from semel.client.purge import purge
from semel.client.received import Incoming
from semel.client.reconnect import Backoff
from semel.client.tls import TlsError, make_context
from semel.mqtt import reasons
from semel.mqtt.packet_types import MQTT5, MQTT311, SUBACK, UNSUBACK
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.subscribe import Subscription
from semel.mqtt.properties import NO_PROPERTIES, SESSION_EXPIRY_INTERVAL, Properties
from semel.mqtt.reasons import FAILURE, NORMAL_DISCONNECTION
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.topics import SHARE_PREFIX, check_share, check_topic_filter, is_shared, split_share
from semel.mqtt.violation import Violation
from semel.settings import SettingProblem, SettingsError
from semel.store.disk import SWITCH_INTERVAL
from semel.store.folder import read_only
from semel.store.roots import LocalRoot, RootError, open_root
from semel.store.schema import Unusable
from semel.store.settings import MEMORY, StoreSettings, StreamSettings
from semel.store.store import BEHIND, FULL, OPEN
from semel.store.streams import Stream

LOG: Final = logging.getLogger("semel.ingest")

# Below a local root, where the store is if nobody says: readers pass over names with a dot.
DATA_FOLDER: Final = ".semel-ingest"
# Parameters of `make_context` whose settings have other names.
TLS_SETTINGS: Final = {
    "certfile": "cert",
    "keyfile": "key",
    "password": "key_password",
    "minimum_version": "tls_version",
    "alpn": "tls_alpn",
}
# [5.0 §3.8.3.1] retained messages come with a new subscription, not with one that is repeated
RETAINED_IF_NEW: Final = 1
# How long an end may take until everything is sealed; what is not by then is for the next start.
SEAL_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.05
CONNECT_SECONDS: Final = 30.0
FIRST_WAIT: Final = 0.5
# One that `made_client_id` makes is nobody else's.
MADE_CLIENT_ID: Final = re.compile(r"semel[0-9a-f]{18}")

# A server that ends a connection for one of these has something against what we send, which is the
# same on the next one. The standard does not say so of each case (it may be the server's mistake):
# so it is tried a few times.
INCURABLE: Final = frozenset(
    (
        reasons.MALFORMED_PACKET,
        reasons.PROTOCOL_ERROR,
        reasons.TOPIC_FILTER_INVALID,
        reasons.TOPIC_NAME_INVALID,
        reasons.RECEIVE_MAXIMUM_EXCEEDED,
        reasons.TOPIC_ALIAS_INVALID,
        reasons.PACKET_TOO_LARGE,
        reasons.PAYLOAD_FORMAT_INVALID,
        reasons.RETAIN_NOT_SUPPORTED,
        reasons.QOS_NOT_SUPPORTED,
        reasons.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
        reasons.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
        reasons.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
    )
)
# Connections in a row that may end so, without a subscription granted or a message received.
INCURABLE_ENDS: Final = 3

CONDITIONS: Final = {OPEN: "open", BEHIND: "behind", FULL: "full"}


# --- what is wanted -------------------------------------------------------------------------------


@dataclass(frozen=True)
class IngestPlan:
    """All that an Ingest needs, checked."""

    address: Address
    tls: ssl.SSLContext | None
    greeting: Greeting
    # "" for the one that is in the store, or a new one
    client_id: str
    subscriptions: tuple[Subscription, ...]
    store: StoreSettings
    stream: StreamSettings
    backoff: Backoff
    # What is right, but not what its author may think.
    warnings: tuple[str, ...]
    # For a broker that refuses MQTT 5.0, if no version was chosen.
    fallback: "IngestPlan | None" = None


def make_plan(wanted: IngestSettings, store: StoreSettings) -> IngestPlan:
    """What these settings mean. Raises SettingsError with everything that is wrong."""
    problems: list[str] = []
    version = VERSIONS[wanted.mqtt_version or "5"]
    address = _address(wanted, problems)
    subscriptions = _subscriptions(wanted, version, problems)
    tls = None if address is None else _tls(wanted, address, problems)
    greeting = _greeting(wanted, version, address, problems)
    if wanted.stream is None:
        problems.append("say what the stream is called: --stream NAME")
    kept = _kept(store, wanted.stream or "", problems)
    if problems:
        raise SettingsError(problems)
    assert address is not None
    assert greeting is not None
    assert wanted.stream is not None
    stream = StreamSettings(
        name=wanted.stream,
        # Whatever comes was asked for: nothing is chosen by this.
        filter="#",
        retain_for=wanted.retain_for,
        retain_bytes=wanted.retain_bytes,
    )
    plan = IngestPlan(
        address=address,
        tls=tls,
        greeting=greeting,
        client_id=wanted.client_id or "",
        subscriptions=subscriptions,
        store=kept,
        stream=stream,
        backoff=Backoff(min(FIRST_WAIT, wanted.longest_wait), wanted.longest_wait),
        warnings=_warnings(subscriptions, version),
    )
    return plan if wanted.mqtt_version else replace(plan, fallback=_fallback(wanted, plan))


def _fallback(wanted: IngestSettings, plan: IngestPlan) -> IngestPlan | None:
    """The plan for a broker that refuses MQTT 5.0; None if only 5.0 allows these settings."""
    problems: list[str] = []
    subscriptions = _subscriptions(wanted, MQTT311, problems)
    greeting = _greeting(wanted, MQTT311, plan.address, problems)
    if greeting is None or problems:
        return None
    warnings = _warnings(subscriptions, MQTT311)
    return replace(plan, greeting=greeting, subscriptions=subscriptions, warnings=warnings)


def problem_with(
    setting: str, reason: str, *, subject: str = "", value: str = ""
) -> SettingProblem:
    """A problem with a setting: the subject of the sentence is its flag if it has a value."""
    if value:
        subject = f"--{setting.replace('_', '-')} {value}"
    sentence = f"{subject}: {reason}" if subject else reason
    rest = f" {value}: {reason}" if value else f": {reason}"
    return SettingProblem(sentence, setting=setting, rest=rest)


def _address(wanted: IngestSettings, problems: list[str]) -> Address | None:
    if wanted.url is None:
        problems.append(problem_with("url", "say where the broker is: mqtt://host[:port]"))
        return None
    try:
        return parse_address(wanted.url)
    except BadAddress as problem:
        problems.append(problem_with("url", str(problem), subject="the broker"))
        return None


def _subscriptions(
    wanted: IngestSettings, version: int, problems: list[str]
) -> tuple[Subscription, ...]:
    if not wanted.topic:
        problems.append(
            SettingProblem(
                "say what to take: --topic FILTER, which may be repeated",
                setting="topic",
                rest=": say what to take, such as plant/#",
            )
        )
    found: dict[str, Subscription] = {}
    for topic in wanted.topic:
        topic_filter = topic
        if wanted.share is not None:
            if is_shared(topic):
                reason = "it names a group already, and a share is given as well"
                problems.append(problem_with("topic", reason, value=topic))
                continue
            topic_filter = f"{SHARE_PREFIX}{wanted.share}/{topic}"
        try:
            check_topic_filter(topic_filter, None)
            check_share(topic_filter, MQTT5, None)
        except Violation as violation:
            problems.append(problem_with("topic", str(violation), value=topic))
            continue
        found[topic_filter] = Subscription(
            topic_filter,
            wanted.qos,
            retain_handling=RETAINED_IF_NEW if version == MQTT5 else 0,
        )
    return tuple(found.values())


def _tls(wanted: IngestSettings, address: Address, problems: list[str]) -> ssl.SSLContext | None:
    options = {
        "cafile": wanted.cafile,
        "capath": wanted.capath,
        "cert": wanted.cert,
        "key": wanted.key,
        "key_password": wanted.key_password,
        "tls_version": wanted.tls_version,
        "ciphers": wanted.ciphers,
        "tls_alpn": wanted.tls_alpn,
        "insecure": wanted.insecure,
    }
    if not address.secure:
        for name, value in options.items():
            if value:
                rest = " is for TLS, which mqtts:// and wss:// ask for"
                problems.append(SettingProblem(f"{name}{rest}", setting=name, rest=rest))
        return None
    try:
        return make_context(
            cafile=wanted.cafile,
            capath=wanted.capath,
            certfile=wanted.cert,
            keyfile=wanted.key,
            password=wanted.key_password,
            insecure=wanted.insecure,
            minimum_version=wanted.tls_version,
            ciphers=wanted.ciphers,
            alpn=wanted.tls_alpn,
        )
    except TlsError as problem:
        setting = TLS_SETTINGS.get(problem.parameter, problem.parameter)
        rest = str(problem).removeprefix(problem.parameter)
        problems.append(SettingProblem(str(problem), setting=setting, rest=rest))
        return None


def _password(wanted: IngestSettings, problems: list[str]) -> bytes | None:
    if wanted.password_file is None:
        return None if wanted.password is None else wanted.password.encode()
    if wanted.password is not None:
        problems.append(
            SettingProblem(
                "password and password_file say the same: give one of them",
                setting="password_file",
                rest=" is given, and a password as well: give one of them",
            )
        )
    try:
        data = wanted.password_file.read_bytes()
    except OSError as problem:
        reason = str(problem.strerror or problem)
        problems.append(problem_with("password_file", reason, value=str(wanted.password_file)))
        return None
    return data.removesuffix(b"\n").removesuffix(b"\r")


def _greeting(
    wanted: IngestSettings, version: int, address: Address | None, problems: list[str]
) -> Greeting | None:
    password = _password(wanted, problems)
    user_name = wanted.username
    if address is not None:
        user_name = address.user_name if user_name is None else user_name
        password = address.password if password is None else password
    properties = NO_PROPERTIES
    expiry = NEVER_EXPIRES
    if version == MQTT5:
        expiry = wanted.session_expiry
        # Receive Maximum is as large as it can be: what bounds us is the store, not a number.
        properties = Properties([(SESSION_EXPIRY_INTERVAL, expiry)])
    greeting = Greeting(
        version,
        keep_alive=wanted.keep_alive,
        user_name=user_name,
        password=password,
        will=None,
        properties=properties,
        session_expiry=expiry,
    )
    try:
        greeting.connect(wanted.client_id or made_client_id(), False, None)
    except Violation as violation:
        problems.append(f"no CONNECT can be made of this: {violation}")
        return None
    return greeting


def _kept(store: StoreSettings, stream: str, problems: list[str]) -> StoreSettings:
    """The settings of the store, with a folder in any case."""
    if store.durability == MEMORY:
        rest = f" {MEMORY} keeps nothing: choose disk or os"
        problems.append(SettingProblem(f"durability{rest}", setting="durability", rest=rest))
    if store.root is None:
        problems.append(
            problem_with(
                "root", "say where segments are to be kept: --root DIR, or an object store"
            )
        )
        return store
    try:
        root = open_root(store.root)
    except RootError as problem:
        problems.append(problem_with("root", str(problem), subject="--root"))
        return store
    except OSError:
        # An object store that cannot be reached now is one, all the same.
        root = None
    if store.data is not None:
        return store
    if not isinstance(root, LocalRoot):
        problems.append(
            SettingProblem(
                "the root is no folder of this machine: say by --data where the store is",
                setting="data",
                rest=" is missing: the root is no folder of this machine, so say where the store"
                " is",
            )
        )
        return store
    return replace(store, data=Path(root.address) / DATA_FOLDER / stream)


def _warnings(subscriptions: tuple[Subscription, ...], version: int) -> tuple[str, ...]:
    found: list[str] = []
    filters = [each.topic_filter for each in subscriptions]
    if version != MQTT5:
        found.append(
            "MQTT 3.1.1 cannot say how long the broker is to keep the session: an outage that"
            " lasts longer than it does loses messages"
        )
        if any(is_shared(each) for each in filters):
            found.append("MQTT 3.1.1 knows no shared subscriptions: it is up to this broker")
    for number, one in enumerate(filters):
        for other in filters[number + 1 :]:
            if do_overlap(split_share(one)[1], split_share(other)[1]):
                found.append(
                    f"{one} and {other} overlap: a broker may send a message that both match"
                    " twice, and each is a row"
                )
    return tuple(found)


def do_overlap(one: str, other: str) -> bool:
    """Whether there is a topic that two filters match."""
    left, right = one.split("/"), other.split("/")
    if {left[0], right[0]} & {"+", "#"} and "$" in (left[0][:1], right[0][:1]):
        # [MQTT-4.7.2-1] a wildcard does not match what begins with $
        return False
    for at in range(max(len(left), len(right))):
        first = left[at] if at < len(left) else None
        second = right[at] if at < len(right) else None
        if first == "#" or second == "#":
            return True
        if first is None or second is None:
            # a/# matches a, too
            return False
        if first != second and "+" not in (first, second):
            return False
    return True


# --- what is done ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class IngestCounters:
    """How an ingester stands, as far as it knows."""

    # connecting, connected, draining or ended
    state: str
    client_id: str
    node: str
    # Messages since the start.
    received: int
    # The last row that is on disk, the last that is in a segment, and for how many seconds the
    # first that is in none has been waiting.
    stored: int
    sealed: int
    lag: float
    reconnects: int
    # Times since the start that the broker had forgotten the session.
    sessions_lost: int
    # open; behind or full: nothing is read
    store: str


class Ingest:
    """One ingester. `run` lasts until `stop`, or until there is no use in going on."""

    def __init__(self, plan: IngestPlan, *, start_clean: bool = False) -> None:
        self.plan = plan
        self._start_clean = start_clean
        self._over = asyncio.Event()
        self._is_stopped = False
        self._problem: Exception | None = None
        self._is_draining = False
        self._outbox: Outbox | None = None
        self._link: BrokerLink | None = None
        self._last: IngestCounters | None = None
        self._expiry: int | None = None
        self._granted: dict[str, int] = {}
        self._sessions_lost = 0
        # Connections in a row that ended for an incurable reason, and the messages received then.
        self._incurable_ends = 0
        self._received_then = 0
        self._positions = (0, 0, 0.0)

    # --- for who runs it --------------------------------------------------------------------------

    async def run(self) -> None:
        """Ingest. Raises Refused, Disconnected, Unusable and MissingExtra, and then all is closed.

        What it has received is stored and acknowledged when this returns, and the broker has been
        told that we leave; it keeps the session.
        """
        try:
            await self._run()
        except Refused as problem:
            fallback = self.plan.fallback
            if fallback is None or not problem.refuses_version or self._is_stopped:
                raise
            LOG.warning("the broker refused MQTT 5.0; connecting with MQTT 3.1.1")
            # The refused CONNECT has changed nothing, neither here nor there.
            self.plan = fallback
            self._over.clear()
            self._problem = self._last = None
            self._is_draining = False
            await self._run()

    async def _run(self) -> None:
        """Ingest with the version of the plan."""
        sys.setswitchinterval(SWITCH_INTERVAL)
        for warning in self.plan.warnings:
            LOG.warning("%s", warning)
        outbox = open_record(self.plan.store, self.plan.stream, self.plan.client_id)
        try:
            link = self._connect_store(outbox)
        except BaseException:
            outbox.opened.close()
            raise
        starting = asyncio.get_running_loop().create_task(self._start(link))
        try:
            await self._over.wait()
            self._is_draining = True
            link.hold(True)
            if self._problem is None:
                await self._wait_until_sealed(link)
        finally:
            self._is_draining = True
            try:
                await link.close(NORMAL_DISCONNECTION, None)
                starting.cancel()
                await asyncio.wait((starting,))
            finally:
                outbox.opened.store.close()
                self._count_last()
                outbox.opened.folder.close()
        if self._problem is not None:
            raise self._problem

    def stop(self) -> None:
        """Read no more; `run` returns when all that was received is stored and acknowledged."""
        self._is_stopped = True
        self._over.set()

    @property
    def counters(self) -> IngestCounters:
        """How it stands."""
        if self._last is not None:
            return self._last
        if self._outbox is None:
            return IngestCounters("connecting", self.plan.client_id, "", 0, 0, 0, 0.0, 0, 0, "open")
        assert self._link is not None
        state = "connected" if self._link.is_connected else "connecting"
        if self._is_draining:
            state = "draining"
        self._read_positions(self._outbox.opened.store.reader.connection)
        return self._counted(state)

    # --- its life ---------------------------------------------------------------------------------

    def _connect_store(self, outbox: Outbox) -> BrokerLink:
        """A Link that goes on where the store ends."""
        plan = self.plan
        opened = outbox.opened
        stream = opened.streams.all[0]
        if self._start_clean:
            # What the broker has kept is thrown away. This lasts before it is done, because
            # nobody could tell afterwards.
            opened.store.database.set_metadata(
                f"break:{stream.id}:{stream.last_seq + 1}", "the session was begun anew"
            )
        core = Core(
            plan.greeting,
            outbox.client_id,
            run=token_hex(6),
            store=opened.store,
            number=SESSION,
            stream=stream,
        )
        core.restore()
        for subscription in plan.subscriptions:
            core.subscribe(subscription, NO_PROPERTIES)
        link = BrokerLink(
            core,
            plan.address,
            self,
            tls=plan.tls,
            timeout=CONNECT_SECONDS,
            backoff=plan.backoff,
            clean_start=self._clean_start(core, stream),
            purge=self._purge,
            store=opened.store,
        )
        self._outbox = outbox
        self._link = link
        link.flush()
        return link

    def _clean_start(self, core: Core, stream: Stream) -> bool | None:
        """How the first connection begins.

        A session that the broker has under our name is not thrown away unsaid, unless the name was
        made for us and has never been of use: then nobody can have missed anything.
        """
        if self._start_clean:
            return True
        is_new = not core.has_state and stream.last_seq == 0
        return None if is_new and MADE_CLIENT_ID.fullmatch(core.client_id) else False

    async def _start(self, link: BrokerLink) -> None:
        # What ends it for good is told by `failed`.
        with suppress(Refused, Disconnected):
            await link.start(offline=True)

    async def _wait_until_sealed(self, link: BrokerLink) -> None:
        """Let what was received be stored, and sealed if that takes no longer than it should."""
        assert self._outbox is not None
        store = self._outbox.opened.store
        with suppress(TimeoutError, Refused, Disconnected):
            async with asyncio.timeout(SEAL_SECONDS):
                await link.until(lambda: link.core.is_safe)
                while self.plan.store.seal_after < SEAL_SECONDS:
                    stored, sealed, _ = self._read_positions(store.reader.connection)
                    if sealed >= stored:
                        break
                    await asyncio.sleep(POLL_SECONDS)

    async def _purge(self, client_id: str) -> None:
        greeting = self.plan.greeting
        await purge(
            self.plan.address,
            client_id,
            user_name=greeting.user_name,
            password=greeting.password,
            tls=self.plan.tls,
            timeout=CONNECT_SECONDS,
        )

    def _fail(self, problem: Exception) -> None:
        if self._problem is None and not self._is_draining:
            self._problem = problem
        self._over.set()

    # --- how it stands ----------------------------------------------------------------------------

    def _read_positions(self, connection: sqlite3.Connection) -> tuple[int, int, float]:
        """How far the stream is stored and sealed; if that cannot be read, as far as it was.

        Whoever writes to the store tells what is wrong with it.
        """
        with suppress(sqlite3.Error):
            self._positions = positions(connection, self._stream.id)
        return self._positions

    def _counted(self, state: str) -> IngestCounters:
        assert self._link is not None
        assert self._outbox is not None
        core, opened = self._link.core, self._outbox.opened
        stored, sealed, lag = self._positions
        return IngestCounters(
            state=state,
            client_id=core.client_id,
            node=opened.node,
            received=core.recorded,
            stored=stored,
            sealed=sealed,
            lag=lag,
            reconnects=self._link.reconnects,
            sessions_lost=core.sessions_lost,
            store=CONDITIONS[opened.store.condition],
        )

    def _count_last(self) -> None:
        """How it stood at the end: the store is closed, and still ours."""
        assert self._outbox is not None
        folder = self._outbox.opened.folder.path
        with suppress(OSError, sqlite3.Error, Unusable), closing(read_only(folder)) as connection:
            self._read_positions(connection)
        self._last = self._counted("ended")

    @property
    def _stream(self) -> Stream:
        assert self._outbox is not None
        return self._outbox.opened.streams.all[0]

    # --- what the link says -----------------------------------------------------------------------

    def on_connected(self, packet: ConnAck) -> None:
        """The connection may be used."""
        link = self._link
        assert link is not None
        core = link.core
        how = "its session goes on" if packet.session_present else "a session begins"
        LOG.info("%s: connected as %s, %s", link.address, core.client_id, how)
        if core.sessions_lost > self._sessions_lost:
            self._sessions_lost = core.sessions_lost
            LOG.warning(
                "the broker had no session of ours any more: messages may be missing before row"
                " %d of stream %s",
                self._stream.last_seq + 1,
                self._stream.name,
            )
        self._report_expiry(packet)
        if not packet.session_present:
            self._granted.clear()

    def _report_expiry(self, packet: ConnAck) -> None:
        asked = self.plan.greeting.session_expiry
        given = packet.properties.session_expiry_interval
        expiry = asked if given is None else given
        if expiry < asked and expiry != self._expiry:
            wanted = "for ever" if asked == NEVER_EXPIRES else f"for {asked} s"
            LOG.warning(
                "the broker keeps the session for %d s without a connection, not %s as it was"
                " asked to: an outage that lasts longer loses messages",
                expiry,
                wanted,
            )
        self._expiry = expiry

    def answered(self, answers: list[SubscriptionAnswer]) -> None:
        """SUBSCRIBE and UNSUBSCRIBE are answered."""
        assert self._link is not None
        refusal: Exception | None = None
        for answer in answers:
            problem = _problem_of(answer)
            if not answer.subscribed:
                if problem is None:
                    LOG.info("%s is not asked for any more", answer.topic_filter)
                else:
                    LOG.warning("%s", problem)
            elif problem is None:
                self._incurable_ends = 0
                self._report_qos(answer)
            else:
                refusal = problem
                LOG.warning("%s", problem)
        subscriptions = self._link.core.subscriptions
        if refusal is not None and not subscriptions.asked and not subscriptions.due:
            if not any(each.topic_filter in subscriptions.held for each in self.plan.subscriptions):
                self._fail(refusal)

    def _report_qos(self, answer: SubscriptionAnswer) -> None:
        topic_filter, granted = answer.topic_filter, answer.reason
        asked = self.plan.subscriptions[0].qos
        if self._granted.get(topic_filter) == granted:
            return
        self._granted[topic_filter] = granted
        if granted < asked:
            LOG.warning(
                "the broker grants %s QoS %d, not the %d asked for", topic_filter, granted, asked
            )
        else:
            LOG.info("%s is recorded, at QoS %d", topic_filter, granted)

    def on_disconnected(self, problem: Exception) -> None:
        """The connection is gone; another will be tried, unless that is no use."""
        link = self._link
        assert link is not None
        if link.core.recorded > self._received_then:
            self._received_then = link.core.recorded
            self._incurable_ends = 0
        if not isinstance(problem, Disconnected) or problem.reason not in INCURABLE:
            self._incurable_ends = 0
            return
        self._incurable_ends += 1
        if self._incurable_ends == INCURABLE_ENDS:
            filters = ", ".join(each.topic_filter for each in self.plan.subscriptions)
            link.give_up(
                Disconnected(
                    f"{problem}; so did {INCURABLE_ENDS} connections in a row, and another would"
                    f" end the same way: check that the broker allows to subscribe to {filters}",
                    reason=problem.reason,
                    properties=problem.properties,
                )
            )

    def failed(self, problem: Exception) -> None:
        """There will be no other connection."""
        self._fail(problem)

    def arrived(self, messages: list[Incoming]) -> None:
        """Messages go to the stream."""

    def on_published(self, outcomes: list[PublishOutcome]) -> None:
        """Nothing is published."""

    def stored(self, numbers: list[int]) -> None:
        """Nothing is published."""


def positions(connection: sqlite3.Connection, stream: int) -> tuple[int, int, float]:
    """The last row stored, the last sealed, and how long the first that is not has waited."""
    stored, sealed = connection.execute(
        "SELECT last_seq, sealed_seq FROM stream WHERE id = ?", (stream,)
    ).fetchone()
    if sealed >= stored:
        return stored, sealed, 0.0
    row = connection.execute(
        "SELECT received_at FROM record WHERE stream_id = ? AND seq = ?", (stream, sealed + 1)
    ).fetchone()
    lag = 0.0 if row is None else max(0.0, time.time() - row[0] / 1_000_000)
    return stored, sealed, lag


def _problem_of(answer: SubscriptionAnswer) -> Exception | None:
    """What the broker has against a subscription, or against its end."""
    if answer.violation is not None:
        return answer.violation
    if answer.reason < FAILURE:
        return None
    about = f"the subscription to {answer.topic_filter}"
    if not answer.subscribed:
        about = f"to end {about}"
    packet_type = SUBACK if answer.subscribed else UNSUBACK
    return Refused(answer.reason, packet_type, about=about, properties=answer.properties)
