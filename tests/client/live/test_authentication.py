"""Enhanced authentication (5.0, section 4.12) by a method of the program's."""

import asyncio
import hashlib
import hmac

import pytest

from semel.client import Client, ClientAuthentication, Disconnected, Refused
from semel.mqtt import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Properties,
    Publish,
    exchange_rules,
)
from semel.mqtt.reasons import CONTINUE_AUTHENTICATION, RE_AUTHENTICATE, SUCCESS
from tests.client.listening import run
from tests.client.servers import QUICK, Scripted, Visit, start, turns

METHOD = "CHALLENGE-RESPONSE"
SECRET = b"sesame"


def proof(of: bytes) -> bytes:
    return hmac.new(SECRET, of, hashlib.sha256).digest()


def said(data: bytes | None = None, method: str = METHOD) -> Properties:
    return Properties(authentication_method=method, authentication_data=data)


class Mutual(ClientAuthentication):
    """Each side proves to the other that it knows a secret."""

    def __init__(self) -> None:
        super().__init__(METHOD)
        self.begun = 0
        self.answered = 0
        self.finished: list[bytes | None] = []

    def begin(self) -> bytes:
        self.begun += 1
        return b"nonce of the client"

    def respond(self, data: bytes | None) -> bytes:
        self.answered += 1
        assert data is not None
        return proof(data)

    def finish(self, data: bytes | None) -> None:
        self.finished.append(data)
        if data != proof(b"nonce of the client"):
            raise ValueError("this is not our server")


class Slow(ClientAuthentication):
    """The same, but each answer takes its time."""

    def __init__(self) -> None:
        super().__init__(METHOD)
        self.inner = Mutual()

    async def begin(self) -> bytes:
        await turns(3)
        return self.inner.begin()

    async def respond(self, data: bytes | None) -> bytes:
        await turns(3)
        return self.inner.respond(data)

    async def finish(self, data: bytes | None) -> None:
        await turns(3)
        self.inner.finish(data)


async def challenge(visit: Visit) -> None:
    """The server's part, up to its last word."""
    visit.send(Auth(CONTINUE_AUTHENTICATION, properties=said(b"nonce of the server")))
    answer = await visit.take(Auth)
    assert answer.reason == CONTINUE_AUTHENTICATION
    assert answer.properties.authentication_method == METHOD
    assert answer.properties.authentication_data == proof(b"nonce of the server")


OK = said(proof(b"nonce of the client"))


@pytest.mark.parametrize("kind", [Mutual, Slow])
def test_both_sides_prove_who_they_are(kind: type[ClientAuthentication]) -> None:
    """[4.12] and [MQTT-3.1.2-30]: nothing but AUTH leaves before the CONNACK."""

    async def main() -> None:
        async with Scripted(None) as server:
            client = Client(server.url, client_id="a", authentication=kind())  # type: ignore[call-arg]
            opening = start(client.connect())
            visit = await server.visit(greeted=False)
            connect = await visit.take(Connect)
            assert connect.properties.authentication_method == METHOD
            assert connect.properties.authentication_data == b"nonce of the client"
            await challenge(visit)
            await challenge(visit)
            await turns()
            assert not opening.done()
            visit.send(ConnAck(properties=OK))
            await opening
            await client.publish("b")
            assert (await visit.take(Publish)).topic_name == "b"
            await client.close()
            kinds = [type(each).__name__ for each in visit.sent]
            assert kinds == ["Connect", "Auth", "Auth", "Publish", "Disconnect"]

    run(main())


def test_nothing_but_auth_leaves_before_the_connack() -> None:
    """[MQTT-3.1.2-30] on a later connection, when the program has much to say"""

    async def main() -> None:
        async with Scripted(ConnAck(properties=OK), None) as server:
            method = Mutual()
            client = Client(server.url, client_id="a", authentication=method, reconnect=QUICK)
            await client.connect()
            (await server.visit()).cut()
            while client.connected:
                await asyncio.sleep(0)
            going = [start(client.publish("b", qos=qos)) for qos in range(3)]
            messages = client.subscribe("c")
            visit = await server.visit()
            await challenge(visit)
            await turns(20)
            assert visit.waiting() == []
            visit.send(ConnAck(session_present=True, properties=OK))
            # And now all of it does.
            names = {type(await visit.packet()).__name__ for _ in range(4)}
            assert names == {"Publish", "Subscribe"}
            assert (method.begun, method.answered, len(method.finished)) == (2, 1, 2)
            del messages
            await client.close()
            await asyncio.gather(*going, return_exceptions=True)

    run(main())


