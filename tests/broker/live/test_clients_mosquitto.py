"""Mosquitto's programs against the live broker: mosquitto_pub, mosquitto_sub and mosquitto_rr.

Each is started as in a shell. A subscriber tells on its standard output (-d) when it has its
SUBACK, and every one ends by itself in time (-W), so that nothing here hangs.
"""

import itertools
import shutil
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.broker.broker_process import PATIENCE, Process

# stdbuf: what mosquitto_sub writes into a pipe would otherwise come when it ends.
PROGRAMS = ("mosquitto_pub", "mosquitto_sub", "mosquitto_rr", "stdbuf")
MISSING = [program for program in PROGRAMS if shutil.which(program) is None]

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")

VERSIONS = {"3.1.1": "mqttv311", "5.0": "mqttv5"}
ON_ALL_VERSIONS = pytest.mark.parametrize("version", VERSIONS)
AT_EVERY_QOS = pytest.mark.parametrize("qos", [0, 1, 2])
AT_QOS_1_AND_2 = pytest.mark.parametrize("qos", [1, 2])

# Nothing, every byte there is, what is no text, and more than one read of a socket brings.
PAYLOADS = (b"", bytes(range(256)), b"\x00", b"\xff\xfe", bytes(200_000))
TOPICS = ("größe", "温度/🌡", "/", "a//b/", "with space/*")

# mosquitto_pub's exit code when its connection ends.
LOST = 7
# For -F: what `parse_message` reads.
FORM = "%q %r %x %t"

number = itertools.count()


class Message(NamedTuple):
    topic: str
    payload: bytes
    qos: int
    retain: bool


def parse_message(line: str) -> Message:
    qos, retain, payload, topic = line.split(" ", 3)
    return Message(topic, bytes.fromhex(payload), int(qos), retain == "1")


class Subscriber:
    """mosquitto_sub, still running, and the codes of its SUBACK."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            ["stdbuf", "-oL", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.passed: list[str] = []
        self.early: list[Message] = []
        self.granted: list[int] = []

    def wait(self) -> None:
        """Wait for the SUBACK. What a session has kept may come before it."""
        self.granted = [int(code) for code in self.line("Subscribed (mid: 1): ").split(", ")]
        # It tries again, every second, after a failure.
        assert sum("sending CONNECT" in line for line in self.passed) == 1
        lines = [line for line in self.passed if line.startswith("message ")]
        self.early = [parse_message(line.removeprefix("message ")) for line in lines]

    def line(self, beginning: str) -> str:
        """The rest of the next line that begins like this."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            text = line.decode().rstrip("\n")
            if text.startswith(beginning):
                return text.removeprefix(beginning)
            self.passed.append(text)
        raise AssertionError(f"no {beginning!r}, but {self.passed}")

    def receive(self) -> Message:
        """The next message."""
        return self.early.pop(0) if self.early else parse_message(self.line("message "))

    def before(self, topic: str) -> list[Message]:
        """The messages before the next one to this topic."""
        received = [self.receive()]
        while received[-1].topic != topic:
            received.append(self.receive())
        return received[:-1]

    def end(self) -> int:
        """Wait until it has ended by itself. Its exit code."""
        self.process.communicate(timeout=PATIENCE)
        return self.process.returncode

    def leave(self) -> None:
        """Let it disconnect, if it is still there.

        mosquitto_sub sometimes stays when the signal comes while it handles a message; that is not
        what is tested here.
        """
        self.process.terminate()
        try:
            self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()


