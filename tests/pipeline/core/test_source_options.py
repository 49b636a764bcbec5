"""The options of `format("mqtt")`: what is allowed, and what is said of the rest."""

from pathlib import Path
from typing import Any

import pytest

from semel.pipeline.errors import OptionError
from semel.pipeline.source_options import (
    EARLIEST,
    LATEST,
    Point,
    Points,
    SourceOptions,
    kept_options,
    options_of_table,
    parse_source_options,
)

NOON = 1_772_366_400_000_000  # 2026-03-01T12:00:00Z


def parse(**given: str) -> SourceOptions:
    return parse_source_options({"root": "/somewhere", **given})


def problem(**given: str) -> str:
    with pytest.raises(OptionError) as caught:
        parse(**given)
    return str(caught.value)


def test_a_root_is_enough() -> None:
    options = parse()
    assert options.root == "/somewhere"
    assert options.stream is None
    assert options.nodes is None
    assert options.start == Points(Point(name=EARLIEST))
    assert options.end is None
    assert options.max_rows is None
    assert options.fail_on_data_loss
    assert options.min_partitions >= 1
    assert not options.is_live


def test_names_of_options_are_the_same_in_small_and_capital_letters() -> None:
    given = {"ROOT": "/r", "Stream": "all", "maxrowsperbatch": "7", "FAILONDATALOSS": "False"}
    options = parse_source_options(given)
    assert (options.root, options.stream, options.max_rows) == ("/r", "all", 7)
    assert not options.fail_on_data_loss


def test_the_path_of_load_is_the_root() -> None:
    assert parse_source_options({"path": "/r"}).root == "/r"
    assert parse_source_options({"path": "/r", "root": "/r"}).root == "/r"
    with pytest.raises(OptionError, match="root and the path of load\\(\\) differ: give one"):
        parse_source_options({"path": "/r", "root": "/other"})


def test_a_root_is_needed() -> None:
    with pytest.raises(OptionError, match="option root is missing"):
        parse_source_options({"stream": "all"})
    with pytest.raises(OptionError, match="option root is empty"):
        parse_source_options({"root": " "})
    with pytest.raises(OptionError, match="option root: ftp://host/x is not a root"):
        parse_source_options({"root": "ftp://user:hidden@host/x"})


def test_columns_are_chosen_by_their_names() -> None:
    assert parse().columns is None
    assert parse(columns="topic, seq").columns == ("topic", "seq")
    assert problem(columns="topic,tpoic") == (
        "option columns: the record has no column tpoic: did you mean topic?"
    )
    assert "the columns are seq, node, received, topic" in problem(columns="topic,zzz")
    assert problem(columns="seq,topic,seq") == "option columns names seq twice"
    for text in ("", "topic,", ","):
        assert problem(columns=text).startswith("option columns must be names separated by commas")
    assert problem(column="topic") == "mqtt has no option column: did you mean columns?"


# --- tables ---------------------------------------------------------------------------------------

# What Spark adds to the options of CREATE TABLE.
SPARKS = {"provider": "mqtt", "owner": "ann", "comment": "hall 7", "external": "true"}


def table(**options: str) -> dict[str, str] | None:
    given = SPARKS | options | {f"option.{name}": value for name, value in options.items()}
    return options_of_table(given)


def test_the_options_of_a_table_are_told_from_what_spark_adds() -> None:
    assert options_of_table({"root": "/r", "stream": "all"}) is None
    assert table(root="/r", stream="all") == {"root": "/r", "stream": "all"}
    # Properties that a user has given the table are no options.
    assert options_of_table(SPARKS | {"option.root": "/r", "team": "x"}) == {"root": "/r"}
    # A misspelled option is one all the same.
    found = table(root="/r", straem="all")
    assert found is not None
    with pytest.raises(OptionError, match=r"no option straem: did you mean stream\?"):
        parse_source_options(found)


