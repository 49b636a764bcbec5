"""The plan of an ingest: its settings, checked and turned into the objects that it needs."""

import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from semel.client.address import Address, BadAddress, parse_address
from semel.client.authentication import ClientAuthentication
from semel.client.connect_parameters import ConnectParameters
from semel.client.connection_settings import VERSIONS
from semel.client.ingest_settings import IngestSettings
from semel.client.outbox import make_client_id
from semel.client.reconnect import Backoff
from semel.client.scram import ScramAuthentication
from semel.client.tls import TlsError, make_context
from semel.mqtt.packet_types import MQTT5, MQTT311
from semel.mqtt.packets.subscribe import Subscription
from semel.mqtt.properties import (
    AUTHENTICATION_METHOD,
    NO_PROPERTIES,
    SESSION_EXPIRY_INTERVAL,
    Properties,
    PropertyItem,
)
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.topics import SHARE_PREFIX, check_share, check_topic_filter, is_shared, split_share
from semel.mqtt.violation import Violation
from semel.settings import SettingProblem, SettingsError
from semel.store.roots import LocalRoot, RootError, open_root
from semel.store.settings import MEMORY, StoreSettings, StreamSettings

# The default directory of the store below a local root: readers skip names with a dot.
DATA_FOLDER: Final = ".semel-ingest"
# Parameters of `make_context` whose settings have other names.
TLS_SETTINGS: Final = {
    "certfile": "cert",
    "keyfile": "key",
    "password": "key_password",  # nosec B105 # a name of a setting
    "minimum_version": "tls_version",
    "alpn": "tls_alpn",
}
# [5.0 §3.8.3.1] Retain Handling: send retained messages for a new subscription only.
RETAINED_IF_NEW: Final = 1
# The wait before the first attempt to reconnect, in seconds.
FIRST_WAIT: Final = 0.5


@dataclass(frozen=True)
class Credentials:
    """How a client proves who it is: by CONNECT, or else by an authentication method."""

    user_name: str | None = None
    password: bytes | None = field(default=None, repr=False)
    authentication: ClientAuthentication | None = None

    @property
    def properties(self) -> list[PropertyItem]:
        """The properties of CONNECT that announce the method."""
        if self.authentication is None:
            return []
        return [(AUTHENTICATION_METHOD, self.authentication.method)]


@dataclass(frozen=True)
class IngestPlan:
    """All that an Ingest needs; every part is valid."""

    address: Address
    tls: ssl.SSLContext | None
    connect_parameters: ConnectParameters
    # The authentication method, None without one.
    authentication: ClientAuthentication | None
    # "": the one in the store, or a new one
    client_id: str
    subscriptions: tuple[Subscription, ...]
    store: StoreSettings
    stream: StreamSettings
    backoff: Backoff
    # Settings that are valid, but may not do what the user expects.
    warnings: tuple[str, ...]
    # For a broker that refuses MQTT 5.0, if no version was chosen.
    fallback: "IngestPlan | None" = None


def make_plan(settings: IngestSettings, store: StoreSettings) -> IngestPlan:
    """The plan for these settings. Raises SettingsError with every problem."""
    problems: list[str] = []
    version = VERSIONS[settings.mqtt_version or "5"]
    address = broker_address(settings, problems)
    subscriptions = _subscriptions(settings, version, problems)
    tls = None if address is None else tls_context(settings, address, problems)
    user = credentials(settings, address, problems)
    connect_parameters = _connect_parameters(settings, version, user, problems)
    if settings.stream is None:
        problems.append("no stream is given: name it with --stream NAME")
    store_settings = _store_settings(store, settings.stream or "", problems)
    if problems:
        raise SettingsError(problems)
    assert address is not None
    assert connect_parameters is not None
    assert settings.stream is not None
    stream = StreamSettings(
        name=settings.stream,
        # The subscriptions select the messages, and all of them are recorded.
        filter="#",
        retain_for=settings.retain_for,
        retain_bytes=settings.retain_bytes,
    )
    plan = IngestPlan(
        address=address,
        tls=tls,
        connect_parameters=connect_parameters,
        authentication=user.authentication,
        client_id=settings.client_id or "",
        subscriptions=subscriptions,
        store=store_settings,
        stream=stream,
        backoff=Backoff(min(FIRST_WAIT, settings.longest_wait), settings.longest_wait),
        warnings=_warnings(subscriptions, version),
    )
    if settings.mqtt_version:
        return plan
    return replace(plan, fallback=_fallback(settings, plan, user))