class Shell:
    """Where a test starts programs. Its topics and client identifiers are its own."""

    def __init__(self, broker: Process, root: str) -> None:
        self.root = root
        self.subscribers: list[Subscriber] = []
        self.use(broker)

    def use(self, broker: Process) -> None:
        """From now on, connect to this broker."""
        host, port = broker.address
        self.address = ["-h", host, "-p", f"{port}"]

    def run(
        self, program: str, version: str, *options: str, payload: bytes | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a program to its end; a payload comes from its standard input."""
        return subprocess.run(
            [program, *self.address, "-V", VERSIONS[version], *options],
            input=payload,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )

    def publish(
        self, version: str, topic: str, payload: bytes, *options: str, qos: int = 0
    ) -> None:
        """mosquitto_pub, which must have nothing to complain of."""
        common = ["-t", topic, "-q", f"{qos}", "-s" if payload else "-n", *options]
        result = self.run("mosquitto_pub", version, *common, payload=payload)
        assert (result.returncode, result.stderr) == (0, b"")

    def subscribe(
        self, version: str, *options: str, qos: int = 2, form: str = f"message {FORM}"
    ) -> Subscriber:
        """mosquitto_sub, which has its SUBACK."""
        command = ["mosquitto_sub", *self.address, "-V", VERSIONS[version], "-q", f"{qos}"]
        command += ["-d", "-W", f"{PATIENCE:.0f}", "-F", form, *options]
        subscriber = Subscriber(command)
        self.subscribers.append(subscriber)
        subscriber.wait()
        return subscriber


@pytest.fixture(scope="module")
def broker() -> Iterator[Process]:
    with Process() as process:
        yield process


@pytest.fixture
def shell(broker: Process) -> Iterator[Shell]:
    shell = Shell(broker, f"mosquitto-{next(number)}")
    yield shell
    for subscriber in shell.subscribers:
        subscriber.leave()


def topic_of(message: Message) -> str:
    return message.topic


# --- round trips ----------------------------------------------------------------------------------


@ON_ALL_VERSIONS
@AT_EVERY_QOS
def test_what_is_published_is_received(shell: Shell, version: str, qos: int) -> None:
    expected = [
        Message(f"{shell.root}/{topic}", payload, qos, False)
        for topic, payload in itertools.product(TOPICS, PAYLOADS)
    ]
    subscriber = shell.subscribe(version, "-t", f"{shell.root}/#", "-C", f"{len(expected)}")
    assert subscriber.granted == [2]
    for message in expected:
        shell.publish(version, message.topic, message.payload, qos=qos)
    # Within a topic there is an order, between topics there is none.
    received = [subscriber.receive() for _ in expected]
    assert sorted(received, key=topic_of) == sorted(expected, key=topic_of)
    assert subscriber.end() == 0


@ON_ALL_VERSIONS
@AT_EVERY_QOS
def test_a_message_arrives_at_the_lower_qos(shell: Shell, version: str, qos: int) -> None:
    """[MQTT-3.8.4-8] (3.1.1: [MQTT-3.8.4-6]): of the message's QoS and the granted one"""
    shell.publish(version, f"{shell.root}/t", b"kept", "-r", qos=2)
    subscriber = shell.subscribe(version, "-t", f"{shell.root}/t", qos=qos)
    assert subscriber.granted == [qos]
    assert subscriber.receive() == (f"{shell.root}/t", b"kept", qos, True)
    for published in (0, 1, 2):
        shell.publish(version, f"{shell.root}/t", b"%d" % published, qos=published)
        assert subscriber.receive()[1:3] == (b"%d" % published, min(qos, published))


@AT_EVERY_QOS
@pytest.mark.parametrize(("sender", "receiver"), [("3.1.1", "5.0"), ("5.0", "3.1.1")])
def test_the_versions_talk_to_each_other(
    shell: Shell, sender: str, receiver: str, qos: int
) -> None:
    subscriber = shell.subscribe(receiver, "-t", f"{shell.root}/#")
    said = ["-D", "publish", "content-type", "text/plain"] if sender == "5.0" else []
    shell.publish(sender, f"{shell.root}/ü", b"\x00\xff", *said, qos=qos)
    assert subscriber.receive() == (f"{shell.root}/ü", b"\x00\xff", qos, False)


@ON_ALL_VERSIONS
@AT_QOS_1_AND_2
def test_a_thousand_lines_arrive_once_and_in_order(shell: Shell, version: str, qos: int) -> None:
    """[MQTT-4.6.0-5] (3.1.1: [MQTT-4.6.0-6])"""
    subscriber = shell.subscribe(version, "-t", f"{shell.root}/+")
    lines = b"".join(b"%d\n" % each for each in range(1_000))
    options = ["-t", f"{shell.root}/t", "-q", f"{qos}", "-l"]
    assert shell.run("mosquitto_pub", version, *options, payload=lines).returncode == 0
    shell.publish(version, f"{shell.root}/last", b"", qos=2)
    received = subscriber.before(f"{shell.root}/last")
    assert received == [(f"{shell.root}/t", b"%d" % each, qos, False) for each in range(1_000)]


# --- retained messages, wills ---------------------------------------------------------------------


@ON_ALL_VERSIONS
@AT_EVERY_QOS
def test_a_retained_message_is_kept_flagged_and_deleted(
    shell: Shell, version: str, qos: int
) -> None:
    """[MQTT-3.3.1-5] to [MQTT-3.3.1-8] [MQTT-3.3.1-12] (3.1.1: [MQTT-3.3.1-5] to -12)"""
    topic, last = f"{shell.root}/kept", f"{shell.root}/last"
    shell.publish(version, topic, b"old", "-r", qos=qos)
    shell.publish(version, topic, b"new", "-r", qos=qos)
    shell.publish(version, topic, b"passes by", qos=qos)
    subscriber = shell.subscribe(version, "-t", f"{shell.root}/+")
    assert subscriber.receive() == (topic, b"new", qos, True)
    # To a subscription that exists it comes as any other message.
    shell.publish(version, topic, b"newer", "-r", qos=qos)
    assert subscriber.receive() == (topic, b"newer", qos, False)
    shell.publish(version, topic, b"", "-r", qos=qos)
    assert subscriber.receive() == (topic, b"", qos, False)
    late = shell.subscribe(version, "-t", f"{shell.root}/+")
    shell.publish(version, last, b"", qos=2)
    assert late.before(last) == []


def test_retain_as_published_is_heeded(shell: Shell) -> None:
    """[MQTT-3.3.1-13]"""
    subscriber = shell.subscribe("5.0", "-t", f"{shell.root}/t", "--retain-as-published")
    shell.publish("5.0", f"{shell.root}/t", b"kept", "-r", qos=1)
    shell.publish("5.0", f"{shell.root}/t", b"not kept", qos=1)
    assert subscriber.receive() == (f"{shell.root}/t", b"kept", 1, True)
    assert subscriber.receive() == (f"{shell.root}/t", b"not kept", 1, False)


def will_options(topic: str, qos: int) -> list[str]:
    return ["--will-topic", topic, "--will-payload", "gone", "--will-qos", f"{qos}"]


@ON_ALL_VERSIONS
@AT_EVERY_QOS
@pytest.mark.parametrize("retain", [False, True])
def test_a_client_that_is_killed_leaves_its_will(
    shell: Shell, version: str, qos: int, retain: bool
) -> None:
    """[MQTT-3.1.2-8]"""
    topic, last = f"{shell.root}/will", f"{shell.root}/last"
    watcher = shell.subscribe(version, "-t", topic)
    options = will_options(topic, qos) + (["--will-retain"] if retain else [])
    shell.subscribe(version, "-t", "nothing", *options).process.kill()
    assert watcher.receive() == (topic, b"gone", qos, False)
    late = shell.subscribe(version, "-t", topic, "-t", last)
    shell.publish(version, last, b"", qos=2)
    assert late.before(last) == ([(topic, b"gone", qos, True)] if retain else [])


@ON_ALL_VERSIONS
def test_a_client_that_leaves_well_takes_its_will_back(shell: Shell, version: str) -> None:
    """[MQTT-3.14.4-3]"""
    watcher = shell.subscribe(version, "-t", f"{shell.root}/+")
    options = will_options(f"{shell.root}/will", 1)
    client = shell.subscribe(version, "-t", f"{shell.root}/go", "-C", "1", *options)
    shell.publish(version, f"{shell.root}/go", b"", qos=2)
    assert client.end() == 0
    shell.publish(version, f"{shell.root}/last", b"", qos=2)
    assert watcher.before(f"{shell.root}/last") == [(f"{shell.root}/go", b"", 2, False)]


def test_a_client_that_is_interrupted_leaves_its_will_in_5_0(shell: Shell) -> None:
    """[MQTT-3.14.4-3] spares a will at code 0x04, which mosquitto_sub sends after a signal"""
    watcher = shell.subscribe("5.0", "-t", f"{shell.root}/+")
    shell.subscribe("5.0", "-t", "nothing", *will_options(f"{shell.root}/will", 1)).leave()
    assert watcher.receive() == (f"{shell.root}/will", b"gone", 1, False)


# --- sessions -------------------------------------------------------------------------------------


@ON_ALL_VERSIONS
@AT_QOS_1_AND_2
@pytest.mark.parametrize("abruptly", [False, True])
def test_a_session_keeps_what_came_meanwhile(
    shell: Shell, version: str, qos: int, abruptly: bool
) -> None:
    """[MQTT-3.1.2-5] (3.1.1: [MQTT-3.1.2-4]) [MQTT-4.5.0-1]"""
    topic = f"{shell.root}/t"
    options = ["-c", "-i", shell.root, "-t", topic]
    first = shell.subscribe(version, *options, qos=qos)
    if abruptly:
        first.process.kill()
    else:
        first.leave()
    for each in range(20):
        shell.publish(version, topic, b"%d" % each, qos=qos)
    # It may have them all, and end, before its new SUBSCRIBE is answered.
    options += ["-q", f"{qos}", "-C", "20", "-W", f"{PATIENCE:.0f}", "-F", FORM]
    result = shell.run("mosquitto_sub", version, *options)
    assert result.returncode == 0
    received = [parse_message(line) for line in result.stdout.decode().splitlines()]
    assert received == [(topic, b"%d" % each, qos, False) for each in range(20)]


@ON_ALL_VERSIONS
def test_a_clean_start_forgets_the_session(shell: Shell, version: str) -> None:
    """[MQTT-3.1.2-4] (3.1.1: [MQTT-3.1.2-6])"""
    old, last = f"{shell.root}/old", f"{shell.root}/last"
    shell.subscribe(version, "-c", "-i", shell.root, "-t", old).leave()
    shell.publish(version, old, b"for nobody", qos=1)
    fresh = shell.subscribe(version, "-i", shell.root, "-t", last)
    shell.publish(version, old, b"for nobody", qos=1)
    shell.publish(version, last, b"", qos=2)
    assert fresh.before(last) == []


def test_a_second_connection_takes_over(shell: Shell) -> None:
    """[MQTT-3.1.4-3]"""
    first = shell.subscribe("5.0", "-i", shell.root, "-t", f"{shell.root}/t")
    second = shell.subscribe("5.0", "-i", shell.root, "-t", f"{shell.root}/t")
    assert first.line("Received DISCONNECT ") == "(142)"
    shell.publish("5.0", f"{shell.root}/t", b"for the second", qos=1)
    assert second.receive() == (f"{shell.root}/t", b"for the second", 1, False)


def test_a_3_1_1_client_whose_connection_was_taken_comes_back(shell: Shell) -> None:
    """[MQTT-3.1.4-2]: it is disconnected, which it is not told; it connects anew after a second"""
    topic = f"{shell.root}/t"
    first = shell.subscribe("3.1.1", "-c", "-i", shell.root, "-t", topic)
    shell.publish("3.1.1", "elsewhere", b"x", "-c", "-i", shell.root, qos=1)
    first.line(f"Client {shell.root} sending CONNECT")
    shell.publish("3.1.1", topic, b"later", qos=1)
    assert first.receive() == (topic, b"later", 1, False)


# --- shared subscriptions -------------------------------------------------------------------------


@ON_ALL_VERSIONS
@AT_EVERY_QOS
def test_two_workers_share_the_work(shell: Shell, version: str, qos: int) -> None:
    """[4.8.2] each message to one of them"""
    last = f"{shell.root}/last"
    options = ["-t", f"$share/{shell.root}/{shell.root}/work", "-t", last]
    workers = [shell.subscribe(version, *options) for _ in range(2)]
    lines = b"".join(b"%d\n" % each for each in range(60))
    published = ["-t", f"{shell.root}/work", "-q", f"{qos}", "-l"]
    assert shell.run("mosquitto_pub", version, *published, payload=lines).returncode == 0
    shell.publish(version, last, b"", qos=2)
    shares = [[int(message.payload) for message in worker.before(last)] for worker in workers]
    assert sorted(shares[0] + shares[1]) == [*range(60)]
    assert all(shares)


# --- the properties of 5.0 ------------------------------------------------------------------------


@AT_EVERY_QOS
def test_the_properties_of_a_message_arrive_unaltered(shell: Shell, qos: int) -> None:
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] to [MQTT-3.3.2-20] [MQTT-3.3.4-3]"""
    topic = f"{shell.root}/t"
    form = "format %F | %C | %R | %D | %P | %S"
    identifier = ["-D", "subscribe", "subscription-identifier", "268435455"]
    subscriber = shell.subscribe("5.0", "-t", topic, *identifier, form=form)
    said = (
        ("payload-format-indicator", "1"),
        ("content-type", "text/plain; Größe"),
        ("response-topic", f"{shell.root}/antwort/ü"),
        ("correlation-data", "bytes"),
        ("user-property", "b", "2"),
        ("user-property", "a", "1"),
        ("user-property", "b", "🌡"),
    )
    options = [word for each in said for word in ("-D", "publish", *each)]
    shell.publish("5.0", topic, "größe".encode(), *options, qos=qos)
    assert subscriber.line("format ") == (
        f"1 | text/plain; Größe | {shell.root}/antwort/ü | bytes | b:2 a:1 b:🌡 | 268435455"
    )


def test_what_remains_of_an_expiry_interval_is_told(shell: Shell) -> None:
    """[MQTT-3.3.2-6]"""
    subscriber = shell.subscribe("5.0", "-t", f"{shell.root}/t", form="expires %E")
    interval = ["-D", "publish", "message-expiry-interval", "100000"]
    shell.publish("5.0", f"{shell.root}/t", b"x", *interval, qos=1)
    assert 99_000 < int(subscriber.line("expires ")) <= 100_000


@AT_EVERY_QOS
def test_an_alias_stands_for_its_topic(shell: Shell, qos: int) -> None:
    """[MQTT-3.3.2-12]: with --repeat, mosquitto_pub sends the topic once and then the alias"""
    subscriber = shell.subscribe("5.0", "-t", f"{shell.root}/#")
    topic = f"{shell.root}/ü"
    options = ["-t", topic, "-m", "x", "-q", f"{qos}", "-D", "publish", "topic-alias", "100"]
    result = shell.run("mosquitto_pub", "5.0", *options, "--repeat", "3", "-d")
    assert (result.returncode, result.stdout.count(b"'(null)'")) == (0, 2)
    assert [subscriber.receive() for _ in range(3)] == [(topic, b"x", qos, False)] * 3


@ON_ALL_VERSIONS
@AT_EVERY_QOS
def test_mosquitto_rr_gets_its_answer(shell: Shell, version: str, qos: int) -> None:
    """[4.10] where 3.1.1 has no properties the answer's topic is agreed upon"""
    request, answer = f"{shell.root}/request", f"{shell.root}/answer"
    data = ["-D", "publish", "correlation-data", "17"] if version == "5.0" else []
    responder = shell.subscribe(version, "-t", request, form="request %R|%D|%p")
    options = ["-t", request, "-e", answer, "-m", "how much", "-q", f"{qos}", "-v", *data]
    with subprocess.Popen(
        [
            "mosquitto_rr",
            *shell.address,
            "-V",
            VERSIONS[version],
            "-W",
            f"{PATIENCE:.0f}",
            *options,
        ],
        stdout=subprocess.PIPE,
    ) as requester:
        where, correlation, question = responder.line("request ").split("|")
        assert question == "how much"
        assert (where, correlation) == ((answer, "17") if version == "5.0" else ("", ""))
        shell.publish(version, where or answer, b"so much", *data, qos=qos)
        assert requester.communicate(timeout=PATIENCE)[0] == f"{answer} so much\n".encode()
    assert requester.returncode == 0


