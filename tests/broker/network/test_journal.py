"""Log records as entries of the journal, received by a socket such as journald's."""

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.broker.network.journal import JournalUnusable, SystemJournal, encode_entry
from semel.broker.network.log import LogWriter, Repeats


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "journal"))
        made.settimeout(60)
        yield made


def fields_of(data: bytes) -> dict[str, str]:
    """The fields of an entry, as journald reads them."""
    found = {}
    while data:
        line, _, data = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(data[:8], "little")
            value, data = data[8 : 8 + size], data[9 + size :]
        found[name.decode()] = value.decode()
    return found


def record(text: str, level: int = logging.INFO, **event: object) -> logging.LogRecord:
    made = logging.LogRecord("semel.broker", level, "", 0, text, (), None)
    if event:
        made.event = event
    return made


def entry(text: str, level: int = logging.INFO, **event: object) -> dict[str, str]:
    return fields_of(encode_entry(record(text, level, **event), text))


def test_an_entry_has_the_message_and_its_priority() -> None:
    assert entry("store behind") == {
        "MESSAGE": "store behind",
        "PRIORITY": "6",
        "SYSLOG_IDENTIFIER": "semel",
        "SEMEL_EVENT": "log",
    }
    assert entry("x", logging.WARNING)["PRIORITY"] == "4"
    assert entry("x", logging.ERROR)["PRIORITY"] == "3"


def test_an_entry_about_a_client_names_it() -> None:
    found = entry("'it\\'s \\u2713' ([::1]:5) connected with MQTT 5.0")
    assert (found["SEMEL_CLIENT"], found["SEMEL_ADDRESS"]) == ("it's ✓", "[::1]:5")
    assert "SEMEL_CLIENT" not in entry("retained message of 'x' deleted")


def test_an_event_becomes_fields() -> None:
    found = entry("listening", event="ready", port=1883, **{"odd key": 1})
    assert (found["SEMEL_EVENT"], found["SEMEL_PORT"], found["SEMEL_ODD_KEY"]) == (
        "ready",
        "1883",
        "1",
    )


def test_a_client_cannot_forge_a_field() -> None:
    found = entry("failed\nPRIORITY=0\nSEMEL_CLIENT=root")
    assert found["MESSAGE"] == "failed\nPRIORITY=0\nSEMEL_CLIENT=root"
    assert found["PRIORITY"] == "6"
    assert "SEMEL_CLIENT" not in found


def test_a_long_message_is_cut() -> None:
    assert len(entry("x" * 1_000_000)["MESSAGE"]) == 32 * 1024


def test_the_log_is_sent_entry_by_entry(tmp_path: Path, receiver: socket.socket) -> None:
    handler = LogWriter(
        2, journal=SystemJournal(tmp_path / "journal"), repeats=Repeats(lines=2, seconds=60)
    )
    log = logging.Logger("test", logging.INFO)
    log.addHandler(handler)
    for number in range(5):
        log.warning("'c%d' (1.2.3.4:5) closed", number)
    handler.close()
    found = [fields_of(receiver.recv(100_000)) for _ in range(3)]
    assert [each.get("SEMEL_CLIENT") for each in found] == ["c0", "c1", None]
    assert "… and 3 more" in found[2]["MESSAGE"]


def test_a_journal_that_is_restarted_is_found_again(
    tmp_path: Path, receiver: socket.socket
) -> None:
    journal = SystemJournal(tmp_path / "journal")
    journal.send(b"MESSAGE=one\n")
    assert receiver.recv(100) == b"MESSAGE=one\n"
    receiver.close()
    # Lost, because there is no journal.
    journal.send(b"MESSAGE=two\n")
    (tmp_path / "journal").unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(tmp_path / "journal"))
        journal.send(b"MESSAGE=three\n")
        assert other.recv(100) == b"MESSAGE=three\n"
        # Too large for a datagram: lost, and nothing else happens.
        journal.send(b"x" * 50_000_000)
        journal.send(b"MESSAGE=four\n")
        assert other.recv(100) == b"MESSAGE=four\n"
    journal.close()


def test_without_a_journal_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(JournalUnusable) as caught:
        SystemJournal(tmp_path / "none")
    assert str(caught.value) == (
        f"[broker] log_format is journald, but {tmp_path / 'none'} cannot be used: No such file or "
        "directory. Run the broker where systemd-journald is, or choose text or json"
    )
