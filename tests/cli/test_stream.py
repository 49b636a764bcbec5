"""`semel stream` lists, reads, follows and trims the record, beside a broker or without one."""

import csv
import io
import json
import signal
import socket
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from click.testing import CliRunner, Result

from semel import cli
from semel.cli.stream import fields_of, shown_payload
from semel.cli.text_tables import shown_size, shown_time
from semel.extras import need
from semel.mqtt import MQTT5, Connect, Decoder, PubAck, Publish, encode
from semel.store.commit import Commit, RecordedMessage
from semel.store.reading import RecordRow
from semel.store.roots import Segment
from tests.broker.broker_process import PATIENCE, Process
from tests.store.keeper import Keeper
from tests.store.recorded import message, received

pq = need("pyarrow.parquet", extra="broker", by="this test")

# Row 1 of every record here, for people and for --from.
FIRST = "2023-11-14T22:13:20.001000Z"
# What a process of its own runs where pyarrow is not installed.
WITHOUT_PYARROW = "import sys; sys.modules['pyarrow'] = None; from semel.cli import main; main()"


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    """Ten rows: 1 to 3, 4 to 6 and 7 in segments, the others in the store."""
    made = Keeper(tmp_path / "data")
    made.commit(10)
    made.seal(3, 3, 1)
    yield made
    made.close()


def run(*arguments: object, text: str | None = None) -> Result:
    return CliRunner().invoke(cli.group, ["stream", *map(str, arguments)], input=text)


def read(keeper: Keeper, *arguments: object) -> Result:
    return run("read", "plant", "--data", keeper.folder.path, *arguments)


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def seqs(result: Result) -> list[int]:
    return [line["seq"] for line in lines(result)]


def put(keeper: Keeper, *records: RecordedMessage) -> None:
    commit = Commit()
    commit.at = received(keeper.last + 1) / 1e6
    commit.records.extend(records)
    keeper.database.apply([commit])
    keeper.last += len(records)


# --- list -----------------------------------------------------------------------------------------


def test_list_is_a_table_with_a_line_for_each_stream_and_node(keeper: Keeper) -> None:
    result = run("list", "--data", keeper.folder.path)
    assert result.exit_code == 0
    head, line = result.output.splitlines()
    names = "stream node first last rows sealed segments bytes oldest newest"
    assert head.split() == names.split()
    size = sum(each.size for each in keeper.root.segments("plant", "n1"))
    assert (
        line.split()
        == (
            f"plant n1 1 10 10 7 3 {shown_size(size)} 2023-11-14T22:13:20Z 2023-11-14T22:13:20Z"
        ).split()
    )


def test_list_for_programs_is_json(keeper: Keeper) -> None:
    keeper.merge()
    (found,) = json.loads(run("list", "--json", "--data", keeper.folder.path).output)
    segments = {each.range: each.size for each in keeper.root.segments("plant", "n1")}
    assert found == {
        "stream": "plant",
        "node": "n1",
        "first": 1,
        "last": 10,
        "rows": 10,
        "sealed": 7,
        "segments": 1,
        "bytes": segments[1, 7],
        "covered_segments": 3,
        "covered_bytes": sum(segments.values()) - segments[1, 7],
        "oldest": FIRST,
        "newest": "2023-11-14T22:13:20.010000Z",
        "problem": None,
    }


def test_list_by_root_has_what_is_sealed(keeper: Keeper) -> None:
    (found,) = json.loads(run("list", "--json", "--root", keeper.folder.streams).output)
    assert (found["last"], found["sealed"]) == (7, 7)


def test_list_tells_what_is_missing_and_fails(keeper: Keeper) -> None:
    keeper.root.delete(keeper.root.file_path("plant", "n1", Segment(4, 6, 0, 0.0).name))
    result = run("list", "--data", keeper.folder.path)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1].startswith("plant")
    assert result.stderr.startswith("Error: rows 4 to 6 of stream plant, node n1, are missing")