# --- refusals -------------------------------------------------------------------------------------


@ON_ALL_VERSIONS
def test_one_client_too_many_is_told_so(shell: Shell, version: str) -> None:
    """[MQTT-3.2.2-7] (3.1.1: [MQTT-3.2.2-5]): return code 3, or the reason code Server busy"""
    with Process("--maximum-connections", "1") as process:
        shell.use(process)
        first = shell.subscribe(version, "-t", "t")
        result = shell.run("mosquitto_pub", version, "-t", "t", "-m", "x")
        assert result.returncode == (0x89 if version == "5.0" else 3)
        first.leave()
        assert first.process.returncode == 0


def test_an_authentication_method_that_nobody_knows_is_refused(shell: Shell) -> None:
    """[MQTT-4.12.0-1]"""
    method = ["-D", "connect", "authentication-method", "unheard of"]
    result = shell.run("mosquitto_pub", "5.0", "-t", "t", "-m", "x", *method)
    assert result.returncode == 0x8C
    assert b"Bad authentication method" in result.stderr


def test_the_version_before_3_1_1_is_refused(shell: Shell) -> None:
    """[MQTT-3.1.2-1] [MQTT-3.1.2-2]: closed, with CONNACK 0x01 or without a word"""
    result = shell.run("mosquitto_pub", "3.1.1", "-V", "mqttv31", "-t", "t", "-m", "x")
    assert result.returncode in (1, LOST)


