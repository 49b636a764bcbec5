"""Cases that claim several statements together: if one of them is broken, all of them are blamed.

Beside a statement that a mutant breaks, such a case may blame its other statements. Each has the
reason why it claims them together. A case without a good reason should name fewer statements.
"""

from typing import Final

# Why, and the cases.
REASONS: Final = (
    (
        "such a repeat is a use of the alias, too",
        ("alias-and-qos-2-repeat",),
    ),
    (
        "what CONNACK does not have cannot be compared",
        ("assigned-client-ids-are-unique",),
    ),
    (
        "Session Present is how the discarded session would show",
        ("discarded-session-does-not-return",),
    ),
    (
        "a message must arrive before its DUP flag can be seen",
        (
            "dup-not-copied-at-qos-1",
            "dup-not-copied-at-qos-2",
        ),
    ),
    (
        "a client's duty and the answer to its breach",
        ("empty-client-id-without-clean-session",),
    ),
    (
        "what a later subscriber gets shows both deletion and storing",
        ("empty-message-deletes",),
    ),
    (
        "two filters in a SUBSCRIBE need two codes and one subscription",
        ("filter-twice-in-a-subscribe",),
    ),
    (
        "the queue of a session shows which of its filters matched",
        ("filters-of-a-session-away",),
    ),
    (
        "the QoS of a delivery is compared with the code of SUBACK",
        ("granted-qos-is-true",),
    ),
    (
        "a timeout is as good as a network failure",
        ("keep-alive-timeout-publishes-the-will",),
    ),
    (
        "the queue is delivered with identifiers, DUP 0, and in order",
        ("messages-wait-for-a-session",),
    ),
    (
        "Session Present is how the new session shows",
        ("new-session-is-created",),
    ),
    (
        "whether a CONNECT is refused shows in what happens behind it",
        ("packets-behind-a-malformed-connect",),
    ),
    (
        "it waits in the queue of a session",
        ("payload-format-indicator-0",),
    ),
    (
        "the PUBREL is sent again instead of its PUBLISH",
        ("pubrel-sent-again-after-reconnect",),
    ),
    (
        "the second message needs a PUBACK as the first did",
        ("qos-1-new-after-puback",),
    ),
    (
        "identifier, DUP and payload are seen in one resend",
        (
            "qos-1-sent-again-after-reconnect",
            "qos-2-sent-again-after-reconnect",
        ),
    ),
    (
        "order and DUP are seen in one resend",
        (
            "qos-1-sent-again-in-order",
            "qos-2-sent-again-in-order",
        ),
    ),
    (
        "a PUBCOMP must come before its identifier can be seen",
        ("qos-2-pubrel-repeated",),
    ),
    (
        "the QoS bits are flags of the fixed header",
        ("qos-3",),
    ),
    (
        "the queue must be delivered before its order can be seen",
        ("queue-keeps-the-order",),
    ),
    (
        "a message must wait in the queue before its RETAIN flag can be seen",
        ("queued-with-retain-0",),
    ),
    (
        "a message must be retained before it can be replaced",
        ("retain-0-changes-nothing",),
    ),
    (
        "a message must be retained before its QoS can be seen",
        ("retained-with-its-qos",),
    ),
    (
        "a second CONNACK instead of the close would be another violation",
        (
            "second-connect",
            "second-connect-in-one-segment",
        ),
    ),
    (
        "a second CONNACK instead of the close would be another",
        ("second-connect-of-another-client",),
    ),
    (
        "a shared and a plain subscription of one client are told apart by UNSUBSCRIBE",
        ("shared-and-plain",),
    ),
    (
        "what + matches is what its level means",
        ("single-level-wildcard",),
    ),
    (
        "the identifier shows which subscription is the one in force",
        ("subscription-identifier-replaced",),
    ),
    (
        "what + and # match is what their levels mean",
        ("wildcards-together",),
    ),
    (
        "such a DISCONNECT does not count, so that the will stays",
        ("will-disconnect-revives-no-session",),
    ),
    (
        "the will must be published before it can wait in a queue",
        ("will-is-queued",),
    ),
    (
        "a malformed DISCONNECT is none, so that the will stays",
        ("will-malformed-disconnect",),
    ),
    (
        "a second will may come with the same connection or with a later one",
        ("will-published-once",),
    ),
)
COMPANIONS: Final = {name: why for why, names in REASONS for name in names}