def test_a_store_without_streams_has_an_empty_list(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "data")
    keeper.database.connection.execute("DELETE FROM stream")
    result = run("list", "--data", tmp_path / "data")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"{tmp_path / 'data'} has no stream\n"
    assert run("list", "--json", "--data", tmp_path / "data").output == "[]\n"
    keeper.close()


def test_a_stream_whose_rows_are_all_deleted_is_listed(keeper: Keeper) -> None:
    keeper.seal(3)
    assert (
        run("trim", "plant", "--data", keeper.folder.path, "--before", 11, "--yes").exit_code == 0
    )
    line = run("list", "--data", keeper.folder.path).output.splitlines()[1]
    assert line.split() == ["plant", "n1", "10", "0", "10", "0", "0", "B"]


# --- read -----------------------------------------------------------------------------------------


def test_read_prints_every_row_once_and_in_order(keeper: Keeper) -> None:
    assert seqs(read(keeper)) == list(range(1, 11))
    assert seqs(run("read", "plant", "--root", keeper.folder.streams)) == list(range(1, 8))


def test_a_long_record_is_printed_in_pieces_and_once(keeper: Keeper) -> None:
    put(keeper, *[RecordedMessage(1, seq, "t", b"x" * 1000) for seq in range(11, 311)])
    keeper.seal(100)
    assert seqs(read(keeper)) == list(range(1, 311))


def test_a_row_for_programs_has_the_columns_of_a_segment(keeper: Keeper) -> None:
    (found,) = lines(read(keeper, "--from", 5, "--to", 5))
    was = message(5)
    assert found == {
        "seq": 5,
        "node": "n1",
        "received": "2023-11-14T22:13:20.005000Z",
        "topic": "plant/line0/temperature",
        "payload": "value 5",
        "qos": 2,
        "retain": False,
        "dup": False,
        "client_id": "sensor-1",
        "user_name": "ann",
        "packet_id": 6,
        "protocol_version": 5,
        "payload_format": 1,
        "content_type": "text/plain",
        "response_topic": None,
        "correlation_data": None,
        "message_expiry": 5,
        "user_properties": [
            {"key": key, "value": value} for key, value in was.properties.user_properties
        ],
    }
    assert list(found) == list(RecordRow._fields)


def test_bytes_that_are_no_text_are_in_base64(keeper: Keeper) -> None:
    put(
        keeper,
        RecordedMessage(1, 11, "t", b"\xff\x00"),
        RecordedMessage(1, 12, "t", "größe\n\0".encode()),
    )
    binary, text = lines(read(keeper, "--from", 11))
    assert binary["payload"] is None
    assert b64decode(binary["payload_base64"]) == b"\xff\x00"
    assert text["payload"] == "größe\n\0"
    assert "payload_base64" not in text


def test_csv_has_a_head_and_the_same_values(keeper: Keeper) -> None:
    put(
        keeper,
        RecordedMessage(1, 11, "t", b"\xff\x00"),
        RecordedMessage(1, 12, "t", b'a,"b"\nc', retain=True),
    )
    result = read(keeper, "--csv")
    assert result.exit_code == 0
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [int(row["seq"]) for row in rows] == list(range(1, 13))
    assert (rows[10]["payload"], rows[10]["payload_base64"]) == ("", "/wA=")
    assert (rows[11]["payload"], rows[11]["payload_base64"]) == ('a,"b"\nc', "")
    assert (rows[11]["retain"], rows[11]["dup"], rows[11]["user_name"]) == ("true", "false", "")
    assert json.loads(rows[0]["user_properties"])[0] == {"key": "n", "value": "1"}
    for name in ("seq", "received", "topic", "payload", "qos", "client_id", "content_type"):
        wanted = [line[name] for line in lines(read(keeper, "--to", 10))]
        assert [row[name] for row in rows[:10]] == [
            "" if value is None else str(value) for value in wanted
        ]


