"""Every packet that a server could send, from the vectors, to a live client on a real socket.

A packet that breaks a rule ends in `Disconnected` with that rule. One that is right by itself may
still be out of place: whether it is, an `Exchange` of the server's says, which has seen the same
packets as the client. What is right and in its place leaves the client as it was.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass

import pytest

from semel import vectors
from semel.client import Client, ClientAuthentication, Disconnected, Messages, Refused
from semel.mqtt import (
    LARGEST_PACKET,
    MQTT5,
    NO_PROPERTIES,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Rule,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Violation,
    decode,
    exchange_rules,
)
from semel.mqtt.packet_types import CONNACK, CONNECT, DISCONNECT
from semel.mqtt.properties import (
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY_INTERVAL,
)
from semel.mqtt.reasons import (
    DISCONNECT_ONLY_SERVER,
    PROTOCOL_ERROR,
    RE_AUTHENTICATE,
    REASONS_5,
    SUCCESS,
)
from semel.mqtt.side import SERVER
from tests.client.listening import run
from tests.client.servers import BOTH, Scripted, Visit, accept, start
from tests.mqtt.vectors import RULE_BY_NAME, VERSIONS, Trace, load_traces

METHOD = "method"
# [3.14.2.1] reasons that a client may give for its DISCONNECT
MAY_SAY = REASONS_5[DISCONNECT] - DISCONNECT_ONLY_SERVER


@dataclass
class FromServer:
    """A vector whose bytes a server could send."""

    file: str
    name: str
    version: int
    data: bytes
    rule: Rule | None
    maximum: int | None

    @property
    def is_connack(self) -> bool:
        return self.data[0] >> 4 == CONNACK

    @property
    def packet(self) -> Packet:
        return packet_of(self.data, self.version)


def packet_of(data: bytes, version: int) -> Packet:
    decoded = decode(data, version)
    assert decoded is not None
    return decoded[0]


def vectors_of(*directions: str) -> list[FromServer]:
    found = []
    for file in vectors.names():
        for entry in vectors.load(file):
            if "bytes" not in entry or entry["direction"] not in directions:
                continue
            maximum = entry.get("maximum_packet_size")
            assert maximum is None or isinstance(maximum, int)
            found.append(
                FromServer(
                    file,
                    str(entry["name"]),
                    VERSIONS[str(entry["version"])],
                    vectors.parse_bytes(str(entry["bytes"])),
                    RULE_BY_NAME[str(entry["rule"])] if "rule" in entry else None,
                    maximum,
                )
            )
    return found


ALL = vectors_of("S>C", "both")
FROM_CLIENTS = vectors_of("C>S")
BROKEN = [vector for vector in ALL if vector.rule is not None]
RIGHT = [vector for vector in ALL if vector.rule is None]


def files(listed: list[FromServer]) -> list[str]:
    return sorted({vector.file for vector in listed})


def client_for(server: Scripted, vector: FromServer, **more: object) -> Client:
    """One that takes what the vector's size needs, and comes back by no means."""
    options: dict[str, object] = {"client_id": "a", "version": vector.version, **more}
    if vector.version == MQTT5 and vector.maximum is not None:
        options["maximum_packet_size"] = vector.maximum
    return Client(server.url, reconnect=False, connect_timeout=10.0, **options)  # type: ignore[arg-type]


async def ending(client: Client) -> Exception:
    """Why the client's connection is over."""
    with pytest.raises((Disconnected, Refused)) as caught:
        await anext(client.messages())
    return caught.value


def check_last_word(visit: Visit, version: int, rule: Rule, *, greeted: bool) -> None:
    """[MQTT-4.13.1-1] In 5.0 the client says what was wrong, in a code that clients may send."""
    said = [packet for packet in visit.sent if isinstance(packet, Disconnect)]
    if version != MQTT5 or not greeted:
        assert said == []
        return
    wanted = rule.reason if rule.reason in MAY_SAY else PROTOCOL_ERROR
    assert [packet.reason for packet in said] == [wanted]
    assert visit.sent[-1] is said[0]


