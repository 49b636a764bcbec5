"""The fixtures `mqtt_broker` and `mqtt_broker_factory` for pytest.

Every pytest run in an environment with semel loads this module, so it imports only pytest. The rest
is imported when a test requests a fixture. See docs/program/testing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from semel.lab.testing import TestBroker

MARKER = "mqtt_broker"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(**settings): settings for the fixture mqtt_broker, such as users={{name:"
        " password}, store=False, transport='tls', or any of [broker], such as"
        " maximum_packet_size=1024.",
    )


@pytest.fixture
def mqtt_broker_factory() -> Iterator[Callable[..., TestBroker]]:
    """Starts brokers, each with the given settings; all of them end with the test."""
    from semel.lab.testing import TestBroker

    with ExitStack() as started:
        yield lambda **settings: started.enter_context(TestBroker(**settings))


@pytest.fixture
def mqtt_broker(request: pytest.FixtureRequest) -> Iterator[TestBroker]:
    """A running MQTT broker on a free port, with faults on demand and a record of all packets."""
    from semel.lab.testing import TestBroker
    from semel.settings import SettingsError

    settings: dict[str, Any] = {}
    # The closest marker takes precedence.
    for marker in reversed(list(request.node.iter_markers(MARKER))):
        if marker.args:
            pytest.fail(f"@pytest.mark.{MARKER} takes only keyword arguments", pytrace=False)
        settings.update(marker.kwargs)
    try:
        broker = TestBroker(**settings)
    except (TypeError, ValueError, SettingsError) as problem:
        pytest.fail(f"@pytest.mark.{MARKER}: {problem}", pytrace=False)
    with broker:
        yield broker


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Add the recorded packets to the report of a failed test."""
    if call.when != "call" or call.excinfo is None:
        return
    broker = getattr(item, "funcargs", {}).get("mqtt_broker")
    transcript = getattr(broker, "transcript", None)
    if transcript is not None:
        item.add_report_section("call", "MQTT packets", transcript())
