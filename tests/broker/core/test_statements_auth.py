"""What chapter 4.12 has the broker do: enhanced authentication, by methods that a hook brings."""

import pytest

from semel.broker.authority import (
    Authority,
    Challenge,
    Denied,
    Granted,
    Proof,
    ServerAuthentication,
    Step,
)
from semel.broker.identity import Identity, PeerInfo
from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    Publish,
    PubRel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
    encode,
)
from semel.mqtt.packet_types import CONNACK, DISCONNECT
from semel.mqtt.reasons import FAILURE, REASONS_5
from tests.broker.core.test_core import payloads, persistent
from tests.broker.world import Client, World

REFUSALS = sorted(code for code in REASONS_5[CONNACK] if code >= FAILURE)
WORD = b"semel"


class Rounds(ServerAuthentication):
    """Asks so many times; every word, that of the beginning too, must be the right one."""

    def __init__(self, rounds: int, code: int, why: str | None) -> None:
        self.rounds = rounds
        self.code = code
        self.why = why
        self.left = 0
        self.heard: list[bytes | None] = []

    def start(self, data: bytes | None) -> Step:
        self.left = self.rounds
        return self.answer(data)

    def answer(self, data: bytes | None) -> Step:
        self.heard.append(data)
        if data != WORD:
            return Denied(self.code, self.why)
        if not self.left:
            return Granted(b"welcome")
        self.left -= 1
        return Challenge(b"%d left" % self.left)


class Gate(Authority):
    """The method WORD, in so many rounds; whoever uses none of the others is let in freely."""

    def __init__(self, rounds: int = 1, code: int = 0x87, why: str | None = None) -> None:
        self.rounds = rounds
        self.code = code
        self.why = why
        self.begun: list[tuple[str, str, str]] = []

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        return Denied(0x8A) if packet.client_id == "banned" else super().connect(packet, peer)

    def begin_authentication(
        self, method: str, packet: Connect, peer: PeerInfo
    ) -> ServerAuthentication | None:
        self.begun.append((method, packet.client_id, peer.label))
        if method == "BROKEN":
            raise RuntimeError("a hook that is broken from the start")
        return Rounds(self.rounds, self.code, self.why) if method == "WORD" else None


def method_and(data: bytes | None = WORD, method: str = "WORD") -> Properties:
    return Properties(authentication_method=method, authentication_data=data)


def auth(reason: int, data: bytes | None = WORD, method: str = "WORD") -> Auth:
    return Auth(reason, properties=method_and(data, method))


def asked(world: World, client_id: str = "a", **keywords: object) -> Client:
    """A client that has sent CONNECT with the method and got AUTH 0x18."""
    client = world.open()
    connect = Connect(client_id, properties=method_and(), **keywords)  # type: ignore[arg-type]
    assert client.send(connect) == [auth(0x18, b"0 left")]
    return client


def authenticated(world: World, client_id: str = "a", **keywords: object) -> Client:
    """A client that has answered well."""
    client = asked(world, client_id, **keywords)
    connack, *others = client.send(auth(0x18))
    assert isinstance(connack, ConnAck)
    assert connack.reason == 0
    client.inbox = others
    return client


def codes(packets: list[Packet]) -> list[int]:
    """The codes of a list of CONNACK, DISCONNECT and AUTH packets, and of nothing else."""
    found = []
    for packet in packets:
        assert isinstance(packet, ConnAck | Disconnect | Auth), packet
        found.append(packet.reason)
    return found


# --- connecting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("gate", [True, False])
def test_an_unknown_method_is_refused_with_0x8c_and_closed(gate: bool) -> None:
    """[MQTT-4.12.0-1]; a known one is not, and without a hook none is known"""
    world = World(authority=Gate() if gate else Authority())
    for method in ("word", "WORD ", "", "WORD"):
        client = world.open()
        answer = client.send(Connect("a", properties=method_and(method=method)))
        known = gate and method == "WORD"
        assert answer == [auth(0x18, b"0 left") if known else ConnAck(0x8C)]
        assert client.is_closed() != known
    assert world.broker.router.sessions == {}
    assert not world.connect("b").is_closed()


