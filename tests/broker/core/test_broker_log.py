"""Log lines that one user or one address causes: bounded per minute, and counted."""

from semel.broker import broker_log
from semel.broker.authority import Authority, Denied, Proof
from semel.broker.broker_log import OTHERS, BrokerLog, ClientLines, source_of
from semel.broker.identity import PASSWORD, Identity, PeerInfo, identity_of
from semel.broker.settings import BrokerSettings
from semel.mqtt import ConnAck, Connect, Disconnect, PingReq, Publish, Will
from tests.broker.world import Client, World


class Named(Authority):
    """Believes every user name, and fails if it is asked about some topics."""

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        if packet.user_name == "eve":
            return Denied(0x87)
        proof = "anonymous" if packet.user_name is None else PASSWORD
        return identity_of(packet.client_id, peer, user_name=packet.user_name, proof=proof)

    def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
        if topic_name == "fails":
            raise ValueError("no decision")
        return 0

    def receive(self, identity: Identity, topic_name: str) -> bool:
        if topic_name == "unreadable":
            raise ValueError("no decision")
        return True


def limited(lines: int = 3) -> World:
    return World(BrokerSettings(log_lines_per_minute=lines), Named())


def connect(
    world: World, client_id: str, user_name: str | None = None, *, peer: str = "192.0.2.1:9"
) -> Client:
    client = world.open(peer=peer)
    (connack,) = client.send(Connect(client_id, user_name=user_name))
    assert isinstance(connack, ConnAck)
    return client


def about(world: World, text: str) -> list[str]:
    return [line for line in world.log if text in line]


# --- the limit ------------------------------------------------------------------------------------


def test_lines_beyond_the_limit_are_counted_and_reported_when_the_minute_is_over() -> None:
    written: list[str] = []
    lines = ClientLines(written.append, 2)
    for number in range(5):
        lines.log("address a", f"line {number}\nwith more", 100.0 + number)
    lines.log("address b", "another", 104.0)
    assert written == ["line 0\nwith more", "line 1\nwith more", "another"]
    lines.flush(159.9)
    assert len(written) == 3
    lines.flush(160.0)
    assert written[3:] == ["… and 3 more lines about address a within 60 s, such as: line 4"]
    lines.log("address a", "next minute", 161.0)
    lines.flush(221.0)
    assert written[4:] == ["next minute"]
    assert len(lines) == 0


def test_a_minute_that_nobody_flushed_ends_with_the_next_line() -> None:
    written: list[str] = []
    lines = ClientLines(written.append, 1)
    for at in (0.0, 1.0, 60.0):
        lines.log("address a", f"at {at}", at)
    report = "… and 1 more line about address a within 60 s, such as: at 1.0"
    assert written == ["at 0.0", report, "at 60.0"]


def test_the_end_reports_what_was_counted() -> None:
    problems: list[str] = []
    connections: list[str] = []
    log = BrokerLog(problems.append, connections.append, lines_per_minute=1)
    for _ in range(3):
        log.problem("address a", "bad", 0.0)
        log.connection("address a", "connected", 0.0)
        log.fault("ours")
    log.end()
    log.end()
    assert problems[-1] == "… and 2 more lines about address a within 60 s, such as: bad"
    assert connections[-1] == "… and 2 more lines about address a within 60 s, such as: connected"
    assert problems.count("ours") == 3


def test_zero_limits_nothing() -> None:
    written: list[str] = []
    lines = ClientLines(written.append, 0)
    for _ in range(500):
        lines.log("address a", "line", 0.0)
    lines.flush(1e9)
    assert written == ["line"] * 500


def test_very_many_sources_share_one_count() -> None:
    written: list[str] = []
    lines = ClientLines(written.append, 1)
    for number in range(broker_log.MAXIMUM_SOURCES + 3):
        lines.log(f"address {number}", "x" * 400, 0.0)
    assert len(written) == broker_log.MAXIMUM_SOURCES + 1
    assert len(lines) == broker_log.MAXIMUM_SOURCES + 1
    lines.end()
    assert written[-1] == f"… and 2 more lines about {OTHERS} within 60 s, such as: {'x' * 300}"