def test_a_row_for_people_is_a_line(keeper: Keeper) -> None:
    assert read(keeper, "--text", "--to", 1).output == (
        f"       1  {FIRST}  q1  plant/line1/temperature  value 1"
        "  [payload_format=1, content_type=text/plain, message_expiry=1, n=1, n=again, =]\n"
    )
    assert read(keeper, "--text", "--from", 7, "--to", 7).output.endswith(
        "  q1  plant/line2/temperature  value 7  [retain]\n"
    )


@pytest.mark.parametrize(
    ("payload", "line"),
    [
        (b"", "(empty)"),
        (b"21.5", "21.5"),
        ("größe".encode(), "größe"),
        (b"\x1b[2J\n", r"\x1b[2J\n"),
        (b"\xff\x00", "0xff00"),
        (b"x" * 160, "x" * 160),
        (b"x" * 161, "x" * 160 + "… (161 bytes)"),
        (b"\xff" * 2000, "0x" + "ff" * 79 + "… (2,000 bytes)"),
    ],
)
def test_a_payload_cannot_act_on_a_terminal_nor_fill_it(payload: bytes, line: str) -> None:
    assert shown_payload(payload) == line


def test_neither_can_a_topic_or_a_property(keeper: Keeper) -> None:
    put(keeper, RecordedMessage(1, 11, "a\x9b2J", b"x", client_id="c"))
    assert r"  a\x9b2J  x" in read(keeper, "--text", "--from", 11).output


@pytest.mark.parametrize(
    ("first", "last", "wanted"),
    [
        ("earliest", None, range(1, 11)),
        ("4", None, range(4, 11)),
        ("4", "8", range(4, 9)),
        ("10", "10", range(10, 11)),
        ("11", None, range(0)),
        ("8", "7", range(0)),
        ("1", "999", range(1, 11)),
        ("2023-11-14T22:13:20.004Z", None, range(4, 11)),
        ("2023-11-14T23:13:20.004+01:00", None, range(4, 11)),
        ("2023-11-14 22:13:20.0035", "2023-11-14T22:13:20.009Z", range(4, 9)),
        ("2023-11-14", "2023-11-15", range(1, 11)),
        ("2023-11-15", None, range(0)),
        ("earliest", "2023-11-14", range(0)),
    ],
)
def test_a_range_is_by_numbers_or_by_times(
    keeper: Keeper, first: str, last: str | None, wanted: range
) -> None:
    arguments = ["--from", first, *(["--to", last] if last else [])]
    assert seqs(read(keeper, *arguments)) == list(wanted)


def test_ranges_of_time_share_no_row_and_leave_none_out_though_a_clock_was_set_back(
    keeper: Keeper,
) -> None:
    for seq, at in ((11, 30), (12, 25), (13, 40), (14, 28)):
        commit = Commit()
        commit.at = received(at) / 1e6
        commit.records.append(message(seq))
        keeper.database.apply([commit])
    keeper.last = 14
    keeper.seal(5)
    ends = [shown_time(received(at)) for at in (0, 5, 24, 26, 29, 31, 50)]
    found = [seqs(read(keeper, "--from", start, "--to", end)) for start, end in pairwise(ends)]
    assert [seq for part in found for seq in part] == list(range(1, 15))
    assert found[3:] == [[], [11, 12], [13, 14]]


def test_a_filter_and_a_limit_choose_among_the_rows(keeper: Keeper) -> None:
    found = seqs(read(keeper, "--topic", "plant/+/temperature"))
    assert found == list(range(1, 11))
    assert seqs(read(keeper, "--topic", "plant/line2/#")) == [2, 7]
    assert seqs(read(keeper, "--topic", "plant/line2/#", "--count", 1)) == [2]
    assert seqs(read(keeper, "--count", 4, "--from", 3)) == [3, 4, 5, 6]
    assert seqs(read(keeper, "--topic", "nothing")) == []


