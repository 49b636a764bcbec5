"""Runs a broker with one change, on a port of its own, until its input ends.

    python -m tests.probe.broker.mutants.broker NAME [PORT [DIRECTORY]]

Prints the port. With a directory its store is there. Without the hot path: every packet takes the
plain path, so that one change is enough for a changed conduct. NAME is "none" for no change.
"""

import asyncio
import contextlib
import logging
import sys
from pathlib import Path

from tests.probe.broker.mutants.source import SOURCES, install
from tests.probe.broker.mutants.table import broker_mutant

logging.basicConfig(level=logging.CRITICAL)


async def wait_for_end_of_input() -> None:
    """Wait until whoever started this process has ended or closed its end of the pipe."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


async def serve(port: int, directory: str) -> None:
    from semel.broker.authority import Authority
    from semel.broker.network.server import Server
    from semel.broker.settings import BrokerSettings
    from semel.mqtt import codec
    from semel.store.opening import open_store
    from semel.store.settings import OS, StoreSettings

    assert Path(str(codec.__file__)).is_relative_to(SOURCES), "mutants are interpreted"
    settings = BrokerSettings(host="127.0.0.1", port=port, response_topic_prefix="response")
    store = streams = None
    opened = None
    if directory:
        opened = open_store(StoreSettings(data=Path(directory), durability=OS), [])
        store, streams = opened.store, opened.streams
    server = Server(settings, Authority(), store, streams)
    server.broker.hot_path = None
    _, port = await server.start()
    print(port, flush=True)
    if directory:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
    else:
        await wait_for_end_of_input()
    await server.stop()
    if opened is not None:
        opened.close()


def main(name: str, port: str = "0", directory: str = "") -> None:
    if name != "none":
        install(broker_mutant(name).changes)
    asyncio.run(serve(int(port), directory))


if __name__ == "__main__":
    main(*sys.argv[1:])
