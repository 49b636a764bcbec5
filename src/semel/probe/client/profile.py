"""What a client program does by itself: learned once from an ordinary server and one that cuts."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from semel.mqtt.packet_types import MQTT5
from semel.mqtt.packets.connect import Connect
from semel.mqtt.packets.subscribe import Subscription
from semel.probe.client import needs
from semel.probe.client.server import SubjectLink

# Keep Alives up to this many seconds are waited for.
LONGEST_KEEP_ALIVE = 10


@dataclass
class ClientProfile:
    """What was seen of a program in its discovery runs."""

    connect: Connect
    subscriptions: list[Subscription] = field(default_factory=list)
    has_subscription_identifier: bool = False
    has_unsubscribed: bool = False
    # The QoS of what it published.
    qos: set[int] = field(default_factory=set)
    has_retained: bool = False
    # PUBLISH packets of QoS 1 and 2 that it had open while acknowledgements were withheld.
    open_at_once: int = 0
    open_at_once_qos_2: int = 0
    # The largest packet after CONNECT, in bytes.
    largest_packet: int = 0
    # Whether it answered a PUBLISH on a connection that it kept open.
    stays: bool = False
    # Whether it closed the connection once everything was acknowledged.
    ends_by_itself: bool = False
    # Connections that a fresh process opens and ends before the one on which it works.
    preludes: int = 0
    # Whether what is delivered to it appears in its output.
    prints: bool = False
    # Seconds from a cut to its next CONNECT; None if none came.
    reconnect_seconds: float | None = None
    is_next_connect_clean: bool = True

    @property
    def version(self) -> int:
        return self.connect.version

    @property
    def is_durable(self) -> bool:
        """Whether the session outlives the connection."""
        if self.version == MQTT5:
            return bool(self.connect.properties.session_expiry_interval)
        return not self.connect.clean_start

    @property
    def topic_alias_maximum(self) -> int:
        return self.connect.properties.topic_alias_maximum or 0

    def does(self, need: str) -> bool:
        """Whether the program does what a case needs."""
        filters = [each.topic_filter for each in self.subscriptions]
        if need == needs.STAYS:
            return self.stays
        if need == needs.SUBSCRIBES:
            return bool(filters)
        if need == needs.PUBLISHES:
            return bool(self.qos)
        if need == needs.PUBLISHES_QOS_1:
            return 1 in self.qos
        if need == needs.PUBLISHES_QOS_2:
            return 2 in self.qos
        if need == needs.PUBLISHES_SEVERAL:
            return self.open_at_once > 1
        if need == needs.PUBLISHES_SEVERAL_QOS_2:
            return self.open_at_once_qos_2 > 1
        if need == needs.RETAINS:
            return self.has_retained
        if need == needs.RECONNECTS:
            return self.reconnect_seconds is not None
        if need == needs.RESUMES:
            return (
                self.reconnect_seconds is not None
                and self.is_durable
                and not self.is_next_connect_clean
            )
        if need == needs.STARTS_CLEAN:
            return self.connect.clean_start
        if need == needs.KEEPS_ALIVE:
            return 0 < self.connect.keep_alive <= LONGEST_KEEP_ALIVE
        if need == needs.TAKES_ALIASES:
            return self.topic_alias_maximum > 0
        if need == needs.USES_WILDCARD:
            return any("+" in name or "#" in name for name in filters)
        if need == needs.USES_SHARED:
            return any(name.startswith("$share/") for name in filters)
        if need == needs.USES_IDENTIFIER:
            return self.has_subscription_identifier
        assert need == needs.UNSUBSCRIBES, need
        return self.has_unsubscribed

    def missing(self, required: Iterable[str]) -> str:
        """Why a case with these needs cannot be run with this program; "" if it can."""
        for need in required:
            if not self.does(need):
                return needs.MISSING[need]
        return ""

    def summary(self) -> str:
        """What the program does, as a sentence for the report."""
        parts = []
        if self.subscriptions:
            count = len(self.subscriptions)
            parts.append(f"subscribes to {count} filter{'s' if count > 1 else ''}")
        if self.qos:
            shown = ", ".join(str(qos) for qos in sorted(self.qos))
            parts.append(f"publishes at QoS {shown}")
        if self.prints:
            parts.append("prints the messages that it receives")
        if self.reconnect_seconds is not None:
            how = "with a clean session" if self.is_next_connect_clean else "to resume its session"
            parts.append(f"connects again after {self.reconnect_seconds:.1f} s {how}")
        if not self.stays:
            parts.append("does not stay connected")
        return "the program " + (", ".join(parts) or "connects")


def topic_name_for(link: SubjectLink) -> bytes:
    """A Topic Name that the client's first subscription matches; any if it has none."""
    if not link.subscriptions:
        return b"semel-probe/any"
    name = link.subscriptions[0].topic_filter
    if name.startswith("$share/"):
        name = name.split("/", 2)[2]
    return name.replace("+", "x").replace("#", "x").encode()
