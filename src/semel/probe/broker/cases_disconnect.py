"""Cases: packets in the wrong direction, and the DISCONNECT of a broker [3.14, 4.8, 4.13]."""

from typing import Final

from semel.mqtt import PACKET_NAMES
from semel.mqtt.packet_types import DISCONNECT, PUBACK
from semel.mqtt.packets.disconnect import Disconnect
from semel.probe import wire
from semel.probe.broker.case import Case
from semel.probe.broker.connect_steps import end_with
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import Trial
from semel.probe.verdicts import RECEIVE, SEND

# --- packets that only a server sends -------------------------------------------------------------


async def _refuse_from_client(trial: Trial, data: bytes) -> None:
    link = await trial.connect()
    with trial.control():
        await trial.must_stay_open(link)
    await link.send(data)
    await trial.must_refuse(link, allowed=(DISCONNECT,) if trial.is_5 else ())


async def connack_of_a_client_closes(trial: Trial) -> None:
    await _refuse_from_client(trial, wire.frame(0x20, b"\x00\x00", wire.section(trial.version)))


async def suback_of_a_client_closes(trial: Trial) -> None:
    await _refuse_from_client(
        trial, wire.frame(0x90, wire.two(1), wire.section(trial.version), b"\x00")
    )


async def unsuback_of_a_client_closes(trial: Trial) -> None:
    codes = b"\x00" if trial.is_5 else b""
    await _refuse_from_client(
        trial, wire.frame(0xB0, wire.two(1), wire.section(trial.version), codes)
    )


async def pingresp_of_a_client_closes(trial: Trial) -> None:
    await _refuse_from_client(trial, b"\xd0\x00")


# --- the broker's DISCONNECT ----------------------------------------------------------------------


def _errors(trial: Trial) -> dict[str, bytes]:
    """Packets for which a broker must close the connection, by what they are."""
    topic = trial.topic()
    return {
        "a second CONNECT": trial.connect_bytes(),
        "a PUBLISH with QoS 3": wire.publish(trial.version, topic, qos=3),
        "a PUBLISH to a wildcard": wire.publish(trial.version, topic + b"/#"),
        "a SUBSCRIBE without a filter": wire.subscribe(trial.version, []),
        "an AUTH without a method": wire.auth(0x19),
        "a PINGREQ with a reserved flag": b"\xc1\x00",
    }


async def _disconnected_links(trial: Trial) -> list[ProbeLink]:
    """Connections on which the broker has sent DISCONNECT, each for another error."""
    found = []
    for name, data in _errors(trial).items():
        link = await trial.connect(name.replace(" ", "").lower()[-8:])
        with trial.control():
            await trial.must_stay_open(link)
        await trial.subscribe(link, (trial.topic("busy"), 0))
        busy = wire.publish(trial.version, trial.topic("busy"), qos=1, packet_id=3)
        await link.send(data + busy + wire.pingreq(), f"{name}, a PUBLISH and a PINGREQ")
        await link.wait_closed(trial.timeout)
        if any(observed.packet_type == DISCONNECT for observed in link.inbox):
            found.append(link)
    if not found:
        trial.not_applicable("the broker closes without DISCONNECT, which is permitted")
    return found


async def nothing_follows_the_disconnect_of_a_broker(trial: Trial) -> None:
    for link in await _disconnected_links(trial):
        types = [observed.packet_type for observed in link.inbox]
        after = types[types.index(DISCONNECT) + 1 :]
        names = ", ".join(PACKET_NAMES[each] for each in after)
        trial.must(not after, f"the broker sent {names} after its DISCONNECT")


async def broker_closes_after_its_disconnect(trial: Trial) -> None:
    for link in await _disconnected_links(trial):
        trial.must(link.is_closed, "the broker sent DISCONNECT and left the connection open")


