"""SCRAM-SHA-256 in every command that connects, against a broker whose user has no other proof."""

import asyncio
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from semel.broker.access.password_file import parse_entry, set_user
from semel.broker.access.scram_keys import make_keys
from semel.client import Client, Disconnected, Refused, ScramAuthentication
from semel.client.bridge import Bridge
from semel.client.bridge_plan import make_bridge_plan
from semel.client.ingest import Ingest
from semel.client.ingest_plan import make_plan
from semel.client.ingest_settings import IngestSettings
from semel.client.scram import salt_password
from semel.lab.load.links import LinkError, connect_client
from semel.mqtt import MQTT5, Auth, ConnAck, Packet, PingResp, Properties, encode
from semel.mqtt.reasons import BAD_USER_NAME_OR_PASSWORD, CONTINUE_AUTHENTICATION
from semel.store.settings import StoreSettings
from tests.broker.broker_process import PATIENCE, Process
from tests.client.bridges import bridge_of, bridging, is_ready
from tests.client.ingests import ingesting, until
from tests.client.listening import run

USER = "ann"
PASSWORD = "open sesame"


class Door(NamedTuple):
    """A broker with one user, and the password in a file."""

    port: int
    password_file: Path

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("door")
    keys = make_keys(PASSWORD, iterations=4_096)
    # Without a password hash: a password in CONNECT gets nobody in.
    set_user(folder / "users", parse_entry(f"{USER}:*::{keys.text}"))
    config = folder / "semel.toml"
    config.write_text(f'[users]\npassword_file = "{folder / "users"}"\nscram = true\n')
    given = folder / "password"
    given.write_text(f"{PASSWORD}\n")
    with Process("--config", str(config)) as broker:
        yield Door(broker.address[1], given)


def semel(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "semel", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


async def publish(door: Door, topic: str, payload: str) -> None:
    proof = ScramAuthentication(USER, PASSWORD)
    async with Client(door.url, authentication=proof) as client:
        await client.publish(topic, payload, 2)


def test_a_password_in_connect_does_not_get_in_and_scram_does(door: Door) -> None:
    given = ["-h", "127.0.0.1", "-p", door.port, "-t", "t", "-m", "x", "-u", USER]
    given += ["--password-file", door.password_file]
    assert semel("pub", *given).returncode == BAD_USER_NAME_OR_PASSWORD
    assert semel("pub", *given, "--scram").returncode == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_a_load_authenticates_each_of_its_clients(door: Door, processes: int) -> None:
    given = [door.url, "--username", USER, "--password-file", door.password_file, "--qos", "2"]
    given += ["--publishers", 3, "--subscribers", 3, "--count", 20, "--processes", processes]
    result = semel("load", "--scenario", "pairs", *given, "--scram")
    assert result.returncode == 0, result.stderr
    refused = semel("load", "--scenario", "pairs", *given)
    assert refused.returncode == 1
    assert "refused a connection" in refused.stderr


def test_a_load_with_the_wrong_password_is_refused_in_one_sentence(
    door: Door, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("close sesame\n")
    result = semel("load", door.url, "--username", USER, "--password-file", wrong, "--scram")
    assert result.returncode == 1
    assert "refused a connection: bad user name or password (0x86)" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((), "--scram needs a user name (--username) and a password (--password-file)"),
        (("--username", "ann"), "--scram needs a user name"),
        (("--username", "a\x07", "--password-file", "{}"), "--scram: the user name contains"),
        (("-V", "3.1.1"), "--scram needs MQTT 5.0: leave -V out, or give -V 5"),
    ],
)
def test_a_load_says_what_scram_needs(door: Door, given: tuple[str, ...], words: str) -> None:
    named = [each.format(door.password_file) for each in given]
    result = semel("load", "mqtt://127.0.0.1:1", "--scram", *named)
    assert result.returncode != 0
    assert words in result.stderr.splitlines()[-1]