def test_rows_of_several_nodes_are_in_order_of_time_and_each_in_its_own(
    keeper: Keeper, tmp_path: Path
) -> None:
    other = Keeper(tmp_path / "other", node="n2", root=keeper.root)
    for seq, at in ((1, 2), (2, 8), (3, 5), (4, 100)):
        commit = Commit()
        commit.at = received(at) / 1e6 + 0.0005
        commit.records.append(message(seq))
        other.database.apply([commit])
    other.last = 4
    other.seal(4)
    found = [(line["node"], line["seq"]) for line in lines(read(keeper))]
    assert [seq for node, seq in found if node == "n1"] == list(range(1, 11))
    assert [seq for node, seq in found if node == "n2"] == [1, 2, 3, 4]
    assert found[:4] == [("n1", 1), ("n1", 2), ("n2", 1), ("n1", 3)]
    assert found[-1] == ("n2", 4)
    assert found.index(("n2", 3)) == found.index(("n2", 2)) + 1
    assert seqs(read(keeper, "--node", "n2")) == [1, 2, 3, 4]
    assert len(seqs(read(keeper, "--node", "n2", "--node", "n1"))) == 14
    assert read(keeper, "--text", "--count", 1).output.startswith(f"       1  n1  {FIRST}")
    assert len(json.loads(run("list", "--json", "--data", keeper.folder.path).output)) == 2
    assert (
        "each node numbers its own rows"
        in run("trim", "plant", "--data", keeper.folder.path, "--before", 4, "--yes").output
    )
    other.close()


def test_a_gap_ends_the_reading_with_the_rows_before_it_and_a_sentence(keeper: Keeper) -> None:
    keeper.root.delete(keeper.root.file_path("plant", "n1", Segment(4, 6, 0, 0.0).name))
    result = read(keeper)
    assert result.exit_code == 1
    assert [json.loads(line)["seq"] for line in result.stdout.splitlines()] == [1, 2, 3]
    assert result.stderr == (
        "Error: rows 4 to 6 of stream plant, node n1, are missing from "
        f"{keeper.folder.streams} and from the store; --from 7 reads on\n"
    )
    assert seqs(read(keeper, "--from", 7)) == [7, 8, 9, 10]


def test_rows_that_were_deleted_are_not_passed_over_silently(keeper: Keeper) -> None:
    run("trim", "plant", "--data", keeper.folder.path, "--before", 4, "--yes")
    assert seqs(read(keeper)) == list(range(4, 11))
    result = read(keeper, "--from", 2)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: rows 2 to 3 of stream plant, node n1, were deleted")


# --- tail -----------------------------------------------------------------------------------------


def test_tail_prints_the_last_rows(keeper: Keeper) -> None:
    def tail(*arguments: object) -> list[int]:
        return seqs(run("tail", "plant", "--data", keeper.folder.path, "--no-follow", *arguments))

    keeper.commit(5)
    assert tail() == list(range(6, 16))
    assert tail("-n", 2) == [14, 15]
    assert tail("-n", 0) == []
    assert tail("-n", 100) == list(range(1, 16))
    assert tail("-n", 10, "--topic", "plant/line2/#") == [7, 12]


