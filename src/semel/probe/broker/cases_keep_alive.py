"""Cases: Keep Alive [3.1.2.10, 3.2.2.3.14]. Their time is that of one second and a half."""

import asyncio
import time
from typing import Final, NoReturn

from semel.mqtt.packet_types import PUBLISH
from semel.probe import wire
from semel.probe.broker.case import Case
from semel.probe.broker.connect_steps import connack_of, pause, watch
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import Trial
from semel.probe.claims import ClaimArguable, ControlFailed
from semel.probe.verdicts import RECEIVE, SEND

# The longest Server Keep Alive that a case waits for.
LONGEST: Final = 3
# A clock of the broker that is not exact, and the way of the packets.
INEXACT: Final = 0.1


def _keep_alive(trial: Trial, link: ProbeLink, wanted: int) -> int:
    """What holds on a connection: the client's value, unless the broker has set another."""
    given = connack_of(link).properties.server_keep_alive
    if given is None:
        return wanted
    if given > LONGEST:
        trial.not_applicable(f"the broker assigned a Server Keep Alive of {given} s")
    return given


def _closed_early(trial: Trial, when: str) -> NoReturn:
    """The broker closed before the Keep Alive had passed: forbidden in 5.0 [MQTT-3.2.2-22]."""
    if trial.is_5:
        trial.refute(f"the broker closed {when}")
    raise ClaimArguable(
        f"the broker closed {when}: 3.1.1 lets a server disconnect a client that it considers"
        " inactive, whatever the Keep Alive"
    )


async def silent_client_is_disconnected(trial: Trial) -> None:
    link = await trial.connect(keep_alive=1)
    keep_alive = _keep_alive(trial, link, 1)
    with trial.control():
        await trial.must_stay_open(link)
    await link.send(wire.pingreq())
    last = time.monotonic()
    await trial.must_close(link, 1.5 * keep_alive + trial.timeout)
    after = link.closed_at - last
    if after < keep_alive - INEXACT:
        _closed_early(trial, f"after {after:.1f} s, but the Keep Alive is {keep_alive} s")


async def pings_keep_a_connection_open(trial: Trial) -> None:
    link = await trial.connect(keep_alive=1)
    keep_alive = _keep_alive(trial, link, 1)
    for _ in range(5):
        await asyncio.sleep(0.8 * keep_alive)
        await trial.must_stay_open(link, " although PINGREQs came within the Keep Alive")


async def any_packet_keeps_a_connection_open(trial: Trial) -> None:
    link = await trial.connect(keep_alive=1)
    keep_alive = _keep_alive(trial, link, 1)
    for _ in range(5):
        await asyncio.sleep(0.8 * keep_alive)
        await link.send(wire.publish(trial.version, trial.topic()))
    await trial.must_stay_open(link, " although PUBLISHes came within the Keep Alive")


async def packets_to_the_client_do_not_count(trial: Trial) -> None:
    topic = trial.topic()
    link = await trial.connect(keep_alive=1)
    keep_alive = _keep_alive(trial, link, 1)
    await trial.subscribe(link, (topic, 0))
    last = time.monotonic()
    publisher = await trial.connect("p")
    while time.monotonic() < last + 1.5 * keep_alive + trial.timeout and not link.is_closed:
        await trial.publish(publisher, topic)
        await link.wait_closed(0.3)
    types = [observed.packet_type for observed in link.inbox]
    with trial.control():
        trial.must(PUBLISH in types, "no message was delivered meanwhile")
    trial.must(
        link.is_closed, "the broker kept a silent client because it delivered messages to it"
    )


