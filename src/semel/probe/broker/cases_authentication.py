"""Cases: enhanced authentication of 5.0 [3.15, 4.12].

Those of the exchange itself need a broker that knows a method that the examiner knows, too
(SCRAM-SHA-256), and those of its success a user name and password.
"""

from typing import Final

from semel.client.scram import ScramAuthentication
from semel.mqtt.packet_types import AUTH, CONNACK, DISCONNECT
from semel.mqtt.packets.auth import Auth
from semel.mqtt.packets.connack import ConnAck
from semel.probe import wire
from semel.probe.broker.case import Case
from semel.probe.broker.connect_steps import (
    AUTH_DATA,
    METHOD,
    UNKNOWN_METHOD,
    connack_code,
    connack_of,
    must_refuse_connect,
)
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import Trial
from semel.probe.claims import ClaimArguable, ControlFailed
from semel.probe.verdicts import RECEIVE, SEND

SCRAM: Final = b"SCRAM-SHA-256"
CONTINUE: Final = 0x18
AGAIN: Final = 0x19
MAXIMUM_PACKET_SIZE: Final = 0x27
# [4.12.0-1] The codes for a method that the server does not support.
METHOD_REFUSED: Final = (0x8C, 0x87)


def _step(reason: int, data: bytes | None, method: bytes = SCRAM) -> bytes:
    """An AUTH of the client."""
    rest = b"" if data is None else wire.text_property(AUTH_DATA, data)
    return wire.auth(reason, wire.text_property(METHOD, method) + rest)


def _scram(trial: Trial, *, password: bytes | None = None) -> ScramAuthentication:
    """The client's side, with the user of the subject or one that does not exist."""
    user_name = trial.subject.user_name or b"semel-probe-nobody"
    password = password or trial.subject.password or b"semel-probe-wrong"
    return ScramAuthentication(user_name.decode(), password.decode())


async def _challenge(
    trial: Trial, scram: ScramAuthentication, name: str = "a", *, properties: bytes = b""
) -> tuple[ProbeLink, Auth]:
    """A connection on which the broker has answered CONNECT with AUTH."""
    link = await trial.open()
    method = wire.text_property(METHOD, SCRAM) + wire.text_property(AUTH_DATA, scram.begin())
    await link.send(
        wire.connect(trial.version, trial.client_id(name), properties=properties + method)
    )
    packet = await link.wait_for(AUTH, trial.timeout)
    if isinstance(packet, Auth):
        return link, packet
    codes = [connack_code(each) for each in link.inbox if each.packet_type == CONNACK]
    if codes and codes[0]:
        trial.not_applicable(f"the broker refused the method SCRAM-SHA-256: 0x{codes[0]:02x}")
    if link.is_closed:
        trial.not_applicable("the broker refused the method SCRAM-SHA-256 by closing")
    raise ControlFailed(
        "the broker answered the method SCRAM-SHA-256 neither with AUTH nor a refusal"
    )


async def _authenticated(trial: Trial, scram: ScramAuthentication) -> ProbeLink:
    """A connection that the broker has accepted after the exchange."""
    if trial.subject.user_name is None:
        trial.not_applicable("no user name is given whose authentication could succeed")
    link, packet = await _challenge(trial, scram)
    data = scram.final_message(packet.properties.authentication_data)
    await link.send(_step(CONTINUE, data))
    connack = await trial.expect(link, CONNACK)
    assert isinstance(connack, ConnAck)
    if connack.reason:
        trial.not_applicable(f"the user has no access by SCRAM-SHA-256: 0x{connack.reason:02x}")
    return link


# --- without a method, or an unknown one ----------------------------------------------------------


async def unknown_method_is_refused(trial: Trial) -> None:
    with trial.control():
        await trial.must_stay_open(await trial.connect("c"))
    link = await trial.open()
    method = wire.text_property(METHOD, UNKNOWN_METHOD)
    await link.send(trial.connect_bytes(properties=method))
    await must_refuse_connect(trial, link, why=" for an unknown Authentication Method")
    for observed in link.inbox:
        code = connack_code(observed)
        if observed.packet_type == CONNACK and code not in METHOD_REFUSED:
            raise ClaimArguable(
                f"the method was refused with 0x{code:02x}: 0x8C and 0x87 are what the server MAY"
                " send, and other codes are not forbidden in words"
            )


