"""SCRAM-SHA-256 between the client and a server, over a socket."""

import pytest

from semel.broker.access.scram import ScramServerExchange
from semel.broker.access.scram_keys import ScramKeys, make_keys
from semel.broker.authority import Challenge, Denied, Granted, Step
from semel.broker.identity import Identity
from semel.client import Client, Disconnected, Refused, ScramAuthentication
from semel.client.scram import METHOD
from semel.mqtt import Auth, ConnAck, Connect, Properties
from semel.mqtt.reasons import BAD_USER_NAME_OR_PASSWORD, CONTINUE_AUTHENTICATION, SUCCESS
from tests.client.listening import run
from tests.client.servers import Scripted, Visit, start

KEYS = make_keys("secret", iterations=4096)


def exchange_with(keys: ScramKeys) -> ScramServerExchange:
    return ScramServerExchange(
        keys_of=lambda name: keys,
        grant=lambda name: Identity("a", user_name=name),
        refuse=lambda name, sentence: Denied(BAD_USER_NAME_OR_PASSWORD),
        user_name=None,
    )


def said(step: Step) -> Properties:
    assert isinstance(step, Challenge | Granted)
    return Properties(authentication_method=METHOD, authentication_data=step.data)


async def challenge(visit: Visit, exchange: ScramServerExchange, first: bytes | None) -> Step:
    """The server's part of an exchange, up to its decision."""
    visit.send(Auth(CONTINUE_AUTHENTICATION, properties=said(exchange.start(first))))
    answer = await visit.take(Auth)
    return exchange.answer(answer.properties.authentication_data)


def test_the_client_logs_in_and_again_on_the_same_connection() -> None:
    async def main() -> None:
        async with Scripted(None) as server:
            authentication = ScramAuthentication("ann", "secret")
            client = Client(server.url, client_id="a", authentication=authentication)
            opening = start(client.connect())
            visit = await server.visit(greeted=False)
            connect = await visit.take(Connect)
            assert connect.properties.authentication_method == METHOD
            assert (connect.user_name, connect.password) == (None, None)
            exchange = exchange_with(KEYS)
            step = await challenge(visit, exchange, connect.properties.authentication_data)
            visit.send(ConnAck(properties=said(step)))
            await opening
            again = start(client.reauthenticate())
            first = await visit.take(Auth)
            step = await challenge(visit, exchange, first.properties.authentication_data)
            visit.send(Auth(SUCCESS, properties=said(step)))
            await again
            await client.close()

    run(main())


def test_a_wrong_password_is_refused() -> None:
    async def main() -> None:
        async with Scripted(None) as server:
            authentication = ScramAuthentication("ann", "guess")
            client = Client(server.url, client_id="a", authentication=authentication)
            opening = start(client.connect())
            visit = await server.visit(greeted=False)
            connect = await visit.take(Connect)
            first = connect.properties.authentication_data
            step = await challenge(visit, exchange_with(KEYS), first)
            assert isinstance(step, Denied)
            visit.send(ConnAck(step.reason))
            with pytest.raises(Refused):
                await opening
            await client.close()

    run(main())


def test_a_server_that_does_not_know_the_password_is_rejected() -> None:
    async def main() -> None:
        async with Scripted(None) as server:
            authentication = ScramAuthentication("ann", "secret")
            client = Client(server.url, client_id="a", authentication=authentication)
            opening = start(client.connect())
            visit = await server.visit(greeted=False)
            connect = await visit.take(Connect)
            # It lets everybody in, but cannot sign.
            await challenge(visit, exchange_with(KEYS), connect.properties.authentication_data)
            visit.send(ConnAck(properties=said(Granted(b"v=" + b"A" * 43 + b"="))))
            with pytest.raises(Disconnected, match="could not prove that it knows the user"):
                await opening
            await client.close()

    run(main())
