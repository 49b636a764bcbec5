"""Codecs of other people are examined through the adapters that come with semel.

What stands here was read against the clause by hand (docs/conformance/codecs.md), so that a change
of the examiner which blames or acquits a library for another reason is noticed.
"""

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from semel.probe.codec.examination import examine_codec
from semel.probe.outcomes import ExaminationReport
from semel.probe.verdicts import INCONCLUSIVE, VIOLATED

HOME = Path(__file__).resolve().parents[3]
ADAPTERS = HOME / "src" / "semel" / "probe" / "adapters"
MQTT_PACKET = Path(__file__).with_name("mqtt_packet")
# Where `npm ci` was run beforehand, if it was: a folder with node_modules in it.
INSTALLED = "SEMEL_TEST_MQTT_PACKET"
MODULES = {"paho": "paho.mqtt", "amqtt": "amqtt", "gmqtt": "gmqtt", "mqtt5": "mqtt5"}

# By library: cases that are violated, with the statement that decides.
HOLDS = {
    "paho": {
        ("3.1.1", "decode publish: Topic Name sensor/#"): "MQTT-3.3.2-2",
        ("3.1.1", "decode publish: DUP 1 at QoS 0, RETAIN 0"): "MQTT-3.3.1-2",
        ("3.1.1", "encode unsubscribe: no Topic Filter"): "MQTT-3.10.3-2",
        ("3.1.1", "encode connect: Will Topic w/#"): "MQTT-4.7.1-1",
        ("5.0", "encode origin: a PUBLISH with an empty Topic Name at QoS 0"): "U5-50",
        ("5.0", "encode connect: maximum packet size 4294967295 in CONNECT"): "U5-15",
        ("5.0", "decode connack: a Reason String with U+FEFF, which is kept"): "MQTT-1.5.4-3",
    },
    "amqtt": {
        ("3.1.1", "decode publish: a Topic Name with a byte FF"): "MQTT-1.5.3-1",
        ("3.1.1", "decode connect: reserved flag 1"): "MQTT-3.1.2-3",
        ("3.1.1", "encode origin: a PUBLISH with DUP 1 at QoS 0"): "MQTT-3.3.1-2",
        ("3.1.1", "encode publish: QoS 3"): "MQTT-3.3.1-4",
    },
    "gmqtt": {
        ("3.1.1", "encode origin: a PUBLISH to sensor/# at QoS 1"): "MQTT-3.3.2-2",
        (
            "3.1.1",
            "encode unsubscribe: a Topic Filter with two, three and four byte characters",
        ): "MQTT-3.10.3-1",
        ("5.0", "decode puback: reason string twice in PUBACK"): "U5-61",
    },
    "mqtt5": {
        ("5.0", "decode publish: a Topic Name with a byte FF"): "MQTT-1.5.4-1",
        ("5.0", "encode origin: a PUBLISH with DUP 1 at QoS 0"): "MQTT-3.3.1-2",
        ("5.0", "decode subscribe: Topic Filter $share//t"): "MQTT-4.8.2-1",
    },
    "mqtt_packet": {
        ("5.0", "encode connect: a password without a user name is legal in 5.0"): "MQTT-3.1.2-19",
        ("3.1.1", "encode publish: Topic Name sensor/#"): "MQTT-3.3.2-2",
        ("3.1.1", "decode publish: a Topic Name with a byte FF"): "MQTT-1.5.3-1",
    },
}
# By library: cases that are satisfied, although a careless examiner might blame them.
KEEPS = {
    "paho": [
        ("3.1.1", "encode origin: a PUBLISH to sensor/# at QoS 0"),
        ("3.1.1", "decode publish: a Topic Name with a byte FF"),
    ],
    "amqtt": [("3.1.1", "decode publish: Topic Name sensor/#")],
    "gmqtt": [("3.1.1", "decode publish: an empty Topic Name")],
    "mqtt5": [("5.0", "decode connect: protocol name MQTX")],
    "mqtt_packet": [("3.1.1", "decode publish: QoS 3, DUP 0, RETAIN 0")],
}
# No right packet of the kind is accepted: an alias that was never set.
UNDECIDED = {"gmqtt": {"decode publish: Topic Alias 0 with an empty Topic Name"}}


