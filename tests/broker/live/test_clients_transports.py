"""paho-mqtt, aiomqtt and mqtt.js over every transport, with users, certificates and origins.

mqtt.js runs in Node.js and on a page in headless Chromium. What is missing on a machine is
skipped, and says so.
"""

import asyncio
import base64
import gc
import itertools
import ssl
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from tests.broker.broker_process import PATIENCE
from tests.broker.browser.mqtt_js import CHROMIUM, Result, Step, WebSite, install, run_in_node
from tests.broker.live.test_server_access import RIGHTS, Site
from tests.broker.live.test_server_listeners import Broker, broker
from tests.broker.tls_files import TlsFiles

if TYPE_CHECKING:
    import aiomqtt
    import paho.mqtt.client as mqtt
else:
    mqtt = pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed")
    aiomqtt = pytest.importorskip("aiomqtt", reason="aiomqtt is not installed")

from tests.broker import aiomqtt_client, paho_client

TRANSPORTS = ("tcp", "tls", "ws", "wss", "unix")
ENCRYPTED = ("tls", "wss")
# Listeners that require a client certificate, whose Common Name is the user.
CERTIFICATES = ("tls-certificates", "wss-certificates")
VERSIONS = ("3.1.1", "5.0")
# Nothing, every byte, and more than one read of a socket or frame of TLS brings.
PAYLOADS = (b"", bytes(range(256)), bytes(range(250)) * 800)
BAD_PASSWORD = 0x86

ON_EVERY_LISTENER = pytest.mark.parametrize("listener", [*TRANSPORTS, *CERTIFICATES])
ON_EVERY_TRANSPORT = pytest.mark.parametrize("listener", TRANSPORTS)
ON_ENCRYPTED_LISTENERS = pytest.mark.parametrize("listener", ENCRYPTED)
ON_ALL_VERSIONS = pytest.mark.parametrize("version", VERSIONS)
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="not installed: chromium")

number = itertools.count()

# Topic, payload, QoS.
Message = tuple[str, bytes, int]


@dataclass(frozen=True)
class Way:
    """How a client reaches one listener and proves who it is."""

    running: Broker
    files: TlsFiles
    listener: str
    password: str = "ann"
    ca: str = "ca"
    certificate: str | None = "client"

    @property
    def is_encrypted(self) -> bool:
        return self.listener.startswith(ENCRYPTED)

    @property
    def is_by_certificate(self) -> bool:
        return self.listener in CERTIFICATES

    @property
    def transport(self) -> Literal["tcp", "websockets", "unix"]:
        if self.listener == "unix":
            return "unix"
        return "websockets" if self.listener.startswith("ws") else "tcp"

    @property
    def address(self) -> tuple[str, int]:
        """For paho, which takes the path of a Unix socket as a host, but wants a port."""
        if self.listener == "unix":
            return str(self.running.listeners["unix"]["path"]), 1
        # The certificate is for localhost.
        return "localhost", self.running.port(self.listener)

    def tls(self) -> dict[str, Any]:
        """Files of certificates, by the names of `tls_set` of paho."""
        found = {"ca_certs": str(self.files / f"{self.ca}.pem")}
        if self.is_by_certificate and self.certificate is not None:
            found["certfile"] = str(self.files / f"{self.certificate}.pem")
            found["keyfile"] = str(self.files / f"{self.certificate}.key")
        return found

    def paho(self, client_id: str, version: str) -> paho_client.Client:
        made = paho_client.Client(self, client_id, version, transport=self.transport)
        if self.is_encrypted:
            made.paho.tls_set(**self.tls())
        if not self.is_by_certificate:
            made.paho.username_pw_set("ann", self.password)
        return made

    def aiomqtt(self, client_id: str, version: str) -> aiomqtt_client.Client:
        options: dict[str, Any] = {"transport": self.transport}
        if self.transport == "websockets":
            options["websocket_path"] = "/mqtt"
        if self.is_encrypted:
            options["tls_params"] = aiomqtt.TLSParameters(**self.tls())
        if not self.is_by_certificate:
            options |= {"username": "ann", "password": self.password}
        return aiomqtt_client.Client(self.address, client_id, version, options=options)

    def exchange(self, topic: str, version: str, *, in_browser: bool = False) -> Step:
        """The step for mqtt.js. A browser verifies certificates in its own way."""
        options: dict[str, Any] = {"protocolVersion": 5 if version == "5.0" else 4}
        options["connectTimeout"] = 1_000 * PATIENCE
        if self.is_encrypted and not in_browser:
            names = {"ca_certs": "ca", "certfile": "cert", "keyfile": "key"}
            options |= {names[key]: Path(path).read_text() for key, path in self.tls().items()}
        if not self.is_by_certificate:
            options |= {"username": "ann", "password": self.password}
        payloads = [payload.decode("latin-1") for payload in PAYLOADS]
        url = self.running.url(self.listener)
        if self.listener == "unix":
            url = f"mqtt+unix://{self.address[0]}"
        return {"url": url, "options": options, "topic": topic, "payloads": payloads}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("certificates"))