async def auth_without_a_method_closes(trial: Trial) -> None:
    for reason in (AGAIN, CONTINUE):
        link = await trial.connect()
        with trial.control():
            await trial.must_stay_open(link)
        await link.send(_step(reason, b"data"))
        await trial.must_refuse(link, why=f" for AUTH 0x{reason:02x} without a method in CONNECT")


async def auth_before_connect_closes(trial: Trial) -> None:
    with trial.control():
        await trial.must_stay_open(await trial.connect("c"))
    link = await trial.open()
    await link.send(_step(CONTINUE, b"data"))
    await must_refuse_connect(trial, link)


async def broker_does_not_authenticate_on_its_own(trial: Trial) -> None:
    link = await trial.connect()
    await trial.must_stay_open(link)
    types = [observed.packet_type for observed in link.inbox]
    trial.must(AUTH not in types, "the broker sent AUTH to a client without a method")
    method = connack_of(link).properties.authentication_method
    trial.must(method is None, f"the CONNACK has the Authentication Method {method!r}")


# --- the exchange ---------------------------------------------------------------------------------


async def broker_continues_with_0x18_and_the_method(trial: Trial) -> None:
    _, packet = await _challenge(trial, _scram(trial))
    trial.must(packet.reason == CONTINUE, f"the AUTH has the code 0x{packet.reason:02x}")
    method = packet.properties.authentication_method
    trial.must(method == SCRAM.decode(), f"the AUTH has the method {method!r}")


async def auth_fits_the_maximum_packet_size(trial: Trial) -> None:
    first, _ = await _challenge(trial, _scram(trial))
    size = max(len(event.data) for event in trial.recorder.events if event.data[:1] == b"\xf0")
    await first.cut()
    limit = wire.four_property(MAXIMUM_PACKET_SIZE, size)
    link, _ = await _challenge(trial, _scram(trial), "b", properties=limit)
    sent = max(
        len(event.data)
        for event in trial.recorder.events
        if event.link == link.number and event.data[:1] == b"\xf0"
    )
    trial.must(sent <= size, f"an AUTH of {sent} bytes came, the Maximum Packet Size is {size}")


async def wrong_proof_closes(trial: Trial) -> None:
    scram = _scram(trial, password=b"semel-probe-wrong")
    link, packet = await _challenge(trial, scram)
    data = scram.final_message(packet.properties.authentication_data)
    await link.send(_step(CONTINUE, data))
    await must_refuse_connect(trial, link, why=" for a wrong proof")


async def wrong_code_of_the_client_closes(trial: Trial) -> None:
    scram = _scram(trial)
    link, packet = await _challenge(trial, scram)
    data = scram.final_message(packet.properties.authentication_data)
    await link.send(_step(AGAIN, data))
    await must_refuse_connect(trial, link, why=" for AUTH 0x19 before CONNACK")


async def another_method_in_the_exchange_closes(trial: Trial) -> None:
    scram = _scram(trial)
    link, packet = await _challenge(trial, scram)
    data = scram.final_message(packet.properties.authentication_data)
    await link.send(_step(CONTINUE, data, b"SCRAM-SHA-1"))
    await must_refuse_connect(trial, link, why=" for an AUTH with another method")


async def other_packet_in_the_exchange_closes(trial: Trial) -> None:
    link, _ = await _challenge(trial, _scram(trial))
    await link.send(wire.subscribe(trial.version, [(trial.topic(), 0)]))
    await must_refuse_connect(trial, link, why=" for a SUBSCRIBE before CONNACK")


async def connack_names_the_method(trial: Trial) -> None:
    link = await _authenticated(trial, _scram(trial))
    method = connack_of(link).properties.authentication_method
    trial.must(method == SCRAM.decode(), f"the CONNACK has the method {method!r}")
    await trial.must_stay_open(link)


# --- again ----------------------------------------------------------------------------------------


async def client_can_authenticate_again(trial: Trial) -> None:
    scram = _scram(trial)
    link = await _authenticated(trial, scram)
    await link.send(_step(AGAIN, scram.begin()))
    packet = await trial.must_receive(link, AUTH)
    assert isinstance(packet, Auth)
    trial.must(packet.reason == CONTINUE, f"the AUTH has the code 0x{packet.reason:02x}")
    await link.send(_step(CONTINUE, scram.final_message(packet.properties.authentication_data)))
    packet = await trial.must_receive(link, AUTH)
    assert isinstance(packet, Auth)
    trial.must(packet.reason == 0, f"the last AUTH has the code 0x{packet.reason:02x}")
    method = packet.properties.authentication_method
    trial.must(method == SCRAM.decode(), f"the AUTH has the method {method!r}")
    await trial.must_stay_open(link, " after the client had authenticated again")


