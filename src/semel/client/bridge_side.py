"""One of the two brokers of a bridge: what happens on the connection to it."""

import logging
from collections.abc import Callable
from typing import Final

from semel.client.bridge_core import BridgeDirection
from semel.client.bridge_plan import SidePlan
from semel.client.bridge_status import SideStatus
from semel.client.core import ClientCore
from semel.client.errors import Disconnected, Refused
from semel.client.events import PublishOutcome, SubscriptionAnswer
from semel.client.ingest import MADE_CLIENT_ID, MAXIMUM_REFUSALS, PERMANENT_REASONS, refusal_of
from semel.client.link import BrokerLink
from semel.client.purge import purge
from semel.client.received import Incoming
from semel.client.reconnect import Backoff
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.reasons import FAILURE
from semel.mqtt.session import NEVER_EXPIRES
from semel.store.disk import DiskStore

LOG: Final = logging.getLogger("semel.bridge")

CONNECT_SECONDS: Final = 30.0


class BridgeSide:
    """The link to one broker, and its events."""

    def __init__(
        self,
        bridge: str,
        plan: SidePlan,
        core: ClientCore,
        *,
        toward: BridgeDirection,
        fail: Callable[["BridgeSide", Exception], None],
    ) -> None:
        """`toward` is the direction to this broker; `fail` is called if another attempt to connect
        would fail as well."""
        self.plan = plan
        self.core = core
        self.toward = toward
        self.delivered = 0
        # Not delivered: refused by the broker, by reason code; beyond a limit that it announced;
        # expired in the queue.
        self.refused_by_reason: dict[int, int] = {}
        self.over_limit = 0
        self.expired = 0
        self.last_error: str | None = None
        self._fail = fail
        self._label = f"bridge {bridge}, {plan.side}"
        self._link: BrokerLink | None = None
        self._expiry: int | None = None
        self._next_expiry: float | None = None
        self._granted: dict[str, int] = {}
        self._sessions_lost = 0
        self._is_refusal_logged = False
        # Connections in a row that ended for a permanent reason.
        self._permanent_ends = 0

    @property
    def link(self) -> BrokerLink:
        """The link, once `make_link` was called."""
        assert self._link is not None
        return self._link

    def make_link(
        self,
        store: DiskStore,
        backoff: Backoff,
        *,
        start_clean: bool,
        flush_core: Callable[[float, float], None],
    ) -> None:
        """Make a link that continues the session of the store. Call `link.start` next."""
        self._link = BrokerLink(
            self.core,
            self.plan.address,
            self,
            tls=self.plan.tls,
            authentication=self.plan.authentication,
            timeout=CONNECT_SECONDS,
            backoff=backoff,
            clean_start=True if start_clean else self._clean_start,
            purge=self._purge,
            store=store,
            flush_core=flush_core,
        )

    @property
    def _clean_start(self) -> bool | None:
        """Whether the first connection starts clean; None: as the state of the client requires.

        A session that the broker has under our client identifier is not discarded silently, unless
        the identifier was made for us and never used.
        """
        is_new = not self.core.has_state and MADE_CLIENT_ID.fullmatch(self.core.client_id)
        return None if is_new else False

    async def _purge(self, client_id: str) -> None:
        parameters = self.plan.connect_parameters
        await purge(
            self.plan.address,
            client_id,
            user_name=parameters.user_name,
            password=parameters.password,
            tls=self.plan.tls,
            timeout=CONNECT_SECONDS,
        )

    def watch_expiry(self) -> None:
        """Keep the timer for the first message that expires in the queue for this broker."""
        due = self.core.session.backlog.next_expiry
        if due != self._next_expiry:
            self._next_expiry = due
            self.link.watch_expiry()

    @property
    def refused(self) -> int:
        """Messages that the broker refused, or would have refused."""
        return sum(self.refused_by_reason.values()) + self.over_limit

    @property
    def status(self) -> SideStatus:
        """The present state of the connection."""
        return SideStatus(
            is_connected=self.link.is_connected,
            client_id=self.core.client_id,
            reconnects=self.link.reconnects,
            sessions_lost=self.core.sessions_lost,
            resent=self.core.resent,
            last_error=self.last_error,
        )

    # --- events of the link -----------------------------------------------------------------------

    def on_connected(self, packet: ConnAck) -> None:
        """The broker has accepted the connection."""
        how = "session resumed" if packet.session_present else "new session"
        LOG.info(
            "%s: connected to %s as %s, %s",
            self._label,
            self.plan.address,
            self.core.client_id,
            how,
        )
        self._is_refusal_logged = False
        if not packet.session_present:
            self._granted.clear()
        if self.core.sessions_lost > self._sessions_lost:
            self._sessions_lost = self.core.sessions_lost
            LOG.warning(
                "%s: the broker lost the session: messages may be missing, and those that it had"
                " not acknowledged are sent again",
                self._label,
            )
        self._report_expiry(packet)
        # A message with RETAIN is sent without it to a broker that does not retain messages.
        self.toward.is_retain_available = packet.properties.retain_available != 0
        self._check_maximum_qos(packet)

    def _report_expiry(self, packet: ConnAck) -> None:
        asked = self.plan.connect_parameters.session_expiry
        given = packet.properties.session_expiry_interval
        expiry = asked if given is None else given
        if expiry < asked and expiry != self._expiry:
            requested = "forever" if asked == NEVER_EXPIRES else f"for {asked} s"
            LOG.warning(
                "%s: the broker keeps the session for %d s without a connection, not %s as"
                " requested: a longer outage loses messages",
                self._label,
                expiry,
                requested,
            )
        self._expiry = expiry

    def _check_maximum_qos(self, packet: ConnAck) -> None:
        maximum = packet.properties.maximum_qos
        if maximum is not None and maximum < self.toward.maximum_qos:
            key = f"to_{self.plan.side}"
            problem = f"the broker accepts QoS {maximum} at most: add `qos {maximum}` to {key}"
            self._fail(self, Disconnected(problem))

    def on_answered(self, answers: list[SubscriptionAnswer]) -> None:
        """The broker has answered SUBSCRIBE or UNSUBSCRIBE packets."""
        refusal: Exception | None = None
        for answer in answers:
            problem = refusal_of(answer)
            if problem is not None:
                LOG.warning("%s: %s", self._label, problem)
                if answer.subscribed:
                    refusal = problem
            elif not answer.subscribed:
                LOG.info("%s: unsubscribed from %s", self._label, answer.topic_filter)
            else:
                self._permanent_ends = 0
                self._report_qos(answer)
        subscriptions = self.core.subscriptions
        if refusal is not None and subscriptions.has_no_open_request:
            self.last_error = str(refusal)
            if not any(
                each.topic_filter in subscriptions.in_session for each in self.plan.subscriptions
            ):
                self._fail(self, refusal)

    def _report_qos(self, answer: SubscriptionAnswer) -> None:
        topic_filter, granted = answer.topic_filter, answer.reason
        if self._granted.get(topic_filter) == granted:
            return
        self._granted[topic_filter] = granted
        asked = max(
            (each.qos for each in self.plan.subscriptions if each.topic_filter == topic_filter),
            default=granted,
        )
        if granted < asked:
            LOG.warning(
                "%s: subscribed to %s at QoS %d, not %d as requested",
                *(self._label, topic_filter, granted, asked),
            )
        else:
            LOG.info("%s: subscribed to %s at QoS %d", self._label, topic_filter, granted)

    def on_published(self, outcomes: list[PublishOutcome]) -> None:
        """Messages are delivered to this broker, or were given up."""
        for outcome in outcomes:
            if outcome.expired:
                self.expired += 1
            elif outcome.violation is not None:
                self.over_limit += 1
                self._report_refusal(outcome.violation)
            elif outcome.reason >= FAILURE:
                counted = self.refused_by_reason.get(outcome.reason, 0)
                self.refused_by_reason[outcome.reason] = counted + 1
                self._report_refusal(
                    Refused(
                        outcome.reason,
                        outcome.packet_type,
                        about="a message",
                        properties=outcome.properties,
                    )
                )
            else:
                self.delivered += 1

    def _report_refusal(self, problem: Exception) -> None:
        self.last_error = str(problem)
        if not self._is_refusal_logged:
            self._is_refusal_logged = True
            LOG.warning(
                "%s: a message was not delivered: %s; others of this connection are only counted",
                self._label,
                problem,
            )

    def on_disconnected(self, problem: Exception) -> None:
        """The connection is lost. The link reconnects, unless the broker rejects us repeatedly."""
        self.last_error = str(problem)
        if not isinstance(problem, Disconnected) or problem.reason not in PERMANENT_REASONS:
            self._permanent_ends = 0
            return
        self._permanent_ends += 1
        if self._permanent_ends == MAXIMUM_REFUSALS:
            self.link.give_up(
                Disconnected(
                    f"{problem}; {MAXIMUM_REFUSALS} connections in a row ended like this: check"
                    " that the broker accepts the topics of the rules",
                    reason=problem.reason,
                    properties=problem.properties,
                )
            )

    def on_failed(self, problem: Exception) -> None:
        """The link makes no other connection."""
        self._fail(self, problem)

    def on_arrived(self, messages: list[Incoming]) -> None:
        """Not called: messages move to the other side."""

    def on_stored(self, numbers: list[int]) -> None:
        """Not called: the commit that moves a message stores it."""
