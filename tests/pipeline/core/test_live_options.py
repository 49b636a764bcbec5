"""The options of a live broker: what they mean, and what is said of those that are wrong."""

from pathlib import Path

import pytest

from semel.client.ingest_settings import IngestSettings
from semel.mqtt.session import NEVER_EXPIRES
from semel.pipeline.errors import OptionError
from semel.pipeline.live_options import OPTIONS, LiveOptions, read_options
from semel.settings import settings_of
from semel.store.settings import StoreSettings

BROKER = {"url": "mqtt://host", "topics": "plant/#"}


def read(options: dict[str, str], root: str = "/record") -> LiveOptions:
    return read_options(options, root=root, stream="plant")


def refused(options: dict[str, str], root: str = "/record") -> str:
    with pytest.raises(OptionError) as caught:
        read(options, root)
    return str(caught.value)


def filters(topics: str) -> list[str]:
    wanted = read({**BROKER, "topics": topics})
    return [each.topic_filter for each in wanted.plan.subscriptions]


def test_scram_proves_the_password_instead_of_sending_it() -> None:
    plan = read({**BROKER, "username": "ann", "password": "x", "scram": "true"}).plan
    assert plan.authentication is not None
    assert plan.connect_parameters.password is None
    assert "scram needs a user name and a password" in refused({**BROKER, "scram": "true"})


def test_two_options_are_enough() -> None:
    wanted = read(BROKER)
    plan = wanted.plan
    assert str(plan.address) == "mqtt://host:1883"
    assert [(each.topic_filter, each.qos) for each in plan.subscriptions] == [("plant/#", 2)]
    assert plan.stream.name == "plant"
    assert plan.store.root == "/record"
    assert plan.store.data == Path("/record/.semel-ingest/plant")
    assert plan.client_id == ""
    assert wanted.linger == 60.0


def test_options_mean_what_the_settings_of_ingest_mean() -> None:
    options = {
        **BROKER,
        "qos": "1",
        "clientId": "one",
        "username": "ann",
        "password": "word",
        "mqttVersion": "5",
        "keepAlive": "30s",
        "sessionExpiry": "2d",
        "share": "group",
        "retainFor": "7d",
        "data": "/store",
        "sealAfter": "250ms",
        "linger": "5m",
    }
    wanted = read(options)
    plan = wanted.plan
    assert [(each.topic_filter, each.qos) for each in plan.subscriptions] == [
        ("$share/group/plant/#", 1)
    ]
    greeting = plan.connect_parameters
    assert (plan.client_id, greeting.user_name, greeting.password) == ("one", "ann", b"word")
    assert (greeting.keep_alive, greeting.session_expiry) == (30, 2 * 86_400)
    assert plan.stream.retain_for == 7 * 86_400
    assert (plan.store.data, plan.store.seal_after) == (Path("/store"), 0.25)
    assert wanted.linger == 300.0
    assert read(BROKER).plan.connect_parameters.session_expiry == NEVER_EXPIRES


def test_every_setting_of_ingest_and_store_is_an_option() -> None:
    found = {(each.section, each.key) for each in OPTIONS.values()}
    declared = {
        (section.section, key)
        for section in (IngestSettings, StoreSettings)
        for key in settings_of(section)
    }
    assert declared - found == {("ingest", "stream"), ("store", "root")}
    assert found - declared == {("live", "linger")}
    assert {"topics", "clientId", "passwordFile", "keepAlive"} <= {*OPTIONS}


def test_names_are_the_same_in_small_and_capital_letters() -> None:
    # As Spark gives them.
    lower = read({**BROKER, "keepalive": "7", "CLIENTID": "one"})
    assert (lower.plan.connect_parameters.keep_alive, lower.plan.client_id) == (7, "one")