def test_the_location_of_a_table_is_its_root() -> None:
    place = {"location": "file:/srv/the streams%20", "path": "file:/srv/the streams%20"}
    assert options_of_table(SPARKS | place) == {"path": "/srv/the streams%20"}
    bucket = {"location": "s3://bucket/root?region=eu-1"}
    assert options_of_table(SPARKS | bucket) == {"path": "s3://bucket/root?region=eu-1"}
    with pytest.raises(OptionError, match="LOCATION streams: give the absolute path"):
        options_of_table(SPARKS | {"location": "streams"})


def test_a_table_keeps_its_options_but_no_key_and_no_live_broker() -> None:
    def kept(**options: str) -> dict[str, str]:
        return kept_options(options, parse_source_options(options))

    assert kept(path="/srv/streams", stream="all") == {"root": "/srv/streams", "stream": "all"}
    address = "s3://bucket/root?region=eu-1"
    assert kept(root=address) == {"root": address}
    with pytest.raises(OptionError, match="leave the key out of the address") as refused:
        kept(root="s3://key:hidden-1@bucket/root?region=eu-1")
    assert "hidden-1" not in str(refused.value)
    with pytest.raises(OptionError, match="option url is not for a table"):
        kept(root="/srv/streams", url="mqtt://host", topics="a/#")


def test_a_folder_is_kept_by_its_whole_name(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse(root="streams").root == str(tmp_path / "streams")
    assert parse(root=f"file://{tmp_path}/streams").root == str(tmp_path / "streams")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("maxRowsPerBach", "maxRowsPerBatch"),
        ("rot", "root"),
        ("faiOnDataLoss", "failOnDataLoss"),
        ("startingOffsets", "start"),
        ("maxOffsetsPerTrigger", "maxRowsPerBatch"),
        ("subscribe", "topics"),
        ("topic", "topics"),
        ("clientid2", "clientId"),
    ],
)
def test_an_unknown_option_is_named_with_what_may_have_been_meant(name: str, meant: str) -> None:
    assert problem(**{name: "1"}) == f"mqtt has no option {name}: did you mean {meant}?"


def test_an_option_like_no_other_is_told_what_there_is() -> None:
    said = problem(xyzzy="1")
    assert said.startswith("mqtt has no option xyzzy: the options are root, path, stream")
    assert "topics" in said


@pytest.mark.parametrize("text", ["1", "1000000", " 42 "])
@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("maxRowsPerBatch", "max_rows"),
        ("rowsPerPartition", "rows_per_partition"),
        ("minPartitions", "min_partitions"),
    ],
)
def test_a_number_is_taken(name: str, field: str, text: str) -> None:
    assert getattr(parse(**{name: text}), field) == int(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "1e3", "many", "1_000", "٣", "9" * 19])
@pytest.mark.parametrize("name", ["maxRowsPerBatch", "rowsPerPartition", "minPartitions"])
def test_what_is_no_number_from_one_on_is_refused(name: str, text: str) -> None:
    assert problem(**{name: text}).startswith(f"option {name} must be a whole number of at least 1")


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("false", False), ("False", False), (" FALSE ", False), ("0", False)],
)
def test_fail_on_data_loss_is_what_its_text_says(text: str, value: bool) -> None:
    assert parse(failOnDataLoss=text).fail_on_data_loss is value


@pytest.mark.parametrize("text", ["", "maybe", "nein", "2"])
def test_fail_on_data_loss_is_true_or_false(text: str) -> None:
    assert (
        problem(failOnDataLoss=text) == f"option failOnDataLoss must be true or false, not {text!r}"
    )


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("earliest", Point(name=EARLIEST)),
        ("LATEST", Point(name=LATEST)),
        ("1000", Point(seq=1000)),
        ("20260301", Point(seq=20_260_301)),
        ("2026-03-01T12:00:00Z", Point(time=NOON)),
        ("2026-03-01T13:00:00+01:00", Point(time=NOON)),
        ("2026-03-01 12:00", Point(time=NOON)),
        ("2026-03-01T12:00:00.000001Z", Point(time=NOON + 1)),
        ("2026-03-01", Point(time=NOON - 12 * 3_600_000_000)),
        ("1969-12-31T23:59:59.999999Z", Point(time=-1)),
    ],
)
@pytest.mark.parametrize("name", ["start", "end"])
def test_a_place_is_a_name_a_number_or_a_time(name: str, text: str, point: Point) -> None:
    assert getattr(parse(**{name: text}), name) == Points(point)