def test_a_password_that_is_not_utf_8_is_refused_by_a_load(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"\xff")
    given = ("--username", USER, "--password-file", file)
    result = semel("load", "mqtt://127.0.0.1:1", "--scram", *given)
    assert "--scram: the password is not UTF-8" in result.stderr.splitlines()[-1]


def ingest_of(door: Door, folder: Path, **keys: object) -> Ingest:
    given: dict[str, object] = {
        "url": door.url,
        "topic": ("plant/#",),
        "stream": "plant",
        "username": USER,
        "password_file": door.password_file,
        "scram": True,
        "longest_wait": 0.05,
        **keys,
    }
    store = StoreSettings(data=folder / "data", root=str(folder / "root"), durability="os")
    return Ingest(make_plan(IngestSettings(**given), store))  # type: ignore[arg-type]


def test_an_ingest_authenticates_by_scram(door: Door, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")

    async def main() -> None:
        async with ingesting(ingest_of(door, tmp_path).plan) as work:
            await until(lambda: work.counters.state == "connected")
            await publish(door, "plant/1", "x")
            await until(lambda: work.counters.stored == 1)
        with pytest.raises(Refused, match="0x86"):
            await ingest_of(door, tmp_path / "plain", scram=False).run()
        with pytest.raises((Refused, Disconnected)) as caught:
            await ingest_of(door, tmp_path / "wrong", password_file=None, password="x").run()
        assert getattr(caught.value, "reason", None) == BAD_USER_NAME_OR_PASSWORD

    run(main())


def test_a_bridge_authenticates_by_scram_on_either_side(door: Door, tmp_path: Path) -> None:
    async def main() -> None:
        credentials: dict[str, object] = {}
        for side in ("local", "remote"):
            credentials[f"{side}_username"] = USER
            credentials[f"{side}_password_file"] = door.password_file
        keys = {**credentials, "to_remote": ("plant/# remote far/",)}
        both = {"local_scram": True, "remote_scram": True}
        settings = bridge_of(tmp_path, door.port, door.port, **keys, **both)
        async with bridging(settings) as work:
            await is_ready(work)
            await publish(door, "plant/1", "x")
            await until(lambda: work.status.to_remote.delivered == 1)
            assert work.status.to_remote.refused == 0
        plan = make_bridge_plan(bridge_of(tmp_path / "plain", door.port, door.port, **keys))
        with pytest.raises(Refused, match="0x86"):
            await Bridge(plan).run()

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ((ConnAck(),), "failed the authentication: a SCRAM message is missing"),
        (
            (Auth(CONTINUE_AUTHENTICATION, properties=Properties(authentication_method="x")),),
            "failed the authentication: a SCRAM message is missing",
        ),
        ((PingResp(),), "answered CONNECT with PingResp"),
    ],
)
def test_a_load_rejects_a_broker_that_does_not_prove_itself(
    answers: tuple[Packet, ...], words: str
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"".join(encode(each, MQTT5) for each in answers))
        proof = ScramAuthentication(USER, PASSWORD)
        with pytest.raises(LinkError, match=words):
            connect_client(lambda: ours, b"", MQTT5, authentication=proof)
        assert ours.fileno() == -1


def test_a_salted_password_is_computed_again_only_for_another_salt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed: list[tuple[bytes, int]] = []

    def count(password: str, salt: bytes, *, iterations: int) -> bytes:
        computed.append((salt, iterations))
        return salt_password(password, salt, iterations=iterations)

    monkeypatch.setattr("semel.client.scram.salt_password", count)
    proof = ScramAuthentication(USER, PASSWORD)
    for keys in (one := make_keys(PASSWORD), one, make_keys(PASSWORD), one):
        nonce = proof.begin().decode().partition(",r=")[2]
        salt = b64encode(keys.salt).decode()
        final = proof.final_message(f"r={nonce}x,s={salt},i={keys.iterations}".encode())
        assert b",p=" in final
    assert len(computed) == 3
