"""Certificates of a real broker and its clients: not valid, of others, revoked, and replaced.

Client certificates that are expired, not yet valid, revoked or of another CA are refused in
test_server_access.py.
"""

import asyncio
import shutil
import ssl
from pathlib import Path

import pytest

from semel.client import Client
from semel.client.transport import CannotConnect
from tests.broker.live.test_server_access import Site, client_of, reload
from tests.broker.live.test_server_listeners import Broker, broker
from tests.broker.tls_files import DAY, SERVER_AUTH, Authority, TlsFiles

REPLACEMENTS = 20


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    made = TlsFiles(tmp_path_factory.mktemp("certificates"))
    made.ca.issue(
        "server-expired", hosts=["localhost"], usage=SERVER_AUTH, begins=-2 * DAY, ends=-DAY
    )
    made.ca.issue("server-early", hosts=["localhost"], usage=SERVER_AUTH, begins=DAY, ends=2 * DAY)
    made.other_ca.issue("server-stranger", hosts=["localhost"], usage=SERVER_AUTH)
    # Signed by itself.
    Authority(made.folder, "self-signed")
    return made


@pytest.fixture
def site(tmp_path: Path, files: TlsFiles) -> Site:
    return Site(tmp_path, files)


def use(site: Site, name: str, *, key: str | None = None) -> None:
    """Replace the certificate and the key of the server by others, as a tool would."""
    for source, ending in ((name, "pem"), (key or name, "key")):
        new = site.folder / f"new.{ending}"
        shutil.copy(site.files / f"{source}.{ending}", new)
        new.replace(site.folder / f"server.{ending}")


async def shown(site: Site, running: Broker, listener: str = "tls") -> str:
    """The Common Name of the certificate that a new connection gets."""
    context = ssl.create_default_context(cafile=str(site.files / "ca.pem"))
    _, writer = await asyncio.open_connection(
        "localhost", running.port(listener), ssl=context, server_hostname="localhost"
    )
    subject = writer.get_extra_info("peercert")["subject"]
    writer.transport.abort()
    return str(subject[0][0][1])


async def refused(client: Client) -> str:
    """Why a client cannot connect, or cannot use its connection."""
    # In TLS 1.3 a client notices an alert after its own part of the handshake.
    with pytest.raises((OSError, CannotConnect)) as problem:
        async with client:
            await client.publish("press/1", b"", qos=1)
    return str(problem.value)


# --- of clients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["self-signed", "for-servers"])
def test_a_certificate_that_nobody_issued_for_clients_does_not_get_in(
    site: Site, name: str
) -> None:
    async def act(running: Broker) -> None:
        await refused(client_of(site, running, None, listener="certificates", certificate=name))
        good = client_of(site, running, None, listener="certificates", certificate="client")
        async with good:
            await good.publish("press/1", b"", qos=1)

    with broker(*site.arguments()) as running:
        asyncio.run(act(running))


def test_a_certificate_that_is_revoked_by_a_reload_does_not_get_in_any_more(
    site: Site, tmp_path: Path
) -> None:
    client = site.files.ca.issue("leaver", None)
    revoked = tmp_path / "now.crl"
    shutil.copy(site.files / "revoked.crl", revoked)
    text = site.config.read_text()
    site.config.write_text(text.replace(str(site.files / "revoked.crl"), str(revoked)))
    site.rights.write_text("allow * all press/#\n")

    async def connect(running: Broker, name: str) -> None:
        made = client_of(site, running, None, listener="certificates", certificate=name)
        async with made:
            await made.publish("press/1", b"", qos=1)

    async def act(running: Broker) -> None:
        await connect(running, "leaver")
        site.files.ca.revoke("with-leaver", client)
        shutil.copy(site.files / "with-leaver.crl", revoked)
        await asyncio.to_thread(reload, running, "reloaded")
        await refused(client_of(site, running, None, listener="certificates", certificate="leaver"))
        await connect(running, "client")
        # A list that cannot be read lets nobody in: the old one stays.
        revoked.write_text("no list")
        await asyncio.to_thread(reload, running, "reload failed")
        await refused(client_of(site, running, None, listener="certificates", certificate="leaver"))
        await connect(running, "client")

    with broker(*site.arguments()) as running:
        asyncio.run(act(running))


