"""The plan of a bridge: its settings, checked and turned into the objects that it needs."""

import ssl
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from semel.client.address import Address
from semel.client.authentication import ClientAuthentication
from semel.client.bridge_core import QueueLimits
from semel.client.bridge_rules import Translation, find_returning
from semel.client.bridge_settings import BridgeSettings
from semel.client.connect_parameters import ConnectParameters
from semel.client.connection_settings import CONNECTION_KEYS, VERSIONS
from semel.client.ingest_plan import (
    FIRST_WAIT,
    RETAINED_IF_NEW,
    Credentials,
    broker_address,
    credentials,
    tls_context,
)
from semel.client.ingest_settings import IngestSettings
from semel.client.outbox import make_client_id
from semel.client.reconnect import Backoff
from semel.mqtt.packet_types import MQTT5, MQTT311
from semel.mqtt.packets.subscribe import Subscription
from semel.mqtt.properties import (
    MAXIMUM_PACKET_SIZE,
    NO_PROPERTIES,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY_INTERVAL,
    Properties,
)
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.topics import quoted
from semel.mqtt.violation import Violation
from semel.settings import SettingProblem, SettingsError

LOCAL: Final = "local"
REMOTE: Final = "remote"


@dataclass(frozen=True)
class SidePlan:
    """One of the two brokers, and how to connect to it."""

    # local or remote
    side: str
    # The name in the path of messages.
    broker_name: str
    address: Address
    tls: ssl.SSLContext | None
    connect_parameters: ConnectParameters
    # The authentication method, None without one.
    authentication: ClientAuthentication | None
    # "": the one in the store, or a new one
    client_id: str
    subscriptions: tuple[Subscription, ...]
    # For a broker that refuses MQTT 5.0, if no version was chosen: the plan, or why there is none.
    fallback: "SidePlan | str | None" = None


@dataclass(frozen=True)
class BridgePlan:
    """All that a Bridge needs; every part is valid."""

    name: str
    data: Path
    durability: str
    local: SidePlan
    remote: SidePlan
    to_remote: tuple[Translation, ...]
    to_local: tuple[Translation, ...]
    limits: QueueLimits
    backoff: Backoff

    def with_side(self, side: SidePlan) -> "BridgePlan":
        """The plan with another plan for this side."""
        return replace(self, local=side) if side.side == LOCAL else replace(self, remote=side)


def make_bridge_plans(
    bridges: Iterable[BridgeSettings], names: tuple[str, ...] = ()
) -> list[BridgePlan]:
    """The plans of the bridges with these names, or of all. Raises SettingsError."""
    known = {each.name: each for each in bridges}
    problems: list[str] = []
    if not known:
        problems.append(
            "there is no bridge: give a file with a [[bridge]] section by --config or SEMEL_CONFIG"
        )
    elif unknown := [name for name in names if name not in known]:
        listed = ", ".join(known)
        problems += [f"there is no bridge {quoted(name)}; known: {listed}" for name in unknown]
    plans: list[BridgePlan] = []
    folders: dict[Path, str] = {}
    for each in known.values():
        if names and each.name not in names:
            continue
        folder = each.data.absolute()
        if folder in folders:
            problems.append(
                f"[[bridge]] {each.name}: data is the folder of bridge {folders[folder]}: each"
                " bridge needs a folder of its own"
            )
        folders[folder] = each.name
        try:
            plans.append(make_bridge_plan(each))
        except SettingsError as problem:
            problems += problem.problems
    if problems:
        raise SettingsError(problems)
    return plans


def make_bridge_plan(settings: BridgeSettings) -> BridgePlan:
    """The plan for these settings. Raises SettingsError with every problem."""
    problems: list[str] = []
    outward, inward = settings.translations_to_remote, settings.translations_to_local
    if not outward and not inward:
        problems.append("there is no topic to move: set to_remote, to_local or both")
    client_id = settings.local_client_id
    if client_id is not None and client_id == settings.remote_client_id:
        problems.append(
            f"local_client_id and remote_client_id are both {quoted(client_id)}: choose two, so"
            " that a mistake in an address cannot make them take over each other's session"
        )
    local = _side_plan(settings, LOCAL, outward, inward, problems)
    remote = _side_plan(settings, REMOTE, inward, outward, problems)
    if problems:
        raise SettingsError(f"[[bridge]] {settings.name}: {each}" for each in problems)
    assert local is not None
    assert remote is not None
    return BridgePlan(
        name=settings.name,
        data=settings.data,
        durability=settings.durability,
        local=local,
        remote=remote,
        to_remote=outward,
        to_local=inward,
        limits=QueueLimits(
            settings.maximum_queued,
            settings.maximum_queued_bytes,
            settings.maximum_held_bytes,
        ),
        backoff=Backoff(min(FIRST_WAIT, settings.longest_wait), settings.longest_wait),
    )