class Follower:
    """`semel stream tail` in a process of its own."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "semel", "stream", "tail", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        # Whoever waits for a line that does not come is told so by the end of the output.
        self.patience = Timer(3 * PATIENCE, self.process.kill)
        self.patience.start()

    def next(self) -> int:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        seq: int = json.loads(line)["seq"]
        return seq

    def interrupt(self) -> tuple[int, str]:
        """Ctrl-C: the exit code, and what was said."""
        self.patience.cancel()
        self.process.send_signal(signal.SIGINT)
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said


@pytest.mark.parametrize("by", ["data", "root"])
def test_tail_goes_on_with_what_comes_until_it_is_interrupted(keeper: Keeper, by: str) -> None:
    where = keeper.folder.path if by == "data" else keeper.folder.streams
    keeper.seal(3)
    follower = Follower("plant", f"--{by}", where, "-n", 3)
    try:
        assert [follower.next() for _ in range(3)] == [8, 9, 10]
        keeper.commit(2)
        keeper.seal(2)
        assert [follower.next() for _ in range(2)] == [11, 12]
        keeper.merge()
        keeper.tidy()
        keeper.commit(2)
        keeper.seal(1, 1)
        keeper.merge()
        keeper.tidy()
        assert [follower.next() for _ in range(2)] == [13, 14]
    finally:
        code, said = follower.interrupt()
    assert (code, said) == (0, "")


def test_tail_takes_in_a_node_that_is_new(keeper: Keeper, tmp_path: Path) -> None:
    follower = Follower("plant", "--root", keeper.folder.streams, "-n", 1)
    try:
        assert follower.next() == 7
        other = Keeper(tmp_path / "other", node="n2", root=keeper.root)
        other.commit(2)
        other.seal(2)
        assert [follower.next() for _ in range(2)] == [1, 2]
        other.close()
    finally:
        assert follower.interrupt() == (0, "")


# --- ending ---------------------------------------------------------------------------------------


def test_a_reader_that_has_enough_ends_it_quietly(keeper: Keeper) -> None:
    put(keeper, *[RecordedMessage(1, seq, "t", b"x" * 1000) for seq in range(11, 1500)])
    command = [sys.executable, "-m", "semel", "stream", "read", "plant"]
    process = subprocess.Popen(
        [*command, "--data", str(keeper.folder.path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        assert json.loads(process.stdout.readline())["seq"] == 1
        process.stdout.close()
        assert process.wait(PATIENCE) == 0
        assert process.stderr.read() == b""


def test_ctrl_c_ends_a_reading_quietly_but_not_as_if_it_were_done(keeper: Keeper) -> None:
    put(keeper, *[RecordedMessage(1, seq, "t", b"x" * 1000) for seq in range(11, 1500)])
    command = [sys.executable, "-m", "semel", "stream", "read", "plant"]
    process = subprocess.Popen(
        [*command, "--data", str(keeper.folder.path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    with process:
        # It waits for us by now: the pipe is full.
        assert json.loads(process.stdout.readline())["seq"] == 1
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
        assert (process.returncode, said) == (130, b"")


# --- trim -----------------------------------------------------------------------------------------


def trim(keeper: Keeper, *arguments: object, text: str | None = None) -> Result:
    return run("trim", "plant", "--data", keeper.folder.path, *arguments, text=text)


def test_trim_says_what_it_would_delete_and_deletes_nothing(keeper: Keeper) -> None:
    result = trim(keeper, "--before", 8, "--dry-run")
    assert result.exit_code == 0
    size = shown_size(sum(each.size for each in keeper.root.segments("plant", "n1")))
    second = "2023-11-14T22:13:20Z"
    assert result.output == (
        f"stream plant, node n1: 3 segments, rows 1 to 7, {size}, received {second} to {second}\n"
    )
    assert keeper.names() == ["1-3", "4-6", "7-7"]


def test_trim_tells_programs_what_it_deletes(keeper: Keeper) -> None:
    node = {"stream": "plant", "node": "n1", "first": 1, "last": 6, "segments": 2}
    dry = json.loads(trim(keeper, "--before", 7, "--dry-run", "--json").stdout)
    assert dry == {"deleted": False, "nodes": [node]}
    asked = trim(keeper, "--before", 7, "--json")
    assert (asked.exit_code, asked.stdout) == (1, "")
    done = json.loads(trim(keeper, "--before", 7, "--yes", "--json").stdout)
    assert done == {"deleted": True, "nodes": [node]}
    again = json.loads(trim(keeper, "--before", 7, "--yes", "--json").stdout)
    assert again == {"deleted": True, "nodes": []}


def test_trim_asks_first(keeper: Keeper) -> None:
    for answer in ("n\n", "\n", ""):
        assert trim(keeper, "--before", 8, text=answer).exit_code == 1
        assert keeper.names() == ["1-3", "4-6", "7-7"]
    assert trim(keeper, "--before", 6, text="y\n").exit_code == 0
    assert keeper.names() == ["4-6", "7-7"]


def test_trim_deletes_whole_segments_and_never_unsealed_rows(keeper: Keeper) -> None:
    result = trim(keeper, "--before", 999, "--yes")
    assert result.exit_code == 0
    assert result.output.endswith("stream plant, node n1: deleted 3 segments, rows 1 to 7\n")
    assert keeper.names() == []
    assert seqs(read(keeper)) == [8, 9, 10]
    keeper.commit(1)
    keeper.seal(4)
    assert seqs(read(keeper)) == [8, 9, 10, 11]


def test_trim_by_time_keeps_what_was_received_then(keeper: Keeper) -> None:
    trim(keeper, "--before", "2023-11-14T22:13:20.006Z", "--yes")
    assert keeper.names() == ["4-6", "7-7"]
    trim(keeper, "--before", "2023-11-14T22:13:20.006001Z", "--yes")
    assert keeper.names() == ["7-7"]


def test_trim_says_what_stays_because_it_was_merged_while_it_asked(keeper: Keeper) -> None:
    """Segments 1-3, 4-6 and 7-7 become one, and only two of them were to go."""
    command = [sys.executable, "-m", "semel", "stream", "trim", "plant", "--before", "7"]
    process = subprocess.Popen(
        [*command, "--data", str(keeper.folder.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:
        assert "2 segments, rows 1 to 6" in process.stdout.readline()
        assert keeper.merge()
        said, _ = process.communicate("y\n", timeout=PATIENCE)
    assert process.returncode == 0
    assert said.endswith(
        "stream plant, node n1: deleted 0 segments; "
        "kept the others, which were merged with later segments meanwhile\n"
    )
    assert seqs(read(keeper)) == list(range(1, 11))


def test_trim_that_finds_nothing_says_so(keeper: Keeper) -> None:
    result = trim(keeper, "--before", 3, "--yes")
    assert result.exit_code == 0
    assert result.output == "nothing to delete: no segment ends before this point\n"
    assert keeper.names() == ["1-3", "4-6", "7-7"]


# --- what users do wrong --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("read", "nothing"), "has no stream nothing: it has plant"),
        (("read", "../plant"), "stream '../plant' cannot name a folder"),
        (("read", "plant", "--node", "n9"), "stream plant has no node n9: it has n1"),
        (("tail", "nothing"), "has no stream nothing: it has plant"),
        (("trim", "nothing", "--before", "3"), "has no stream nothing: it has plant"),
    ],
)
def test_what_is_not_there_is_one_sentence(
    keeper: Keeper, arguments: tuple[str, ...], sentence: str
) -> None:
    result = run(*arguments, "--data", keeper.folder.path)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("what", [("list",), ("read", "plant"), ("tail", "plant")])
def test_no_store_and_no_root_are_one_sentence_each(tmp_path: Path, what: tuple[str, ...]) -> None:
    for option, place in (
        ("--data", tmp_path / "nothing"),
        ("--data", tmp_path),
        ("--root", tmp_path / "nothing"),
        ("--root", "ftp://host/x"),
    ):
        result = run(*what, option, place)
        assert result.exit_code == 1
        assert result.stderr.startswith("Error: ")
        assert result.stderr.count("\n") == 1
        assert str(place) in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("read", "plant"),
        ("read", "plant", "--data", ".", "--from", "yesterday"),
        ("read", "plant", "--data", ".", "--from", "0"),
        ("read", "plant", "--data", ".", "--from", "9223372036854775808"),
        ("read", "plant", "--data", ".", "--to", "earliest"),
        ("read", "plant", "--data", ".", "--topic", "a/#/b"),
        ("read", "plant", "--data", ".", "--topic", "$share/g/a"),
        ("read", "plant", "--data", ".", "--count", "0"),
        ("read", "plant", "--data", ".", "--json", "--csv"),
        ("tail", "plant", "--data", ".", "-n", "-1"),
        ("trim", "plant", "--data", "."),
        ("read", "--data", "."),
    ],
)
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Usage: " in result.stderr


def test_the_place_may_be_in_the_file_of_settings(keeper: Keeper, tmp_path: Path) -> None:
    file = tmp_path / "semel.toml"
    file.write_text(f'[store]\ndata = "{keeper.folder.path}"\n')
    assert len(lines(run("read", "plant", "--config", file))) == 10
    file.write_text(f'[store]\nroot = "{keeper.folder.streams}"\n')
    assert len(lines(run("read", "plant", "--config", file))) == 7


def test_the_place_may_be_in_the_environment(keeper: Keeper) -> None:
    environment = {"SEMEL_STORE_DATA": str(keeper.folder.path)}
    result = CliRunner().invoke(cli.group, ["stream", "read", "plant"], env=environment)
    assert len(lines(result)) == 10
    environment = {"SEMEL_STORE_ROOT": str(keeper.folder.streams)}
    result = CliRunner().invoke(cli.group, ["stream", "read", "plant"], env=environment)
    assert len(lines(result)) == 7


@pytest.mark.parametrize("what", [("list",), ("read", "plant"), ("trim", "plant", "--before", "3")])
def test_without_pyarrow_it_is_one_sentence(keeper: Keeper, what: tuple[str, ...]) -> None:
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYARROW, "stream", *what, "--data", keeper.folder.path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr == (
        "Error: the record of a stream needs pyarrow: pip install 'semel[broker]'\n"
    )


def test_a_time_that_no_calendar_has_is_a_number() -> None:
    assert shown_time(2**63 - 1) == str(2**63 - 1)
    assert shown_time(0) == "1970-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_549_999, "1.5 MB"), (10**15, "1000.0 TB")],
)
def test_sizes_are_for_people(size: int, text: str) -> None:
    assert shown_size(size) == text


def test_binary_correlation_data_is_in_base64_too() -> None:
    values: list[Any] = [None] * len(RecordRow._fields)
    row = RecordRow._make(values)._replace(received=0, payload=b"", correlation_data=b"\xfe")
    assert fields_of(row)["correlation_data_base64"] == "/g=="
    assert fields_of(row._replace(correlation_data=b"a"))["correlation_data"] == "a"


# --- beside a broker ------------------------------------------------------------------------------


class Publisher:
    """A client that publishes at QoS 1, and counts what is acknowledged."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, PATIENCE)
        self.decoder = Decoder(MQTT5)
        self.socket.sendall(encode(Connect("publisher"), MQTT5))
        self._wait(1)
        self.count = 0

    def _wait(self, packets: int) -> list[object]:
        found: list[object] = []
        while len(found) < packets:
            data = self.socket.recv(65536)
            assert data
            found += self.decoder.receive(data)
        return found

    def publish(self, rows: int) -> None:
        """So many messages, all of which are acknowledged when this returns."""
        packets = [
            encode(
                Publish(f"plant/{seq % 5}", b"%d" % seq, qos=1, packet_id=seq % 65535 + 1), MQTT5
            )
            for seq in range(self.count + 1, self.count + rows + 1)
        ]
        self.socket.sendall(b"".join(packets))
        assert all(isinstance(packet, PubAck) for packet in self._wait(rows))
        self.count += rows


