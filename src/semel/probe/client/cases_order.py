"""Cases on packets of a server that are right by themselves and out of place."""

from collections.abc import Awaitable, Callable
from typing import Final

from semel.mqtt.packet_types import PINGRESP, SUBACK, SUBSCRIBE, UNSUBACK
from semel.probe import wire
from semel.probe.claims import ControlFailed
from semel.probe.client import server_wire
from semel.probe.client.case import ClientCase
from semel.probe.client.cases_vectors import SHOULD_CLOSE
from semel.probe.client.needs import (
    STAYS,
    SUBSCRIBES,
)
from semel.probe.client.profile import topic_name_for
from semel.probe.client.server import ANSWERED, first_number
from semel.probe.client.trial import ClientTrial
from semel.probe.verdicts import RECEIVE

TOPIC_ALIAS: Final = 0x23
AUTHENTICATION_METHOD: Final = 0x15
CONTINUE_AUTHENTICATION: Final = 0x18
ANSWER_TO_NOTHING: Final = (
    "the standard does not say what a client does with an answer that fits no request"
)


def reading(trial: ClientTrial) -> str:
    """The reading in which a client need not close; none in 3.1.1 [MQTT-4.8.0-1]."""
    return SHOULD_CLOSE if trial.is_5 else ""


async def _before_connack(trial: ClientTrial, data: bytes, what: str) -> None:
    with trial.control():
        link = await trial.engaged()
        await trial.must_acknowledge(link)
    link.cut()
    link = await trial.next_connection()
    link.send(data, breaks_rule=True)
    await trial.must_close(link, reading=reading(trial), what=what)


async def publish_before_connack(trial: ClientTrial) -> None:
    data = wire.publish(trial.version, b"a/b", trial.payload())
    await _before_connack(trial, data, "PUBLISH in the place of CONNACK")


async def pingresp_before_connack(trial: ClientTrial) -> None:
    await _before_connack(trial, server_wire.pingresp(), "PINGRESP in the place of CONNACK")


async def second_connack(trial: ClientTrial) -> None:
    await _after_control(
        trial,
        lambda: server_wire.connack(trial.version),
        "a second CONNACK",
        reading(trial),
    )


async def _after_control(
    trial: ClientTrial,
    packet: Callable[[], bytes],
    what: str,
    why: str,
    forbidden: tuple[int, ...] = (),
) -> None:
    """Send a packet out of place on a connection that works, and claim that the client closes."""
    with trial.control():
        link = await trial.engaged()
        await trial.must_acknowledge(link)
    link.send(packet(), breaks_rule=True)
    await trial.must_close(link, reading=why, forbidden=forbidden, what=what)


async def connect_from_server(trial: ClientTrial) -> None:
    data = wire.connect(trial.version, b"server")
    await _after_control(trial, lambda: data, "a CONNECT of the server", reading(trial))


async def subscribe_from_server(trial: ClientTrial) -> None:
    data = wire.subscribe(trial.version, [(b"a/b", 0)], packet_id=9)
    await _after_control(
        trial, lambda: data, "a SUBSCRIBE of the server", reading(trial), (SUBACK,)
    )


async def unsubscribe_from_server(trial: ClientTrial) -> None:
    data = wire.unsubscribe(trial.version, [b"a/b"], packet_id=9)
    await _after_control(
        trial, lambda: data, "an UNSUBSCRIBE of the server", reading(trial), (UNSUBACK,)
    )


async def pingreq_from_server(trial: ClientTrial) -> None:
    await _after_control(
        trial, wire.pingreq, "a PINGREQ of the server", reading(trial), (PINGRESP,)
    )


async def disconnect_from_server(trial: ClientTrial) -> None:
    """Only in 3.1.1, where servers have no DISCONNECT."""
    data = wire.disconnect(trial.version)
    await _after_control(trial, lambda: data, "a DISCONNECT of the server", reading(trial))


async def suback_for_nothing(trial: ClientTrial) -> None:
    data = server_wire.suback(trial.version, 54_321, [0])
    await _after_control(trial, lambda: data, "SUBACK for nothing", ANSWER_TO_NOTHING)


async def suback_with_surplus_codes(trial: ClientTrial) -> None:
    link = await trial.connected(answered=ANSWERED - {SUBSCRIBE})
    observed = await link.wait_for(SUBSCRIBE, trial.timeout)
    if observed is None:
        raise ControlFailed(f"no SUBSCRIBE came: {trial.state(link)}")
    codes = [0] * (len(link.subscriptions) + 1)
    data = server_wire.suback(trial.version, first_number(observed.data), codes)
    link.send(data, breaks_rule=True)
    await trial.must_close(
        link, reading=ANSWER_TO_NOTHING, what="SUBACK with more codes than filters"
    )