@pytest.mark.parametrize("file", files(BROKEN))
def test_a_packet_that_breaks_a_rule_ends_the_connection_with_that_rule(file: str) -> None:
    """[MQTT-4.8.0-1] (3.1.1) [MQTT-4.13.1-1] (5.0)"""

    async def play(vector: FromServer) -> None:
        assert vector.rule is not None
        async with Scripted(None if vector.is_connack else accept) as server:
            client = client_for(server, vector)
            opening = start(client.connect())
            visit = await server.visit()
            if vector.is_connack:
                visit.send_bytes(vector.data)
                with pytest.raises(Disconnected) as caught:
                    await opening
                problem: Exception = caught.value
            else:
                await opening
                visit.send_bytes(vector.data)
                problem = await ending(client)
            await visit.end()
            await client.close()
            assert isinstance(problem, Disconnected)
            assert problem.violation is not None, problem
            assert problem.violation.rule is vector.rule, (problem, vector.rule)
            check_last_word(visit, vector.version, vector.rule, greeted=not vector.is_connack)

    async def main() -> None:
        for vector in BROKEN:
            if vector.file == file:
                try:
                    await play(vector)
                except BaseException as problem:
                    problem.add_note(f"{vector.version} {vector.name}")
                    raise

    run(main())


@pytest.mark.parametrize("file", files(FROM_CLIENTS))
def test_what_only_a_client_sends_is_refused_from_a_server_right_or_wrong(file: str) -> None:
    """[U3-02] [U5-02] and what the client says of it is what a client may say."""

    async def play(vector: FromServer) -> None:
        async with Scripted() as server:
            client = client_for(server, vector)
            await client.connect()
            visit = await server.visit()
            visit.send_bytes(vector.data)
            problem = await ending(client)
            await visit.end()
            await client.close()
            assert isinstance(problem, Disconnected)
            assert problem.violation is not None, problem
            rule = problem.violation.rule
            # A CONNECT sets the version of what comes after it, in vain.
            if vector.rule is not None and vector.data[0] >> 4 != CONNECT:
                assert rule is vector.rule
            check_last_word(visit, vector.version, rule, greeted=True)

    async def main() -> None:
        for vector in FROM_CLIENTS:
            if vector.file == file:
                try:
                    await play(vector)
                except BaseException as problem:
                    problem.add_note(f"{vector.version} {vector.name}")
                    raise

    run(main())


class Ready(ClientAuthentication):
    """Answers whatever it is asked."""

    def respond(self, data: bytes | None) -> bytes | None:
        return data


def judged(visit: Visit, packet: Packet, size: int) -> Rule | None:
    """The rule that the packet breaks at this moment, if that ends a connection."""
    found: list[Violation] = []
    visit.exchange.observe(SERVER, packet, size, found)
    closing = [violation.rule for violation in found if violation.rule.closes]
    return closing[0] if closing else None


async def still_there(client: Client, visit: Visit) -> None:
    """The client goes on as if nothing had been."""
    await client.publish("still/there", b"yes")
    while True:
        packet = await visit.packet()
        if isinstance(packet, Publish) and packet.topic_name == "still/there":
            return


async def check_ended(client: Client, visit: Visit, rule: Rule) -> None:
    problem = await ending(client)
    assert isinstance(problem, Disconnected)
    assert problem.violation is not None, problem
    assert problem.violation.rule is rule, (problem, rule)
    await visit.end()


async def play_connack(vector: FromServer) -> bool:
    """A CONNACK is the answer to a CONNECT that may be answered so. Whether it was taken."""
    packet = vector.packet
    assert isinstance(packet, ConnAck)
    properties = packet.properties
    more: dict[str, object] = {"clean_start": not packet.session_present}
    if properties.response_information is not None:
        more["properties"] = Properties(request_response_information=1)
    if properties.authentication_method is not None:
        more["authentication"] = Ready(properties.authentication_method)
    if packet.session_present and vector.version != MQTT5:
        # A session that outlives its connection is what CleanSession 0 asks for.
        more["session_expiry"] = 1
    async with Scripted(None) as server:
        client = client_for(server, vector, **more)
        opening = start(client.connect())
        visit = await server.visit()
        rule = judged(visit, packet, len(vector.data))
        visit.send_bytes(vector.data)
        if rule is not None:
            with pytest.raises(Disconnected) as caught:
                await opening
            assert caught.value.violation is not None
            assert caught.value.violation.rule is rule
        elif packet.reason:
            with pytest.raises(Refused) as refused:
                await opening
            assert refused.value.reason == packet.reason
            assert refused.value.packet_type == CONNACK
        elif packet.session_present:
            with pytest.raises(Disconnected) as caught:
                await opening
            assert caught.value.violation is None
        else:
            await opening
            if properties.maximum_packet_size is None or properties.maximum_packet_size > 100:
                await still_there(client, visit)
            assert client.server == properties
        await client.close()
        return rule is None