def configured(folder: Path, files: TlsFiles, *, origins: tuple[str, ...] = ()) -> Site:
    """A site with users, rights, and further listeners; `origins` are for those of WebSocket."""
    site = Site(folder, files)
    # One table for each listener that `Site` has not.
    tls = f'port = 0\ncertfile = "{files / "server.pem"}"\nkeyfile = "{files / "server.key"}"\n'
    clients = f'client_certificate = "required"\ncafile = "{files / "ca.pem"}"\n'
    listed = f"origins = {list(origins)}\n"
    more = {
        "tls-certificates": f'transport = "tls"\n{tls}{clients}',
        "wss-certificates": f'transport = "wss"\n{tls}{clients}',
        "ws-origins": f'transport = "ws"\nport = 0\n{listed}',
        "wss-origins": f'transport = "wss"\n{tls}{listed}',
    }
    # Every test that is refused counts, and all have one address.
    text = site.config.read_text().replace("[users]", "[users]\nfailures_per_minute = 0")
    tables = [f'[[listener]]\nname = "{name}"\n{lines}' for name, lines in more.items()]
    site.config.write_text("\n".join([text, *tables]))
    # What `others` of the clients needs.
    site.rights.write_text(f"{RIGHTS}\nallow  cert:client  all  last/#\n")
    return site


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, files: TlsFiles) -> Iterator[Broker]:
    site = configured(tmp_path_factory.mktemp("site"), files, origins=("https://example.org",))
    with broker(*site.arguments()) as started:
        yield started


@pytest.fixture
def root() -> str:
    """Where a test has its topics to itself; the user of the certificate has a right to it."""
    return f"press/{next(number)}"


def expected(root: str) -> list[Message]:
    return [(f"{root}/{qos}", payload, qos) for qos in range(3) for payload in PAYLOADS]


def by_topic(messages: list[Message]) -> list[Message]:
    """Sorted by topic: within a topic there is an order, between topics there is none."""
    return sorted(messages, key=lambda message: message[0])


@contextmanager
def leaving_sockets() -> Iterator[None]:
    """paho leaves its socket to the garbage collector if a handshake fails."""
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        yield
        gc.collect()


# --- paho-mqtt ------------------------------------------------------------------------------------


@ON_EVERY_LISTENER
@ON_ALL_VERSIONS
def test_paho_sends_and_receives_once_at_every_qos(
    running: Broker, files: TlsFiles, root: str, listener: str, version: str
) -> None:
    client = Way(running, files, listener).paho(f"paho-{root}", version)
    assert client.open() == (False, 0)
    try:
        assert client.subscribe(f"{root}/#") == [2]
        for topic, payload, qos in expected(root):
            client.publish(topic, payload, qos)
        received = [message[:3] for message in client.others()]
        assert by_topic(received) == expected(root)
    finally:
        client.close()


@ON_EVERY_TRANSPORT
@ON_ALL_VERSIONS
def test_paho_with_a_wrong_password_is_refused(
    running: Broker, files: TlsFiles, root: str, listener: str, version: str
) -> None:
    client = Way(running, files, listener, password="wrong").paho(f"paho-{root}", version)
    # In MQTT 3.1.1 paho reports return code 4 as the same reason code.
    assert client.open() == (False, BAD_PASSWORD)
    client.ends.get(timeout=PATIENCE)
    client.close()


@ON_ENCRYPTED_LISTENERS
def test_paho_refuses_a_broker_of_an_unknown_ca(
    running: Broker, files: TlsFiles, root: str, listener: str
) -> None:
    client = Way(running, files, listener, ca="other-ca").paho(f"paho-{root}", "5.0")
    with leaving_sockets(), pytest.raises(ssl.SSLCertVerificationError):
        client.open()


@pytest.mark.parametrize("certificate", [None, "stranger"])
def test_paho_without_a_certificate_of_the_ca_is_refused(
    running: Broker, files: TlsFiles, root: str, certificate: str | None
) -> None:
    way = Way(running, files, "tls-certificates", certificate=certificate)
    client = way.paho(f"paho-{root}", "5.0")
    # In TLS 1.3 a client learns of the refusal when it reads, after its handshake. If it is
    # still writing then, it already fails there.
    try:
        client.paho.connect(*way.address)
        client.paho.loop_start()
        client.ends.get(timeout=PATIENCE)
    except OSError:
        pass
    client.close()
    assert client.connacks.empty()