@pytest.mark.parametrize("kind", [Mutual, Slow])
def test_a_server_that_cannot_prove_itself_is_told_nothing(
    kind: type[ClientAuthentication],
) -> None:
    async def main() -> None:
        async with Scripted(ConnAck(properties=said(b"wrong"))) as server:
            client = Client(server.url, client_id="a", authentication=kind())  # type: ignore[call-arg]
            with pytest.raises(Disconnected, match="not our server"):
                await client.connect()
            visit = await server.visit()
            packets = await visit.end()
            assert [type(each) for each in packets] in ([], [Disconnect])
            with pytest.raises(Disconnected):
                await client.publish("secret")

    run(main())


def test_a_client_that_is_refused_is_refused() -> None:
    """[MQTT-4.12.0-4]"""

    async def main() -> None:
        async with Scripted(None) as server:
            opening = start(Client(server.url, client_id="a", authentication=Mutual()).connect())
            visit = await server.visit()
            await challenge(visit)
            visit.send(ConnAck(0x87, properties=Properties(authentication_method=METHOD)))
            with pytest.raises(Refused) as caught:
                await opening
            assert caught.value.reason == 0x87

    run(main())


class Failing(ClientAuthentication):
    """One that fails at a moment of its choice."""

    def __init__(self, moment: str, *, later: bool) -> None:
        super().__init__(METHOD)
        self.moment = moment
        self.later = later

    def _do(self, moment: str) -> bytes | None:
        if moment == self.moment:
            raise ValueError("no ticket")
        return b"x"

    async def _later(self, moment: str) -> bytes | None:
        await asyncio.sleep(0)
        return self._do(moment)

    def begin(self):  # type: ignore[no-untyped-def]
        return self._later("begin") if self.later else self._do("begin")

    def respond(self, data):  # type: ignore[no-untyped-def]
        return self._later("respond") if self.later else self._do("respond")

    def finish(self, data):  # type: ignore[no-untyped-def]
        return self._later("finish") if self.later else self._do("finish")


@pytest.mark.parametrize("later", [True, False])
@pytest.mark.parametrize("moment", ["begin", "respond", "finish"])
def test_a_method_that_fails_ends_in_disconnected(
    moment: str, later: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Scripted(None) as server:
            client = Client(server.url, client_id="a", authentication=Failing(moment, later=later))
            opening = start(client.connect())
            if moment != "begin":
                visit = await server.visit()
                visit.send(Auth(CONTINUE_AUTHENTICATION, properties=said(b"?")))
                if moment == "finish":
                    await visit.take(Auth)
                    visit.send(ConnAck(properties=said(b"!")))
                await visit.end()
            with pytest.raises(Disconnected, match="no ticket"):
                await opening

    run(main())
    assert not [each for each in caplog.records if each.exc_info]


def test_a_method_without_an_answer_cannot_be_used() -> None:
    async def main() -> None:
        async with Scripted(None) as server:
            opening = start(
                Client(
                    server.url, client_id="a", authentication=ClientAuthentication(METHOD)
                ).connect()
            )
            visit = await server.visit()
            visit.send(Auth(CONTINUE_AUTHENTICATION, properties=said(b"?")))
            with pytest.raises(Disconnected):
                await opening

    run(main())


@pytest.mark.parametrize(
    ("packet", "rule"),
    [
        (
            Auth(CONTINUE_AUTHENTICATION, properties=said(b"?", "OTHER")),
            exchange_rules.AUTH_METHOD_KEPT,
        ),
        (Auth(RE_AUTHENTICATE, properties=said()), exchange_rules.REASON_CODE_FROM_ITS_SIDE),
        (Auth(SUCCESS, properties=said()), exchange_rules.AUTH_IN_TURN),
        (ConnAck(properties=said(b"", "OTHER")), exchange_rules.AUTH_METHOD_KEPT),
        (ConnAck(), exchange_rules.AUTH_METHOD_KEPT),
    ],
)
def test_a_server_that_authenticates_wrongly_breaks_a_rule(packet: object, rule: object) -> None:
    async def main() -> None:
        async with Scripted(None) as server:
            method = Mutual()
            opening = start(Client(server.url, client_id="a", authentication=method).connect())
            visit = await server.visit()
            visit.misbehave(packet)  # type: ignore[arg-type]
            with pytest.raises(Disconnected) as caught:
                await opening
            assert caught.value.violation is not None
            assert caught.value.violation.rule is rule
            assert (method.answered, method.finished) == (0, [])

    run(main())


# --- authenticating anew --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Mutual, Slow])
def test_a_client_may_authenticate_anew_while_it_publishes(
    kind: type[ClientAuthentication],
) -> None:
    """[MQTT-4.12.1-1]"""

    async def main() -> None:
        async with Scripted(ConnAck(properties=OK)) as server:
            client = Client(server.url, client_id="a", authentication=kind())  # type: ignore[call-arg]
            async with client:
                visit = await server.visit()
                again = start(client.reauthenticate())
                packet = await visit.take(Auth)
                assert packet.reason == RE_AUTHENTICATE
                assert packet.properties == said(b"nonce of the client")
                await client.publish("meanwhile")
                assert (await visit.take(Publish)).topic_name == "meanwhile"
                await challenge(visit)
                assert not again.done()
                visit.send(Auth(SUCCESS, properties=OK))
                await again
                await client.publish("still/there")

    run(main())


def test_one_who_is_refused_anew_is_disconnected() -> None:
    """[MQTT-4.12.1-2] the connection is closed, by the server"""

    async def main() -> None:
        async with Scripted(ConnAck(properties=OK)) as server:
            client = Client(server.url, client_id="a", authentication=Mutual(), reconnect=False)
            async with client:
                visit = await server.visit()
                again = start(client.reauthenticate())
                await visit.take(Auth)
                visit.send(Disconnect(0x87))
                with pytest.raises(Disconnected) as caught:
                    await again
                assert caught.value.reason == 0x87
                assert await visit.end() == []

    run(main())


@pytest.mark.parametrize("kind", [Mutual, Slow])
def test_a_server_that_cannot_prove_itself_anew_is_left(kind: type[ClientAuthentication]) -> None:
    """[MQTT-4.12.1-2] the connection is closed, by the client, with a DISCONNECT that says so"""

    async def main() -> None:
        async with Scripted(ConnAck(properties=OK)) as server:
            client = Client(server.url, client_id="a", authentication=kind())  # type: ignore[call-arg]
            async with client:
                visit = await server.visit()
                again = start(client.reauthenticate())
                await visit.take(Auth)
                visit.send(Auth(SUCCESS, properties=said(b"wrong")))
                with pytest.raises(Disconnected, match="not our server"):
                    await again
                (last,) = await visit.end()
                assert isinstance(last, Disconnect)
                assert last.reason >= 0x80

    run(main())


def test_two_who_authenticate_anew_take_turns() -> None:
    async def main() -> None:
        async with (
            Scripted(ConnAck(properties=OK)) as server,
            Client(server.url, client_id="a", authentication=Mutual()) as client,
        ):
            visit = await server.visit()
            going = [start(client.reauthenticate()) for _ in range(2)]
            for _ in going:
                await visit.take(Auth)
                await turns()
                visit.send(Auth(SUCCESS, properties=OK))
            async with asyncio.timeout(5):
                await asyncio.gather(*going)

    run(main())


def test_authenticating_anew_may_be_cancelled_and_begun_again() -> None:
    async def main() -> None:
        async with (
            Scripted(ConnAck(properties=OK)) as server,
            Client(server.url, client_id="a", authentication=Mutual()) as client,
        ):
            visit = await server.visit()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.reauthenticate(), 0.02)
            await visit.take(Auth)
            again = start(client.reauthenticate())
            await visit.take(Auth)
            visit.send(Auth(SUCCESS, properties=OK), Auth(SUCCESS, properties=OK))
            await again
            await client.publish("still/there")

    run(main())