def test_only_a_proved_user_has_lines_of_its_own() -> None:
    proved = Identity("c", user_name="a\nb", proof=PASSWORD, address="192.0.2.1")
    assert source_of(proved) == r"user 'a\nb'"
    claimed = Identity("c", user_name="ann", address="192.0.2.1")
    assert source_of(claimed) == "address 192.0.2.1"
    assert source_of(Identity("c")) == OTHERS


# --- what clients can cause -----------------------------------------------------------------------


def test_refusals_and_violations_of_an_address_do_not_hide_those_of_another() -> None:
    world = limited()
    for number in range(50):
        client = connect(world, f"c{number}", "eve", peer=f"192.0.2.1:{number}")
        assert client.is_closed()
    assert len(about(world, "was refused as")) == 3
    for number in range(50):
        # A first packet that is not CONNECT.
        world.open(peer=f"192.0.2.2:{number}").send(PingReq())
    assert len(about(world, "broke a rule")) == 3
    connect(world, "other", "eve", peer="192.0.2.3:1")
    assert about(world, "192.0.2.3:1 was refused as 'other'")
    world.wait(61)
    assert about(world, "… and 47 more lines about address 192.0.2.1 within 60 s, such as: ")
    assert about(world, "… and 47 more lines about address 192.0.2.2 within 60 s, such as: ")


def test_a_user_that_breaks_rules_does_not_hide_others_of_its_address() -> None:
    world = limited()
    for number in range(20):
        client = connect(world, "a", "ann", peer=f"192.0.2.{number}:1")
        client.send_bytes(b"\xf0\x00\x00")
        client.cut()
    assert len(about(world, "broke a rule")) == 3
    client = connect(world, "b", "bob", peer="192.0.2.1:1")
    client.send_bytes(b"\xf0\x00\x00")
    assert about(world, "'b' (192.0.2.1:1) broke a rule")
    world.wait(61)
    assert about(world, "… and 17 more lines about user 'ann' within 60 s, such as: 'a' (")


def test_connects_and_disconnects_are_limited_apart_from_problems() -> None:
    world = limited(4)
    for _ in range(30):
        connect(world, "a", "ann").send(Disconnect())
    assert len(about(world, "'a' (192.0.2.1:9)")) == 4
    connect(world, "a", "ann").send_bytes(b"\xf0\x00\x00")
    assert about(world, "'a' (192.0.2.1:9) broke a rule")
    connect(world, "b", "bob").cut()
    assert about(world, "'b' (192.0.2.1:9) connected")
    assert about(world, "'b' (192.0.2.1:9) lost its connection")
    world.broker.stop(world.now)
    assert about(world, "… and 57 more lines about user 'ann' within 60 s, such as: 'a'")


def test_failures_of_the_authority_and_lost_wills_are_limited() -> None:
    world = limited()
    publisher = connect(world, "p")
    for number in range(10):
        reader = connect(world, "a", "ann", peer=f"192.0.2.{number}:1")
        reader.subscribe("unreadable")
        publisher.send(Publish("unreadable", b"x"))
        assert reader.is_closed()
    assert len(about(world, "serving it failed")) == 3
    will = Will("will", b"x")
    for _ in range(10):
        client = world.open(peer="192.0.2.1:1")
        client.send(Connect("w", user_name="bob", will=will))
        assert client.connection.state is not None
        client.connection.state.will = Will("fails", b"x")
        client.cut()
    assert len(about(world, "will of 'w' lost")) == 3


def test_without_a_limit_every_line_is_written() -> None:
    world = limited(0)
    for number in range(200):
        connect(world, f"c{number}", "eve")
    assert len(about(world, "was refused as")) == 200
