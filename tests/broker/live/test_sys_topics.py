"""$SYS topics beside those of a real Mosquitto."""

import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from semel.broker.settings import BrokerSettings
from semel.broker.sys_topics import SysTopics
from tests.broker.core.test_sys_topics import listen, report, shape
from tests.broker.world import World


@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not installed")
def test_the_names_and_formats_are_those_of_mosquitto(tmp_path: Path) -> None:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    config = tmp_path / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nsys_interval 1\n")
    command = [str(shutil.which("mosquitto")), "-c", str(config)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as broker:
        try:
            theirs = listen(port)
        finally:
            broker.terminate()
    ours = report(World(BrokerSettings(sys_interval=0.0)), SysTopics(0.0))
    assert set(theirs) == set(ours)
    for name, value in theirs.items():
        if name != "version":
            assert shape(value) == shape(ours[name]), name