def test_paho_states_an_origin_unless_it_is_told_not_to(
    running: Broker, files: TlsFiles, root: str
) -> None:
    """It is no browser, but what is not listed is refused, whoever states it."""
    way = Way(running, files, "wss-origins")
    client = way.paho(f"paho-{root}", "5.0")
    with leaving_sockets(), pytest.raises(mqtt.WebsocketConnectionError):
        client.open()
    ways: list[Any] = [
        {"Origin": "https://example.org"},
        lambda headers: {name: headers[name] for name in headers if name != "Origin"},
    ]
    for headers in ways:
        client.paho.ws_set_options(headers=headers)
        assert client.open() == (False, 0)
        client.close()


# --- aiomqtt --------------------------------------------------------------------------------------


@ON_EVERY_LISTENER
@ON_ALL_VERSIONS
def test_aiomqtt_sends_and_receives_once_at_every_qos(
    running: Broker, files: TlsFiles, root: str, listener: str, version: str
) -> None:
    async def act() -> list[Message]:
        client = Way(running, files, listener).aiomqtt(f"aiomqtt-{root}", version)
        async with asyncio.timeout(PATIENCE):
            assert await client.open() == 0
            assert await client.subscribe(f"{root}/#") == [2]
            for topic, payload, qos in expected(root):
                await client.publish(topic, payload, qos)
            await client.publish(f"{root}/last", b"", 2)
            received = [(await client.receive())[:3]]
            while received[-1][0] != f"{root}/last":
                received.append((await client.receive())[:3])
            # One more answer of the broker: a duplicate that was sent has arrived before it.
            await client.unsubscribe(f"{root}/#")
            assert client.inbox.empty()
            await client.close()
        return received[:-1]

    assert by_topic(asyncio.run(act())) == expected(root)


@ON_EVERY_TRANSPORT
@ON_ALL_VERSIONS
def test_aiomqtt_with_a_wrong_password_is_refused(
    running: Broker, files: TlsFiles, root: str, listener: str, version: str
) -> None:
    async def act() -> None:
        way = Way(running, files, listener, password="wrong")
        with pytest.raises(aiomqtt.exceptions.MqttConnectError) as refused:
            await way.aiomqtt(f"aiomqtt-{root}", version).client.__aenter__()
        assert aiomqtt_client.code_of(refused.value) == BAD_PASSWORD

    asyncio.run(act())


@ON_ENCRYPTED_LISTENERS
def test_aiomqtt_refuses_a_broker_of_an_unknown_ca(
    running: Broker, files: TlsFiles, root: str, listener: str
) -> None:
    async def act() -> None:
        client = Way(running, files, listener, ca="other-ca").aiomqtt(f"aiomqtt-{root}", "5.0")
        with pytest.raises(aiomqtt.MqttError, match="CERTIFICATE_VERIFY_FAILED"):
            await client.open()

    with leaving_sockets():
        asyncio.run(act())


# --- mqtt.js --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mqtt_js(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with mqtt.js."""
    return install(tmp_path_factory.mktemp("mqtt.js"))


def check_exchange(result: Result, root: str) -> None:
    assert "error" not in result, result
    assert result["granted"] == 2
    received = [
        (topic, payload.encode("latin-1"), qos) for topic, payload, qos in result["received"]
    ]
    assert received.pop() == (f"{root}/last", b"", 2)
    assert by_topic(received) == expected(root)


@ON_EVERY_LISTENER
def test_mqtt_js_in_node_sends_and_receives_once_at_every_qos(
    running: Broker, files: TlsFiles, mqtt_js: Path, root: str, listener: str
) -> None:
    way = Way(running, files, listener)
    steps = [way.exchange(f"{root}/{version}", version) for version in VERSIONS]
    for version, result in zip(VERSIONS, run_in_node(mqtt_js, steps), strict=True):
        check_exchange(result, f"{root}/{version}")


def test_mqtt_js_in_node_with_a_wrong_password_or_ca_is_refused(
    running: Broker, files: TlsFiles, mqtt_js: Path, root: str
) -> None:
    wrong_password = [
        Way(running, files, listener, password="wrong").exchange(root, version)
        for listener in TRANSPORTS
        for version in VERSIONS
    ]
    wrong_ca = [
        Way(running, files, listener, ca="other-ca").exchange(root, "5.0") for listener in ENCRYPTED
    ]
    results = run_in_node(mqtt_js, [*wrong_password, *wrong_ca])
    found = [(result["error"], result["code"]) for result in results]
    refused = [
        ("Connection refused: Bad username or password", 4),
        ("Connection refused: Bad User Name or Password", BAD_PASSWORD),
    ]
    assert found[: len(wrong_password)] == refused * len(TRANSPORTS)
    codes = [code for _, code in found[len(wrong_password) :]]
    assert codes == ["UNABLE_TO_VERIFY_LEAF_SIGNATURE"] * len(ENCRYPTED)


