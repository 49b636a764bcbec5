"""The [broker] section: where the broker listens, and its bounds.

Everything that a client can make grow has a bound. Each help text says what happens at the bound.
"""

from dataclasses import dataclass
from typing import ClassVar

from semel.mqtt.codec import LARGEST_PACKET
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.topics import check_levels, check_topic_name, quoted
from semel.mqtt.violation import Violation
from semel.settings import BYTES, SECONDS, SettingsError, check, setting

KIB = 1024
MIB = 1024 * KIB
DAY = 86_400
# From the most to the fewest lines.
LOG_LEVELS = ("info", "warning", "error")


@dataclass(frozen=True)
class BrokerSettings:
    """The broker: where it listens, and its bounds."""

    section: ClassVar[str] = "broker"

    host: str = setting(
        "127.0.0.1",
        "The address to listen on. 127.0.0.1 accepts connections from this machine only, "
        "0.0.0.0 from everywhere by IPv4, :: by IPv6.",
    )
    port: int = setting(
        1883,
        "The TCP port to listen on. 0 lets the system choose a free one.",
        minimum=0,
        maximum=65_535,
    )
    log_level: str = setting(
        "info",
        "What is logged. info: everything. warning: problems, such as a rule that a client breaks. "
        "error: failures of the broker itself.",
        choices=LOG_LEVELS,
    )
    connection_messages: bool = setting(
        True,
        "Whether a line is logged for each client that connects and disconnects, at level info. "
        "For `semel up` the default is false.",
    )
    maximum_memory: int | None = setting(
        None,
        "Bytes of memory that the process may have, measured once a second, on Linux. Above it "
        "clients without a session are refused with reason code 0x89 (Server busy), in MQTT 3.1.1 "
        "with return code 3, and new subscriptions with 0x97; messages that would be queued in "
        "memory, for sessions that are not durable, are dropped and counted; messages for new "
        "topics are not retained; and sessions that are not durable and not connected are "
        "discarded, those with the most queued bytes first. Without it, the limit is half of the "
        "memory of the machine or its container.",
        unit=BYTES,
        minimum=64 * MIB,
    )
    maximum_connections: int = setting(
        10_000,
        "Connections of clients at one time. A client above it is refused with reason code 0x89 "
        "(Server busy), in MQTT 3.1.1 with return code 3.",
        minimum=1,
        maximum=1_000_000,
    )
    maximum_unconnected: int = setting(
        1_000,
        "Open connections that are not connected yet: without a CONNECT, or not authenticated. "
        "They do not count as connections. For another one the oldest of the address that has the "
        "most is closed.",
        minimum=1,
        maximum=1_000_000,
    )
    maximum_sessions: int = setting(
        100_000,
        "Sessions kept at one time, connected or not; every connected client has one. For "
        "another one the session of a client that is not connected is discarded, the oldest of "
        "the address that has the most. If all are connected, the client is refused with reason "
        "code 0x97 (Quota exceeded), in MQTT 3.1.1 with return code 3; a client that has a "
        "session may always return.",
        minimum=1,
    )
    connect_timeout: float = setting(
        10.0,
        "How long a new connection may take to send its CONNECT, and to authenticate if it does "
        "that by AUTH. After that it is closed.",
        unit=SECONDS,
        minimum=0.1,
        maximum=3600,
    )
    maximum_packet_size: int = setting(
        MIB,
        "The largest packet accepted from a client, announced to MQTT 5.0 clients. A larger one "
        "closes the connection, with reason code 0x95 (Packet too large).",
        unit=BYTES,
        minimum=16,
        maximum=LARGEST_PACKET,
    )
    before_connect_packet_size: int = setting(
        64 * KIB,
        "The largest packet accepted from a client that is not connected yet: its CONNECT with its "
        "will, or an AUTH. A larger one closes the connection.",
        unit=BYTES,
        minimum=16,
        maximum=LARGEST_PACKET,
    )
    maximum_unfinished_bytes: int = setting(
        256 * MIB,
        "Bytes of all incomplete packets together, at least maximum_packet_size. Above it the "
        "connection with the oldest one, of the address that has the most, is closed with reason "
        "code 0x97 (Quota exceeded).",
        unit=BYTES,
        minimum=1,
    )
    packet_timeout: float = setting(
        60.0,
        "How long a packet may take from its first byte to its last, plus one second for each KiB "
        "of its size, which allows for slow lines. After that the connection is closed, with "
        "reason code 0x97 (Quota exceeded).",
        unit=SECONDS,
        minimum=0.1,
        maximum=86_400,
    )
    topic_levels: int = setting(
        128,
        "Levels in a topic name or topic filter. One with more closes the connection of the "
        "client that sent it, with reason code 0x90 (Topic Name invalid).",
        minimum=1,
        maximum=65_536,
    )
    packet_items: int = setting(
        5_000,
        "Topic filters and properties in one packet, together. A packet with more closes the "
        "connection of the client that sent it, with reason code 0x97 (Quota exceeded).",
        minimum=16,
    )
    maximum_subscriptions: int = setting(
        1000,
        "Subscriptions of one client. Another one is refused with reason code 0x97 (Quota "
        "exceeded), in MQTT 3.1.1 with 0x80; a filter that it has already may be replaced.",
        minimum=1,
    )
    maximum_client_subscription_bytes: int = setting(
        8 * MIB,
        "Bytes of all subscriptions of one client, with what they take in memory: their filters, "
        "500 for each, and for one with a wildcard 350 for each level. Another one is refused "
        "with reason code 0x97 (Quota exceeded), in MQTT 3.1.1 with 0x80.",
        unit=BYTES,
        minimum=1,
    )
    maximum_subscription_bytes: int = setting(
        256 * MIB,
        "The same for the subscriptions of all clients together; levels that several filters begin "
        "with count once.",
        unit=BYTES,
        minimum=1,
    )
    maximum_queued_messages: int = setting(
        10_000,
        "QoS 1 and 2 messages queued for one session, connected or not. Another one is not queued "
        "for this session: it is dropped and counted.",
        minimum=1,
    )
    maximum_queued_bytes: int = setting(
        64 * MIB,
        "Bytes of QoS 1 and 2 messages queued for one session. A message that does not fit is "
        "not queued for this session: it is dropped and counted.",
        unit=BYTES,
        minimum=1,
    )
    maximum_retained: int = setting(
        100_000,
        "Topics that have a retained message. A message to retain for another topic goes to its "
        "subscribers, but is not retained, and is counted.",
        minimum=1,
    )
    maximum_retained_bytes: int = setting(
        256 * MIB,
        "Bytes of all retained messages together, with what they take in memory: 400 for each, and "
        "350 for each further level of its topic. A message to "
        "retain that does not fit goes to its subscribers, but is not retained, and is counted; "
        "what its topic had before is deleted, because it is not the last any more.",
        unit=BYTES,
        minimum=1,
    )
    maximum_outgoing_bytes: int = setting(
        8 * MIB,
        "Bytes kept in memory for a client that reads slowly. Above it, QoS 0 messages for this "
        "client are dropped and counted, and QoS 1 and 2 messages stay in its queue; if its unread "
        "bytes reach twice as much, its connection is closed.",
        unit=BYTES,
        minimum=1,
    )
    slow_subscriber_timeout: float = setting(
        0.5,
        "How long a publisher is not read from while a connected subscriber of its messages has "
        "half of maximum_outgoing_bytes or of maximum_queued_messages in use. After that no "
        "publisher waits for this subscriber until it has caught up. 0: publishers never wait.",
        unit=SECONDS,
        minimum=0,
        maximum=60,
    )
    full_disk_timeout: float = setting(
        10.0,
        "How long an MQTT 5.0 client waits for an acknowledgement while the disk is full. After "
        "that it is disconnected with reason code 0x97 (Quota exceeded), because acknowledgements "
        "keep their order and cannot report it. 0: it waits until there is space.",
        unit=SECONDS,
        minimum=0,
        maximum=86_400,
    )
    route_cache: int = setting(
        200_000,
        "Entries in the cache of routes: one for each topic, and one for each session "
        "that gets its messages. Beyond it, entries that were not used lately are dropped and "
        "looked up again. 0 keeps none, which makes every message slower.",
        minimum=0,
    )
    receive_maximum: int = setting(
        200,
        "QoS 1 and 2 messages that an MQTT 5.0 client may send before they are acknowledged, "
        "announced to it. One more closes the connection, with reason code 0x93 (Receive Maximum "
        "exceeded).",
        minimum=1,
        maximum=65_535,
    )
    topic_alias_maximum: int = setting(
        100,
        "The highest topic alias that an MQTT 5.0 client may use, announced to it. A higher one "
        "closes the connection, with reason code 0x94 (Topic Alias invalid). 0 permits no alias.",
        minimum=0,
        maximum=65_535,
    )
    client_topic_aliases: int = setting(
        100,
        "Topic aliases that the broker uses towards an MQTT 5.0 client, if it permits them. The "
        "first topics that it is sent get them. 0 uses none.",
        minimum=0,
        maximum=65_535,
    )
    maximum_alias_bytes: int = setting(
        64 * KIB,
        "Bytes of the topics that have an alias on one connection, with 100 for each. The "
        "connection of a client that sets more is closed, with reason code 0x97 (Quota exceeded); "
        "a first topic may have any length. Towards a client the broker sets no more aliases.",
        unit=BYTES,
        minimum=1,
    )
    maximum_session_expiry: int = setting(
        7 * DAY,
        "How long a session may outlive its connection. A client that asks for more, or connects "
        "by MQTT 3.1.1 with CleanSession 0, gets this, which is announced to MQTT 5.0 clients. "
        "Restored sessions are limited as well, counted from the start of the broker. 4294967295 "
        "is forever.",
        unit=SECONDS,
        minimum=0,
        maximum=NEVER_EXPIRES,
    )
    maximum_keep_alive: int = setting(
        65_535,
        "The longest Keep Alive. An MQTT 5.0 client that asks for more, or for none, is "
        "assigned this. 0 sets no limit, and neither does 65535, the maximum of the protocol.",
        unit=SECONDS,
        minimum=0,
        maximum=65_535,
    )
    response_topic_prefix: str | None = setting(
        None,
        "The Response Information for MQTT 5.0 clients that request it is the topic "
        "`<prefix>/<client identifier>`. It grants no rights. A client whose identifier contains "
        "+, # or / gets none. Without a prefix no client does.",
    )
    sys_interval: float = setting(
        10.0,
        "The time between two updates of the topics under $SYS. 0 publishes none.",
        unit=SECONDS,
        maximum=86_400,
    )
    inflight_window: int = setting(
        200,
        "QoS 1 and 2 messages sent to an MQTT 3.1.1 client before it acknowledges them; further "
        "ones wait in its queue. MQTT 5.0 clients announce their own Receive Maximum, which is "
        "bounded by maximum_inflight_messages.",
        minimum=1,
        maximum=65_535,
    )
    maximum_inflight_messages: int = setting(
        5_000,
        "QoS 1 and 2 messages sent to one client and not complete yet, whatever Receive Maximum an "
        "MQTT 5.0 client has and however often it reconnects; further ones wait in its queue. A "
        "client that reconnects is sent all of them again.",
        minimum=1,
        maximum=65_535,
    )
    maximum_inflight_bytes: int = setting(
        16 * MIB,
        "Bytes of QoS 1 and 2 messages sent to one client and not acknowledged yet, with 500 for "
        "each. Above it further ones wait in its queue, whatever number of messages it permits. "
        "One message is always sent, however large.",
        unit=BYTES,
        minimum=1,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.response_topic_prefix is not None:
            _check_prefix(self.response_topic_prefix, self.topic_levels)


def _check_prefix(prefix: str, topic_levels: int) -> None:
    """Check that `prefix` plus one level is a topic that clients can use. Raises SettingsError."""
    problem = None
    if prefix.startswith("$"):
        problem = "topics that begin with $ are reserved for the broker"
    try:
        check_topic_name(prefix, "the topic", None)
        check_levels(f"{prefix}/client", topic_levels)
    except Violation as violation:
        problem = f"{violation.rule.sentence} Seen: {violation.seen}"
    if problem is not None:
        raise SettingsError([f"[broker] response_topic_prefix is {quoted(prefix)}: {problem}"])