def _fallback(settings: IngestSettings, plan: IngestPlan, user: Credentials) -> IngestPlan | None:
    """The plan for a broker that refuses MQTT 5.0; None if only 5.0 allows these settings."""
    if user.authentication is not None:
        return None
    problems: list[str] = []
    subscriptions = _subscriptions(settings, MQTT311, problems)
    connect_parameters = _connect_parameters(settings, MQTT311, user, problems)
    if connect_parameters is None or problems:
        return None
    warnings = _warnings(subscriptions, MQTT311)
    return replace(
        plan, connect_parameters=connect_parameters, subscriptions=subscriptions, warnings=warnings
    )


def problem_with(
    setting: str, reason: str, *, subject: str = "", value: str = ""
) -> SettingProblem:
    """A problem with a setting. If `value` is given, the sentence starts with the flag."""
    if value:
        subject = f"--{setting.replace('_', '-')} {value}"
    sentence = f"{subject}: {reason}" if subject else reason
    rest = f" {value}: {reason}" if value else f": {reason}"
    return SettingProblem(sentence, setting=setting, rest=rest)


def broker_address(settings: IngestSettings, problems: list[str]) -> Address | None:
    """The address of the broker, None if `problems` got a sentence about it."""
    if settings.url is None:
        problems.append(
            SettingProblem(
                "no broker is given: its address is mqtt://host[:port]",
                setting="url",
                rest=" is missing: give the address of the broker, mqtt://host[:port]",
            )
        )
        return None
    try:
        return parse_address(settings.url)
    except BadAddress as problem:
        problems.append(problem_with("url", str(problem), subject="the broker"))
        return None


def _subscriptions(
    settings: IngestSettings, version: int, problems: list[str]
) -> tuple[Subscription, ...]:
    if not settings.topic:
        problems.append(
            SettingProblem(
                "no topic is given: use --topic FILTER, once or several times",
                setting="topic",
                rest=" is missing: give topic filters, such as plant/#",
            )
        )
    found: dict[str, Subscription] = {}
    for topic in settings.topic:
        topic_filter = topic
        if settings.share is not None:
            if is_shared(topic):
                reason = "it already names a share, and a share is given as well"
                problems.append(problem_with("topic", reason, value=topic))
                continue
            topic_filter = f"{SHARE_PREFIX}{settings.share}/{topic}"
        try:
            check_topic_filter(topic_filter, None)
            check_share(topic_filter, MQTT5, None)
        except Violation as violation:
            problems.append(problem_with("topic", str(violation), value=topic))
            continue
        found[topic_filter] = Subscription(
            topic_filter,
            settings.qos,
            retain_handling=RETAINED_IF_NEW if version == MQTT5 else 0,
        )
    return tuple(found.values())


def tls_context(
    settings: IngestSettings, address: Address, problems: list[str]
) -> ssl.SSLContext | None:
    """The TLS context for an address, None without TLS. Appends what is wrong to `problems`."""
    options = {
        "cafile": settings.cafile,
        "capath": settings.capath,
        "cert": settings.cert,
        "key": settings.key,
        "key_password": settings.key_password,
        "tls_version": settings.tls_version,
        "ciphers": settings.ciphers,
        "tls_alpn": settings.tls_alpn,
        "insecure": settings.insecure,
    }
    if not address.secure:
        for name, value in options.items():
            if value:
                rest = " needs TLS: use an mqtts:// or wss:// address"
                problems.append(SettingProblem(f"{name}{rest}", setting=name, rest=rest))
        return None
    try:
        return make_context(
            cafile=settings.cafile,
            capath=settings.capath,
            certfile=settings.cert,
            keyfile=settings.key,
            password=settings.key_password,
            insecure=settings.insecure,
            minimum_version=settings.tls_version,
            ciphers=settings.ciphers,
            alpn=settings.tls_alpn,
        )
    except TlsError as problem:
        setting = TLS_SETTINGS.get(problem.parameter, problem.parameter)
        rest = str(problem).removeprefix(problem.parameter)
        problems.append(SettingProblem(str(problem), setting=setting, rest=rest))
        return None


def _password(settings: IngestSettings, problems: list[str]) -> bytes | None:
    if settings.password_file is None:
        return None if settings.password is None else settings.password.encode()
    if settings.password is not None:
        problems.append(
            SettingProblem(
                "password and password_file are both given: give only one",
                setting="password_file",
                rest=" and a password are both given: give only one",
            )
        )
    try:
        data = settings.password_file.read_bytes()
    except OSError as problem:
        reason = str(problem.strerror or problem)
        problems.append(problem_with("password_file", reason, value=str(settings.password_file)))
        return None
    return data.removesuffix(b"\n").removesuffix(b"\r")


