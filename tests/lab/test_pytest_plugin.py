"""The fixtures as a user of pytest meets them."""

import subprocess
import sys

import pytest

from tests.lab.as_user import PLUGIN, SOURCES, run

pytest_plugins = ["pytester"]

# A raw client, so that no library has a part in it.
CLIENT = """
import socket

CONNECT = bytes.fromhex("100d00044d51545404020000000177")


def connect(broker, data=b""):
    client = socket.create_connection(broker.address, timeout=10)
    client.sendall(CONNECT + data)
    assert client.recv(4) == bytes.fromhex("20020000")
    return client
"""


def test_a_test_gets_a_broker_that_runs(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        client=CLIENT,
        test_it="""
        import threading
        from client import connect

        def test_first(mqtt_broker):
            with connect(mqtt_broker, bytes.fromhex("3003000174")):
                assert mqtt_broker.clients() == ["w"]
                assert mqtt_broker.messages("t")[0].payload == b""
                mqtt_broker.assert_clean()

        def test_second_has_another(mqtt_broker):
            assert mqtt_broker.packets() == []

        def test_nothing_is_left():
            assert threading.enumerate() == [threading.main_thread()]
        """,
    )
    run(pytester, monkeypatch).assert_outcomes(passed=3)


def test_markers_give_settings_and_the_closest_has_the_last_word(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.mqtt_broker(maximum_packet_size=1000, receive_maximum=1)

        @pytest.mark.mqtt_broker(receive_maximum=2)
        class TestSettings:
            @pytest.mark.mqtt_broker(topic_levels=3)
            def test_all(self, mqtt_broker):
                used = mqtt_broker.settings
                assert used.maximum_packet_size == 1000
                assert (used.receive_maximum, used.topic_levels) == (2, 3)

            def test_without_the_last(self, mqtt_broker):
                assert mqtt_broker.settings.topic_levels == 128

        @pytest.mark.mqtt_broker(users={"ann": "secret"}, store=False)
        def test_more_than_settings(mqtt_broker):
            mqtt_broker.publish("t", qos=1, retain=True)
        """
    )
    run(pytester, monkeypatch, "--strict-markers").assert_outcomes(passed=3)


@pytest.mark.parametrize(
    ("marker", "words"),
    [
        (
            "maximum_qos=1",
            "*@pytest.mark.mqtt_broker: 'maximum_qos' is not a setting of the broker*",
        ),
        ("receive_maximum=0", "*@pytest.mark.mqtt_broker: *receive_maximum*"),
        ("transport='quic'", "*@pytest.mark.mqtt_broker: transport is 'quic': use one of tcp,*"),
        ("users={}, authority=object()", "*@pytest.mark.mqtt_broker: users and authority both*"),
        ("5", "*@pytest.mark.mqtt_broker takes only keyword arguments*"),
    ],
)
def test_an_invalid_marker_is_reported_in_one_sentence(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, marker: str, words: str
) -> None:
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.mqtt_broker({marker})
        def test_it(mqtt_broker):
            pass
        """
    )
    result = run(pytester, monkeypatch)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([words])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*/semel/lab/*")


def test_the_marker_is_known(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(pytester, monkeypatch, "--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.mqtt_broker(*settings): settings for the fixture*"])


def test_the_fixtures_are_listed_with_what_they_are(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(pytester, monkeypatch, "--fixtures")
    result.stdout.fnmatch_lines(["mqtt_broker_factory*", "*mqtt_broker *", "*A running MQTT*"])


def test_a_factory_starts_brokers_that_end_with_the_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        client=CLIENT,
        test_it="""
        import threading
        from client import connect

        def test_two(mqtt_broker, mqtt_broker_factory):
            other = mqtt_broker_factory(receive_maximum=3)
            assert other.port != mqtt_broker.port
            with connect(other):
                assert other.clients() == ["w"]
                assert mqtt_broker.clients() == []

        def test_nothing_is_left():
            assert threading.enumerate() == [threading.main_thread()]
        """,
    )
    run(pytester, monkeypatch).assert_outcomes(passed=2)


def test_a_test_that_fails_shows_the_packets_and_one_that_passes_does_not(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        client=CLIENT,
        test_it="""
        import threading
        from client import connect

        def test_that_fails(mqtt_broker):
            # PUBACK for what was never sent.
            with connect(mqtt_broker, bytes.fromhex("40020009")):
                mqtt_broker.wait_for("PUBACK")
                mqtt_broker.assert_clean()

        def test_that_passes(mqtt_broker):
            connect(mqtt_broker).close()

        def test_that_fails_without_it():
            assert 0

        def test_nothing_is_left():
            assert threading.enumerate() == [threading.main_thread()]
        """,
    )
    result = run(pytester, monkeypatch)
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*_ test_that_fails _*",
            "E*AssertionError: the program broke the standard, 1 time:",
            "E*'w', connection 1,*",
            "E*PUBACK: ANSWER_FITS_REQUEST [[]MQTT-2.3.1-6[]]*",
            "E*40 02 00 09",
            "*- Captured MQTT packets call -*",
            "*'w' ──▶ CONNECT, clean start",
            "*'w' ──▶ PUBACK id 9 broke ANSWER_FITS_REQUEST",
            "*_ test_that_fails_without_it _*",
        ]
    )
    assert result.stdout.str().count("MQTT packets") == 1
    # The frames of the plugin's own code are not what a user wants to read.
    result.stdout.no_fnmatch_line("*def assert_clean*")


def test_runs_that_do_not_use_it_load_nothing_of_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it():
            loaded = {name for name in sys.modules if name.split(".")[0] == "semel"}
            assert loaded == {"semel", "semel.lab", "semel.lab.pytest_plugin"}
            assert "sqlite3" not in sys.modules
        """
    )
    run(pytester, monkeypatch).assert_outcomes(passed=1)


def test_the_plugin_needs_no_more_than_pytest_and_the_standard_library() -> None:
    program = (
        "import pytest, sys\n"
        "before = set(sys.modules)\n"
        f"import {PLUGIN}\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == ["semel", "semel.lab", PLUGIN]


def test_the_broker_is_no_test_whatever_its_name(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        """
        from semel.lab.testing import TestBroker

        def test_it():
            with TestBroker() as broker:
                assert broker.port
        """
    )
    run(pytester, monkeypatch).assert_outcomes(passed=1)


def test_a_program_that_is_still_connected_does_not_keep_the_test_from_ending(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        client=CLIENT,
        test_it="""
        from client import connect

        clients = []

        def test_it(mqtt_broker):
            clients.append(connect(mqtt_broker))

        def test_its_end():
            assert clients[0].recv(1) == b""
            clients[0].close()
        """,
    )
    run(pytester, monkeypatch).assert_outcomes(passed=2)