async def alias_above_maximum(trial: ClientTrial) -> None:
    alias = trial.profile.topic_alias_maximum + 1
    if alias > 65_535:
        trial.not_applicable("the client accepts every Topic Alias")
    await _alias(trial, alias, is_named=True)


async def alias_not_mapped(trial: ClientTrial) -> None:
    await _alias(trial, max(1, trial.profile.topic_alias_maximum), is_named=False)


async def _alias(trial: ClientTrial, alias: int, *, is_named: bool) -> None:
    with trial.control():
        link = await trial.engaged()
        await trial.must_acknowledge(link)
    data = wire.publish(
        trial.version,
        topic_name_for(link) if is_named else b"",
        trial.payload(),
        properties=wire.two_property(TOPIC_ALIAS, alias),
    )
    link.send(data, breaks_rule=True)
    what = f"Topic Alias {alias}, which {'exceeds its maximum' if is_named else 'is not mapped'}"
    await trial.must_close(link, reading=SHOULD_CLOSE, what=what)


async def auth_without_method(trial: ClientTrial) -> None:
    if trial.profile.connect.properties.authentication_method is not None:
        trial.not_applicable("the program uses enhanced authentication")
    method = wire.text_property(AUTHENTICATION_METHOD, b"SCRAM-SHA-256")
    data = wire.auth(CONTINUE_AUTHENTICATION, method)
    await _after_control(trial, lambda: data, "AUTH without a method in CONNECT", SHOULD_CLOSE)


def _order_case(
    name: str,
    what: str,
    run: Callable[[ClientTrial], Awaitable[None]],
    mqtt311: str = "",
    mqtt5: str = "",
    needs: tuple[str, ...] = (STAYS,),
) -> ClientCase:
    return ClientCase(
        f"refuses-{name}",
        RECEIVE,
        f"A client closes the connection for {what}.",
        run,
        mqtt311=mqtt311,
        mqtt5=mqtt5,
        needs=needs,
    )


CASES: Final = (
    _order_case(
        "publish-before-connack",
        "a PUBLISH in the place of CONNACK",
        publish_before_connack,
        mqtt311="4.8.0-1",
        mqtt5="3.2.0-1",
    ),
    _order_case(
        "pingresp-before-connack",
        "a PINGRESP in the place of CONNACK",
        pingresp_before_connack,
        mqtt311="4.8.0-1",
        mqtt5="3.2.0-1",
    ),
    _order_case("second-connack", "a second CONNACK", second_connack, mqtt5="3.2.0-2"),
    _order_case(
        "connect-from-server",
        "a CONNECT, which only clients send",
        connect_from_server,
        mqtt311="4.8.0-1 U3-02",
        mqtt5="U5-02",
    ),
    _order_case(
        "subscribe-from-server",
        "a SUBSCRIBE, which only clients send",
        subscribe_from_server,
        mqtt311="4.8.0-1 U3-02",
        mqtt5="U5-02",
    ),
    _order_case(
        "unsubscribe-from-server",
        "an UNSUBSCRIBE, which only clients send",
        unsubscribe_from_server,
        mqtt311="4.8.0-1 U3-02",
        mqtt5="U5-02",
    ),
    _order_case(
        "pingreq-from-server",
        "a PINGREQ, which only clients send",
        pingreq_from_server,
        mqtt311="4.8.0-1 U3-02",
        mqtt5="U5-02",
    ),
    _order_case(
        "disconnect-from-server",
        "a DISCONNECT, which only clients send in 3.1.1",
        disconnect_from_server,
        mqtt311="4.8.0-1 U3-02",
    ),
    _order_case(
        "suback-for-nothing",
        "a SUBACK with another Packet Identifier",
        suback_for_nothing,
        mqtt311="2.3.1-7",
        mqtt5="2.2.1-6",
    ),
    _order_case(
        "suback-with-surplus-codes",
        "a SUBACK with more codes than filters",
        suback_with_surplus_codes,
        mqtt311="3.8.4-5",
        mqtt5="3.8.4-6",
        needs=(STAYS, SUBSCRIBES),
    ),
    _order_case(
        "alias-above-maximum",
        "a Topic Alias above its Topic Alias Maximum",
        alias_above_maximum,
        mqtt5="3.1.2-26",
    ),
    _order_case(
        "alias-not-mapped",
        "an empty Topic Name with a Topic Alias that is not mapped",
        alias_not_mapped,
        mqtt5="U5-59 3.3.2-7",
    ),
    _order_case(
        "auth-without-method",
        "an AUTH if its CONNECT has no Authentication Method",
        auth_without_method,
        mqtt5="U5-72",
    ),
)
