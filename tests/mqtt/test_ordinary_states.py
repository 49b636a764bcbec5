"""In every state, an ordinary step is allowed by `observe` and leads to the same state.

`ordinary.py` decides again what `exchange.py` decides: quota, order, identifiers. The tables here
are the product of all that either of them reads. Each step is taken in two exchanges in the same
state, by the short cut and by `observe`. The short cut must take exactly the steps that `observe`
allows and that are usual: the next one of an exchange that began on this connection, which is up.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from semel.mqtt import (
    CLIENT,
    MQTT5,
    MQTT311,
    SERVER,
    Exchange,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Violation,
)
from semel.mqtt.exchange import CONNECTED, CONNECTING, NEW, REFUSED
from semel.mqtt.ordinary import ordinary_answer, ordinary_publish
from semel.mqtt.packet_ids import with_id
from semel.mqtt.packet_types import PUBACK, PUBCOMP, PUBREC, PUBREL
from semel.mqtt.side import PLACE_UNKNOWN, RECEIVED, RELEASED, SENT_QOS_1, SENT_QOS_2, Side
from tests.mqtt.snapshots import exchange_snapshot

ID = 7
RECEIVE_MAXIMUM = 3
# Serials: those up to CARRIED_UNTIL are of an earlier connection.
CARRIED, CARRIED_UNTIL, HERE, LATEST = 1, 2, 5, 9

STAGES = (SENT_QOS_1, SENT_QOS_2, RECEIVED, RELEASED)
# (phase, whether the sender has disconnected)
PHASES = (
    (CONNECTED, False),
    (CONNECTED, True),
    (NEW, False),
    (CONNECTING, False),
    (REFUSED, False),
)


@dataclass(frozen=True)
class Entry:
    """What the publisher has open under the identifier: a stage, 0 for nothing."""

    stage: int = 0
    is_carried: bool = False
    has_place: bool = True
    # Whether it is kept as one bit, because there were very many.
    is_bit: bool = False

    def put_into(self, publisher: Side) -> None:
        if self.is_bit:
            rare = publisher.rare_steps()
            rare.received = with_id(None, ID)
            if self.is_carried:
                rare.received_before = with_id(None, ID)
        elif self.stage:
            serial = CARRIED if self.is_carried else HERE
            place = 0 if self.has_place else PLACE_UNKNOWN
            publisher.opened = {ID: serial << 4 | place | self.stage}


ENTRIES = (
    Entry(),
    *(
        Entry(stage, is_carried, has_place)
        for stage in STAGES
        for is_carried in (False, True)
        for has_place in (True, False)
    ),
    Entry(RECEIVED, False, is_bit=True),
    Entry(RECEIVED, True, is_bit=True),
)


@dataclass(frozen=True)
class State:
    version: int
    sender: int
    phase: int
    is_disconnected: bool
    entry: Entry
    quota: int
    # Whether the identifier is in every set that tells of packets sent twice, or to be expected in
    # a session of which not all is known.
    is_marked: bool
    has_request: bool = False
    maximum_qos: int = 2
    # The serial of the last packet that was answered.
    last: int = 0

    def exchange(self, publisher: int) -> Exchange:
        """An exchange in this state, `publisher` being the side whose identifier it is."""
        made = Exchange([])
        made.version = self.version
        made.phase = self.phase
        made.maximum_qos = self.maximum_qos
        made.history_known = not self.is_marked
        made.session_present = self.is_marked
        sides = (made.client, made.server)
        sides[self.sender].disconnected = self.is_disconnected
        side, other = sides[publisher], sides[1 - publisher]
        other.receive_maximum = RECEIVE_MAXIMUM
        side.quota = self.quota
        side.serial = LATEST
        side.carried_until = CARRIED_UNTIL
        side.last_puback = side.last_pubrec = side.last_pubrel = self.last
        self.entry.put_into(side)
        if self.has_request:
            made.client.begin_request(ID, 1)
        if self.is_marked:
            side.repeat(ID)
            side.add_stray_pubrel(ID)
            side.add_stray(ID)
            side.use(ID)
        return made


def is_allowed(exchange: Exchange, sender: int, packet: Packet) -> bool:
    before = exchange_snapshot(exchange)
    try:
        exchange.observe(sender, packet, 4)
    except Violation:
        assert exchange_snapshot(exchange) == before
        return False
    return True


def check(state: State, quick: Exchange, plain: Exchange, packet: Packet, taken: bool) -> None:
    """The step was tried in `quick`; `plain` is in the state before."""
    if not taken:
        assert exchange_snapshot(quick) == exchange_snapshot(plain), (state, packet)
        return
    assert is_allowed(plain, state.sender, packet), (state, packet)
    assert exchange_snapshot(quick) == exchange_snapshot(plain), (state, packet)


def publish_states(version: int, sender: int) -> Iterator[State]:
    for (phase, gone), entry, quota, marked, request, maximum_qos in itertools.product(
        PHASES, ENTRIES, (-1, 0, 1), (False, True), (False, True), (0, 1, 2)
    ):
        yield State(
            version, sender, phase, gone, entry, quota, marked, request, maximum_qos=maximum_qos
        )


def answer_states(version: int, sender: int) -> Iterator[State]:
    for (phase, gone), entry, quota, marked, last in itertools.product(
        PHASES,
        ENTRIES,
        (RECEIVE_MAXIMUM - 1, RECEIVE_MAXIMUM),
        (False, True),
        (0, HERE - 1, HERE, HERE + 1),
    ):
        yield State(version, sender, phase, gone, entry, quota, marked, last=last)


BOTH_SIDES = pytest.mark.parametrize("sender", [CLIENT, SERVER])
BOTH_VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5])


@pytest.mark.slow
@BOTH_VERSIONS
@BOTH_SIDES
@pytest.mark.parametrize("qos", [1, 2])
def test_publish_is_ordinary_where_it_is_allowed_and_its_identifier_is_free(
    version: int, sender: int, qos: int
) -> None:
    packet = Publish("t", b"", qos, ID)
    taken_count = 0
    for state in publish_states(version, sender):
        quick, plain = state.exchange(sender), state.exchange(sender)
        taken = ordinary_publish(quick, sender, qos, ID)
        is_usual = state.phase == CONNECTED and not state.entry.stage
        allowed = is_allowed(state.exchange(sender), sender, packet)
        assert taken == (allowed and is_usual), (state, packet)
        check(state, quick, plain, packet, taken)
        taken_count += taken
    assert taken_count


@pytest.mark.slow
@BOTH_VERSIONS
@BOTH_SIDES
@pytest.mark.parametrize(
    ("packet_type", "packet", "stage"),
    [
        (PUBACK, PubAck(ID), SENT_QOS_1),
        (PUBREC, PubRec(ID), SENT_QOS_2),
        (PUBREL, PubRel(ID), RECEIVED),
        (PUBCOMP, PubComp(ID), RELEASED),
    ],
    ids=["PUBACK", "PUBREC", "PUBREL", "PUBCOMP"],
)
def test_an_answer_is_ordinary_where_it_is_allowed_and_the_next_of_its_exchange(
    version: int, sender: int, packet_type: int, packet: Packet, stage: int
) -> None:
    publisher = sender if packet_type == PUBREL else 1 - sender
    usual = Entry(stage)
    taken_count = 0
    for state in answer_states(version, sender):
        quick, plain = state.exchange(publisher), state.exchange(publisher)
        taken = ordinary_answer(quick, sender, packet_type, ID)
        is_usual = state.phase == CONNECTED and state.entry == usual
        allowed = is_allowed(state.exchange(publisher), sender, packet)
        assert taken == (allowed and is_usual), (state, packet)
        check(state, quick, plain, packet, taken)
        taken_count += taken
    assert taken_count