async def play_auth(vector: FromServer) -> bool:
    """An AUTH comes while the client authenticates anew by its method. Whether it was taken."""
    packet = vector.packet
    assert isinstance(packet, Auth)
    method = packet.properties.authentication_method or METHOD
    answer = ConnAck(properties=Properties(authentication_method=method))
    async with Scripted(answer) as server:
        client = client_for(server, vector, authentication=Ready(method))
        await client.connect()
        visit = await server.visit()
        again = start(client.reauthenticate())
        await visit.take(Auth)
        rule = judged(visit, packet, len(vector.data))
        visit.send_bytes(vector.data)
        if rule is not None:
            with pytest.raises(Disconnected):
                await again
            await check_ended(client, visit, rule)
        else:
            if packet.reason:
                await visit.take(Auth)
                visit.send(Auth(SUCCESS, properties=Properties(authentication_method=method)))
            await again
            await still_there(client, visit)
        await client.close()
        return rule is None


async def play_other(vector: FromServer) -> bool:
    """Two exchanges are open that the packet may be about. Whether it was taken."""
    aliases = Properties(topic_alias_maximum=65535) if vector.version == MQTT5 else NO_PROPERTIES
    async with Scripted() as server:
        client = client_for(server, vector, properties=aliases)
        await client.connect()
        visit = await server.visit()
        going: list[asyncio.Task[object]] = []
        data = vector.data
        if vector.file in ("puback", "pubrec", "pubcomp"):
            await begin_publications(client, visit, vector.file, going)
        elif vector.file in ("suback", "unsuback"):
            data = await begin_requests(client, visit, vector, going)
        elif vector.file == "pubrel":
            await begin_receipts(client, visit)
        packet = packet_of(data, vector.version)
        rule = judged(visit, packet, len(data))
        visit.send_bytes(data)
        if isinstance(packet, Disconnect) and rule is None:
            problem = await ending(client)
            assert isinstance(problem, Disconnected)
            assert (problem.reason, problem.violation) == (packet.reason, None)
            assert await visit.end() == []
        elif rule is not None:
            await check_ended(client, visit, rule)
        else:
            await still_there(client, visit)
        await client.close()
        await asyncio.gather(*going, return_exceptions=True)
        return rule is None


async def begin_publications(
    client: Client, visit: Visit, file: str, going: list[asyncio.Task[object]]
) -> None:
    """Messages 1 and 2 wait for that answer."""
    for _ in range(2):
        going.append(start(client.publish("a", qos=1 if file == "puback" else 2)))
    sent = [await visit.take(Publish) for _ in range(2)]
    if file == "pubcomp":
        visit.send(*(PubRec(each.packet_id) for each in sent))
        for _ in sent:
            await visit.take(PubRel)


async def begin_requests(
    client: Client, visit: Visit, vector: FromServer, going: list[asyncio.Task[object]]
) -> bytes:
    """Requests 1 and 2 wait for their answer. The vector, of a request that does."""
    iterators = [client.subscribe("a"), client.subscribe("b")]
    asked = [await visit.take(Subscribe) for _ in iterators]
    if vector.file == "suback":
        return vector.data
    visit.send(*(SubAck(each.packet_id, [0]) for each in asked))
    for iterator in iterators:
        await iterator
        going.append(start(iterator.unsubscribe()))
    ended = [(await visit.take(Unsubscribe)).packet_id for _ in iterators]
    packet = vector.packet
    assert isinstance(packet, UnsubAck)
    if packet.packet_id > len(ended):
        return vector.data
    # Identifiers 1 and 2 were those of the SUBSCRIBEs.
    number = ended[packet.packet_id - 1].to_bytes(2, "big")
    at = vector.data.index(packet.packet_id.to_bytes(2, "big"), 2)
    return vector.data[:at] + number + vector.data[at + 2 :]


