"""The settings of bridges, and what is wrong with them."""

from pathlib import Path

import pytest

from semel.cli.sections import SECTIONS
from semel.client.bridge_path import is_looping
from semel.client.bridge_plan import BridgePlan, SidePlan, make_bridge_plan, make_bridge_plans
from semel.client.bridge_settings import BridgeSettings
from semel.mqtt import MQTT5, MQTT311
from semel.settings import SettingsError, load


def settings(**keys: object) -> BridgeSettings:
    given = {"name": "site", "data": Path("d"), "remote": "mqtt://there", "to_remote": ("plant/#",)}
    return BridgeSettings(**{**given, **keys})  # type: ignore[arg-type]


def problems_of(**keys: object) -> str:
    with pytest.raises(SettingsError) as caught:
        make_bridge_plan(settings(**keys))
    assert all("\n" not in each for each in caught.value.problems)
    return "\n".join(caught.value.problems)


def test_a_plan_subscribes_so_that_nothing_comes_back_and_retain_stays() -> None:
    plan = make_bridge_plan(settings(to_local=("jobs/# qos 1",)))
    (out,) = plan.local.subscriptions
    assert (out.topic_filter, out.qos) == ("plant/#", 2)
    assert (out.no_local, out.retain_as_published, out.retain_handling) == (True, True, 1)
    (inward,) = plan.remote.subscriptions
    assert (inward.topic_filter, inward.qos) == ("jobs/#", 1)
    parameters = plan.remote.connect_parameters
    assert parameters.version == MQTT5
    assert parameters.properties.receive_maximum == 1000
    assert parameters.properties.session_expiry_interval == 7 * 86_400
    assert parameters.maximum_packet_size == 16 * 2**20
    assert (plan.local.broker_name, plan.remote.broker_name) == ("site.local", "site.remote")
    assert str(plan.local.address) == "mqtt://127.0.0.1:1883"


def test_a_default_name_is_never_too_long_for_a_path() -> None:
    plan = make_bridge_plan(settings(name="n" * 64))
    for side in (plan.local, plan.remote):
        assert not is_looping([side.broker_name], "a", "b")