async def keep_alive_0_switches_it_off(trial: Trial) -> None:
    link = await trial.connect(keep_alive=0)
    given = connack_of(link).properties.server_keep_alive
    if given and given < 5:
        trial.not_applicable(f"the broker assigned a Server Keep Alive of {given} s")
    with trial.control():
        await trial.must_stay_open(link)
    await pause(trial, 4.0, "with Keep Alive 0 nothing needs to be sent")
    if link.is_closed:
        raise ClaimArguable(
            "the broker closed a connection with Keep Alive 0 within 4 s: a server may disconnect"
            " a client that it considers inactive, whatever the Keep Alive"
        )
    await trial.must_stay_open(link, " although the Keep Alive is 0")


async def client_is_not_disconnected_within_its_keep_alive(trial: Trial) -> None:
    link = await trial.connect(keep_alive=10)
    given = connack_of(link).properties.server_keep_alive
    if given is not None and given < 10:
        trial.not_applicable(f"the broker assigned a Server Keep Alive of {given} s")
    with trial.control():
        await trial.must_stay_open(link)
    await pause(trial, 5.0, "half of the Keep Alive")
    if link.is_closed:
        _closed_early(trial, "within 5 s, but the Keep Alive is 10 s")
    await trial.must_stay_open(link, " within the Keep Alive of 10 s")


async def keep_alive_timeout_publishes_the_will(trial: Trial) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await trial.connect(keep_alive=1, will=(topic, b"silent"))
    keep_alive = _keep_alive(trial, link, 1)
    with trial.control():
        await trial.must_stay_open(link)
    deadline = time.monotonic() + 1.5 * keep_alive + trial.timeout
    while time.monotonic() < deadline:
        if await watcher.wait_for(PUBLISH, 0.5) is not None:
            return
    if not link.is_closed:
        raise ControlFailed("the broker did not disconnect a silent client")
    trial.refute("the will of a client that had been silent was not published")


CASES: Final = (
    Case(
        "keep-alive-silent-client",
        SEND,
        "A broker disconnects a client that is silent for 1.5 times the Keep Alive, not before it.",
        silent_client_is_disconnected,
        mqtt311="3.1.2-24",
        mqtt5="3.1.2-22 3.2.2-22",
        is_slow=True,
    ),
    Case(
        "keep-alive-pings",
        RECEIVE,
        "A broker does not disconnect a client that sends PINGREQ within the Keep Alive.",
        pings_keep_a_connection_open,
        mqtt311="3.1.2-24",
        mqtt5="3.1.2-22 3.2.2-22",
        is_slow=True,
    ),
    Case(
        "keep-alive-any-packet",
        RECEIVE,
        "A broker does not disconnect a client that sends any packet within the Keep Alive.",
        any_packet_keeps_a_connection_open,
        mqtt311="3.1.2-24",
        mqtt5="3.1.2-22 3.2.2-22",
        is_slow=True,
    ),
    Case(
        "keep-alive-deliveries-do-not-count",
        SEND,
        "A broker disconnects a client that is silent, although messages are delivered to it.",
        packets_to_the_client_do_not_count,
        mqtt311="3.1.2-24",
        mqtt5="3.1.2-22",
        is_slow=True,
    ),
    Case(
        "keep-alive-0",
        SEND,
        "A broker does not disconnect a silent client whose Keep Alive is 0.",
        keep_alive_0_switches_it_off,
        mqtt311="3.1.2-24",
        mqtt5="3.1.2-22 3.2.2-22",
        is_slow=True,
    ),
    Case(
        "keep-alive-not-earlier",
        SEND,
        "A broker does not disconnect a client within its Keep Alive.",
        client_is_not_disconnected_within_its_keep_alive,
        mqtt311="3.1.2-24",
        mqtt5="3.1.2-22 3.2.2-22",
        is_slow=True,
    ),
    Case(
        "keep-alive-timeout-publishes-the-will",
        SEND,
        "A broker publishes the will of a client that was silent for too long.",
        keep_alive_timeout_publishes_the_will,
        mqtt311="3.1.2-8 3.1.2-24",
        mqtt5="3.1.2-8 3.1.2-22",
        is_slow=True,
    ),
)