async def begin_receipts(client: Client, visit: Visit) -> None:
    """Messages 1 and 2 of the server wait for PUBREL."""
    messages = client.messages(auto_ack=False)
    for identifier in (1, 2):
        visit.send(Publish("a", qos=2, packet_id=identifier))
        (await anext(messages)).ack()
        await visit.take(PubRec)


@pytest.mark.parametrize("file", files(RIGHT))
def test_a_right_packet_is_taken_where_it_is_in_its_place(file: str) -> None:
    """Too strict is wrong too."""

    async def main() -> None:
        taken = 0
        for vector in RIGHT:
            if vector.file != file:
                continue
            play = play_other
            if vector.is_connack:
                play = play_connack
            elif file == "auth":
                play = play_auth
            try:
                taken += await play(vector)
            except BaseException as problem:
                problem.add_note(f"{vector.version} {vector.name}")
                raise
        assert taken

    run(main())


# --- traces ---------------------------------------------------------------------------------------

# Rules that a server breaks after it has ended the connection: the client is gone by then.
TOO_LATE = (exchange_rules.NOTHING_AFTER_REFUSAL, exchange_rules.NOTHING_AFTER_DISCONNECT)
# What the client says by itself, in answer to what the server says.
BY_ITSELF = (PubAck, PubRec, PubRel, PubComp)
# Properties of CONNECT that are arguments of the client.
OWN = (
    SESSION_EXPIRY_INTERVAL,
    RECEIVE_MAXIMUM,
    MAXIMUM_PACKET_SIZE,
    AUTHENTICATION_METHOD,
    AUTHENTICATION_DATA,
)
# An identifier that the client does not use here.
NOT_OPEN = 60_000


def steps_of(trace: Trace) -> list[tuple[bool, Packet]]:
    """Whether the client says it, and what."""
    return [(side == "C>S", packet_of(data, trace.version)) for side, data in trace.steps]


def is_playable(trace: Trace) -> bool:
    """Whether a program can bring a client to say what it says there, on a first connection."""
    steps = steps_of(trace)
    if trace.carried or steps[-1][0]:
        return False
    connected = False
    for mine, packet in steps[1:]:
        if isinstance(packet, ConnAck):
            if packet.session_present and packet is not steps[-1][1]:
                return False
            connected = True
        elif mine:
            if isinstance(packet, Disconnect | PingReq):
                return False
            if not connected and not isinstance(packet, Auth):
                return False
            if isinstance(packet, Publish) and (packet.dup or packet.properties.present):
                return False
            if isinstance(packet, Subscribe) and len(packet.subscriptions) > 1:
                return False
            if isinstance(packet, Unsubscribe) and len(packet.topic_filters) > 1:
                return False
    return True