def test_a_connection_that_is_lost_ends_it() -> None:
    async def main() -> None:
        async with Scripted(ConnAck(properties=OK)) as server:
            client = Client(server.url, client_id="a", authentication=Mutual(), reconnect=QUICK)
            async with client:
                visit = await server.visit()
                again = start(client.reauthenticate())
                await visit.take(Auth)
                visit.cut()
                with pytest.raises(Disconnected):
                    await again

    run(main())


def test_without_a_method_there_is_nothing_to_do_anew() -> None:
    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            with pytest.raises(ValueError, match="authentication"):
                await client.reauthenticate()

    run(main())


class Stuck(ClientAuthentication):
    """Asks somebody who does not answer."""

    async def respond(self, data: bytes | None) -> bytes | None:
        await asyncio.get_running_loop().create_future()
        return None


def test_a_method_that_is_stuck_does_not_outlive_its_connection() -> None:
    async def main() -> None:
        async with Scripted(None) as server:
            client = Client(server.url, client_id="a", authentication=Stuck(METHOD))
            opening = start(client.connect())
            visit = await server.visit()
            for _ in range(3):
                visit.send(Auth(CONTINUE_AUTHENTICATION, properties=said(b"?")))
                await turns()
            visit.close()
            with pytest.raises(Disconnected):
                await opening

    run(main())


def test_a_method_that_is_stuck_is_bounded_by_the_time_to_connect() -> None:
    async def main() -> None:
        async with Scripted(None) as server:
            client = Client(
                server.url, client_id="a", authentication=Stuck(METHOD), connect_timeout=0.05
            )
            opening = start(client.connect())
            visit = await server.visit()
            visit.send(Auth(CONTINUE_AUTHENTICATION, properties=said(b"?")))
            with pytest.raises(Disconnected):
                await opening

    run(main())