def test_topics_have_commas_between_them_or_are_a_json_list() -> None:
    assert filters("a/#, b/+") == ["a/#", "b/+"]
    assert filters('["a,b/#", " c"]') == ["a,b/#", " c"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"topics": "a"},
            "option url is missing: give the address of the broker, mqtt://host[:port]",
        ),
        ({"url": "mqtt://host"}, "option topics is missing: give topic filters, such as plant/#"),
        ({**BROKER, "url": "http://host"}, "option url: unknown scheme 'http'"),
        ({**BROKER, "url": "host"}, "option url: the address has no scheme"),
        ({**BROKER, "topics": "a/#/b"}, "option topics a/#/b: "),
        ({**BROKER, "topics": "a,,b"}, "option topics is "),
        ({**BROKER, "topics": '["a", 1]'}, "option topics is "),
        ({**BROKER, "topics": '["a"'}, "option topics is "),
        ({**BROKER, "qos": "3"}, 'option qos is "3", but must be an integer, from 0 to 2'),
        ({**BROKER, "keepalive": "soon"}, 'option keepAlive is "soon", but must be a duration'),
        ({**BROKER, "mqttVersion": "4"}, "option mqttVersion is "),
        ({**BROKER, "linger": "-1"}, "option linger is "),
        ({**BROKER, "clientid": "a\0b"}, "option clientId is "),
        ({**BROKER, "share": "a/b"}, "option share is "),
        (
            {**BROKER, "topics": "$share/g/a", "share": "h"},
            "option topics $share/g/a: it already names a share, and a share is given as well",
        ),
        ({**BROKER, "cafile": "/ca"}, "option cafile needs TLS"),
        ({**BROKER, "tlsVersion": "tlsv1.2"}, "option tlsVersion needs TLS"),
        ({**BROKER, "url": "mqtts://host", "cafile": "/no/ca"}, "option cafile '/no/ca': No such"),
        ({**BROKER, "url": "mqtts://host", "cert": "/no/c"}, "option cert '/no/c': No such"),
        ({**BROKER, "url": "mqtts://host", "key": "/k"}, "option key is given without cert"),
        ({**BROKER, "passwordFile": "/no/file"}, "option passwordFile /no/file: No such file"),
        ({**BROKER, "durability": "memory"}, "option durability memory does not survive a restart"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(options: dict[str, str], words: str) -> None:
    sentence = refused(options)
    assert words in sentence
    assert "\n" not in sentence
    assert "--" not in sentence


def test_all_that_is_wrong_is_told_at_once() -> None:
    sentence = refused({**BROKER, "qos": "x", "keepAlive": "y"})
    assert "option qos" in sentence
    assert "option keepAlive" in sentence


def test_two_passwords_are_one_too_many(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("word\n")
    assert read({**BROKER, "passwordFile": str(file)}).plan.connect_parameters.password == b"word"
    both = refused({**BROKER, "passwordFile": str(file), "password": "hidden"})
    assert both == "option passwordFile and a password are both given: give only one"


def test_a_root_that_is_no_folder_needs_a_folder_for_the_store(tmp_path: Path) -> None:
    # The region keeps pyarrow from asking for it.
    root = "s3://bucket/root?region=eu-north-1"
    missing = refused(BROKER, root)
    assert missing.startswith("option data is missing: the root is not a local directory")
    assert read({**BROKER, "data": str(tmp_path)}, root).plan.store.data == tmp_path
    secret = read({**BROKER, "data": str(tmp_path)}, root.replace("bucket", "key:hidden@bucket"))
    assert secret.identity["root"] == "s3://bucket/root"
    assert refused(BROKER, "ftp://host").startswith("option root: ftp://host is not a root")


def test_an_ingest_is_told_from_another_by_its_options_but_not_by_secrets() -> None:
    one = read({**BROKER, "topics": "a,b", "password": "word", "username": "ann"})
    assert "word" not in str(one.identity)
    same = read({"URL": "mqtt://host:1883", "topics": "b,a", "qos": "2", "username": "ann"})
    assert one.differences(same.identity) == []
    other = read({**BROKER, "topics": "a", "username": "ann", "keepAlive": "5"})
    assert one.differences(other.identity) == ["keepAlive", "topics"]
    data = {**BROKER, "data": "/store"}
    assert read(data, "/a").differences(read(data, "/b").identity) == ["root"]
    assert read(data, "/a/../b").differences(read(data, "file:///b").identity) == []
    hidden = read({**BROKER, "url": "mqtt://ann:hidden@host"})
    assert "hidden" not in str(hidden.identity)
    assert hidden.differences(read({**BROKER, "url": "mqtt://bob@host"}).identity) == ["url"]


def test_the_page_names_every_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "data" / "spark-live.md").read_text("utf-8")
    table = page.partition("## The options")[2].partition("## ")[0]
    assert [name for name in OPTIONS if f"`{name}`" not in table] == []