class Player:
    """A client, and the program that has it say what a trace wants."""

    def __init__(self, server: Scripted, connect: Connect) -> None:
        self.server = server
        self.going: list[asyncio.Task[object]] = []
        # Identifiers of the client's packets: the trace's, and those that the client chose.
        self.ids: dict[int, int] = {}
        method = connect.properties.authentication_method
        rest = [item for item in connect.properties.items if item[0] not in OWN]
        self.client = Client(
            server.url,
            client_id=connect.client_id,
            version=connect.version,
            clean_start=connect.clean_start,
            session_expiry=connect.properties.session_expiry_interval
            or (0 if connect.clean_start else 1),
            receive_maximum=connect.properties.receive_maximum or 100,
            maximum_packet_size=connect.properties.maximum_packet_size,
            authentication=None if method is None else Ready(method),
            properties=Properties(rest),
            reconnect=False,
        )

    def start(self, work: Coroutine[object, object, object]) -> None:
        self.going.append(start(work))

    async def consume(self, messages: Messages) -> None:
        async for _ in messages:
            pass

    async def say(self, visit: Visit, packet: Packet) -> None:
        """Let the client say something like it."""
        client = self.client
        if isinstance(packet, BY_ITSELF):
            await visit.take(type(packet))
        elif isinstance(packet, Publish):
            self.start(client.publish(packet.topic_name, packet.payload, packet.qos))
            self.ids[packet.packet_id] = (await visit.take(Publish)).packet_id
        elif isinstance(packet, Subscribe):
            self.start(self.consume(client.subscribe(packet.subscriptions[0])))
            self.ids[packet.packet_id] = (await visit.take(Subscribe)).packet_id
        elif isinstance(packet, Unsubscribe):
            # Whatever else the trace has subscribed to, this one is the program's to end.
            messages = client.subscribe("own/" + packet.topic_filters[0])
            visit.send(SubAck((await visit.take(Subscribe)).packet_id, [0]))
            await messages
            self.start(messages.unsubscribe())
            self.ids[packet.packet_id] = (await visit.take(Unsubscribe)).packet_id
        else:
            assert isinstance(packet, Auth)
            if packet.reason == RE_AUTHENTICATE:
                self.start(client.reauthenticate())
            await visit.take(Auth)

    def hear(self, visit: Visit, packet: Packet) -> None:
        """Let the server say it, to the identifier that the client chose."""
        if isinstance(packet, PubAck | PubRec | PubComp):
            number = self.ids.get(packet.packet_id, NOT_OPEN)
            packet = type(packet)(number, packet.reason, properties=packet.properties)
        elif isinstance(packet, SubAck | UnsubAck):
            number = self.ids.get(packet.packet_id, NOT_OPEN)
            packet = type(packet)(number, packet.reasons, properties=packet.properties)
        visit.misbehave(packet)

    async def stop(self) -> None:
        await self.client.close()
        for problem in await asyncio.gather(*self.going, return_exceptions=True):
            assert problem is None or isinstance(problem, int | Disconnected | Refused), problem


async def play_trace(trace: Trace) -> None:
    (_, connect), *steps = steps_of(trace)
    assert isinstance(connect, Connect)
    async with Scripted(None) as server:
        player = Player(server, connect)
        client = player.client
        player.start(client.connect())
        visit = await server.visit()
        last: Packet = connect
        for mine, packet in steps:
            if mine:
                await player.say(visit, packet)
            elif trace.rule not in TOO_LATE or packet is not steps[-1][1]:
                player.hear(visit, packet)
                last = packet
            if isinstance(packet, ConnAck) and packet is not steps[-1][1] and not packet.reason:
                await player.going[0]
                player.start(player.consume(client.messages()))
        if len(steps) == 1 or not player.going[0].done():
            await check_opening(player, trace.rule, last)
        elif trace.rule is not None and trace.rule.closes and trace.rule not in TOO_LATE:
            await check_ended(client, visit, trace.rule)
        elif isinstance(last, Disconnect):
            problem = await ending(client)
            assert isinstance(problem, Disconnected)
            assert (problem.reason, problem.violation) == (last.reason, None)
        else:
            await still_there(client, visit)
        await player.stop()


async def check_opening(player: Player, rule: Rule | None, last: Packet) -> None:
    """What becomes of a client that is not connected yet."""
    opening = player.going[0]
    if rule is not None and rule not in TOO_LATE:
        with pytest.raises(Disconnected) as caught:
            await opening
        assert caught.value.violation is not None
        assert caught.value.violation.rule is rule
    elif isinstance(last, ConnAck) and last.reason:
        with pytest.raises(Refused) as refused:
            await opening
        assert refused.value.reason == last.reason
    elif isinstance(last, ConnAck) and last.session_present:
        with pytest.raises(Disconnected):
            await opening
    elif isinstance(last, ConnAck):
        await opening
    else:
        assert isinstance(last, Auth)


TRACES = [trace for trace in load_traces() if is_playable(trace)]


@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize("version", BOTH)
def test_what_a_server_says_out_of_place_ends_the_connection_with_its_rule(
    version: int, is_right: bool
) -> None:
    """And what it says in its place does not."""

    async def main() -> None:
        for trace in TRACES:
            if trace.version == version and (trace.rule is None) is is_right:
                try:
                    await play_trace(trace)
                except BaseException as problem:
                    problem.add_note(trace.name)
                    raise

    run(main())


def test_there_are_hundreds_of_each() -> None:
    assert len(BROKEN) > 900
    assert len(RIGHT) > 400
    assert len(FROM_CLIENTS) > 800
    assert len(TRACES) > 150
    assert all(vector.maximum is None or vector.maximum < LARGEST_PACKET for vector in ALL)