async def another_method_again_closes(trial: Trial) -> None:
    scram = _scram(trial)
    link = await _authenticated(trial, scram)
    with trial.control():
        await trial.must_stay_open(link)
    await link.send(_step(AGAIN, scram.begin(), b"SCRAM-SHA-1"))
    await trial.must_refuse(link, why=" for another method")


async def wrong_proof_again_closes(trial: Trial) -> None:
    link = await _authenticated(trial, _scram(trial))
    with trial.control():
        await trial.must_stay_open(link)
    scram = _scram(trial, password=b"semel-probe-wrong")
    await link.send(_step(AGAIN, scram.begin()))
    packet = await trial.expect(link, AUTH)
    assert isinstance(packet, Auth)
    await link.send(_step(CONTINUE, scram.final_message(packet.properties.authentication_data)))
    await trial.must_refuse(link, allowed=(DISCONNECT,), why=" for a wrong proof")


CASES: Final = (
    Case(
        "unknown-authentication-method",
        RECEIVE,
        "A broker refuses an Authentication Method that it does not support, and closes.",
        unknown_method_is_refused,
        mqtt5="3.1.4-2 4.12.0-1",
    ),
    Case(
        "auth-without-a-method",
        RECEIVE,
        "A broker closes the connection for AUTH if CONNECT had no Authentication Method.",
        auth_without_a_method_closes,
        mqtt5="4.12.0-7 U5-72",
    ),
    Case(
        "auth-before-connect",
        RECEIVE,
        "A broker closes a connection whose first packet is AUTH.",
        auth_before_connect_closes,
        mqtt5="3.1.0-1 U5-72",
    ),
    Case(
        "no-auth-without-a-method",
        SEND,
        "A broker sends neither AUTH nor a method if CONNECT had no Authentication Method.",
        broker_does_not_authenticate_on_its_own,
        mqtt5="4.12.0-6",
    ),
    Case(
        "auth-continues",
        SEND,
        "A broker continues the authentication with AUTH 0x18 and the method of CONNECT.",
        broker_continues_with_0x18_and_the_method,
        mqtt5="4.12.0-2 4.12.0-5",
    ),
    Case(
        "auth-fits-the-maximum-packet-size",
        SEND,
        "An AUTH is no larger than the Maximum Packet Size of the client.",
        auth_fits_the_maximum_packet_size,
        mqtt5="3.15.2-2 3.15.2-3",
    ),
    Case(
        "auth-wrong-proof",
        RECEIVE,
        "A broker closes the connection for an authentication that fails.",
        wrong_proof_closes,
        mqtt5="4.12.0-4",
    ),
    Case(
        "auth-wrong-code",
        RECEIVE,
        "A broker closes the connection for AUTH 0x19 before CONNACK.",
        wrong_code_of_the_client_closes,
        mqtt5="4.12.0-3",
    ),
    Case(
        "auth-another-method",
        RECEIVE,
        "A broker closes the connection for an AUTH with another method than that of CONNECT.",
        another_method_in_the_exchange_closes,
        mqtt5="4.12.0-5",
    ),
    Case(
        "auth-other-packet",
        RECEIVE,
        "A broker closes the connection for a SUBSCRIBE before the end of the authentication.",
        other_packet_in_the_exchange_closes,
        mqtt5="3.1.2-30",
    ),
    Case(
        "auth-connack-names-the-method",
        SEND,
        "The CONNACK after an authentication has the method of CONNECT.",
        connack_names_the_method,
        mqtt5="4.12.0-5",
    ),
    Case(
        "auth-again",
        SEND,
        "A broker authenticates a client again on its connection.",
        client_can_authenticate_again,
        mqtt5="4.12.0-5 4.12.1-1",
    ),
    Case(
        "auth-again-another-method",
        RECEIVE,
        "A broker closes the connection if a client authenticates again by another method.",
        another_method_again_closes,
        mqtt5="4.12.1-1",
    ),
    Case(
        "auth-again-wrong-proof",
        RECEIVE,
        "A broker closes the connection if a second authentication fails.",
        wrong_proof_again_closes,
        mqtt5="4.12.1-2",
    ),
)
