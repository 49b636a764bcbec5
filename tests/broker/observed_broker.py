"""`semel broker`, which reports on request what its process holds.

    python -m tests.broker.observed_broker 3 --listener ...

The first argument is a file descriptor that the parent has opened; the others are those of `semel
broker`. Each line on its standard input is answered by a line of JSON on this descriptor, which is
an `Observation`.
"""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from semel.broker.network.server import Server
from tests.broker.broker_process import PATIENCE


@dataclass(frozen=True)
class Observation:
    """What a broker holds at one time."""

    # Connections of the network shell, of the core, and in a handshake.
    peers: int
    connections: int
    handshakes: int
    clients: int
    sessions: int
    retained: int
    # Clients whose password is being checked.
    proofs: int
    tasks: int
    threads: int
    files: int
    resident: int

    def held(self) -> dict[str, int]:
        """All but the memory, which never has the same size twice."""
        return {name: value for name, value in asdict(self).items() if name != "resident"}


def observe() -> Observation:
    """What the server in this process holds. Called in a thread of its own."""
    gc.collect()
    (server,) = [each for each in gc.get_objects() if isinstance(each, Server)]

    async def count() -> Observation:
        now = server.broker.snapshot(server.now())
        return Observation(
            peers=len(server.peers.by_number),
            connections=sum(now.connections.values()),
            handshakes=len(server.handshakes),
            clients=now.clients,
            sessions=now.sessions,
            retained=now.retained_messages,
            proofs=server.proofs.waiting,
            # Without this one.
            tasks=len(asyncio.all_tasks()) - 1,
            threads=threading.active_count(),
            files=len(os.listdir("/proc/self/fd")) - 1,
            resident=resident(),
        )

    return asyncio.run_coroutine_threadsafe(count(), server.loop).result(PATIENCE)


def resident() -> int:
    """Bytes of memory that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def answer(descriptor: int) -> None:
    """Observe whenever a line comes."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
    with os.fdopen(descriptor, "w", buffering=1) as answers:
        for _ in sys.stdin:
            print(json.dumps(asdict(observe())), file=answers)


class ObservedBroker:
    """Such a broker in a process of its own. As a context, it must also end well."""

    def __init__(self, *arguments: str) -> None:
        reader, writer = os.pipe()
        program = [sys.executable, "-m", "tests.broker.observed_broker", str(writer)]
        self.process = subprocess.Popen(
            [*program, "--json", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(writer,),
            cwd=Path(__file__).parent.parent.parent,
        )
        os.close(writer)
        self._answers = os.fdopen(reader)
        assert self.process.stdout is not None
        self._lines = self.process.stdout
        self.log: list[str] = []
        self.ports: dict[str, int] = {}
        while not self.ports:
            line = self._lines.readline()
            assert line, "".join(self.log)
            self.log.append(line)
            event = json.loads(line)
            if event["event"] == "ready":
                self.ports = {each["name"]: each["port"] for each in event["listeners"]}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        self.log.extend(self._lines)

    def observe(self) -> Observation:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return Observation(**json.loads(self._answers.readline()))

    def observe_rest(self, seconds: float) -> Observation:
        """What it holds when that has not changed for some seconds."""
        end = time.monotonic() + PATIENCE
        last = self.observe()
        since = time.monotonic()
        while time.monotonic() - since < seconds and time.monotonic() < end:
            time.sleep(0.1)
            found = self.observe()
            if found.held() != last.held():
                last, since = found, time.monotonic()
        return self.observe()

    def __enter__(self) -> "ObservedBroker":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.process.terminate()
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self._answers.close()
        self._reader.join()
        self._lines.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        log = "".join(self.log)
        assert code == 0, log[-5_000:]
        assert "Traceback" not in log, log[log.index("Traceback") - 200 :][:5_000]


def main() -> None:
    from semel.cli import main as semel

    descriptor, arguments = int(sys.argv[1]), sys.argv[2:]
    threading.Thread(target=answer, args=(descriptor,), name="observer", daemon=True).start()
    sys.argv = ["semel", "broker", *arguments]
    semel()


if __name__ == "__main__":
    main()