def test_names_user_names_and_client_ids_are_of_one_side(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden\n")
    plan = make_bridge_plan(
        settings(
            local="mqtt://ann:pw@here",
            remote_username="bob",
            remote_password_file=secret,
            remote_client_id="edge-7",
            remote_name="center",
        )
    )
    local, remote = plan.local.connect_parameters, plan.remote.connect_parameters
    assert (local.user_name, local.password) == ("ann", b"pw")
    assert (remote.user_name, remote.password) == ("bob", b"hidden")
    assert (plan.local.client_id, plan.remote.client_id) == ("", "edge-7")
    assert plan.remote.broker_name == "center"


def fallback_of(plan: SidePlan) -> SidePlan:
    assert isinstance(plan.fallback, SidePlan)
    return plan.fallback


def test_a_broker_that_refuses_5_0_is_used_with_3_1_1() -> None:
    plan = make_bridge_plan(settings(to_local=("jobs/#",)))
    fallback = fallback_of(plan.remote)
    assert fallback.connect_parameters.version == MQTT311
    (subscription,) = fallback.subscriptions
    assert not subscription.no_local
    changed: BridgePlan = plan.with_side(fallback)
    assert changed.remote.connect_parameters.version == MQTT311
    assert changed.local is plan.local
    chosen = make_bridge_plan(settings(remote_mqtt_version="5"))
    assert chosen.remote.fallback is None
    assert chosen.with_side(fallback_of(chosen.local)).local.fallback is None


@pytest.mark.parametrize("side", ["local", "remote"])
def test_rules_that_loop_in_3_1_1_are_refused_there(side: str) -> None:
    both = {"to_remote": ("plant/#",), "to_local": ("plant/1",)}
    words = problems_of(**both, **{f"{side}_mqtt_version": "3.1.1"})
    assert words.startswith("[[bridge]] site: ")
    assert f"on the {side} broker, and MQTT 3.1.1 has no No Local" in words
    # With 5.0 they are fine, but there is no way back to 3.1.1.
    plan = make_bridge_plan(settings(**both))
    sides = {"local": plan.local, "remote": plan.remote}
    assert isinstance(sides[side].fallback, str)
    # With prefixes that differ they are fine.
    both = {"to_remote": ("# local out/",), "to_local": ("# local in/ remote x/",)}
    make_bridge_plan(settings(**both, local_mqtt_version="3.1.1", remote_mqtt_version="5"))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"to_remote": ()}, "there is no topic to move: set to_remote, to_local or both"),
        ({"remote": "there"}, "remote: the address has no scheme"),
        ({"local": "mqtt://x:99999"}, "local: "),
        ({"remote_cafile": Path("/none")}, "remote_cafile needs TLS"),
        ({"remote": "mqtts://x", "remote_cafile": Path("/none")}, "remote_cafile"),
        ({"local_password_file": Path("/none")}, "local_password_file /none: No such file"),
        ({"local_password": "a", "local_password_file": Path("/none")}, "give only one"),
        ({"local_password": "a", "local_mqtt_version": "3.1.1"}, "local: these settings make"),
        ({"local_client_id": "x", "remote_client_id": "x"}, "choose two"),
        ({"remote_scram": True}, "remote_scram needs a user name and a password: set both"),
        (
            {"local": "mqtt://a:b@x", "local_scram": True, "local_mqtt_version": "3.1.1"},
            "local_scram needs MQTT 5.0",
        ),
    ],
)
def test_what_is_wrong_is_said_with_the_key(keys: dict[str, object], words: str) -> None:
    assert words in problems_of(**keys)
    assert "[[bridge]] site: " in problems_of(**keys)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"name": "a b"}, "must be 1 to 64 letters"),
        ({"name": "a" * 65}, "must be 1 to 64 letters"),
        ({"remote_name": "a>b"}, "must be 1 to 64 letters"),
        ({"to_remote": ("a", "a qos 7")}, "to_remote: 'a qos 7': the QoS is '7'"),
        ({"to_local": ("a/#", "a/b")}, "to_local: 'a/#' and 'a/b' overlap"),
        ({"maximum_queued": 0}, "maximum_queued"),
        ({"durability": "memory"}, "durability"),
    ],
)
def test_a_section_that_cannot_be_is_refused(keys: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(**keys)
    assert words in str(caught.value).replace('"', "'")


def test_secrets_are_not_shown() -> None:
    shown = repr(settings(remote="mqtt://ann:hidden@x", local_password="hidden"))
    assert "hidden" not in shown


FILE = """
[[bridge]]
name = "one"
data = "one"
remote = "mqtt://ann:hidden@x"
to_remote = ["#"]

[[bridge]]
name = "two"
data = "two"
remote = "mqtt://y"
to_local = ["#"]
"""


def from_file(text: str, folder: Path) -> tuple[BridgeSettings, ...]:
    path = folder / "semel.toml"
    path.write_text(text)
    return load(SECTIONS, path=path, environ={}, flags={}).all_of(BridgeSettings)


def test_bridges_are_chosen_by_name(tmp_path: Path) -> None:
    found = from_file(FILE, tmp_path)
    assert [each.name for each in make_bridge_plans(found)] == ["one", "two"]
    assert [each.name for each in make_bridge_plans(found, ("two",))] == ["two"]
    with pytest.raises(SettingsError, match=r"there is no bridge .three.; known: one, two"):
        make_bridge_plans(found, ("three",))
    with pytest.raises(SettingsError, match=r"there is no bridge: give a file with a \[\[bridge"):
        make_bridge_plans(())


def test_the_problems_of_all_bridges_are_reported_together(tmp_path: Path) -> None:
    found = from_file(FILE.replace("mqtt://", "mtqq://"), tmp_path)
    with pytest.raises(SettingsError) as caught:
        make_bridge_plans(found)
    assert [each[:17] for each in caught.value.problems] == [
        "[[bridge]] one: r",
        "[[bridge]] two: r",
    ]
    assert "hidden" not in str(caught.value)


def test_two_bridges_need_two_folders(tmp_path: Path) -> None:
    found = from_file(FILE.replace('"two"\nremote', '"one"\nremote'), tmp_path)
    with pytest.raises(SettingsError, match="data is the folder of bridge one"):
        make_bridge_plans(found)
    # One of them alone is fine.
    assert len(make_bridge_plans(found, ("two",))) == 1


def test_a_mistake_is_named_with_its_line_and_without_the_secret(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        from_file(FILE.replace('remote = "mqtt://ann', 'remote = 5 # "mqtt://ann'), tmp_path)
    words = str(caught.value)
    assert "semel.toml, line 5" in words
    assert "hidden" not in words
    with pytest.raises(SettingsError, match=r'\[\[bridge\]\] 1 \("one"\).*has an open quotation'):
        from_file(FILE.replace('["#"]', '["\'#"]', 1), tmp_path)


def test_scram_is_of_one_side_and_needs_5_0_there() -> None:
    plan = make_bridge_plan(settings(remote="mqtt://ann:secret@x", remote_scram=True))
    connect = plan.remote.connect_parameters.connect("c", False, b"data")
    assert (connect.user_name, connect.password) == (None, None)
    assert connect.properties.authentication_method == "SCRAM-SHA-256"
    assert plan.remote.fallback == "remote_scram cannot be used: it needs MQTT 5.0"
    assert plan.local.authentication is None
    assert not isinstance(plan.local.fallback, str)
