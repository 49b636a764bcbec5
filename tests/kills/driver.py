"""The loop that runs all raw clients, in a thread of its own, and the journal of what they saw."""

import selectors
import socket
import threading
import time
from pathlib import Path
from random import Random
from types import TracebackType

from tests.kills import clients, guests
from tests.kills.account import Ledger, Named, Taker
from tests.kills.raw import OPEN, Raw
from tests.kills.rights import STEADY, Rights
from tests.kills.wire import V5, V311

# So many messages may be on their way to the slowest taker that is awake.
LAG = 400
# If the takers do not get on, publishers do after this time: what is lost is never taken.
STALLED_SECONDS = 0.3
TURN_SECONDS = 0.005


class Driver:
    """Clients, their account, and the thread they live in. As a context, it runs."""

    def __init__(
        self,
        port: int,
        seed: int,
        journal: Path,
        *,
        cut_rate: float,
        patience: float,
        rights: Rights | None = None,
    ) -> None:
        self.address = ("127.0.0.1", port)
        self.seed = seed
        # Whose rights change, if the broker has users. The others have one user together.
        self.rights = rights
        self.user = STEADY if rights is not None else ""
        self.random = Random(seed)
        # Connections that a client cuts by itself, in each second of each connection.
        self.cut_rate = cut_rate
        # How long a retained message may take to come.
        self.patience = patience
        self.ledger = Ledger()
        self.clients: list[Raw] = []
        # Whether anything new is to be sent: not before everyone has subscribed.
        self.loading = False
        self.now = time.monotonic()
        self.submitted = 0
        self.last_submitted = 0.0
        # The first taker: who waits for a will to come asks it.
        self.witness = self.taker("witness", 2)
        # Takers that are always there, and how many messages of raw publishers they have.
        self.pace: dict[str, int] = {}
        self.journal = journal.open("w")
        self.selector = selectors.DefaultSelector()
        self.stopping = False
        self.problem: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="raw clients", daemon=True)

    def taker(self, name: str, qos: int, *prefixes: str, order: str = "qos") -> Taker:
        taker = Taker(name, qos, prefixes or ("load/", "will/"), order=order)
        self.ledger.takers[name] = taker
        return taker

    def populate(self) -> None:
        """Everybody who takes part."""
        everything = [("load/#", 2), ("will/#", 2)]
        group = [("$share/g/load/#", 2)]
        taker = self.taker
        shared = taker("group", 2, "load/", order="")
        self.clients = [
            clients.Subscriber(self, "witness", V5, everything, self.witness),
            clients.Subscriber(self, "s-311", V311, everything, taker("s-311", 2), at_once=False),
            clients.Subscriber(
                self, "s-at-1", V5, [("load/#", 1), ("will/#", 1)], taker("s-at-1", 1), window=50
            ),
            clients.Subscriber(
                self, "sleeper-5", V5, everything, taker("sleeper-5", 2), sleeps=True
            ),
            clients.Subscriber(
                self, "sleeper-311", V311, everything, taker("sleeper-311", 2), sleeps=True
            ),
            clients.Subscriber(self, "group-a", V5, group, shared),
            clients.Subscriber(self, "group-b", V5, group, shared, at_once=False, window=8),
            clients.Publisher(self, "p1-311", V311, (1,), window=30),
            clients.Publisher(self, "p1-5", V5, (1,), window=10),
            clients.Publisher(self, "p2-311", V311, (2,), window=10),
            clients.Publisher(self, "p2-5", V5, (2,), window=30),
            clients.Publisher(self, "p12-5", V5, (1, 2), window=20),
            clients.Publisher(self, "p0-5", V5, (0,), window=5),
            clients.Bearer(self, "w-311", V311, durable=True),
            clients.Bearer(self, "w-5", V5, durable=False),
            clients.Bearer(self, "w-back", V5, durable=True, delay=300),
            clients.Bearer(self, "w-away", V5, durable=True, delay=1, returns_at_once=False),
            clients.Scribe(self, "n-311", V311, taker("n-311", 2, "note/n-311/")),
            clients.Scribe(self, "n-5", V5, taker("n-5", 2, "note/n-5/")),
        ]
        for version, name in ((V311, "k-311"), (V5, "k-5")):
            keeper = clients.Keeper(self, name, version)
            self.clients += [keeper, clients.Reader(self, f"{name}-reader", version, keeper)]
        if self.rights is not None:
            self.clients += guests.invite(self, self.rights)
        self.pace = dict.fromkeys(("witness", "s-311", "s-at-1", "group"), 0)

    def __enter__(self) -> "Driver":
        self.thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stopping = True
        self.thread.join()
        for client in self.clients:
            if client.socket is not None:
                client.socket.close()
        self.selector.close()
        self.journal.close()

    def _run(self) -> None:
        turns = list(self.clients)
        try:
            while not self.stopping:
                self.now = time.monotonic()
                # Nobody is always the first to use what the takers leave.
                self.random.shuffle(turns)
                for client in turns:
                    client.turn(self.now)
                for key, _ in self.selector.select(TURN_SECONDS):
                    client = key.data
                    if client.socket is key.fileobj:
                        client.read()
        except BaseException as problem:
            self.problem = problem
            raise

    def check(self) -> None:
        """Raises what ended the thread, if anything did."""
        if self.problem is not None:
            raise RuntimeError("the raw clients have stopped") from self.problem

    # --- for the clients -----------------------------------------------------------------------

    def watch(self, client: Raw, made: socket.socket) -> None:
        self.selector.register(made, selectors.EVENT_READ, client)

    def forget(self, made: socket.socket) -> None:
        self.selector.unregister(made)

    def write(self, client: Raw, text: str) -> None:
        """A line of the journal."""
        self.journal.write(f"{self.now:.3f} {self.ledger.life} {client.name} {text}\n")

    def taken(self, taker: Taker, named: Named, *, dup: bool | None) -> None:
        if taker.name in self.pace and named.key not in taker.takes:
            self.pace[taker.name] += named.key in self.ledger.sent and named.qos > 0
        taker.take(named, self.ledger.life, dup=dup)

    def may_submit(self) -> bool:
        """Whether the takers keep up. Else publishers would only fill queues."""
        if self.submitted - min(self.pace.values(), default=self.submitted) < LAG:
            self.last_submitted = self.now
            return True
        if self.now - self.last_submitted > STALLED_SECONDS:
            self.last_submitted = self.now
            return True
        return False

    # --- for who drives ------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Whether every subscription is there: from now on each message is for everyone."""
        return all(
            client.subscribed for client in self.clients if isinstance(client, clients.Subscriber)
        )

    def is_done(self) -> bool:
        """Whether every message is acknowledged to its end."""
        return all(client.is_done() for client in self.clients)

    def is_back(self) -> bool:
        """Whether all who take are connected to the broker of this life."""
        return all(
            client.state == OPEN and client.life == self.ledger.life
            for client in self.clients
            if client.taker is not None
        )

    def unfinished(self) -> list[str]:
        return [client.name for client in self.clients if not client.is_done()]
