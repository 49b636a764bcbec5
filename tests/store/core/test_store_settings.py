"""The [store] section, and [[stream]]: their defaults, their bounds, and what they refuse."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from semel.broker.settings import BrokerSettings
from semel.cli.setting_options import options
from semel.settings import Flags, Settings, SettingsError, load, settings_of
from semel.store.database import SYNCHRONOUS
from semel.store.settings import (
    DISK,
    MEMORY,
    OS,
    StoreSettings,
    StreamSettings,
    check_streams,
    parse_stream,
)

SECTIONS = (BrokerSettings, StoreSettings, StreamSettings)
KEPT = StoreSettings(data=Path("data"))
PLANT = StreamSettings(name="plant", filter="plant/#")


def loaded(text: str, folder: Path) -> Settings:
    path = folder / "semel.toml"
    path.write_text(text, "utf-8")
    return load(SECTIONS, path=path, environ={}, flags={})


# --- [store] --------------------------------------------------------------------------------------


def test_by_default_nothing_lasts_and_with_data_it_lasts_on_the_disk() -> None:
    assert StoreSettings().data is None
    assert StoreSettings().durability == DISK
    assert not StoreSettings().is_durable
    assert KEPT.is_durable
    assert StoreSettings(data=Path("data"), durability=OS).is_durable
    assert not StoreSettings(data=Path("data"), durability=MEMORY).is_durable


def test_the_defaults_are_those_that_were_measured() -> None:
    mib = 2**20
    store = StoreSettings()
    assert (store.node, store.root) == (None, None)
    assert (store.seal_rows, store.seal_bytes, store.seal_after) == (500_000, 64 * mib, 1.0)
    assert store.maximum_unsealed_rows == 20_000_000
    assert store.maximum_unsealed_bytes == 8 * 1024 * mib
    assert store.maximum_unwritten_bytes == 64 * mib
    assert (store.compact_below, store.compact_to) == (64 * mib, 256 * mib)
    assert store.compact_grace == 3600.0


def test_every_durability_but_memory_is_one_that_the_database_knows() -> None:
    choices = settings_of(StoreSettings)["durability"].choices
    assert choices == (DISK, OS, MEMORY) == ("disk", "os", "memory")
    assert {*SYNCHRONOUS, MEMORY} == {*choices}
    with pytest.raises(SettingsError, match='durability is "tape", but must be one of disk, os'):
        StoreSettings(durability="tape")


@pytest.mark.parametrize("node", ["a", "Plant-1", "n_1.example.org", "0-_", "0", "a..b", "x" * 64])
def test_a_node_has_a_name_that_a_folder_can_have(node: str, tmp_path: Path) -> None:
    assert StoreSettings(node=node).node == node
    assert loaded(f"[store]\nnode = '{node}'\n", tmp_path).of(StoreSettings).node == node


@pytest.mark.parametrize(
    "node", [".", "-", "_a", "..", ".a", "a/b", "a b", "a\n", "é", "a\0", "\udcff", "x" * 65, "a=b"]
)
def test_a_node_of_another_name_is_refused(node: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(SECTIONS, path=None, environ={}, flags={"store": {"node": node}})
    (problem,) = caught.value.problems
    assert problem.startswith('flag --node: [store] node is "')
    assert problem.endswith(
        "must be 1 to 64 letters, digits, -, _ and ., and begin with a letter or digit"
    )
    with pytest.raises(SettingsError):
        StoreSettings(node=node)


def test_an_empty_text_leaves_data_node_and_root_to_their_defaults(tmp_path: Path) -> None:
    settings = loaded("[store]\ndata = ''\nnode = ''\nroot = ''\n", tmp_path)
    assert settings.of(StoreSettings) == StoreSettings()


@pytest.mark.parametrize(
    ("key", "least"),
    [
        ("seal_rows", 1),
        ("seal_bytes", 1),
        ("seal_after", 0.01),
        ("maximum_unsealed_rows", 1),
        ("maximum_unsealed_bytes", 1),
        ("maximum_unwritten_bytes", 1),
        ("compact_below", 0),
        ("compact_to", 1),
        ("compact_grace", 0),
    ],
)
def test_a_bound_of_the_store_is_not_below_its_least(key: str, least: float) -> None:
    flags = {"store": {key: least}}
    store = load(SECTIONS, path=None, environ={}, flags=flags).of(StoreSettings)
    assert getattr(store, key) == least
    for wrong in (least - 1, -1):
        with pytest.raises(SettingsError, match=rf"\[store\] {key} is {wrong}, but must be"):
            load(SECTIONS, path=None, environ={}, flags={"store": {key: wrong}})


# --- [[stream]] -----------------------------------------------------------------------------------


def test_streams_come_from_the_file_with_what_is_kept_of_them(tmp_path: Path) -> None:
    text = """
        [[stream]]
        name = "plant"
        filter = "plant/#"
        [[stream]]
        filter = "+/alarm"
        retain_for = "30d"
        retain_bytes = "50GiB"
        name = "alarms"
    """
    assert loaded(text, tmp_path).all_of(StreamSettings) == (
        StreamSettings(name="plant", filter="plant/#", retain_for=None, retain_bytes=None),
        StreamSettings(
            name="alarms", filter="+/alarm", retain_for=2_592_000.0, retain_bytes=50 * 2**30
        ),
    )


@pytest.mark.parametrize("name", ["a", "0", "plant", "plant-1_b", "x" * 64])
def test_a_stream_has_a_name_that_a_folder_and_a_level_can_have(name: str) -> None:
    assert parse_stream(f"{name}=#") == StreamSettings(name=name, filter="#")


@pytest.mark.parametrize(
    "name", ["", "-a", "_a", "Plant", "a.b", "..", "a/b", "a b", "é", "a\n", "x" * 65, "٣"]
)
def test_a_stream_of_another_name_is_refused(name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_stream(f"{name}=#")
    (problem,) = caught.value.problems
    assert problem.startswith('flag --stream: [[stream]] name is "')
    assert ", but must be 1 to 64 lowercase letters, digits, - and _, " in problem
    with pytest.raises(SettingsError):
        StreamSettings(name=name, filter="#")


@pytest.mark.parametrize(
    "topic_filter",
    ["#", "+", "/", "plant/#", "+/+/alarm", "a=b", "a b", "é/ü", "a/$b", "x" * 65_535],
)
def test_a_stream_may_have_any_topic_filter(topic_filter: str) -> None:
    assert parse_stream(f"all={topic_filter}").filter == topic_filter


@pytest.mark.parametrize(
    ("topic_filter", "words"),
    [
        ("", "is not a topic filter: A Topic Filter has at least one character"),
        ("a/#/b", "is not a topic filter: # is the last character of a Topic Filter"),
        ("a#", "is not a topic filter: # is the last character of a Topic Filter"),
        ("a/b+", "is not a topic filter: + occupies a whole level of a Topic Filter"),
        ("a\0", "is not a topic filter: A string has no U+0000"),
        ("\udcff", "is not a topic filter: A string is well-formed UTF-8"),
        ("x" * 65_536, "is not a topic filter: A string takes at most 65,535 bytes"),
        ("$SYS/#", "topics that begin with $ belong to the broker and are not recorded"),
        ("$", "topics that begin with $ belong to the broker and are not recorded"),
        ("$share", "topics that begin with $ belong to the broker and are not recorded"),
        ("$share/g/#", "a stream records every message: give the filter without $share and its"),
    ],
)
def test_a_stream_of_another_filter_is_refused(topic_filter: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_stream(f"all={topic_filter}")
    (problem,) = caught.value.problems
    assert problem.startswith('flag --stream: [[stream]] filter is "')
    assert f", but {words}" in problem
    assert len(problem) < 300
    problem.encode()
    with pytest.raises(SettingsError):
        StreamSettings(name="all", filter=topic_filter)


def test_a_filter_in_the_file_is_refused_with_its_line_and_its_stream(tmp_path: Path) -> None:
    text = "[[stream]]\nname = 'a'\nfilter = 'a'\n[[stream]]\nname = 'b'\nfilter = 'b/#/c'\n"
    with pytest.raises(SettingsError) as caught:
        loaded(text, tmp_path)
    (problem,) = caught.value.problems
    place = f'{tmp_path}/semel.toml, line 6: [[stream]] 2 ("b") filter'
    assert problem.startswith(f'{place} is "b/#/c", but is not a topic filter: # is the last')


@pytest.mark.parametrize("text", ["", "all", "#", "plant/#", "x" * 500, "\udcff"])
def test_a_flag_that_is_not_name_and_filter_is_refused(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_stream(text)
    (problem,) = caught.value.problems
    assert problem.startswith("flag --stream: '")
    assert problem.endswith(" must be NAME=FILTER, such as all=#")
    assert len(problem) < 200
    problem.encode()


@pytest.mark.parametrize("key", ["retain_for", "retain_bytes"])
def test_what_is_retained_is_at_least_one(tmp_path: Path, key: str) -> None:
    text = f"[[stream]]\nname = 'a'\nfilter = 'a'\n{key} = "
    (stream,) = loaded(f"{text}1\n", tmp_path).all_of(StreamSettings)
    assert getattr(stream, key) == 1
    (stream,) = loaded(f"{text}''\n", tmp_path).all_of(StreamSettings)
    assert getattr(stream, key) is None
    with pytest.raises(SettingsError, match=f"{key} is 0, but must be"):
        loaded(f"{text}0\n", tmp_path)


# --- streams in a store ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("store", "words"),
    [
        (
            StoreSettings(),
            "streams need a data folder: set --data or [store] data",
        ),
        (
            StoreSettings(durability=MEMORY),
            "streams need a data folder: set --data or [store] data",
        ),
        (
            StoreSettings(data=Path("data"), durability=MEMORY),
            "[store] durability memory keeps nothing, so streams cannot be recorded: "
            "choose disk or os, or remove the streams",
        ),
    ],
)
def test_streams_need_a_store_that_lasts(store: StoreSettings, words: str) -> None:
    check_streams(store, [])
    with pytest.raises(SettingsError) as caught:
        check_streams(store, [PLANT])
    assert caught.value.problems == (words,)


def test_streams_of_different_names_may_be_recorded_together() -> None:
    check_streams(KEPT, [PLANT, parse_stream("again=plant/#")])
    check_streams(StoreSettings(data=Path("data"), durability=OS), iter([PLANT]))


def test_two_streams_of_one_name_are_refused_wherever_they_come_from() -> None:
    streams = [PLANT, parse_stream("all=#"), parse_stream("plant=other")]
    with pytest.raises(SettingsError) as caught:
        check_streams(KEPT, streams)
    words = "two streams are named plant: rename one of them"
    assert caught.value.problems == (words,)


# --- the flags of a broker with a store -----------------------------------------------------------


def test_one_command_takes_the_flags_of_the_broker_and_of_the_store(tmp_path: Path) -> None:
    seen: list[Settings] = []

    @click.command
    @options(BrokerSettings, StoreSettings)
    @click.option("--stream", multiple=True)
    def command(config: Path | None, flags: Flags, stream: tuple[str, ...]) -> None:
        settings = load(SECTIONS, path=config, environ={}, flags=flags)
        streams = (*settings.all_of(StreamSettings), *map(parse_stream, stream))
        check_streams(settings.of(StoreSettings), streams)
        assert streams == (PLANT, StreamSettings(name="all", filter="#"))
        seen.append(settings)

    path = tmp_path / "semel.toml"
    path.write_text("[[stream]]\nname = 'plant'\nfilter = 'plant/#'\n", "utf-8")
    arguments = ["--config", str(path), "--data", "kept", "--port", "1884", "--durability=os"]
    arguments += ["--node=n1", "--root=s3://bucket/x", "--seal-after=5s", "--stream", "all=#"]
    CliRunner().invoke(command, arguments, catch_exceptions=False)
    (settings,) = seen
    assert settings.of(BrokerSettings) == BrokerSettings(port=1884)
    assert settings.of(StoreSettings) == StoreSettings(
        data=Path("kept"), durability=OS, node="n1", root="s3://bucket/x", seal_after=5.0
    )