@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_the_broker_asks_with_auth_0x18_until_connack(rounds: int) -> None:
    """[MQTT-4.12.0-2]: however often it asks, and if it asks for nothing"""
    world = World(authority=Gate(rounds))
    client = world.open()
    answer = client.send(Connect("a", properties=method_and()))
    for left in reversed(range(rounds)):
        assert answer == [auth(0x18, b"%d left" % left)]
        assert world.broker.router.sessions == {}
        answer = client.send(auth(0x18))
    (connack,) = answer
    assert isinstance(connack, ConnAck)
    assert connack.reason == 0
    assert connack.properties.authentication_data == b"welcome"
    assert client.send(PingReq()) == [PingResp()]


@pytest.mark.parametrize("reason", [0x00, 0x18, 0x19])
def test_only_auth_0x18_answers_the_broker(reason: int) -> None:
    """[MQTT-4.12.0-3]: any other code is a Protocol Error"""
    client = asked(World(authority=Gate()))
    assert codes(client.send(auth(reason))) == [0 if reason == 0x18 else 0x82]
    assert client.is_closed() == (reason != 0x18)


def test_an_auth_that_nobody_asked_for_is_out_of_turn() -> None:
    """[MQTT-4.12.0-3]: in one piece with CONNECT it cannot be an answer"""
    client = World(authority=Gate()).open()
    packets = client.send(Connect("a", properties=method_and()), auth(0x18))
    assert codes(packets) == [0x18, 0x82]
    assert client.is_closed()
    client = authenticated(World(authority=Gate()))
    assert codes(client.send(auth(0x18))) == [0x82]
    assert client.is_closed()


@pytest.mark.parametrize("code", REFUSALS, ids=hex)
@pytest.mark.parametrize("first", [True, False])
def test_a_client_that_fails_to_authenticate_is_told_and_closed(code: int, first: bool) -> None:
    """[MQTT-4.12.0-4]: at the first word or at a later one; the right words open"""
    world = World(authority=Gate(code=code))
    client = world.open()
    packets = client.send(Connect("a", properties=method_and(b"no" if first else WORD)))
    if not first:
        packets = client.send(auth(0x18, b"no"))
    assert packets == [ConnAck(code)]
    assert client.is_closed()
    assert world.broker.router.sessions == {}
    # [MQTT-3.1.4-6] nothing that it says later counts
    assert client.send(auth(0x18)) == []
    assert not authenticated(world).is_closed()


def test_auth_and_the_connack_that_accepts_name_the_method_of_connect() -> None:
    """[MQTT-4.12.0-5]"""
    client = World(authority=Gate()).open()
    answers = client.send(Connect("a", properties=method_and())) + client.send(auth(0x18))
    methods = []
    for packet in answers:
        assert isinstance(packet, Auth | ConnAck)
        methods.append(packet.properties.authentication_method)
    assert methods == ["WORD", "WORD"]


def test_an_answer_by_another_method_is_refused() -> None:
    """[MQTT-4.12.0-5] U5-72 of the client, even by a method that is known; U5-73 without any"""
    for method, code in (("word", 0x82), ("WORD", 0)):
        client = asked(World(authority=Gate()))
        assert codes(client.send(auth(0x18, method=method))) == [code]
        assert client.is_closed() == bool(code)
    client = asked(World(authority=Gate()))
    assert codes(client.send_bytes(bytes.fromhex("f0021800"))) == [0x82]
    assert client.is_closed()


def test_a_client_without_a_method_sees_nothing_of_authentication() -> None:
    """[MQTT-4.12.0-6]"""
    gate = Gate()
    (connack,) = World(authority=gate).open().send(Connect("a"))
    assert isinstance(connack, ConnAck)
    assert connack.reason == 0
    assert connack.properties.authentication_method is None
    assert connack.properties.authentication_data is None
    assert gate.begun == []