def test_each_node_may_have_a_place_of_its_own() -> None:
    text = '{"n1": 1000, "n2": "latest", "n3": "2026-03-01T12:00Z", "n4": "7"}'
    points = parse(start=text).start
    assert points.of("n1") == Point(seq=1000)
    assert points.of("n2") == Point(name=LATEST)
    assert points.of("n3") == Point(time=NOON)
    assert points.of("n4") == Point(seq=7)
    assert points.of("n5") == Point(name=EARLIEST)
    assert parse(end='{"n1": 5}').end == Points(Point(name=LATEST), {"n1": Point(seq=5)})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "option start must be earliest, latest, a seq"),
        ("0", "option start: a row number is between 1 and"),
        ("-5", "option start must be earliest"),
        ("newest", "option start must be earliest"),
        ("yesterday", "option start must be earliest"),
        ("2026-13-01", "option start must be earliest"),
        ("9223372036854775808", "option start: a row number is between"),
        ('{"n1": 1', "option start is not valid JSON"),
        ('{"n1": 1, "n1": 2}', "option start is not valid JSON: a node is named twice"),
        ('{"n1": true}', "option start, node n1: True is not earliest"),
        ('{"n1": [1]}', "option start, node n1: [1] is not"),
        ('{"n1": 0}', "option start: a row number is between 1 and"),
        ('{"../n1": 1}', "option start: "),
    ],
)
def test_a_place_that_cannot_be_is_refused(text: str, said: str) -> None:
    assert problem(start=text).startswith(said)


def test_nodes_are_a_list_of_names() -> None:
    assert parse(nodes="n2, n1,n2").nodes == ("n1", "n2")
    for text in ("", "n1,,n2", ",", "n1,"):
        assert problem(nodes=text) == (
            "option nodes must be names separated by commas, such as n1,n2"
        )
    assert problem(nodes="n1,_n2").startswith("option nodes: node '_n2' cannot name a folder")


@pytest.mark.parametrize("text", ["", "a/b", "..", "_x"])
def test_a_stream_that_can_be_no_folder_is_refused(text: str) -> None:
    assert problem(stream=text).startswith(f"option stream: stream {text!r} cannot name a folder")
    assert parse(stream="plant-2").stream == "plant-2"


def test_options_of_a_live_broker_are_kept_as_they_came_and_never_shown(tmp_path: Path) -> None:
    given = {"url": "mqtt://host", "topics": "plant/#", "USERNAME": "ann", "password": "hidden-1"}
    options = parse(root=str(tmp_path), **given)
    assert options.is_live
    assert options.stream == "all"
    assert dict(options.live) == {
        "url": "mqtt://host",
        "topics": "plant/#",
        "username": "ann",
        "password": "hidden-1",
    }
    assert "hidden-1" not in repr(options)
    assert "hidden-2" not in repr(parse(root="s3://key:hidden-2@bucket/x?region=eu-1"))


def test_an_option_of_a_live_broker_needs_the_broker() -> None:
    said = problem(topics="plant/#", password="hidden-1")
    assert said.startswith("option password is for a live broker: give its address with option url")
    assert "hidden-1" not in said


def test_a_wrong_option_of_a_live_broker_fails_at_once_without_the_password(
    tmp_path: Path,
) -> None:
    given = {"url": "mqtt://host", "topics": "a/#/b", "password": "hidden-1", "qos": "3"}
    said = problem(root=str(tmp_path), **given)
    assert "qos" in said
    assert "hidden-1" not in said
