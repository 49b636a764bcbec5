"""Cases: client identifiers, given by the client or by the broker [3.1.3.1, 3.2.2.3.7]."""

from typing import Final

from semel.mqtt.packet_types import CONNACK
from semel.mqtt.packets.connack import ConnAck
from semel.probe.broker.case import Case
from semel.probe.broker.connect_steps import connack_code, connack_of, expiry, leave
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import Trial
from semel.probe.verdicts import RECEIVE, SEND


async def client_id_of_23_letters_and_digits_is_accepted(trial: Trial) -> None:
    start = trial.client_id()
    with trial.control():
        await trial.connect("c")
    for rest in (
        b"0123456789abcdefghijklmn",
        b"ABCDEFGHIJKLMNOPQRSTUVW",
        b"opqrstuvwxyzXYZ98765432",
    ):
        client_id = (start + rest)[:23]
        link = await trial.open()
        await link.send(trial.connect_bytes(client_id=client_id))
        packet = await trial.must_receive(link, CONNACK)
        assert isinstance(packet, ConnAck)
        trial.must(
            packet.reason == 0,
            f"the broker refused the client identifier {client_id.decode()} of 23 characters:"
            f" 0x{packet.reason:02x}",
        )


async def client_id_that_may_be_refused_is_refused_in_order(trial: Trial) -> None:
    with trial.control():
        await trial.must_stay_open(await trial.connect("c"))
    refused = 0
    for rest in (b"/with/slashes", b"-" + b"x" * 200, " é+#$".encode()):
        client_id = trial.client_id() + rest
        link = await trial.open()
        await link.send(trial.connect_bytes(client_id=client_id))
        packet = await link.wait_for(CONNACK, trial.timeout)
        if isinstance(packet, ConnAck) and packet.reason == 0:
            await trial.must_stay_open(link, " after it had accepted the client identifier")
            continue
        refused += 1
        await trial.must_refuse(link, allowed=())
        if trial.is_5:
            continue
        code = packet.reason if isinstance(packet, ConnAck) else None
        trial.must(code == 2, f"a client identifier was refused with {code}, not with 0x02")
    if not refused:
        trial.not_applicable("the broker accepts client identifiers of any characters and length")


async def empty_client_id_without_clean_session_gets_return_code_2(trial: Trial) -> None:
    with trial.control():
        await trial.must_stay_open(await trial.connect("c"))
    link = await trial.open()
    await link.send(trial.connect_bytes(client_id=b"", clean=False))
    observed = await link.wait_for_observed(CONNACK, trial.timeout)
    if observed is None:
        trial.refute("no CONNACK came for an empty client identifier with Clean Session 0")
    code = connack_code(observed)
    trial.must(code == 2, f"the return code is 0x{code:02x}, not 0x02")
    await trial.must_refuse(link)


async def _connect_without_id(
    trial: Trial, *, clean: bool = True, properties: bytes = b""
) -> ProbeLink:
    """A connection with an empty client identifier, if the broker accepts one."""
    link = await trial.open()
    await link.send(trial.connect_bytes(client_id=b"", clean=clean, properties=properties))
    packet = await trial.expect(link, CONNACK)
    assert isinstance(packet, ConnAck)
    if packet.reason:
        trial.not_applicable(f"the broker refused an empty client identifier: {packet.reason:#04x}")
    return link


async def empty_client_ids_do_not_collide(trial: Trial) -> None:
    first = await _connect_without_id(trial)
    second = await _connect_without_id(trial)
    await trial.must_stay_open(second, " with an empty client identifier")
    await trial.must_stay_open(first, " after another client had come with an empty identifier")


async def assigned_client_ids_are_unique(trial: Trial) -> None:
    first = connack_of(await _connect_without_id(trial)).properties.assigned_client_identifier
    second = connack_of(await _connect_without_id(trial)).properties.assigned_client_identifier
    trial.must(first and second, "the CONNACK has no Assigned Client Identifier")
    trial.must(first != second, f"two clients were assigned the identifier {first!r}")


async def assigned_client_id_names_the_session(trial: Trial) -> None:
    topic = trial.topic()
    link = await _connect_without_id(trial, clean=False, properties=expiry(300))
    assigned = connack_of(link).properties.assigned_client_identifier
    trial.must(assigned, "the CONNACK has no Assigned Client Identifier")
    assert assigned is not None
    await trial.subscribe(link, (topic, 0))
    await leave(trial, link)
    again = await trial.connect(client_id=assigned.encode(), clean=False, properties=expiry(0))
    publisher = await trial.connect("p")
    await trial.publish(publisher, topic)
    await trial.must_receive_message(again)


async def assigned_client_id_is_for_empty_ones_only(trial: Trial) -> None:
    """[3.2.2.3.7] It is present because the client had none."""
    with trial.control():
        await trial.must_stay_open(await trial.connect("c"))
    given = connack_of(await trial.connect()).properties.assigned_client_identifier
    trial.must(given is None, f"a client with an identifier of its own was assigned {given!r}")


async def client_ids_differ_by_case(trial: Trial) -> None:
    lower, upper = (trial.client_id() + end for end in (b"x", b"X"))
    first = await trial.connect(client_id=lower)
    with trial.control():
        await trial.must_stay_open(first)
    second = await trial.connect(client_id=upper)
    await trial.must_stay_open(second)
    await trial.must_stay_open(first, " when a client came whose identifier differs by case")


CASES: Final = (
    Case(
        "client-id-of-23-characters",
        RECEIVE,
        "A broker accepts client identifiers of 23 letters and digits.",
        client_id_of_23_letters_and_digits_is_accepted,
        mqtt311="3.1.3-5",
        mqtt5="3.1.3-5",
    ),
    Case(
        "client-id-refused",
        RECEIVE,
        "A broker that refuses a client identifier says so as the standard wants, and closes.",
        client_id_that_may_be_refused_is_refused_in_order,
        mqtt311="3.1.3-9",
        mqtt5="3.1.3-8",
    ),
    Case(
        "empty-client-id-without-clean-session",
        RECEIVE,
        "A broker answers an empty client identifier with Clean Session 0 with 0x02 and closes.",
        empty_client_id_without_clean_session_gets_return_code_2,
        mqtt311="3.1.3-8",
    ),
    Case(
        "empty-client-ids-do-not-collide",
        SEND,
        "A broker gives each client with an empty client identifier an identity of its own.",
        empty_client_ids_do_not_collide,
        mqtt311="3.1.3-6",
        mqtt5="3.1.3-6",
    ),
    Case(
        "assigned-client-ids-are-unique",
        SEND,
        "A broker returns a different Assigned Client Identifier to each client that has none.",
        assigned_client_ids_are_unique,
        mqtt5="3.1.3-6 3.1.3-7 3.2.2-16",
    ),
    Case(
        "assigned-client-id-names-the-session",
        SEND,
        "A broker treats the Assigned Client Identifier as if the client had sent it.",
        assigned_client_id_names_the_session,
        mqtt5="3.1.3-7",
    ),
    Case(
        "assigned-client-id-only-if-empty",
        SEND,
        "A broker assigns no client identifier to a client that has sent one.",
        assigned_client_id_is_for_empty_ones_only,
        mqtt5="3.1.3-2",
    ),
    Case(
        "client-ids-differ-by-case",
        SEND,
        "A broker takes client identifiers that differ by case for different clients.",
        client_ids_differ_by_case,
        mqtt311="3.1.3-2",
        mqtt5="3.1.3-2",
    ),
)