@pytest.mark.parametrize("reason", [0x00, 0x18, 0x19])
def test_auth_from_a_client_without_a_method_ends_its_connection(reason: int) -> None:
    """[MQTT-4.12.0-7] U5-72"""
    world = World(authority=Gate())
    client = world.connect("a")
    assert codes(client.send(auth(reason))) == [0x82]
    assert client.is_closed()
    right = authenticated(world, "b")
    assert codes(right.send(auth(0x19))) == [0x18]


@pytest.mark.parametrize(
    "packet",
    [
        PingReq(),
        Publish("t", b"x", retain=True),
        PubRel(1),
        Subscribe(1, [Subscription("t")]),
        Unsubscribe(1, ["t"]),
        Connect("a"),
    ],
    ids=lambda packet: type(packet).__name__,
)
@pytest.mark.parametrize("at_once", [True, False])
def test_nothing_but_auth_and_disconnect_is_taken_until_connack(
    packet: Packet, at_once: bool
) -> None:
    """[MQTT-3.1.2-30]: the connection closes and the packet does nothing; afterwards it may come"""
    world = World(authority=Gate())
    watcher = world.connect("watcher")
    watcher.subscribe("t")
    if at_once:
        client = world.open()
        answer = client.send(Connect("a", properties=method_and()), packet)[1:]
    else:
        client = asked(world)
        answer = client.send(packet)
    assert codes(answer) == [0x82]
    assert client.is_closed()
    assert watcher.take() == []
    assert len(world.broker.router.retained) == 0
    assert list(world.broker.router.sessions) == ["watcher"]
    if not isinstance(packet, Connect):
        client = authenticated(world)
        client.send(packet)
        assert not client.is_closed()


def test_a_malformed_packet_while_authenticating_is_answered_by_connack() -> None:
    """[MQTT-4.13.1-1]: with its own code, or 0x82 where CONNACK does not have it, and why"""
    for data, code, rule in (
        ("c100", 0x81, "FIXED_HEADER_FLAGS"),
        ("300700017403230000", 0x82, "TOPIC_ALIAS_NOT_ZERO"),
    ):
        client = asked(World(authority=Gate()))
        (connack,) = client.send_bytes(bytes.fromhex(data))
        assert connack == ConnAck(code, properties=Properties(reason_string=rule))
        assert client.is_closed()


def test_a_client_may_give_up_while_it_authenticates() -> None:
    """[MQTT-3.1.2-30] permits DISCONNECT; there is no session yet, and so no will"""
    world = World(authority=Gate())
    watcher = world.connect("watcher")
    watcher.subscribe("gone")
    for leaves_by_disconnect in (True, False):
        client = asked(world, will=Will("gone", b"bye"))
        if leaves_by_disconnect:
            assert client.send(Disconnect(0x04)) == []
            assert client.is_closed()
        client.cut()
    assert watcher.take() == []
    authenticated(world, will=Will("gone", b"bye")).cut()
    assert payloads(watcher.take()) == [b"bye"]


# --- the other bounds of a CONNECT hold -----------------------------------------------------------


def test_who_may_not_connect_is_not_asked_to_authenticate() -> None:
    """Class 11: naming a method goes around nothing, neither an Authority's no nor a limit"""
    gate = Gate()
    world = World(BrokerSettings(maximum_connections=1, topic_levels=3), gate)
    client = world.open()
    assert client.send(Connect("banned", properties=method_and())) == [ConnAck(0x8A)]
    assert client.is_closed()
    client.cut()
    client = world.open()
    deep = Will("a/b/c/d", b"x")
    assert codes(client.send(Connect("a", will=deep, properties=method_and()))) == [0x90]
    client.cut()
    first = asked(world)
    assert codes(first.send(auth(0x18))) == [0]
    second = world.open()
    assert codes(second.send(Connect("b", properties=method_and()))) == [0x89]
    assert gate.begun == [("WORD", "a", "test:1")]


