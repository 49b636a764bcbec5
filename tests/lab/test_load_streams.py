"""A load over TLS, WebSocket and Unix sockets: every message is counted, as over TCP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.broker.network.listener_settings import TRANSPORTS
from semel.broker.settings import BrokerSettings
from semel.lab.load.description import Load
from semel.lab.load.result import Result
from semel.lab.load.workers import Job, Target, run
from tests.broker.serving import serving
from tests.broker.tls_files import TlsFiles
from tests.broker.transports import local_listener

PATIENCE = 60.0
SCHEMES = {"tcp": "mqtt", "tls": "mqtts"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def targets(
    files: TlsFiles, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Target]]:
    """A target for each transport of one broker."""
    folder = tmp_path_factory.mktemp("sockets")
    listeners = [local_listener(each, files, folder) for each in TRANSPORTS]
    settings = BrokerSettings(sys_interval=0.0, connection_messages=False)
    with serving(settings, listeners=listeners) as served:
        found = {}
        for name, (_, port) in zip(TRANSPORTS, served.addresses, strict=True):
            is_tls = name in ("tls", "wss")
            path = str(folder / "socket") if name == "unix" else "/mqtt"
            found[name] = Target(
                # The certificate is for localhost.
                "localhost" if is_tls else "127.0.0.1",
                port,
                scheme=SCHEMES.get(name, name),
                path=path if name in ("ws", "wss", "unix") else "",
                cafile=str(files / "ca.pem") if is_tls else None,
            )
        yield found


def result_of(target: Target, load: Load, **options: Any) -> Result:
    return run(Job(load, target, **{"messages": 300, "timeout": PATIENCE, **options}), None)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_message_is_accounted_for(
    targets: dict[str, Target], transport: str, qos: int
) -> None:
    result = result_of(targets[transport], Load(qos=qos, publishers=2, subscribers=2))
    assert not result.fault
    assert result.meets_qos
    assert (result.lost, result.duplicated, result.out_of_order) == (0, 0, 0)
    assert result.received == result.expected > 0


@pytest.mark.parametrize("payload", [100, 1_000, 200_000])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_of_any_size_arrive(
    targets: dict[str, Target], transport: str, payload: int
) -> None:
    """More than a record of TLS, more than the buffers of the system, and every length of frame."""
    result = result_of(targets[transport], Load(qos=1, payload=payload), messages=60)
    assert not result.fault
    assert result.received == result.expected == 60


def fault_of(target: Target, **changes: Any) -> str:
    values = {name: getattr(target, name) for name in Target.__dataclass_fields__}
    return result_of(Target(**{**values, **changes}), Load()).fault


def test_a_broker_that_cannot_be_reached_is_one_sentence(
    targets: dict[str, Target], tmp_path: Path
) -> None:
    found = fault_of(targets["ws"], path="/other")
    assert "cannot be reached: the WebSocket request was answered with HTTP '404'" in found
    found = fault_of(targets["unix"], path=str(tmp_path / "none"))
    assert found == f"unix:{tmp_path}/none cannot be reached: No such file or directory"
    found = fault_of(targets["wss"], cafile=None)
    assert found.startswith("wss://localhost:")
    assert "cannot be reached: " in found
    assert "certificate" in found
    assert "SSL" not in found
    found = fault_of(targets["tls"], cafile=str(tmp_path / "none"))
    assert "cannot be reached: cafile " in found
    # A broker that speaks something else.
    assert "cannot be reached: " in fault_of(targets["tcp"], scheme="ws", path="/mqtt")


def test_a_certificate_for_another_name_needs_consent(targets: dict[str, Target]) -> None:
    assert "certificate" in fault_of(targets["tls"], host="127.0.0.1")
    assert fault_of(targets["tls"], host="127.0.0.1", insecure=True) == ""
