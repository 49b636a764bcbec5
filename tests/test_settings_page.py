"""The sections of the product, and the page that lists their settings."""

import re
from pathlib import Path

import pytest

from semel.broker.access.rights_settings import RightsSettings
from semel.broker.network.control_settings import AuditSettings, ControlSettings
from semel.broker.network.listener_settings import ListenerSettings
from semel.broker.settings import BrokerSettings
from semel.settings import Section, Settings, SettingsError, describe, load
from semel.store.settings import StoreSettings, StreamSettings, check_streams

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "settings.md"
SECTIONS: tuple[type[Section], ...] = (
    BrokerSettings,
    ListenerSettings,
    RightsSettings,
    StoreSettings,
    StreamSettings,
    ControlSettings,
    AuditSettings,
)


def blocks_of(kind: str) -> list[str]:
    """The blocks of the page that are said to be of one kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)


def from_file(text: str, folder: Path) -> Settings:
    path = folder / "semel.toml"
    path.write_text(text, "utf-8")
    return load(SECTIONS, path=path, environ={}, flags={})


def test_every_example_of_the_page_can_be_loaded(tmp_path: Path) -> None:
    loaded = [from_file(example, tmp_path) for example in blocks_of("toml")]
    assert [settings.of(BrokerSettings).connect_timeout for settings in loaded] == [5.0, 10.0]
    streams = loaded[1].all_of(StreamSettings)
    assert streams == (
        StreamSettings(name="plant", filter="plant/#", retain_for=30 * 86_400),
        StreamSettings(name="alarms", filter="+/+/alarm", retain_bytes=50 * 2**30),
    )
    check_streams(loaded[1].of(StoreSettings), streams)


def test_the_page_shows_what_a_mistake_in_a_stream_gives(tmp_path: Path) -> None:
    first, filter, rest = blocks_of("toml")[1].rpartition("filter =")
    assert filter
    with pytest.raises(SettingsError) as caught:
        from_file(f"{first}filtr ={rest}", tmp_path)
    assert str(caught.value).replace(f"{tmp_path}/", "") + "\n" == blocks_of("text")[1]


def test_the_page_names_every_variable_that_is_no_setting() -> None:
    text = PAGE.read_text("utf-8")
    for variable in ("SEMEL_CONFIG", "SEMEL_PURE", "SEMEL_TEST_MODE"):
        assert f"`{variable}`" in text


def uncommented(text: str) -> str:
    """An example file with all that is in it switched on."""
    return re.sub(r"^#(?=\w|\[\[)", "", text, flags=re.MULTILINE)


def test_the_example_file_switched_on_has_the_defaults_and_one_stream(tmp_path: Path) -> None:
    settings = from_file(uncommented(describe(SECTIONS)), tmp_path)
    assert settings.of(StoreSettings) == StoreSettings()
    assert settings.all_of(StreamSettings) == (StreamSettings(name="all", filter="#"),)
    assert from_file(describe(SECTIONS), tmp_path).all_of(StreamSettings) == ()


def test_the_broker_listens_on_this_machine_only_unless_told_otherwise(tmp_path: Path) -> None:
    broker = from_file(uncommented(describe(SECTIONS)), tmp_path).of(BrokerSettings)
    assert broker == BrokerSettings()
    assert (broker.host, broker.port) == ("127.0.0.1", 1883)


@pytest.mark.parametrize(
    ("key", "least", "most"),
    [
        ("port", 0, 65_535),
        ("maximum_packet_size", 16, 268_435_460),
        ("receive_maximum", 1, 65_535),  # [3.2.2.3.3] 0 is a Protocol Error
        ("topic_alias_maximum", 0, 65_535),
        ("maximum_session_expiry", 0, 0xFFFF_FFFF),
        ("maximum_keep_alive", 0, 65_535),
        ("inflight_window", 1, 65_535),
    ],
)
def test_a_bound_of_the_broker_is_where_the_standard_puts_it(
    key: str, least: int, most: int
) -> None:
    for value in (least, most):
        flags = {"broker": {key: value}}
        settings = load([BrokerSettings], path=None, environ={}, flags=flags)
        assert getattr(settings.of(BrokerSettings), key) == value
    for value in (least - 1, most + 1):
        with pytest.raises(SettingsError, match=rf"\[broker\] {key} is {value}, but"):
            load([BrokerSettings], path=None, environ={}, flags={"broker": {key: value}})