def test_of_two_who_authenticate_for_the_last_connection_the_first_to_finish_gets_it() -> None:
    """Who is asked is not connected yet, so there is room for either until one is accepted"""
    world = World(BrokerSettings(maximum_connections=1), Gate())
    slow, fast = asked(world, "slow"), asked(world, "fast")
    assert codes(fast.send(auth(0x18))) == [0]
    assert codes(slow.send(auth(0x18))) == [0x89]
    assert slow.is_closed()
    fast.cut()
    assert codes(asked(world, "next").send(auth(0x18))) == [0]


@pytest.mark.parametrize("answers", [True, False])
def test_the_time_to_connect_runs_while_a_client_authenticates(answers: bool) -> None:
    """Class 13: AUTH packets do not prolong it"""
    world = World(BrokerSettings(connect_timeout=5), Gate(rounds=2))
    client = world.open()
    client.send(Connect("a", properties=method_and()))
    world.wait(4)
    assert client.send(auth(0x18)) == [auth(0x18, b"0 left")]
    if answers:
        assert codes(client.send(auth(0x18))) == [0]
    world.wait(1)
    assert client.is_closed() != answers
    assert ("a" in world.broker.router.sessions) == answers


@pytest.mark.parametrize("connected", [True, False])
def test_packets_stay_small_until_a_client_has_authenticated(connected: bool) -> None:
    """Class 2: a stranger is given no more room than before its CONNECT"""
    settings = BrokerSettings(before_connect_packet_size=100, maximum_packet_size=1_000)
    world = World(settings, Gate())
    client = authenticated(world) if connected else asked(world)
    packet = auth(0x19 if connected else 0x18, bytes(200))
    assert codes(client.send(packet)) == ([0x87] if connected else [0x95])
    assert client.is_closed()
    # The answer itself fits, and so does a large packet after it.
    client = authenticated(world)
    client.send(Publish("t", bytes(500)))
    assert not client.is_closed()


def test_an_auth_that_the_client_does_not_take_closes_the_connection() -> None:
    """[MQTT-3.1.2-24]: at exactly its Maximum Packet Size it is sent"""
    size = len(encode(auth(0x18, b"0 left")))
    for limit in (size, size - 1):
        client = World(authority=Gate()).open()
        properties = Properties(method_and().items, maximum_packet_size=limit)
        answer = client.send(Connect("a", properties=properties))
        assert answer == ([auth(0x18, b"0 left")] if limit == size else [])
        assert client.is_closed() == (limit < size)


def test_an_assigned_client_id_comes_with_the_end_of_the_authentication() -> None:
    """[MQTT-3.2.2-16], and is none that came into use meanwhile"""
    world = World(authority=Gate())
    client = asked(world, "")
    world.connect("assigned-1")
    (connack,) = client.send(auth(0x18))
    assert isinstance(connack, ConnAck)
    assert connack.properties.assigned_client_identifier == "assigned-2"
    assert connack.properties.authentication_method == "WORD"
    assert set(world.broker.router.sessions) == {"assigned-1", "assigned-2"}


# --- sessions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["asked", "denied", "cut", "gives up", "late", "breaks a rule"])
@pytest.mark.parametrize("clean_start", [True, False])
def test_a_stranger_does_not_touch_a_session_before_it_has_authenticated(
    end: str, clean_start: bool
) -> None:
    """Class 15: neither takes the connection over nor wipes what is queued, however it ends"""
    world = World(authority=Gate())
    owner = persistent(world, "a", 5)
    owner.subscribe("t", qos=1)
    stranger = asked(world, clean_start=clean_start)
    if end == "denied":
        assert codes(stranger.send(auth(0x18, b"guess"))) == [0x87]
    elif end == "cut":
        stranger.cut()
    elif end == "gives up":
        stranger.send(Disconnect())
    elif end == "late":
        world.wait(20)
    elif end == "breaks a rule":
        stranger.send(Publish("t", b"x", retain=True))
    assert not owner.is_closed()
    assert owner.send(PingReq()) == [PingResp()]
    owner.cut()
    world.connect("p").send(Publish("t", b"kept", qos=1, packet_id=1))
    if end == "asked":
        stranger.cut()
    assert payloads(persistent(world, "a", 5, present=True).take()) == [b"kept"]