async def disconnect_of_a_broker_has_an_error_code(trial: Trial) -> None:
    """[4.13.1, 3.14.2.1] For a Malformed Packet or a Protocol Error the code is one of an error."""
    for link in await _disconnected_links(trial):
        last = await link.wait_for(DISCONNECT, 0)
        assert isinstance(last, Disconnect)
        trial.must(
            last.reason >= 0x80,
            f"the DISCONNECT for a protocol error has the code 0x{last.reason:02x}",
        )


async def disconnect_in_every_form_is_accepted(trial: Trial) -> None:
    """A broker that takes one for malformed would say so in a DISCONNECT of its own."""
    forms = (
        b"\xe0\x00",
        b"\xe0\x01\x00",
        b"\xe0\x02\x00\x00",
        wire.disconnect(trial.version, 0, wire.text_property(0x1F, b"done")),
        wire.disconnect(trial.version, 0, wire.user_property(b"a", b"b") * 2),
    )
    for data in forms if trial.is_5 else forms[:1]:
        link = await trial.connect()
        with trial.control():
            await trial.must_stay_open(link)
        await end_with(link, data)
        trial.must(not link.inbox, f"the broker answered the DISCONNECT {data.hex()}")


async def packet_before_disconnect_is_handled(trial: Trial) -> None:
    link = await trial.connect()
    with trial.control():
        await trial.must_stay_open(link)
    publish = wire.publish(trial.version, trial.topic(), qos=1, packet_id=7)
    watcher = await trial.connect("w")
    await trial.subscribe(watcher, (trial.topic(), 1))
    await link.send(publish + wire.disconnect(trial.version), "a PUBLISH and DISCONNECT")
    await trial.must_receive_message(watcher)
    extra = [each for each in link.inbox if each.packet_type != PUBACK]
    trial.must(not extra, "the broker answered a DISCONNECT")


CASES: Final = (
    Case(
        "connack-of-a-client",
        RECEIVE,
        "A broker closes the connection for a CONNACK of a client.",
        connack_of_a_client_closes,
        mqtt311="U3-02 4.8.0-1",
        mqtt5="U5-02 4.13.1-1",
    ),
    Case(
        "suback-of-a-client",
        RECEIVE,
        "A broker closes the connection for a SUBACK of a client.",
        suback_of_a_client_closes,
        mqtt311="U3-02 4.8.0-1",
        mqtt5="U5-02 4.13.1-1",
    ),
    Case(
        "unsuback-of-a-client",
        RECEIVE,
        "A broker closes the connection for an UNSUBACK of a client.",
        unsuback_of_a_client_closes,
        mqtt311="U3-02 4.8.0-1",
        mqtt5="U5-02 4.13.1-1",
    ),
    Case(
        "pingresp-of-a-client",
        RECEIVE,
        "A broker closes the connection for a PINGRESP of a client.",
        pingresp_of_a_client_closes,
        mqtt311="U3-02 4.8.0-1",
        mqtt5="U5-02 4.13.1-1",
    ),
    Case(
        "nothing-after-disconnect",
        SEND,
        "A broker sends nothing after its DISCONNECT.",
        nothing_follows_the_disconnect_of_a_broker,
        mqtt5="3.14.4-1",
    ),
    Case(
        "close-after-disconnect",
        SEND,
        "A broker closes the connection after its DISCONNECT.",
        broker_closes_after_its_disconnect,
        mqtt5="3.14.4-2 4.13.2-1",
    ),
    Case(
        "disconnect-has-an-error-code",
        SEND,
        "A broker that disconnects for an error says so in its code.",
        disconnect_of_a_broker_has_an_error_code,
        mqtt5="3.14.2-1",
    ),
    Case(
        "disconnect-in-every-form",
        RECEIVE,
        "A broker accepts DISCONNECT in its short and long forms.",
        disconnect_in_every_form_is_accepted,
        mqtt311="3.14.1-1",
        mqtt5="3.14.1-1 3.14.2-1",
    ),
    Case(
        "packet-before-disconnect",
        RECEIVE,
        "A broker handles a PUBLISH that comes in the segment of DISCONNECT, before it.",
        packet_before_disconnect_is_handled,
        mqtt311="4.5.0-1",
        mqtt5="4.5.0-1",
    ),
)
