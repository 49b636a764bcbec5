"""ConfiguredAuthority: who gets in by which proof, with which code others are refused."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from semel.broker.access.configured_authority import ConfiguredAuthority, shown_name
from semel.broker.access.connect_request import ConnectRequest
from semel.broker.access.failures import (
    BAD_CERTIFICATE,
    BAD_CREDENTIALS,
    BAD_SCRAM,
    BAD_TOKEN,
    HOOK_FAILED,
    NO_CREDENTIALS,
    TOO_MANY_FAILURES,
)
from semel.broker.access.password_file import UserEntry, parse_entry, remove_user, set_user
from semel.broker.access.scram_keys import make_keys
from semel.broker.access.users import ConfiguredUsers, load_users
from semel.broker.access.users_settings import UsersSettings
from semel.broker.authority import Challenge, Denied, Granted, Proof
from semel.broker.identity import (
    ANONYMOUS,
    CERTIFICATE,
    HOOK,
    PASSWORD,
    SCRAM,
    TOKEN,
    Identity,
    PeerInfo,
)
from semel.client.scram import METHOD, ScramAuthentication
from semel.mqtt import MQTT311, Connect, Properties
from semel.mqtt.reasons import (
    BAD_USER_NAME_OR_PASSWORD,
    BANNED,
    NOT_AUTHORIZED,
    QUOTA_EXCEEDED,
    SUCCESS,
    UNSPECIFIED_ERROR,
)
from semel.settings import SettingsError
from tests.broker.core.test_access_password_hashes import mosquitto_2
from tests.broker.core.test_access_tokens import SECRET, payload, sign

QUICK = mosquitto_2(b"secret", iterations=1)
PEER = PeerInfo("192.0.2.7:5000", listener="lan")
OPEN = frozenset(("lan",))


def write_users(folder: Path) -> Path:
    path = folder / "users.txt"
    for line in (f"ann:{QUICK}:ops", f"bob:{QUICK}", "press-7:*:machines"):
        set_user(path, parse_entry(line))
    return path


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    return write_users(tmp_path)


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    return path


class Desk:
    """An authority, and its log."""

    def __init__(self, settings: UsersSettings, *, anonymous: frozenset[str] = frozenset()) -> None:
        self.lines: list[str] = []
        self.authority = ConfiguredAuthority(
            load_users(settings),
            anonymous_listeners=anonymous,
            log=self.lines.append,
            clock=lambda: 0.0,
        )

    def connect(
        self, user_name: str | None = None, password: bytes | None = None, **peer: str
    ) -> Identity | Denied:
        """Decide about a client, including its Proof."""
        info = PeerInfo("192.0.2.7:5000", **{"listener": "lan", **peer})
        packet = Connect("c", user_name=user_name, password=password)
        decided = self.authority.connect(packet, info)
        return decided.run() if isinstance(decided, Proof) else decided

    def user(
        self, user_name: str | None = None, password: bytes | None = None, **peer: str
    ) -> Identity:
        identity = self.connect(user_name, password, **peer)
        assert isinstance(identity, Identity), identity.reason
        assert (identity.client_id, identity.address) == ("c", "192.0.2.7")
        return identity

    def refused(
        self, user_name: str | None = None, password: bytes | None = None, **peer: str
    ) -> int:
        denied = self.connect(user_name, password, **peer)
        assert isinstance(denied, Denied)
        lines = " ".join(self.lines).replace("SCRAM secret", "")
        assert "secret" not in lines
        assert "guess" not in lines
        return denied.reason

    def count(self, failure: str) -> int:
        return self.authority.failures.counts[failure]


# --- passwords ------------------------------------------------------------------------------------


def test_a_password_proves_the_user(users_file: Path) -> None:
    desk = Desk(UsersSettings(password_file=users_file))
    identity = desk.user("ann", b"secret")
    assert (identity.user_name, identity.proof, identity.groups) == ("ann", PASSWORD, ("ops",))
    assert identity.listener == "lan"
    assert identity.expires_at is None
    for name, password in (
        ("ann", b"guess"),
        ("nobody", b"secret"),
        ("press-7", b"*"),
        ("ann", None),
        ("ann", b""),
        (None, b"secret"),
        ("", b"secret"),
    ):
        assert desk.refused(name, password) == BAD_USER_NAME_OR_PASSWORD
    assert desk.count(BAD_CREDENTIALS) == 7
    assert desk.lines == [
        "client 'c' of user 'ann' at 192.0.2.7 failed to authenticate: unknown user or wrong "
        "password"
    ]


def test_an_anonymous_client_needs_a_listener_that_allows_it(users_file: Path) -> None:
    settings = UsersSettings(password_file=users_file)
    closed = Desk(settings)
    assert closed.refused() == NOT_AUTHORIZED
    assert closed.count(NO_CREDENTIALS) == 1
    assert closed.lines == [
        "client 'c' at 192.0.2.7 failed to authenticate: listener 'lan' does not allow anonymous "
        "clients"
    ]
    half_open = Desk(settings, anonymous=OPEN)
    identity = half_open.user()
    assert (identity.user_name, identity.proof) == (None, ANONYMOUS)
    # Wrong credentials are not made anonymous.
    assert half_open.refused("ann", b"guess") == BAD_USER_NAME_OR_PASSWORD
    assert half_open.refused(listener="wan") == NOT_AUTHORIZED
    assert half_open.user("ann", b"secret", listener="wan").user_name == "ann"


def test_without_users_a_name_is_not_believed() -> None:
    desk = Desk(UsersSettings(), anonymous=OPEN)
    assert desk.user().user_name is None
    assert desk.lines == []
    for _ in range(2):
        identity = desk.user("ann", b"secret")
        assert (identity.user_name, identity.proof) == ("ann", ANONYMOUS)
    assert desk.lines == [
        "192.0.2.7:5000 connects with a user name or password, which are not checked: this broker "
        "has no users, and the client is anonymous"
    ]
    assert desk.refused("ann", b"secret", listener="wan") == NOT_AUTHORIZED
    assert desk.refused(listener="wan") == NOT_AUTHORIZED


# --- certificates ---------------------------------------------------------------------------------


def test_a_certificate_names_the_user_if_the_settings_say_so(users_file: Path) -> None:
    desk = Desk(UsersSettings(certificate_users="common_name", password_file=users_file))
    identity = desk.user(certificate="press-7")
    assert (identity.user_name, identity.proof) == ("press-7", CERTIFICATE)
    assert (identity.groups, identity.certificate) == (("machines",), "press-7")
    assert desk.user("press-7", certificate="press-7").user_name == "press-7"
    assert desk.user(certificate="press-8").groups == ()
    # Another name is refused, even with its password.
    assert desk.refused("ann", b"secret", certificate="press-7") == BAD_USER_NAME_OR_PASSWORD
    assert desk.refused(certificate="") == NOT_AUTHORIZED
    assert desk.refused(certificate="a\nb") == NOT_AUTHORIZED
    assert desk.count(BAD_CERTIFICATE) == 3
    # Without a certificate, a password does.
    assert desk.user("ann", b"secret").proof == PASSWORD


def test_a_certificate_is_only_a_fact_otherwise(users_file: Path) -> None:
    desk = Desk(UsersSettings(password_file=users_file))
    assert desk.refused(certificate="press-7") == NOT_AUTHORIZED
    identity = desk.user("ann", b"secret", certificate="press-7")
    assert (identity.user_name, identity.certificate) == ("ann", "press-7")
    alone = Desk(UsersSettings(certificate_users="common_name"))
    assert alone.user(certificate="press-7").user_name == "press-7"
    assert alone.refused() == NOT_AUTHORIZED
    assert alone.refused("ann", b"secret") == NOT_AUTHORIZED


# --- tokens ---------------------------------------------------------------------------------------


def test_a_token_is_a_password(users_file: Path, secret_file: Path) -> None:
    desk = Desk(
        UsersSettings(
            password_file=users_file,
            jwt_secret_file=secret_file,
            jwt_groups_claim="groups",
            jwt_leeway=0.0,
        )
    )
    expires = int(time.time()) + 86_400
    token = sign(payload(exp=expires, groups=["staff"], site="berlin"), SECRET, "HS256")
    for user_name in ("ann", None):
        identity = desk.user(user_name, token)
        assert (identity.user_name, identity.proof) == ("ann", TOKEN)
        assert identity.groups == ("staff",)
        assert identity.claims == {"sub": "ann", "site": "berlin"}
        assert identity.expires_at == expires
    assert desk.refused("bob", token) == BAD_USER_NAME_OR_PASSWORD
    assert "its token is that of user 'ann'" in desk.lines[0]
    expired = sign(payload(exp=1), SECRET, "HS256")
    assert desk.refused("ann", expired) == BAD_USER_NAME_OR_PASSWORD
    assert desk.count(BAD_TOKEN) == 2
    # Users of the file get in as well.
    assert desk.user("bob", b"secret").proof == PASSWORD


def test_with_tokens_alone_a_password_is_refused(secret_file: Path) -> None:
    desk = Desk(UsersSettings(jwt_secret_file=secret_file))
    assert desk.refused("ann", b"secret-ish") == BAD_USER_NAME_OR_PASSWORD
    assert desk.refused(None, b"eyJ.b") == BAD_USER_NAME_OR_PASSWORD
    assert desk.user(None, sign(payload(), SECRET, "HS256")).user_name == "ann"


# --- hooks ----------------------------------------------------------------------------------------


def allow(request: ConnectRequest) -> bool:
    return request.password == b"open"


def identify(request: ConnectRequest) -> Identity:
    return Identity("another", user_name=request.user_name, groups=("g",), claims={"a": "b"})


def invite(request: ConnectRequest) -> Identity:
    return Identity(request.client_id)


def ban(request: ConnectRequest) -> Denied:
    return Denied(BANNED, "go away")


def end(request: ConnectRequest) -> bool:
    raise SystemExit(1)


def python_desk(function: Callable[[ConnectRequest], object]) -> Desk:
    return Desk(UsersSettings(python_hook=f"{__name__}:{function.__name__}"))


def test_the_python_hook_decides() -> None:
    desk = python_desk(allow)
    assert desk.user("eve", b"open").proof == HOOK
    assert desk.refused("eve", b"closed") == BAD_USER_NAME_OR_PASSWORD
    assert desk.refused("a\u202eb", b"open") == BAD_USER_NAME_OR_PASSWORD
    identity = python_desk(identify).user("eve", b"whatever", listener="lan")
    assert (identity.client_id, identity.groups, identity.claims) == ("c", ("g",), {"a": "b"})
    assert (identity.proof, identity.listener) == (HOOK, "lan")
    assert python_desk(ban).refused("eve", b"whatever") == BANNED
    assert python_desk(invite).refused("eve", b"whatever") == NOT_AUTHORIZED


def test_a_python_hook_that_raises_refuses_the_client(caplog: pytest.LogCaptureFixture) -> None:
    desk = python_desk(end)
    assert desk.refused("eve", b"whatever") == UNSPECIFIED_ERROR
    assert desk.lines[0].endswith("the python_hook raised SystemExit")
    assert desk.count(HOOK_FAILED) == 1
    assert caplog.records[0].getMessage() == "the python_hook failed"


# --- failures -------------------------------------------------------------------------------------


def test_too_many_failures_of_an_address_are_refused_unchecked(users_file: Path) -> None:
    desk = Desk(
        UsersSettings(password_file=users_file, failures_per_minute=2, scram=True),
        anonymous=frozenset(("wan",)),
    )
    with_method = scram_connect()
    for _ in range(2):
        assert desk.user("ann", b"secret").user_name == "ann"
        exchange = desk.authority.begin_authentication(METHOD, with_method, PEER)
        assert exchange is not None
        assert isinstance(exchange.start(b"nonsense"), Denied)
    assert desk.refused("ann", b"secret") == QUOTA_EXCEEDED
    assert desk.count(TOO_MANY_FAILURES) == 1
    denied = desk.authority.connect(with_method, PEER)
    assert isinstance(denied, Denied)
    assert denied.reason == QUOTA_EXCEEDED
    assert denied.reason_string == "too many failed authentications from this address"
    # Others, and clients that need not authenticate, get in.
    assert isinstance(desk.authority.connect(with_method, PeerInfo("192.0.2.8:1")), Identity)
    assert desk.user(listener="wan").user_name is None
    desk.authority.flush_log()
    assert len(desk.lines) == 2


def test_a_client_without_credentials_does_not_use_up_the_limit(users_file: Path) -> None:
    desk = Desk(
        UsersSettings(
            password_file=users_file, failures_per_minute=1, certificate_users="common_name"
        )
    )
    for _ in range(3):
        assert desk.refused() == NOT_AUTHORIZED
        assert desk.refused("ann", b"secret", certificate="bob") == BAD_USER_NAME_OR_PASSWORD
    assert desk.user("ann", b"secret").user_name == "ann"


def test_a_proof_is_counted_by_the_pool_only(users_file: Path) -> None:
    desk = Desk(UsersSettings(password_file=users_file, failures_per_minute=1))
    for _ in range(3):
        assert desk.refused("ann", b"guess") == BAD_USER_NAME_OR_PASSWORD
    assert not desk.authority.rate.is_exceeded("192.0.2.7")


def test_a_name_is_quoted_so_that_it_cannot_forge_a_line() -> None:
    assert shown_name("a\nb\u202e") == "'a\\nb\\u202e'"
    assert shown_name("x" * 200) == "'" + "x" * 100 + "\\u2026'"


# --- SCRAM ----------------------------------------------------------------------------------------


def scram_connect(user_name: str | None = None, method: str = METHOD) -> Connect:
    properties = Properties(authentication_method=method)
    return Connect("c", user_name=user_name, properties=properties)


def test_scram_proves_the_user_and_survives_a_reload(users_file: Path) -> None:
    keys = make_keys("secret", iterations=4096)
    set_user(users_file, UserEntry("dan", None, ("ops",), keys))
    settings = UsersSettings(password_file=users_file, scram=True)
    desk = Desk(settings)
    packet = scram_connect()
    # Until it has proved its name, it is nobody.
    started = desk.authority.connect(packet, PEER)
    assert isinstance(started, Identity)
    assert started.user_name is None
    exchange = desk.authority.begin_authentication(METHOD, packet, PEER)
    assert exchange is not None

    def log_in(password: str) -> Identity | Denied:
        client = ScramAuthentication("dan", password)
        step = exchange.start(client.begin())
        assert isinstance(step, Challenge)
        step = exchange.answer(client.final_message(step.data))
        if isinstance(step, Denied):
            return step
        assert isinstance(step, Granted)
        client.finish(step.data)
        assert step.identity is not None
        return step.identity

    identity = log_in("secret")
    assert isinstance(identity, Identity)
    assert (identity.user_name, identity.proof, identity.groups) == ("dan", SCRAM, ("ops",))
    failed = log_in("guess")
    assert isinstance(failed, Denied)
    assert failed.reason == BAD_USER_NAME_OR_PASSWORD
    assert desk.count(BAD_SCRAM) == 1
    assert desk.lines == [
        "client 'c' of user 'dan' at 192.0.2.7 failed to authenticate: unknown user or wrong "
        "password"
    ]
    # Re-authentication is by the users of now.
    for now in (replace(settings, scram=False), UsersSettings()):
        desk.authority.replace(load_users(now), None)
        assert isinstance(log_in("secret"), Denied)
    desk.authority.replace(load_users(settings), None)
    assert isinstance(log_in("secret"), Identity)


def test_another_method_is_unknown(users_file: Path) -> None:
    on = Desk(UsersSettings(password_file=users_file, scram=True))
    assert on.authority.begin_authentication(METHOD, scram_connect(), PEER) is not None
    assert on.authority.begin_authentication("GSSAPI", scram_connect(), PEER) is None
    off = Desk(UsersSettings(password_file=users_file))
    assert off.authority.begin_authentication(METHOD, scram_connect(), PEER) is None


# --- sessions, rights and reload ------------------------------------------------------------------


def test_a_session_belongs_to_its_user() -> None:
    ann, bob = (Identity("c", user_name=name, proof=PASSWORD) for name in ("ann", "bob"))
    anonymous = Identity("c")
    bound = Desk(UsersSettings()).authority
    for identity in (ann, bob, anonymous):
        for owner in (ann, bob, anonymous):
            assert bound.may_use_session(identity, owner) is (identity is owner)
    elsewhere = Identity("c", user_name="ann", proof=PASSWORD, address="192.0.2.9")
    assert bound.may_use_session(elsewhere, ann)
    # A name that nobody has proved is no user.
    assert bound.may_use_session(Identity("c", user_name="eve"), anonymous)
    assert not bound.may_use_session(Identity("c", user_name="ann"), ann)
    unbound = Desk(UsersSettings(bind_client_ids=False)).authority
    assert unbound.may_use_session(ann, bob)


class GroupRights:
    """Everything for members of ops, with QoS 1 at most; nothing for others."""

    def key(self, identity: Identity) -> str:
        return ",".join(identity.groups)

    def may_publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> bool:
        return "ops" in identity.groups and not retain and qos < 2

    def granted_qos(self, identity: Identity, topic_filter: str, *, qos: int) -> int | None:
        return min(qos, 1) if "ops" in identity.groups else None

    def may_receive(self, identity: Identity, topic_name: str) -> bool:
        return "ops" in identity.groups


def may(authority: ConfiguredAuthority, identity: Identity) -> tuple[int, int, bool]:
    return (
        authority.publish(identity, "t", qos=1, retain=False),
        authority.subscribe(identity, "t", qos=2),
        authority.receive(identity, "t"),
    )


def test_without_rights_everybody_who_got_in_may_do_everything(users_file: Path) -> None:
    desk = Desk(UsersSettings(password_file=users_file))
    ann = desk.user("ann", b"secret")
    assert desk.authority.rights(ann) == ""
    assert may(desk.authority, ann) == (SUCCESS, 2, True)
    assert may(desk.authority, Identity("c")) == (SUCCESS, 2, True)


def test_rights_decide(users_file: Path) -> None:
    authority = ConfiguredAuthority(
        load_users(UsersSettings(password_file=users_file)), GroupRights(), log=print
    )
    ann = Identity("c", user_name="ann", proof=PASSWORD, groups=("ops",))
    bob = Identity("c", user_name="bob", proof=PASSWORD)
    assert authority.rights(ann) == "ops"
    assert may(authority, ann) == (SUCCESS, 1, True)
    assert authority.publish(ann, "t", qos=2, retain=False) == NOT_AUTHORIZED
    assert authority.publish(ann, "t", qos=0, retain=True) == NOT_AUTHORIZED
    assert may(authority, bob) == (NOT_AUTHORIZED, NOT_AUTHORIZED, False)


def test_a_reload_changes_what_connected_clients_may_do(users_file: Path) -> None:
    settings = UsersSettings(password_file=users_file, certificate_users="common_name")
    authority = ConfiguredAuthority(load_users(settings), GroupRights(), log=print)
    ann = Identity("c", user_name="ann", proof=PASSWORD, groups=("ops",), address="192.0.2.7")
    press = Identity("c", user_name="press-7", proof=CERTIFICATE, groups=("machines",))
    token = Identity("c", user_name="ann", proof=TOKEN, groups=("ops",))
    assert [authority.receive(each, "t") for each in (ann, press, token)] == [True, False, True]
    # The groups of a user change, and another one is removed.
    set_user(users_file, UserEntry("press-7", None, ("ops",)))
    set_user(users_file, parse_entry(f"ann:{QUICK}:staff"))
    authority.replace(load_users(settings), GroupRights())
    assert authority.generation == 1
    assert [authority.receive(each, "t") for each in (ann, press, token)] == [False, True, True]
    assert authority.rights(ann) == "staff"
    remove_user(users_file, "ann")
    remove_user(users_file, "press-7")
    authority.replace(load_users(settings), None, anonymous_listeners=OPEN)
    assert authority.generation == 2
    assert may(authority, ann) == (NOT_AUTHORIZED, NOT_AUTHORIZED, False)
    assert authority.rights(ann) != authority.rights(token) == ""
    # A certificate needs no line in the file, and a token is valid until it expires.
    assert may(authority, press) == may(authority, token) == (SUCCESS, 2, True)
    assert isinstance(authority.connect(Connect("c"), PEER), Identity)
    authority.replace(load_users(UsersSettings()), None)
    assert may(authority, ann) == (NOT_AUTHORIZED, NOT_AUTHORIZED, False)


def test_everything_that_is_wrong_is_reported_and_nothing_changes(tmp_path: Path) -> None:
    settings = UsersSettings(
        password_file=tmp_path / "users",
        jwt_keys=tmp_path / "keys",
        python_hook="no_such_module_at_all:check",
    )
    with pytest.raises(SettingsError) as caught:
        load_users(settings)
    assert [problem.partition(": ")[0] for problem in caught.value.problems[:2]] == [
        f"{tmp_path}/users",
        f"{tmp_path}/keys",
    ]
    assert len(caught.value.problems) == 3


def test_warnings_are_logged_at_start_and_at_a_reload(users_file: Path) -> None:
    users_file.chmod(0o644)
    settings = UsersSettings(password_file=users_file, scram=True, http_hook="http://auth.example/")
    desk = Desk(settings)
    assert [line.split(": ")[-1].split()[0] for line in desk.lines] == ["run", "add", "use"]
    assert "has no SCRAM secret, so clients can find out which users exist" in desk.lines[1]
    desk.authority.replace(load_users(settings), None)
    assert len(desk.lines) == 6
    assert ConfiguredUsers(settings).warnings == ()


def test_codes_are_those_of_5_0_also_for_3_1_1(users_file: Path) -> None:
    desk = Desk(UsersSettings(password_file=users_file))
    packet = Connect("c", user_name="ann", password=b"guess", version=MQTT311)
    proof = desk.authority.connect(packet, PEER)
    assert isinstance(proof, Proof)
    denied = proof.run()
    assert isinstance(denied, Denied)
    assert denied.reason == BAD_USER_NAME_OR_PASSWORD