def _side_plan(
    settings: BridgeSettings,
    side: str,
    subscribed: tuple[Translation, ...],
    published: tuple[Translation, ...],
    problems: list[str],
) -> SidePlan | None:
    """The plan of one side, None if `problems` got a sentence about it."""
    given = {key: getattr(settings, f"{side}_{key}") for key in CONNECTION_KEYS}
    connection = IngestSettings(url=getattr(settings, side), **given)
    found: list[str] = []
    address = broker_address(connection, found)
    tls = None if address is None else tls_context(connection, address, found)
    user = credentials(connection, address, found)
    version = VERSIONS[connection.mqtt_version or "5"]
    parameters = _connect_parameters(settings, version, user)
    try:
        parameters.connect(connection.client_id or make_client_id(), False, None)
    except Violation as violation:
        found.append(f"these settings make an invalid CONNECT: {violation}")
    loop = _loop_problem(side, subscribed, published)
    if version != MQTT5 and loop is not None:
        found.append(loop)
    problems += [_with_key(each, side) for each in found]
    if found or address is None:
        return None
    plan = SidePlan(
        side=side,
        broker_name=getattr(settings, f"{side}_name") or f"{settings.name}.{side}",
        address=address,
        tls=tls,
        connect_parameters=parameters,
        authentication=user.authentication,
        client_id=connection.client_id or "",
        subscriptions=_subscriptions(subscribed, version),
    )
    if connection.mqtt_version:
        return plan
    if user.authentication is not None:
        return replace(plan, fallback=f"{side}_scram cannot be used: it needs MQTT 5.0")
    if loop is not None:
        return replace(plan, fallback=loop)
    fallback = replace(
        plan,
        connect_parameters=_connect_parameters(settings, MQTT311, user),
        subscriptions=_subscriptions(subscribed, MQTT311),
    )
    return replace(plan, fallback=fallback)


def _with_key(problem: str, side: str) -> str:
    """A problem of an ingest's setting as a sentence that names the key of this side."""
    if not isinstance(problem, SettingProblem):
        return f"{side}: {problem}"
    key = side if problem.setting == "url" else f"{side}_{problem.setting}"
    return f"{key}{problem.rest}"


def _connect_parameters(
    settings: BridgeSettings, version: int, user: Credentials
) -> ConnectParameters:
    properties = NO_PROPERTIES
    expiry = NEVER_EXPIRES
    if version == MQTT5:
        expiry = settings.session_expiry
        properties = Properties(
            [
                (SESSION_EXPIRY_INTERVAL, expiry),
                (RECEIVE_MAXIMUM, settings.receive_maximum),
                (MAXIMUM_PACKET_SIZE, settings.maximum_packet_size),
                *user.properties,
            ]
        )
    return ConnectParameters(
        version,
        keep_alive=settings.keep_alive,
        user_name=user.user_name,
        password=user.password,
        will=None,
        properties=properties,
        session_expiry=expiry,
        maximum_packet_size=settings.maximum_packet_size,
    )


def _subscriptions(translations: tuple[Translation, ...], version: int) -> tuple[Subscription, ...]:
    """What to subscribe to. With 5.0 the bridge does not get its own messages back, RETAIN stays
    as it was published, and retained messages are sent for a new subscription only."""
    if version != MQTT5:
        return tuple(Subscription(each.source_filter, each.qos) for each in translations)
    return tuple(
        Subscription(
            each.source_filter,
            each.qos,
            no_local=True,
            retain_as_published=True,
            retain_handling=RETAINED_IF_NEW,
        )
        for each in translations
    )


def _loop_problem(
    side: str, subscribed: tuple[Translation, ...], published: tuple[Translation, ...]
) -> str | None:
    """Why the rules need MQTT 5.0 on this side, None if they do not."""
    returning = find_returning(subscribed, published)
    if returning is None:
        return None
    one, other = returning
    return (
        f"the bridge subscribes to {quoted(one)} and publishes to {quoted(other)} on the {side}"
        " broker, and MQTT 3.1.1 has no No Local that keeps it from moving its own messages back:"
        " use MQTT 5.0 there, or different prefixes for the two directions"
    )
