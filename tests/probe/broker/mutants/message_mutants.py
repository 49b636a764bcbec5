"""Mutants of retained messages and wills.

The statements are those of the clause that the broker breaks by what it does.
"""

from typing import Final

from tests.probe.broker.mutants.form import Also, BrokerMutant
from tests.probe.broker.mutants.source import Edit

CORE: Final = "broker.core"
ROUTER: Final = "broker.router"
LIFETIMES: Final = "broker.lifetimes"

RETAIN: Final = (
    BrokerMutant(
        "retain-kept",
        "RETAIN is kept in messages for established subscriptions.",
        (
            Edit(
                ROUTER,
                "retain = message.retain and copy.retain_as_published",
                "retain = message.retain",
            ),
        ),
        "3.3.1-9",
        "3.3.1-12",
    ),
    BrokerMutant(
        "retain-as-published-ignored",
        "Retain As Published is ignored.",
        (Edit(ROUTER, "retain = message.retain and copy.retain_as_published", "retain = False"),),
        mqtt5="3.3.1-13",
    ),
    BrokerMutant(
        "retained-not-stored",
        "Retained messages are not stored.",
        (
            Edit(
                ROUTER,
                "elif has_memory and self.retained.put(message.topic_name, message, owner):",
                "elif False:",
            ),
        ),
        "3.3.1-5",
        "3.3.1-5",
        (
            Also(
                "there is nothing to send to a new subscription",
                "3.3.1-6 3.3.1-8",
                "3.3.1-9 3.3.1-10",
            ),
            Also("there is nothing that outlives its session", "3.1.2-7"),
            Also("a retained will is a retained message", "3.1.2-17", "3.1.2-15"),
            Also(
                "properties are also looked at in retained messages",
                mqtt5="3.3.2-4 3.3.2-15 3.3.2-16 3.3.2-17 3.3.2-18 3.3.2-20",
            ),
            Also("a new subscription gets it again", "3.8.4-3", "3.8.4-4"),
            Also(
                "there is nothing that a message with RETAIN 0 could change", "3.3.1-12", "3.3.1-8"
            ),
        ),
        undecided=("*retain*", "*will*", "empty-message-*"),
        lost=("no PUBLISH came",),
    ),
    BrokerMutant(
        "retained-not-deleted",
        "An empty message with RETAIN does not delete the retained one.",
        (
            Edit(
                ROUTER,
                "            self.retained.delete(message.topic_name)\n        elif",
                "            pass\n        elif",
            ),
        ),
        "3.3.1-10",
        "3.3.1-6",
        also=(
            Also("cases that clear a topic between two values", mqtt5="3.3.2-15 3.3.2-16 3.3.2-20"),
        ),
    ),
    BrokerMutant(
        "empty-retained-stored",
        "An empty message with RETAIN is stored.",
        (
            Edit(
                ROUTER,
                "        if not message.payload:\n            self.retained",
                "        if False:\n            self.retained",
            ),
        ),
        "3.3.1-11",
        "3.3.1-7",
        (Also("the old message is replaced, the topic has one still", "3.3.1-10", "3.3.1-6"),),
        undecided=("content-type", "response-topic", "correlation-data", "user-properties*"),
    ),
    BrokerMutant(
        "not-retained-replaces",
        "A message with RETAIN 0 replaces the retained one.",
        (
            Edit(
                ROUTER,
                "        if message.retain:\n            self._retain",
                "        if message.retain or self.retained.get(message.topic_name) is not None:\n"
                "            self._retain",
            ),
        ),
        "3.3.1-12",
        "3.3.1-8",
        also=(Also("the last message of a case is retained", mqtt5="3.3.1-10"),),
    ),
    BrokerMutant(
        "retained-without-flag",
        "Retained messages are sent to new subscriptions with RETAIN 0.",
        (
            Edit(
                ROUTER,
                "variant = message.variant(qos, retain=True,",
                "variant = message.variant(qos, retain=False,",
            ),
        ),
        "3.3.1-8",
        "3.3.1-9",
        (
            Also(
                "a retained message is recognised by its RETAIN flag",
                "3.3.1-6 3.3.1-5 3.8.4-3 3.1.2-17 3.1.2-7",
                "3.3.1-5 3.3.1-10 3.8.4-4 3.1.2-15",
            ),
        ),
        undecided=("*retain*", "*will*"),
    ),
    BrokerMutant(
        "retained-once",
        "Retained messages are not sent again when a subscription is replaced.",
        (
            Edit(
                ROUTER,
                "if handling == 0 or (handling == 1 and old is None):",
                "if handling != 2 and old is None:",
            ),
        ),
        "3.8.4-3",
        "3.3.1-9 3.8.4-4",
    ),
    BrokerMutant(
        "retain-handling-1-ignored",
        "Retain Handling 1 is handled as 0.",
        (
            Edit(
                ROUTER, "if handling == 0 or (handling == 1 and old is None):", "if handling != 2:"
            ),
        ),
        mqtt5="3.3.1-10",
    ),
    BrokerMutant(
        "retain-handling-2-ignored",
        "Retain Handling 2 is handled as 0.",
        (
            Edit(
                ROUTER,
                "if handling == 0 or (handling == 1 and old is None):",
                "if handling != 1 or old is None:",
            ),
        ),
        mqtt5="3.3.1-11",
    ),
    BrokerMutant(
        "retained-dollar-topics-for-hash",
        "A retained message of a topic that begins with $ is sent to new subscriptions to #.",
        (
            Edit(
                "broker.retained",
                'return self._dollar_root if topic.startswith("$") else self._root',
                "return self._root",
            ),
        ),
        "4.7.2-1",
        "4.7.2-1",
    ),
)