def test_mqtt_js_in_node_states_no_origin(
    running: Broker, files: TlsFiles, mqtt_js: Path, root: str
) -> None:
    (result,) = run_in_node(mqtt_js, [Way(running, files, "wss-origins").exchange(root, "5.0")])
    check_exchange(result, root)


# --- mqtt.js in Chromium --------------------------------------------------------------------------


@pytest.fixture
def web_site(mqtt_js: Path) -> Iterator[WebSite]:
    with WebSite(mqtt_js).serving() as site:
        yield site


@pytest.fixture
def web_broker(tmp_path: Path, files: TlsFiles, web_site: WebSite) -> Iterator[Broker]:
    """A broker that admits pages of `web_site.origin` at the listeners that list origins."""
    site = configured(tmp_path, files, origins=("https://example.org", web_site.origin))
    with broker(*site.arguments()) as started:
        yield started


def key_hash(files: TlsFiles) -> str:
    """The server's public key as Chromium names it."""
    certificate = x509.load_pem_x509_certificate((files / "server.pem").read_bytes())
    key = certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    digest = hashes.Hash(hashes.SHA256())
    digest.update(key)
    return base64.b64encode(digest.finalize()).decode()


@NEEDS_CHROMIUM
def test_mqtt_js_in_a_browser_sends_and_receives_once_at_every_qos(
    web_broker: Broker, web_site: WebSite, files: TlsFiles, root: str, tmp_path: Path
) -> None:
    """On a page of a listed origin; another client receives the same messages over TCP."""
    watcher = Way(web_broker, files, "tcp").paho("watcher", "5.0")
    assert watcher.open() == (False, 0)
    try:
        watcher.subscribe(f"{root}/#")
        ways = [(each, version) for each in ("ws-origins", "wss-origins") for version in VERSIONS]
        topics = [f"{root}/{each}/{version}" for each, version in ways]
        steps = [
            Way(web_broker, files, each).exchange(topic, version, in_browser=True)
            for topic, (each, version) in zip(topics, ways, strict=True)
        ]
        wrong = Way(web_broker, files, "wss-origins", password="wrong")
        steps.append(wrong.exchange(root, "5.0", in_browser=True))
        for subprotocols in (["mqtt"], ["mqttv3.1", "mqtt"], ["mqttv3.1"], []):
            url = web_broker.url("wss-origins")
            steps.append({"url": url, "subprotocols": subprotocols})
        results = web_site.browse(
            web_site.origin, steps, profile=tmp_path / "profile", trusted_key=key_hash(files)
        )
        for topic, result in zip(topics, results, strict=False):
            check_exchange(result, topic)
        refused, *opened = results[len(ways) :]
        assert refused["code"] == BAD_PASSWORD
        # A browser reports code 1006 whatever the reason.
        failed = {"error": "the WebSocket was closed", "code": 1006}
        assert opened == [{"subprotocol": "mqtt"}] * 2 + [failed] * 2
        seen = [message[:3] for message in watcher.others()]
        assert by_topic(seen) == by_topic(
            [(f"{topic}/last", b"", 2) for topic in topics]
            + [message for topic in topics for message in expected(topic)]
        )
    finally:
        watcher.close()


@NEEDS_CHROMIUM
def test_a_page_of_another_origin_is_refused_where_origins_are_listed(
    web_broker: Broker, web_site: WebSite, files: TlsFiles, root: str, tmp_path: Path
) -> None:
    ways = [Way(web_broker, files, name) for name in ("ws-origins", "wss-origins", "ws", "wss")]
    steps = [way.exchange(f"{root}/{way.listener}", "5.0", in_browser=True) for way in ways]
    results = web_site.browse(
        web_site.other_origin, steps, profile=tmp_path / "profile", trusted_key=key_hash(files)
    )
    assert ["error" in result for result in results] == [True, True, False, False]
    for way, result in zip(ways[2:], results[2:], strict=True):
        check_exchange(result, f"{root}/{way.listener}")
    # The log has the first of several refusals of an address at once.
    why = f"HTTP 403: the origin '{web_site.other_origin}' is not allowed"
    end = time.monotonic() + PATIENCE
    while not web_broker.texts(why):
        assert time.monotonic() < end, web_broker.events
        time.sleep(0.02)


@NEEDS_CHROMIUM
def test_a_browser_refuses_a_broker_of_an_unknown_ca(
    web_broker: Broker, web_site: WebSite, files: TlsFiles, root: str, tmp_path: Path
) -> None:
    ways = [Way(web_broker, files, listener) for listener in ("wss-origins", "ws-origins")]
    steps = [way.exchange(root, "5.0", in_browser=True) for way in ways]
    refused, accepted = web_site.browse(web_site.origin, steps, profile=tmp_path / "profile")
    assert "error" in refused
    check_exchange(accepted, root)
