"""Users, rights and certificates of a real broker, over every transport, and while they change."""

import asyncio
import signal
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from semel.broker.access.password_file import parse_entry, set_user
from semel.client import Client, Refused
from semel.client.tls import make_context
from semel.client.transport import CannotConnect
from tests.broker.broker_process import PATIENCE
from tests.broker.core.test_access_password_hashes import mosquitto_2
from tests.broker.live.test_server_listeners import Broker, broker, start
from tests.broker.tls_files import SERVER_AUTH, TlsFiles

TRANSPORTS = ("tcp", "tls", "ws", "wss", "unix")
RIGHTS = """
allow  group:ops    all                 #
allow  *            publish             devices/%u/#
allow  *            publish,subscribe   shared/#
allow  cert:client  all                 press/#
"""


class Site:
    """The files of a broker with users, rights, and one listener of each transport."""

    def __init__(self, folder: Path, files: TlsFiles) -> None:
        self.folder = folder
        self.files = files
        for name, groups in (("ann", ":ops"), ("dev", ""), ("+", ""), ("eve", "")):
            hashed = mosquitto_2(name.encode(), iterations=1_000)
            set_user(folder / "users", parse_entry(f"{name}:{hashed}{groups}"))
        self.rights = folder / "rights.txt"
        self.rights.write_text(RIGHTS)
        for name in ("server.pem", "server.key"):
            (folder / name).write_bytes((files / name).read_bytes())
        self.config = folder / "semel.toml"
        listeners = [
            f'[[listener]]\nname = "{each}"\ntransport = "{each}"\n'
            + (f'path = "{folder / "socket"}"\n' if each == "unix" else "port = 0\n")
            + (self._tls() if each in ("tls", "wss") else "")
            for each in TRANSPORTS
        ]
        listeners.append(
            f'[[listener]]\nname = "certificates"\ntransport = "tls"\nport = 0\n{self._tls()}'
            f'client_certificate = "required"\ncafile = "{files / "ca.pem"}"\n'
            f'crlfile = "{files / "revoked.crl"}"\n'
        )
        users = f'[users]\npassword_file = "{folder / "users"}"\n'
        users += 'certificate_users = "common_name"\n'
        rights = f'[rights]\nfile = "{self.rights}"\n'
        self.config.write_text("\n".join([*listeners, users, rights]))

    def _tls(self) -> str:
        own = self.folder / "server.pem", self.folder / "server.key"
        return f'certfile = "{own[0]}"\nkeyfile = "{own[1]}"\n'

    def arguments(self) -> tuple[str, ...]:
        return ("--config", str(self.config), "--data", str(self.folder / "data"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def site(tmp_path: Path, files: TlsFiles) -> Site:
    return Site(tmp_path, files)


def client_of(
    site: Site,
    running: Broker,
    user: str | None,
    *,
    listener: str = "tcp",
    password: str | None = None,
    client_id: str = "",
    certificate: str | None = None,
    **more: object,
) -> Client:
    url = running.url(listener)
    tls: ssl.SSLContext | None = None
    if url.startswith(("mqtts", "wss")):
        tls = make_context(
            cafile=site.files / "ca.pem",
            certfile=None if certificate is None else site.files / f"{certificate}.pem",
            keyfile=None if certificate is None else site.files / f"{certificate}.key",
        )
    return Client(
        url,
        client_id=client_id,
        user_name=user,
        password=user if password is None else password,
        tls=tls,
        reconnect=False,
        **more,  # type: ignore[arg-type]
    )


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def reload(running: Broker, outcome: str) -> None:
    """Reload by SIGHUP, and wait until the log has the outcome once more."""
    before = len(running.texts(outcome))
    running.process.send_signal(signal.SIGHUP)
    wait_for(lambda: len(running.texts(outcome)) > before)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_password_and_rights_count_on_every_transport(site: Site, transport: str) -> None:
    async def act(running: Broker) -> None:
        for user, password in ((None, None), ("ann", "wrong"), ("nobody", "x")):
            stranger = client_of(site, running, user, listener=transport, password=password)
            with pytest.raises(Refused) as refused:
                async with stranger:
                    pass
            assert refused.value.reason == (0x87 if user is None else 0x86)
        async with client_of(site, running, "dev", listener=transport) as device:
            await device.publish("devices/dev/t", b"1", qos=1)
            with pytest.raises(Refused):
                await device.publish("devices/ann/t", b"1", qos=1)
        async with client_of(site, running, "ann", listener=transport) as operator:
            await operator.publish("devices/ann/t", b"1", qos=1)

    with broker(*site.arguments()) as running:
        asyncio.run(act(running))


def test_class_10_a_wildcard_in_a_user_name_widens_nothing(site: Site) -> None:
    async def act(running: Broker) -> None:
        async with client_of(site, running, "+") as client:
            for topic in ("devices/dev/t", "devices/x/t"):
                with pytest.raises(Refused):
                    await client.publish(topic, b"1", qos=1)
            await client.publish("shared/t", b"1", qos=1)

    with broker(*site.arguments()) as running:
        asyncio.run(act(running))


def test_class_12_a_reload_takes_rights_away_at_once_and_a_bad_one_changes_nothing(
    site: Site,
) -> None:
    async def act(running: Broker) -> None:
        async with client_of(site, running, "dev") as device:
            await device.publish("devices/dev/t", b"1", qos=1)
            site.rights.write_text("alow everybody everything\n")
            await asyncio.to_thread(reload, running, "reload failed")
            await device.publish("devices/dev/t", b"2", qos=1)
            site.rights.write_text("deny user:dev all #\n" + RIGHTS)
            await asyncio.to_thread(reload, running, "reloaded")
            with pytest.raises(Refused):
                await device.publish("devices/dev/t", b"3", qos=1)
            site.rights.write_text(RIGHTS)
            await asyncio.to_thread(reload, running, "reloaded")
            await device.publish("devices/dev/t", b"4", qos=1)

    with broker(*site.arguments()) as running:
        asyncio.run(act(running))


def owner_of(site: Site, running: Broker) -> Client:
    """A client with a session of its own, which it remembers."""
    return client_of(site, running, "dev", client_id="press", outbox=site.folder / "outbox")


def test_class_15_a_stranger_does_not_get_a_session_also_after_kill_9(site: Site) -> None:
    async def publish(running: Broker) -> None:
        async with owner_of(site, running) as owner:
            owner.subscribe("shared/t", qos=1)
            await owner.publish("shared/x", b"", qos=1)
        async with client_of(site, running, "ann") as operator:
            await operator.publish("shared/t", b"for the owner", qos=1)

    async def steal(running: Broker) -> None:
        for clean_start in (True, False):
            thief = client_of(
                *(site, running, "eve"),
                client_id="press",
                session_expiry=600,
                clean_start=clean_start,
            )
            with pytest.raises(Refused) as refused:
                async with thief:
                    pass
            assert refused.value.reason == 0x85
        async with owner_of(site, running) as owner:
            async for message in owner.subscribe("shared/t", qos=1):
                assert message.payload == b"for the owner"
                break

    killed = Broker(start(*site.arguments()))
    asyncio.run(publish(killed))
    killed.end(signal.SIGKILL)
    with broker(*site.arguments()) as running:
        asyncio.run(steal(running))


@pytest.mark.parametrize("name", ["expired", "early", "revoked", "stranger", None])
def test_a_certificate_that_is_not_valid_does_not_get_in(site: Site, name: str | None) -> None:
    async def act(running: Broker) -> None:
        refused = client_of(
            *(site, running, None), listener="certificates", certificate=name, connect_timeout=20.0
        )
        # In TLS 1.3 a client notices the alert after its own part of the handshake.
        with pytest.raises((OSError, CannotConnect)):
            async with refused:
                await refused.publish("press/1", b"", qos=1)
        good = client_of(site, running, None, listener="certificates", certificate="client")
        async with good:
            await good.publish("press/1", b"", qos=1)
            with pytest.raises(Refused):
                await good.publish("devices/ann/t", b"", qos=1)

    with broker(*site.arguments()) as running:
        asyncio.run(act(running))


def test_a_certificate_is_replaced_without_disconnecting_anybody(site: Site) -> None:
    async def act(running: Broker) -> None:
        async with client_of(site, running, "ann", listener="tls") as old:
            await old.publish("t", b"1", qos=1)
            site.files.ca.issue("new", hosts=["localhost"], usage=SERVER_AUTH)
            for ending in ("pem", "key"):
                target = site.folder / f"server.{ending}"
                target.write_bytes((site.files / f"new.{ending}").read_bytes())
            await asyncio.to_thread(reload, running, "reloaded")
            await old.publish("t", b"2", qos=1)
            context = ssl.create_default_context(cafile=str(site.files / "ca.pem"))
            _, writer = await asyncio.open_connection(
                "localhost", running.port("tls"), ssl=context, server_hostname="localhost"
            )
            subject = writer.get_extra_info("peercert")["subject"]
            writer.transport.abort()
            assert subject[0][0][1] == "new"
            (site.folder / "server.key").write_text("no key")
            await asyncio.to_thread(reload, running, "reload failed")
            async with client_of(site, running, "ann", listener="tls") as later:
                await later.publish("t", b"3", qos=1)

    with broker(*site.arguments()) as running:
        asyncio.run(act(running))