def credentials(
    settings: IngestSettings, address: Address | None, problems: list[str]
) -> Credentials:
    """User name and password: those of the settings, or else of the address; and by which method
    they are proved. Appends what is wrong to `problems`."""
    count = len(problems)
    password = _password(settings, problems)
    user_name = settings.username
    if address is not None:
        user_name = address.user_name if user_name is None else user_name
        password = address.password if password is None else password
    if not settings.scram:
        return Credentials(user_name, password)
    if settings.mqtt_version not in (None, "5"):
        _add_scram_problem("needs MQTT 5.0: leave mqtt_version out, or set it to 5", problems)
    if address is None or len(problems) > count:
        # What is missing may be in the address or the file that could not be read.
        return Credentials()
    if user_name is None or password is None:
        _add_scram_problem("needs a user name and a password: set both", problems)
        return Credentials()
    try:
        return Credentials(authentication=ScramAuthentication(user_name, password.decode()))
    except UnicodeDecodeError:
        _add_scram_problem("cannot be used: the password is not UTF-8", problems)
    except ValueError as problem:
        _add_scram_problem(f"cannot be used: {problem}", problems)
    return Credentials()


def _add_scram_problem(reason: str, problems: list[str]) -> None:
    problems.append(SettingProblem(f"scram {reason}", setting="scram", rest=f" {reason}"))


def _connect_parameters(
    settings: IngestSettings, version: int, user: Credentials, problems: list[str]
) -> ConnectParameters | None:
    properties = NO_PROPERTIES
    expiry = NEVER_EXPIRES
    if version == MQTT5:
        expiry = settings.session_expiry
        # No Receive Maximum: the store limits what is read.
        properties = Properties([(SESSION_EXPIRY_INTERVAL, expiry), *user.properties])
    connect_parameters = ConnectParameters(
        version,
        keep_alive=settings.keep_alive,
        user_name=user.user_name,
        password=user.password,
        will=None,
        properties=properties,
        session_expiry=expiry,
    )
    try:
        connect_parameters.connect(settings.client_id or make_client_id(), False, None)
    except Violation as violation:
        problems.append(f"these settings make an invalid CONNECT: {violation}")
        return None
    return connect_parameters


def _store_settings(store: StoreSettings, stream: str, problems: list[str]) -> StoreSettings:
    """The settings of the store, with its directory."""
    if store.durability == MEMORY:
        rest = f" {MEMORY} does not survive a restart: choose disk or os"
        problems.append(SettingProblem(f"durability{rest}", setting="durability", rest=rest))
    if store.root is None:
        problems.append(
            SettingProblem(
                "no root is given: use --root with the directory or object store for segments",
                setting="root",
                rest=" is missing: give the directory or object store for segments",
            )
        )
        return store
    try:
        root = open_root(store.root)
    except RootError as problem:
        problems.append(problem_with("root", str(problem), subject="--root"))
        return store
    except OSError:
        # An object store that cannot be reached at the moment.
        root = None
    if store.data is not None:
        return store
    if not isinstance(root, LocalRoot):
        problems.append(
            SettingProblem(
                "the root is not a local directory: give the directory of the store with --data",
                setting="data",
                rest=" is missing: the root is not a local directory, so the store needs one",
            )
        )
        return store
    return replace(store, data=Path(root.address) / DATA_FOLDER / stream)


def _warnings(subscriptions: tuple[Subscription, ...], version: int) -> tuple[str, ...]:
    found: list[str] = []
    filters = [each.topic_filter for each in subscriptions]
    if version != MQTT5:
        found.append(
            "MQTT 3.1.1 cannot request a session expiry: an outage longer than the broker keeps"
            " the session loses messages"
        )
        if any(is_shared(each) for each in filters):
            found.append(
                "MQTT 3.1.1 has no shared subscriptions: whether they work depends on the broker"
            )
    for number, one in enumerate(filters):
        for other in filters[number + 1 :]:
            if do_overlap(split_share(one)[1], split_share(other)[1]):
                found.append(
                    f"{one} and {other} overlap: the broker may send a message that matches both"
                    " twice, and each becomes a row"
                )
    return tuple(found)


def do_overlap(one: str, other: str) -> bool:
    """Whether a topic can match both filters."""
    left, right = one.split("/"), other.split("/")
    if {left[0], right[0]} & {"+", "#"} and "$" in (left[0][:1], right[0][:1]):
        # [MQTT-4.7.2-1] a leading wildcard does not match a topic that starts with $
        return False
    for at in range(max(len(left), len(right))):
        first = left[at] if at < len(left) else None
        second = right[at] if at < len(right) else None
        if first == "#" or second == "#":
            return True
        if first is None or second is None:
            # The longer filter does not continue with #, which would match here.
            return False
        if first != second and "+" not in (first, second):
            return False
    return True