# --- of the broker --------------------------------------------------------------------------------


# Certificates, and a word of what a client says about them.
NOT_VALID = {
    "server-expired": "expired",
    "server-early": "not yet valid",
    "server-stranger": "issuer",
    "self-signed": "self",
    "other": "localhost",
    "client": "purpose",
}


@pytest.mark.parametrize("listener", ["tls", "wss"])
def test_a_client_does_not_trust_a_broker_with_a_certificate_that_is_not_valid(
    site: Site, listener: str
) -> None:
    async def act(running: Broker) -> None:
        for name, why in NOT_VALID.items():
            use(site, name)
            await asyncio.to_thread(reload, running, "reloaded")
            found = await refused(client_of(site, running, "ann", listener=listener))
            assert why in found, (name, found)
            use(site, "server")
            await asyncio.to_thread(reload, running, "reloaded")
            async with client_of(site, running, "ann", listener=listener) as good:
                await good.publish("t", b"1", qos=1)

    with broker(*site.arguments()) as running:
        asyncio.run(act(running))


# --- replaced -------------------------------------------------------------------------------------


class Load:
    """Clients that publish at QoS 1 all the time, and one that must receive all of it."""

    def __init__(self, site: Site, running: Broker) -> None:
        self.site = site
        self.running = running
        self.listeners = ("tls", "wss", "tls")
        self.sent = [0] * len(self.listeners)
        self.received: list[list[int]] = [[] for _ in self.listeners]
        self.stopping = asyncio.Event()

    async def publish(self, index: int) -> None:
        # A client that is disconnected would not come back, and its next publish would raise.
        client = client_of(self.site, self.running, "ann", listener=self.listeners[index])
        async with client:
            while not self.stopping.is_set():
                payload = b"%d %d" % (index, self.sent[index])
                self.sent[index] += 1
                await client.publish("load", payload, qos=1)

    async def receive(self, is_subscribed: asyncio.Event) -> None:
        async with client_of(self.site, self.running, "ann", listener="tls") as client:
            messages = await client.subscribe("load", qos=1)
            is_subscribed.set()
            async for message in messages:
                index, number = map(int, message.payload.split())
                self.received[index].append(number)
                if self.stopping.is_set() and self.is_complete():
                    return

    def is_complete(self) -> bool:
        return [len(each) for each in self.received] == self.sent

    async def progress(self) -> None:
        """Wait until every publisher has gone on."""
        before = list(self.sent)
        while any(now <= was for now, was in zip(self.sent, before, strict=True)):
            await asyncio.sleep(0.01)


def test_certificates_that_are_replaced_under_load_disconnect_nobody(site: Site) -> None:
    names = [f"server-{number}" for number in range(REPLACEMENTS)]
    for name in names:
        site.files.ca.issue(name, hosts=["localhost"], usage=SERVER_AUTH)

    async def replace(running: Broker, load: Load) -> None:
        for number, name in enumerate(names):
            use(site, name)
            await asyncio.to_thread(reload, running, "reloaded")
            for listener in ("tls", "wss"):
                assert await shown(site, running, listener) == name
            await load.progress()
            if number % 5 == 0:
                # A key that does not belong to the certificate.
                use(site, "server", key=name)
                await asyncio.to_thread(reload, running, "reload failed")
                assert await shown(site, running) == name
                await load.progress()
        load.stopping.set()

    async def act(running: Broker) -> Load:
        load = Load(site, running)
        is_subscribed = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.receive(is_subscribed))
            await is_subscribed.wait()
            for index in range(len(load.listeners)):
                tasks.create_task(load.publish(index))
            await replace(running, load)
        return load

    with broker(*site.arguments()) as running:
        load = asyncio.run(act(running))
        # Each has connected once.
        assert len(running.texts(" connected with MQTT")) == 1 + len(load.listeners)
    assert load.received == [list(range(sent)) for sent in load.sent]
    (first, *_) = running.texts("reload failed")
    assert "server.key" in first or "server.pem" in first, first