@pytest.mark.parametrize("clean_start", [True, False])
def test_a_client_that_has_authenticated_takes_its_session_over(clean_start: bool) -> None:
    """[MQTT-3.1.4-3] [MQTT-3.1.2-4]: the control to the stranger"""
    world = World(authority=Gate())
    owner = persistent(world, "a", 5)
    owner.subscribe("t", qos=1)
    client = asked(world, clean_start=clean_start)
    owner.cut()
    world.connect("p").send(Publish("t", b"kept", qos=1, packet_id=1))
    owner = persistent(world, "a", 5, present=True)
    assert not owner.is_closed()
    connack, *others = client.send(auth(0x18))
    assert isinstance(connack, ConnAck)
    assert connack.session_present != clean_start
    assert payloads(others) == ([] if clean_start else [b"kept"])
    assert codes(owner.take()[-1:]) == [0x8E]
    assert owner.is_closed()


# --- authenticating again -------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_connected_client_may_authenticate_again_any_number_of_times(rounds: int) -> None:
    """[4.12.1]: AUTH 0x19, AUTH 0x18 in turn, AUTH 0x00 in the end; nothing else changes"""
    world = World(authority=Gate(rounds))
    client = world.open()
    client.send(Connect("a", properties=method_and()))
    for _ in range(rounds):
        client.send(auth(0x18))
    client.subscribe("t")
    publisher = world.connect("p")
    for _ in range(3):
        answer = client.send(auth(0x19))
        for left in reversed(range(rounds)):
            assert answer == [auth(0x18, b"%d left" % left)]
            # Both sides may go on with everything else meanwhile.
            publisher.send(Publish("t", b"x"))
            assert payloads(client.take()) == [b"x"]
            assert client.send(PingReq()) == [PingResp()]
            answer = client.send(auth(0x18))
        assert answer == [auth(0x00, b"welcome")]
    publisher.send(Publish("t", b"y"))
    assert payloads(client.take()) == [b"y"]
    assert not client.is_closed()


def test_a_re_authentication_may_begin_anew_before_it_has_ended() -> None:
    """[4.12.1]: "at any time"; the word said last is the first of a new exchange"""
    client = authenticated(World(authority=Gate(1)))
    assert client.send(auth(0x19)) == [auth(0x18, b"0 left")]
    assert client.send(auth(0x19)) == [auth(0x18, b"0 left")]
    assert client.send(auth(0x18)) == [auth(0x00, b"welcome")]
    assert not client.is_closed()


def test_a_re_authentication_by_another_method_is_refused() -> None:
    """[MQTT-4.12.1-1]"""
    for method, code in (("word", 0x82), ("BROKEN", 0x82), ("WORD", 0x18)):
        client = authenticated(World(authority=Gate()))
        assert codes(client.send(auth(0x19, method=method))) == [code]
        assert client.is_closed() == (code == 0x82)


@pytest.mark.parametrize("code", REFUSALS, ids=hex)
@pytest.mark.parametrize("first", [True, False])
def test_a_re_authentication_that_fails_ends_the_connection(code: int, first: bool) -> None:
    """[MQTT-4.12.1-2]: with the code, or 0x87 where DISCONNECT does not have it

    The connection counts as lost: the will is published, the session stays as long as it was to.
    """
    world = World(authority=Gate(code=code))
    watcher = world.connect("watcher")
    watcher.subscribe("gone")
    client = world.open()
    properties = Properties(method_and().items, session_expiry_interval=60)
    client.send(Connect("a", will=Will("gone", b"bye"), properties=properties))
    client.send(auth(0x18))
    answer = client.send(auth(0x19, b"no" if first else WORD))
    if not first:
        assert not client.is_closed()
        answer = client.send(auth(0x18, b"no"))
    assert answer == [Disconnect(code if code in REASONS_5[DISCONNECT] else 0x87)]
    assert client.is_closed()
    assert payloads(watcher.take()) == [b"bye"]
    assert "a" in world.broker.router.sessions
    assert watcher.send(PingReq()) == [PingResp()]