def test_beside_a_busy_broker_every_acknowledged_row_is_read_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = ["--stream", "plant=plant/#", "--data", str(data), "--node", "n1"]
    with Process(*options, "--seal-after", "10ms", "--compact-grace", "0") as broker:
        publisher = Publisher(broker.address)
        publisher.publish(1)
        follower = Follower("plant", "--data", data, "-n", 1)
        assert follower.next() == 1
        read_by_now = 0
        for _ in range(40):
            publisher.publish(50)
            found = lines(run("read", "plant", "--data", data, "--from", read_by_now + 1))
            for line in found:
                read_by_now += 1
                assert (line["seq"], line["payload"]) == (read_by_now, str(read_by_now))
            assert read_by_now == publisher.count
        publisher.socket.close()
    whole = lines(run("read", "plant", "--data", data))
    assert [line["seq"] for line in whole] == list(range(1, publisher.count + 1))
    assert [follower.next() for _ in whole[1:]] == list(range(2, publisher.count + 1))
    assert follower.interrupt() == (0, "")


def test_beside_a_broker_the_beginning_is_deleted_and_numbers_go_on(tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = ["--stream", "plant=plant/#", "--data", str(data), "--node", "n1"]
    with Process(*options, "--seal-after", "10ms") as broker:
        publisher = Publisher(broker.address)
        for _ in range(15):
            publisher.publish(20)
            result = run("trim", "plant", "--data", data, "--before", publisher.count, "--yes")
            assert result.exit_code == 0, result.output
            found = seqs(run("read", "plant", "--data", data))
            assert found == list(range(publisher.count + 1 - len(found), publisher.count + 1))
        publisher.socket.close()
    # It starts again on what is left.
    with Process(*options) as broker:
        publisher = Publisher(broker.address)
        publisher.publish(1)
        assert seqs(run("read", "plant", "--data", data))[-1] == 301
        publisher.socket.close()


# --- verify ---------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    """Turn over one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 4
    path.write_bytes(data)


def rewrite_without_checksums(path: Path) -> None:
    """As an earlier version wrote it."""
    pq.write_table(pq.read_table(path), path, compression="zstd", store_schema=False)


def test_verify_says_that_all_segments_are_whole(keeper: Keeper) -> None:
    result = run("verify", "--data", keeper.folder.path)
    assert result.exit_code == 0, result.output
    assert "3 segments: 3 intact, 0 without checksums, 0 damaged" in result.stdout
    assert run("verify", "plant", "--root", keeper.folder.streams).exit_code == 0


def test_verify_names_what_is_damaged_and_what_has_no_checksums(keeper: Keeper) -> None:
    folder = keeper.folder.streams / "plant" / "n1"
    damaged, old = folder / Segment(4, 6, 0, 0).name, folder / Segment(1, 3, 0, 0).name
    flip(damaged)
    rewrite_without_checksums(old)
    result = run("verify", "--data", keeper.folder.path)
    assert result.exit_code == 1
    assert f"{old}: written without checksums" in result.stdout
    assert "3 segments: 1 intact, 1 without checksums, 1 damaged" in result.stdout
    assert f"Error: {damaged} of stream plant, node n1, is damaged" in result.stderr
    assert "semel stream trim plant --node n1 --before 7" in result.stderr
    found = json.loads(run("verify", "--data", keeper.folder.path, "--json").stdout)
    assert found["segments"] == 3
    assert [each["path"] for each in found["damaged"]] == [str(damaged)]
    assert [each["path"] for each in found["without_checksums"]] == [str(old)]
    # What is without checksums is no reason to fail.
    flip(damaged)
    assert run("verify", "--data", keeper.folder.path).exit_code == 0


def test_verify_tells_of_rows_that_are_missing_between_segments(keeper: Keeper) -> None:
    (keeper.folder.streams / "plant" / "n1" / Segment(4, 6, 0, 0).name).unlink()
    result = run("verify", "--data", keeper.folder.path)
    assert result.exit_code == 1
    assert "rows 4 to 6 are missing" in result.stderr


def test_verify_refuses_a_stream_that_is_not_there(keeper: Keeper) -> None:
    result = run("verify", "nowhere", "--data", keeper.folder.path)
    assert result.exit_code == 1
    assert "it has plant" in result.stderr


def test_reading_stops_at_a_damaged_segment_with_its_name(keeper: Keeper) -> None:
    place = keeper.folder.streams / "plant" / "n1" / Segment(4, 6, 0, 0).name
    flip(place)
    result = read(keeper, "--json")
    assert result.exit_code == 1
    assert [json.loads(line)["seq"] for line in result.stdout.splitlines()] == [1, 2, 3]
    assert f"{place} of stream plant, node n1, is damaged" in result.stderr
    result = run("tail", "plant", "--no-follow", "--data", keeper.folder.path)
    assert result.exit_code == 1
    assert str(place) in result.stderr
    assert seqs(read(keeper, "--json", "--from", 7)) == [7, 8, 9, 10]
