"""Every command can print on any terminal: what its encoding lacks becomes an escape sequence."""

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from semel import cli
from semel.cli.output import AsciiOutput, encoded, make_output_safe, safe_output
from semel.store.commit import Commit, RecordedMessage
from tests.broker.broker_process import Process
from tests.store.keeper import Keeper

ENCODINGS = ("latin-1", "ascii", "latin-1:surrogateescape")
DECODED = ("decode", "-V", "3.1.1", "38 0B 00 08 73 65 6E 73 6F 72 2F 23 78")


def run(encoding: str, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """The command in an environment whose terminals have this encoding."""
    return subprocess.run(
        [sys.executable, "-m", "semel", *arguments],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        check=False,
    )


def printed(encoding: str, arguments: Sequence[str], *, code: int = 0) -> str:
    """What a command prints; it fails on bytes that are not of the encoding."""
    result = run(encoding, *arguments)
    assert result.returncode == code, result.stderr
    assert b"Traceback" not in result.stderr
    codec = encoding.partition(":")[0]
    result.stderr.decode(codec)
    return result.stdout.decode(codec)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_decode_marks_a_violation_in_any_encoding(encoding: str) -> None:
    assert "\\u2717 DUP_NEEDS_QOS" in printed(encoding, DECODED, code=1)


def test_decode_marks_a_violation_by_a_sign_where_there_is_one() -> None:
    assert "✗ DUP_NEEDS_QOS" in printed("utf-8", DECODED, code=1)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_rules_are_listed_in_any_encoding(encoding: str) -> None:
    assert "TOPIC_NAME_WITHOUT_WILDCARDS" in printed(encoding, ["rules"])


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_load_prints_its_table_in_any_encoding(encoding: str) -> None:
    with Process() as broker:
        url = f"mqtt://127.0.0.1:{broker.address[1]}"
        text = printed(encoding, ["load", url, "--count", "10", "--qos", "0"])
    line = next(each for each in text.splitlines() if each.startswith("acknowledged"))
    assert line.split() == ["acknowledged", "\\u2013"]


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_messages_of_a_stream_are_shown_in_any_encoding(encoding: str, tmp_path: Path) -> None:
    keeper = Keeper(tmp_path)
    commit = Commit()
    commit.records.append(RecordedMessage(1, 1, "Ω/é", b"x" * 5_000, client_id="c"))
    keeper.database.apply([commit])
    keeper.close()
    text = printed(encoding, ["stream", "read", "plant", "--data", str(tmp_path), "--text"])
    assert "\\u03a9/" in text
    assert ("é" if encoding == "latin-1" else "\\xe9") in text


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_every_command_explains_itself_in_any_encoding(encoding: str) -> None:
    program = (
        "import sys\n"
        "from semel.cli import COMMANDS, main\n"
        "for name in COMMANDS:\n"
        "    sys.argv = ['semel', name, '--help']\n"
        "    try:\n        main()\n"
        "    except SystemExit as end:\n        assert not end.code, name\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.decode(encoding).count("Usage: ") == len(cli.COMMANDS)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_an_error_that_quotes_the_user_is_printed_in_any_encoding(encoding: str) -> None:
    result = run(encoding, "sub", "-t", "t", "-x", "Ω")
    assert result.returncode == 1
    assert b"Traceback" not in result.stderr
    assert result.stderr.decode(encoding)


def test_a_stream_that_escapes_already_is_left_as_it_is() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "latin-1", errors="replace")
    assert safe_output(stream) is stream
    assert stream.errors == "replace"


def test_ascii_is_written_escaped_and_flushed_by_line_if_it_was() -> None:
    below = io.BytesIO()
    stream = safe_output(io.TextIOWrapper(below, "ascii", line_buffering=True))
    assert isinstance(stream, AsciiOutput)
    assert stream.write("a Ω\n") == 4
    assert below.getvalue() == b"a \\u03a9\n"


@pytest.mark.parametrize(
    ("encoding", "data"),
    [("utf-8", "Ωé".encode()), ("latin-1", b"\\u03a9\xe9"), ("ascii", b"\\u03a9\\xe9")],
)
def test_who_writes_to_the_descriptor_of_standard_error_has_its_encoding(
    monkeypatch: pytest.MonkeyPatch, encoding: str, data: bytes
) -> None:
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
    make_output_safe()
    assert encoded("Ωé") == data


def test_decode_of_bytes_that_are_no_text_is_a_usage_error() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "semel", "decode", "-"],
        input=b"30 \xff",
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    assert result.returncode == 2
    assert b"Traceback" not in result.stderr
    assert b"not hexadecimal" in result.stderr