def test_a_re_authentication_that_succeeds_leaves_the_will_where_it_is() -> None:
    """[MQTT-4.12.1-2]: the control"""
    world = World(authority=Gate())
    watcher = world.connect("watcher")
    watcher.subscribe("gone")
    client = authenticated(world, will=Will("gone", b"bye"))
    client.send(auth(0x19))
    assert codes(client.send(auth(0x18))) == [0]
    assert not client.is_closed()
    assert watcher.take() == []
    client.cut()
    assert payloads(watcher.take()) == [b"bye"]


# --- what a hook says -----------------------------------------------------------------------------


@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize("less", [0, 1])
def test_a_hooks_reason_string_is_sent_where_it_fits(connected: bool, less: int) -> None:
    """[MQTT-3.2.2-19] in CONNACK, [MQTT-3.14.2-3] in DISCONNECT"""
    why = "this is not the word " * 3
    told = Properties(reason_string=why)
    kind = Disconnect if connected else ConnAck
    limit = len(encode(kind(0x87, properties=told))) - less
    client = World(authority=Gate(why=why)).open()
    properties = Properties(method_and().items, maximum_packet_size=limit)
    client.send(Connect("a", properties=properties))
    if connected:
        client.send(auth(0x18))
    answer = client.send(auth(0x19 if connected else 0x18, b"no"))
    assert answer == [kind(0x87) if less else kind(0x87, properties=told)]
    assert client.is_closed()


@pytest.mark.parametrize("data", [None, b"", bytes(range(256)), WORD])
def test_a_hook_hears_what_the_client_said(data: bytes | None) -> None:
    """No Authentication Data is None, and empty data is empty"""
    world = World(authority=Gate())
    client = asked(world)
    client.send(auth(0x18, data))
    rounds = client.connection.authentication
    assert isinstance(rounds, Rounds)
    assert rounds.heard == [WORD, data]


def test_a_step_that_no_packet_could_carry_cannot_be_made() -> None:
    """What exists is valid; the mistake is the hook's, and does not look like the client's"""
    for code in (0x00, 0x01, 0x18, 0x8E, 0x100):
        with pytest.raises(ValueError, match="0x"):
            Denied(code)
    for code in REFUSALS:
        assert Denied(code).reason == code
    assert (Denied().reason, Denied().reason_string) == (0x87, None)
    with pytest.raises(ValueError, match="reason_string"):
        Denied(0x87, "x" * 65_536)
    assert Denied(0x87, "x" * 65_535).reason_string
    for step in (Challenge, Granted):
        with pytest.raises(ValueError, match="authentication_data"):
            step(bytes(65_536))
        assert step(bytes(65_535)).data == bytes(65_535)
        assert step().data is None


def test_a_method_that_a_hook_left_out_lets_nobody_in() -> None:
    """Class 12: nothing is granted by default"""
    for call in (ServerAuthentication().start, ServerAuthentication().answer):
        with pytest.raises(NotImplementedError):
            call(WORD)


def test_the_log_says_who_failed_to_authenticate_and_escapes_what_a_hook_says() -> None:
    world = World(authority=Gate(why="not \x1b the word"))
    client = asked(world)
    client.send(auth(0x18, b"no"))
    assert world.log[-1] == r"test:1 was refused as 'a': 0x87, 'not \x1b the word'"
    client = authenticated(world)
    client.send(auth(0x19, b"no"))
    assert world.log[-1] == "'a' (test:1) failed to re-authenticate: 0x87"
    assert not any(WORD.decode() in line or "no'" in line for line in world.log)