@cache
def examined(*command: str) -> ExaminationReport:
    return asyncio.run(examine_codec(command, timeout=20))


def check_findings(name: str, report: ExaminationReport) -> None:
    found = {(outcome.version, outcome.case): outcome for outcome in report.outcomes}
    for key, statement in HOLDS[name].items():
        assert found[key].verdict == VIOLATED, key
        assert statement in found[key].statements, key
        assert found[key].runs == 3
        assert found[key].evidence
    for kept in KEEPS[name]:
        assert found[kept].verdict == "satisfied", kept
    undecided = {o.case for o in report.outcomes if o.verdict == INCONCLUSIVE}
    assert undecided == UNDECIDED.get(name, set())


@pytest.mark.parametrize("name", MODULES)
def test_a_library_has_the_faults_that_were_read_against_the_clause(name: str) -> None:
    pytest.importorskip(MODULES[name], reason=f"{name} is not installed")
    report = examined(sys.executable, "-m", f"semel.probe.adapters.{name}_codec")
    check_findings(name, report)


def installed_mqtt_packet(folder: Path) -> Path:
    """A folder with mqtt-packet in it, or a skipped test with the reason."""
    missing = [each for each in ("node", "npm") if shutil.which(each) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed")
    if INSTALLED in os.environ:
        return Path(os.environ[INSTALLED])
    for file in ("package.json", "package-lock.json"):
        shutil.copy(MQTT_PACKET / file, folder)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    except (subprocess.SubprocessError, OSError) as problem:
        pytest.skip(f"npm cannot install mqtt-packet: {problem}")
    return folder


def test_mqtt_packet_has_the_faults_that_were_read_against_the_clause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(installed_mqtt_packet(tmp_path))
    check_findings("mqtt_packet", examined("node", str(ADAPTERS / "mqtt_packet.mjs")))


@pytest.mark.parametrize("name", MODULES)
def test_without_its_library_an_adapter_ends_with_one_sentence(name: str) -> None:
    blocked = MODULES[name].partition(".")[0]
    program = (
        f"import sys; sys.modules[{blocked!r}] = None; import runpy;"
        f" runpy.run_module('semel.probe.adapters.{name}_codec', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, input="", timeout=60
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "is not installed: pip install" in line


def test_no_library_is_imported_by_the_examiner() -> None:
    program = (
        "import sys, json, semel.probe.codec.examination, semel.probe.adapters.semel_codec;"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    loaded = set(json.loads(done.stdout))
    assert "semel.mqtt" in loaded
    assert not loaded & {"paho", "amqtt", "gmqtt", "mqtt5", "click"}


def test_the_example_is_examined() -> None:
    """docs/reference/codec-adapter.md shows it, and what the examiner says of it."""
    report = examined(sys.executable, str(HOME / "examples" / "codec_adapter.py"))
    assert report.name == "example 1"
    assert report.versions == ("3.1.1",)
    violated = {each.id for each in report.statements() if each.verdict == "partly"}
    assert violated == {
        *("MQTT-1.5.3-2", "MQTT-3.3.2-2", "MQTT-4.7.1-1", "MQTT-4.7.3-1", "MQTT-4.7.3-2"),
    }
    assert INCONCLUSIVE not in {outcome.verdict for outcome in report.outcomes}
    page = (HOME / "docs" / "reference" / "codec-adapter.md").read_text()
    assert (HOME / "examples" / "codec_adapter.py").read_text() in page


def test_every_adapter_is_named_in_the_documentation() -> None:
    page = (HOME / "docs" / "reference" / "codec-adapter.md").read_text()
    for path in ADAPTERS.iterdir():
        if path.stem.endswith("_codec") or path.suffix == ".mjs":
            assert path.stem in page, path.name
    assert importlib.util.find_spec("semel.probe.adapters.adapter") is not None
