"""What settings make of an Ingest, and what is wrong with them."""

from pathlib import Path

import pytest

from semel.client.ingest_plan import IngestPlan, do_overlap, make_plan
from semel.client.ingest_settings import IngestSettings
from semel.client.scram import ScramAuthentication
from semel.settings import SettingsError
from semel.store.settings import StoreSettings

GIVEN = {"url": "mqtt://host", "topic": ("a/#",), "stream": "plant"}


def plan_from(folder: Path, **changes: object) -> IngestPlan:
    store = {name: changes.pop(name) for name in ("data", "root", "durability") if name in changes}
    kept = StoreSettings(**({"root": str(folder / "root")} | store))  # type: ignore[arg-type]
    return make_plan(IngestSettings(**(GIVEN | changes)), kept)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"url": None}, "no broker is given"),
        ({"url": "host"}, "the address has no scheme"),
        ({"topic": ()}, "no topic is given: use --topic FILTER"),
        ({"topic": ("a/#/b",)}, "--topic a/#/b: HASH_IS_LAST_LEVEL"),
        ({"topic": ("$share/g",)}, r"--topic \$share/g: SHARE_NAME_BEFORE_FILTER"),
        ({"topic": ("$share/g/a",), "share": "h"}, "it already names a share"),
        ({"share": "a/b"}, "must be a name without /"),
        ({"share": "+"}, "is not a topic filter"),
        ({"stream": None}, "no stream is given"),
        ({"stream": "Plant"}, "lowercase letters"),
        ({"qos": 3}, "from 0 to 2"),
        ({"session_expiry": 0}, "session_expiry is 0"),
        ({"cafile": Path("x")}, "cafile needs TLS: use an mqtts:// or wss:// address"),
        ({"url": "mqtts://host", "cafile": Path("x")}, "cafile 'x': No such file"),
        ({"password_file": Path("nowhere")}, "--password-file nowhere: No such file"),
        ({"password": "a", "password_file": Path(__file__)}, "give only one"),
        ({"mqtt_version": "3.1.1", "password": "secret"}, "these settings make an invalid CONNECT"),
        ({"scram": True}, "scram needs a user name and a password: set both"),
        ({"scram": True, "username": "ann"}, "scram needs a user name and a password"),
        (
            {"scram": True, "url": "mqtt://ann:x@host", "mqtt_version": "3.1.1"},
            "scram needs MQTT 5.0: leave mqtt_version out, or set it to 5",
        ),
        (
            {"scram": True, "username": "ann", "password": "\x07"},
            "scram cannot be used: the password contains the character",
        ),
        ({"scram": True, "url": "mqtt://ann:%FF@host"}, "the password is not UTF-8"),
        ({"root": None}, "no root is given"),
        ({"root": "ftp://x/y"}, "is not a root"),
        ({"root": "s3://bucket/x?region=r"}, "the directory of the store with --data"),
        ({"durability": "memory"}, "does not survive a restart"),
    ],
)
def test_settings_that_make_no_plan_are_told_in_a_sentence(
    changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        plan_from(tmp_path, **changes)
    assert "secret" not in str(caught.value)


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        plan_from(tmp_path, url=None, topic=(), stream=None, root=None)
    assert len(caught.value.problems) == 4


def test_a_plan_has_what_the_settings_say(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"s\xffcret\n")
    plan = plan_from(
        tmp_path,
        topic=("a", "b/#", "a"),
        share="g",
        qos=1,
        username="ann",
        password_file=file,
        session_expiry=60,
        retain_for=3600,
    )
    assert [each.topic_filter for each in plan.subscriptions] == ["$share/g/a", "$share/g/b/#"]
    assert {each.qos for each in plan.subscriptions} == {1}
    assert (plan.connect_parameters.user_name, plan.connect_parameters.password) == (
        "ann",
        b"s\xffcret",
    )
    assert plan.connect_parameters.session_expiry == 60
    assert plan.stream.retain_for == 3600
    assert plan.store.data == tmp_path / "root" / ".semel-ingest" / "plant"
    assert plan.warnings == ()
    assert plan_from(tmp_path, data=tmp_path / "x").store.data == tmp_path / "x"
    assert plan_from(tmp_path, root=f"file://{tmp_path}/r").store.data == (
        tmp_path / "r" / ".semel-ingest" / "plant"
    )


def test_a_plan_warns_of_what_its_author_may_not_mean(tmp_path: Path) -> None:
    found = plan_from(tmp_path, topic=("a/#", "a/b", "c"), share="g", mqtt_version="3.1.1")
    assert [words.split(":")[0] for words in found.warnings] == [
        "MQTT 3.1.1 cannot request a session expiry",
        "MQTT 3.1.1 has no shared subscriptions",
        "$share/g/a/# and $share/g/a/b overlap",
    ]


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a/+", "+/b", True),
        ("a/+", "b/+", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "b/#", False),
        ("#", "x/y", True),
        ("+", "x/y", False),
        ("+/y", "x/#", True),
        ("a/b", "a/b/c", False),
        ("a/b/#", "a/+", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
    ],
)
def test_two_filters_overlap_if_there_is_a_topic_that_both_match(
    one: str, other: str, overlap: bool
) -> None:
    assert do_overlap(one, other) == overlap
    assert do_overlap(other, one) == overlap


def test_with_scram_neither_name_nor_password_is_in_connect_and_3_1_1_is_no_way_out(
    tmp_path: Path,
) -> None:
    plan = plan_from(tmp_path, scram=True, url="mqtt://ann:open%20sesame@host")
    connect = plan.connect_parameters.connect("c", False, b"data")
    assert (connect.user_name, connect.password) == (None, None)
    assert connect.properties.authentication_method == "SCRAM-SHA-256"
    assert connect.properties.authentication_data == b"data"
    assert isinstance(plan.authentication, ScramAuthentication)
    assert plan.fallback is None
    assert "sesame" not in repr(plan)
    plain = plan_from(tmp_path, url="mqtt://ann:open%20sesame@host")
    assert plain.authentication is None
    assert plain.connect_parameters.connect("c", False, None).user_name == "ann"
    assert plain.fallback is not None