WILL: Final = (
    BrokerMutant(
        "will-after-disconnect",
        "The will is published after a DISCONNECT.",
        (Edit(CORE, "            self._lifetimes.discard_will(state)\n", "            pass\n"),),
        "3.14.4-3 3.1.2-10 3.1.2-8",
        "3.14.4-3 3.1.2-10 3.1.2-8",
        (Also("a will of an earlier connection comes where there is none", "3.1.2-12"),),
    ),
    BrokerMutant(
        "will-never",
        "The will is never published.",
        (
            Edit(
                LIFETIMES,
                "        self._store_will(state)\n        router = self._router\n        try:",
                "        self._store_will(state)\n        router = self._router\n        return\n"
                "        try:",
            ),
        ),
        "3.1.2-8",
        "3.1.2-7 3.1.2-8",
        (
            Also(
                "there is no will that is retained or not", "3.1.2-16 3.1.2-17", "3.1.2-14 3.1.2-15"
            ),
            Also(
                "a close as after a network failure publishes the will",
                "3.1.2-24 3.14.1-1",
                "3.1.2-22 3.14.1-1",
            ),
            Also("there is no will whose properties could be in order", mqtt5="3.1.3-10"),
            Also("such a DISCONNECT does not count, so that the will stays", mqtt5="U5-70"),
        ),
        undecided=("*will*",),
    ),
    BrokerMutant(
        "will-twice",
        "The will is published twice.",
        (
            Edit(
                LIFETIMES,
                "                router.route(message, state, now, is_kept=self._gate.has_store)\n",
                "                router.route(message, state, now, is_kept=self._gate.has_store)\n"
                "                router.route(message, state, now, is_kept=self._gate.has_store)\n",
            ),
        ),
        "3.1.2-10 3.1.2-8",
        "3.1.2-10 3.1.2-8",
        (
            # Better: these cases wait for the second will of their control, and see it there.
            Also(
                "the second will of a control is taken for one that must not come",
                "3.1.2-12 3.1.4-5 3.14.4-3",
                "3.1.2-7 3.1.3-9 3.14.4-3",
            ),
        ),
    ),
    BrokerMutant(
        "will-discarded-with-0x04",
        "A DISCONNECT with code 0x04 discards the will.",
        (
            Edit(
                CORE,
                "packet.reason < FAILURE and packet.reason != DISCONNECT_WITH_WILL_MESSAGE:",
                "packet.reason < FAILURE:",
            ),
        ),
        mqtt5="3.1.2-8",
    ),
    BrokerMutant(
        "will-not-retained",
        "Will Retain is ignored.",
        (
            Edit(
                LIFETIMES,
                "        retain=will.retain,\n        properties",
                "        retain=False,\n        properties",
            ),
        ),
        "3.1.2-17",
        "3.1.2-15",
    ),
    BrokerMutant(
        "will-always-retained",
        "Every will is retained.",
        (
            Edit(
                LIFETIMES,
                "        retain=will.retain,\n        properties",
                "        retain=True,\n        properties",
            ),
        ),
        "3.1.2-16",
        "3.1.2-14",
    ),
    BrokerMutant(
        "will-delay-ignored",
        "The Will Delay Interval is ignored.",
        (
            Edit(
                LIFETIMES,
                "delay = min(will.properties.will_delay_interval or 0, state.expiry_interval)",
                "delay = 0",
            ),
        ),
        mqtt5="3.1.2-8 3.1.3-9",
        slow=("*will*delay*", "*delay*will*"),
    ),
)

MUTANTS: Final = (
    *RETAIN,
    *WILL,
)
