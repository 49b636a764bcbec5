"""The test broker over every transport: programs, faults and the record."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from semel import Client
from semel.broker.network.listener_settings import TRANSPORTS
from semel.client.tls import make_context
from semel.lab import throw_away_certificate
from semel.lab.testing import TestBroker
from semel.lab.throw_away_certificate import make_certificate

PATIENCE = 60.0
ENCRYPTED = ("tls", "wss")

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl not installed")
EVERY_TRANSPORT = pytest.mark.parametrize("transport", TRANSPORTS)


def client_of(broker: TestBroker, client_id: str = "a") -> Client:
    tls = None if broker.cafile is None else make_context(cafile=broker.cafile)
    return Client(broker.url, client_id=client_id, tls=tls)


@EVERY_TRANSPORT
def test_faults_and_the_record_are_the_same_over_every_transport(transport: str) -> None:
    async def run(broker: TestBroker) -> None:
        async with client_of(broker) as client:
            broker.cut_after("PUBLISH")
            await client.publish("t", "first", qos=1)
            broker.delay(0.01, "PUBLISH")
            await client.publish("t", "second", qos=1)
            broker.cut("a")
            await client.publish("t", "third", qos=2)

    with TestBroker(transport=transport) as broker:
        asyncio.run(asyncio.wait_for(run(broker), PATIENCE))
        payloads = [message.payload for message in broker.messages("t")]
        assert set(payloads) == {b"first", b"second", b"third"}
        assert len(broker.packets("CONNECT")) == 3
        broker.assert_clean()


@EVERY_TRANSPORT
def test_a_refusal_reaches_the_program(transport: str) -> None:
    async def run(broker: TestBroker) -> None:
        broker.refuse(0x87)
        with pytest.raises(Exception, match="0x87"):
            await client_of(broker).connect()

    with TestBroker(transport=transport, store=False) as broker:
        asyncio.run(asyncio.wait_for(run(broker), PATIENCE))


@EVERY_TRANSPORT
def test_the_address_stays_the_same_over_a_restart(transport: str) -> None:
    async def run(broker: TestBroker) -> None:
        url = broker.url
        async with client_of(broker) as client:
            await client.publish("t", "before", qos=1)
            broker.restart(kill=True)
            await client.publish("t", "after", qos=1)
        assert broker.url == url

    with TestBroker(transport=transport) as broker:
        asyncio.run(asyncio.wait_for(run(broker), PATIENCE))


@pytest.mark.parametrize(
    ("transport", "beginning"),
    [
        ("tcp", "mqtt://127.0.0.1:"),
        ("tls", "mqtts://127.0.0.1:"),
        ("ws", "ws://127.0.0.1:"),
        ("wss", "wss://127.0.0.1:"),
        ("unix", "unix:/"),
    ],
)
def test_the_url_and_the_ca_suit_the_transport(transport: str, beginning: str) -> None:
    with TestBroker(transport=transport, store=False) as broker:
        assert broker.url.startswith(beginning)
        assert broker.url.endswith("/mqtt") == (transport in ("ws", "wss"))
        assert (broker.cafile is not None) == (transport in ENCRYPTED)
        cafile = broker.cafile
        folder = None if cafile is None else cafile.parent
    # Nothing is left.
    assert folder is None or not folder.exists()
    if transport == "unix":
        assert not Path(broker.url.removeprefix("unix:")).parent.exists()


@pytest.mark.parametrize("transport", ["tls", "ws"])
def test_a_program_that_speaks_something_else_is_reported(
    transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    with TestBroker(transport=transport, store=False) as broker:
        command = [sys.executable, "-m", "semel", "pub", "-p", str(broker.port), "-t", "t", "-n"]
        result = subprocess.run(command, timeout=PATIENCE, check=False, capture_output=True)
        assert result.returncode != 0
    assert "the client sent an MQTT CONNECT" in caplog.text


def test_a_transport_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match="transport is 'quic': use one of tcp, tls, ws, wss, unix"):
        TestBroker(transport="quic")


def test_a_certificate_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError, match=r"^openssl could not make a certificate: "):
        make_certificate(tmp_path / "nowhere")
    monkeypatch.setattr(throw_away_certificate, "OPENSSL_SECONDS", 0.0)
    with pytest.raises(RuntimeError, match=r"^openssl could not make a certificate: .*timed out"):
        make_certificate(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"needs the program openssl: install it$"):
        make_certificate(tmp_path)