@ON_ALL_VERSIONS
def test_one_subscription_too_many_is_refused_alone(shell: Shell, version: str) -> None:
    """[MQTT-3.8.4-6] [MQTT-3.8.4-7] (3.1.1: [MQTT-3.8.4-5], one code for every failure)"""
    with Process("--maximum-subscriptions", "2") as process:
        shell.use(process)
        subscriber = shell.subscribe(version, "-t", "a", "-t", "b", "-t", "c", qos=1)
        assert subscriber.granted == [1, 1, 0x97 if version == "5.0" else 0x80]
        for topic in ("c", "b"):
            shell.publish(version, topic, b"x", qos=1)
        assert subscriber.receive() == ("b", b"x", 1, False)
        subscriber.leave()


@ON_ALL_VERSIONS
@AT_QOS_1_AND_2
def test_nobody_publishes_under_the_brokers_own_topics(
    shell: Shell, version: str, qos: int
) -> None:
    """[3.4.2.1] [3.5.2.1] 0x87; 3.1.1 cannot say so, and acknowledges [MQTT-3.3.5-2]"""
    topic = f"$SYS/{shell.root}"
    subscriber = shell.subscribe(version, "-t", topic, "-t", shell.root)
    options = ["-t", topic, "-m", "forged", "-q", f"{qos}"]
    result = shell.run("mosquitto_pub", version, *options)
    assert (b"Not authorized" in result.stderr) == (version == "5.0")
    shell.publish(version, shell.root, b"", qos=2)
    assert subscriber.before(shell.root) == []


@ON_ALL_VERSIONS
def test_a_packet_too_large_is_not_taken(shell: Shell, version: str) -> None:
    """[MQTT-3.2.2-15] mosquitto_pub 5.0 knows the bound and sends nothing; 3.1.1 cannot know it"""
    with Process("--maximum-packet-size", "2000") as process:
        shell.use(process)
        subscriber = shell.subscribe(version, "-t", "t", qos=1)
        # A byte of header, two of length, five for the topic and the identifier, 5.0's properties.
        room = 2_000 - 3 - 5 - (version == "5.0")
        options = ["-t", "t", "-q", "1", "-s", "-d"]
        # Not by one byte: mosquitto_pub 2.0.11 forgets the first one in its count.
        result = shell.run("mosquitto_pub", version, *options, payload=bytes(room + 100))
        if version == "5.0":
            assert b"sending PUBLISH" not in result.stdout
        else:
            assert result.returncode == LOST
        shell.publish(version, "t", bytes(room), qos=1)
        assert subscriber.receive() == ("t", bytes(room), 1, False)
        subscriber.leave()
