"""The pool of proofs: fair, bounded, and no proof can harm another client."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from semel.broker.access.failures import FailureRate
from semel.broker.authority import Denied, Proof
from semel.broker.identity import Identity
from semel.broker.network import proof_pool as module
from semel.broker.network.proof_pool import Outcome, ProofPool
from semel.mqtt.reasons import (
    BAD_USER_NAME_OR_PASSWORD,
    NOT_AUTHORIZED,
    QUOTA_EXCEEDED,
    SERVER_BUSY,
    SERVER_UNAVAILABLE,
    UNSPECIFIED_ERROR,
)

# Long enough for any machine; no test waits for it unless it fails.
TIMEOUT = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Decided(Proof):
    """Returns, or raises, what it was given."""

    def __init__(self, result: object, log: list[str] | None = None, name: str = "") -> None:
        self.result = result
        self.log = log
        self.name = name

    def run(self) -> Identity | Denied:
        if self.log is not None:
            self.log.append(self.name)
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result  # type: ignore[return-value]


class Blocking(Proof):
    """Waits until it is released."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.then = then
        self.started = threading.Event()
        self.released = threading.Event()

    def run(self) -> Identity | Denied:
        self.started.set()
        assert self.released.wait(TIMEOUT)
        self.then()
        return Identity("blocking")


class Pool:
    """A pool whose loop is this thread, and the outcomes in the order in which they came."""

    def __init__(
        self, *, threads: int = 1, pending: int = 100, per_minute: int = 0, timeout: float = 10.0
    ) -> None:
        self.clock = Clock()
        self.rate = FailureRate(per_minute, clock=self.clock)
        self.outcomes: list[tuple[int, Outcome]] = []
        self.arrived = threading.Condition()
        self.pool = ProofPool(
            self.call,
            threads=threads,
            maximum_pending=pending,
            timeout=timeout,
            rate=self.rate,
            clock=self.clock,
        )

    def call(self, function: Callable[[], None]) -> None:
        with self.arrived:
            function()
            self.arrived.notify_all()

    def submit(self, key: int, proof: Proof, address: str = "a") -> None:
        self.pool.submit(
            key, proof, address=address, done=lambda outcome: self.outcomes.append((key, outcome))
        )

    def wait_for(self, count: int) -> list[tuple[int, Outcome]]:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.outcomes) >= count, TIMEOUT)
        return self.outcomes

    def reason(self, key: int) -> int:
        """The reason of a Denied outcome; 0 for an Identity."""
        outcome = dict(self.outcomes)[key]
        return outcome.reason if isinstance(outcome, Denied) else 0

    def block(self) -> Blocking:
        """Occupy a thread."""
        proof = Blocking()
        self.submit(-1, proof, "blocker")
        assert proof.started.wait(TIMEOUT)
        return proof


@pytest.fixture
def pools() -> Iterator[list[Pool]]:
    made: list[Pool] = []
    yield made
    for each in made:
        each.pool.close()


@pytest.fixture
def make(pools: list[Pool]) -> Callable[..., Pool]:
    def make_one(**options: float) -> Pool:
        pools.append(Pool(**options))  # type: ignore[arg-type]
        return pools[-1]

    return make_one


def test_an_outcome_is_reported(make: Callable[..., Pool]) -> None:
    pool = make()
    identity, denied = Identity("c"), Denied(NOT_AUTHORIZED)
    pool.submit(1, Decided(identity))
    pool.submit(2, Decided(denied))
    assert pool.wait_for(2) == [(1, identity), (2, denied)]
    assert pool.pool.waiting == 0


def test_threads_run_proofs_at_the_same_time(make: Callable[..., Pool]) -> None:
    pool = make(threads=2)
    both = [Blocking(), Blocking()]
    for key, proof in enumerate(both):
        pool.submit(key, proof)
    for proof in both:
        assert proof.started.wait(TIMEOUT)
    for proof in both:
        proof.released.set()
    pool.wait_for(2)


def test_addresses_take_turns(make: Callable[..., Pool]) -> None:
    pool = make()
    blocker = pool.block()
    order: list[str] = []
    for number in range(5):
        pool.submit(number, Decided(Identity("c"), order, f"flood {number}"), "flood")
    for number, address in enumerate(("x", "y", "x"), 10):
        pool.submit(number, Decided(Identity("c"), order, f"{address} {number}"), address)
    assert pool.pool.waiting == 8
    blocker.released.set()
    pool.wait_for(9)
    assert order == [
        *("flood 0", "x 10", "y 11", "flood 1", "x 12"),
        *("flood 2", "flood 3", "flood 4"),
    ]


def test_a_full_queue_costs_the_address_with_the_most(make: Callable[..., Pool]) -> None:
    pool = make(pending=4)
    blocker = pool.block()
    for number in range(4):
        pool.submit(number, Decided(Identity("c")), "flood")
    assert pool.outcomes == []
    # The address that has the most loses its newcomer, or its last one to another address.
    pool.submit(4, Decided(Identity("c")), "flood")
    assert pool.reason(4) == SERVER_BUSY
    pool.submit(5, Decided(Identity("c")), "x")
    assert pool.reason(3) == SERVER_BUSY
    pool.submit(6, Decided(Identity("c")), "x")
    assert pool.reason(2) == SERVER_BUSY
    # Now both have two.
    pool.submit(7, Decided(Identity("c")), "x")
    assert pool.reason(7) == SERVER_BUSY
    pool.submit(8, Decided(Identity("c")), "y")
    assert pool.reason(1) == SERVER_BUSY
    assert pool.pool.waiting == 4
    blocker.released.set()
    pool.wait_for(10)
    assert [pool.reason(key) for key in (0, 5, 6, 8)] == [0] * 4


def test_a_queue_of_one_can_be_full(make: Callable[..., Pool]) -> None:
    pool = make(pending=1)
    blocker = pool.block()
    pool.submit(1, Decided(Identity("c")), "x")
    pool.submit(2, Decided(Identity("c")), "y")
    assert pool.reason(2) == SERVER_BUSY
    blocker.released.set()
    pool.wait_for(3)
    assert pool.reason(1) == 0


def test_beyond_the_rate_of_failures_nothing_is_computed(make: Callable[..., Pool]) -> None:
    pool = make(per_minute=2)
    blocker = pool.block()
    order: list[str] = []
    for number in range(4):
        pool.submit(number, Decided(Denied(BAD_USER_NAME_OR_PASSWORD), order, str(number)), "x")
    pool.submit(9, Decided(Identity("c"), order, "9"), "y")
    blocker.released.set()
    pool.wait_for(6)
    # Two failures are allowed; those that waited behind them are refused unchecked.
    assert order == ["0", "9", "1"]
    assert [pool.reason(key) for key in range(4)] == [0x86, 0x86, QUOTA_EXCEEDED, QUOTA_EXCEEDED]
    pool.submit(20, Decided(Identity("c"), order, "20"), "x")
    assert pool.reason(20) == QUOTA_EXCEEDED
    pool.clock.now += 30
    pool.submit(21, Decided(Identity("c"), order, "21"), "x")
    pool.wait_for(8)
    assert pool.reason(21) == 0


@pytest.mark.parametrize(
    ("outcome", "counts"),
    [
        (Denied(BAD_USER_NAME_OR_PASSWORD), True),
        (Denied(NOT_AUTHORIZED), True),
        (Denied(SERVER_UNAVAILABLE), False),
        (Identity("c"), False),
        (ValueError("no"), False),
    ],
)
def test_only_failures_of_the_client_count(
    outcome: object, counts: bool, make: Callable[..., Pool]
) -> None:
    pool = make(per_minute=1)
    pool.submit(1, Decided(outcome))
    pool.wait_for(1)
    assert pool.rate.is_exceeded("a") is counts


@pytest.mark.parametrize("problem", [ValueError("no"), SystemExit(1), MemoryError(), None, True])
def test_a_proof_that_fails_refuses_its_client_only(
    problem: object, make: Callable[..., Pool], caplog: pytest.LogCaptureFixture
) -> None:
    pool = make()
    with caplog.at_level(logging.ERROR, "semel.broker"):
        pool.submit(1, Decided(problem), "192.0.2.7")
        pool.submit(2, Decided(Identity("c")), "192.0.2.8")
        pool.wait_for(2)
    assert (pool.reason(1), pool.reason(2)) == (UNSPECIFIED_ERROR, 0)
    (record,) = caplog.records
    assert record.getMessage() == "authenticating a client of 192.0.2.7 failed: refused"


def test_a_proof_that_waited_too_long_is_not_run(make: Callable[..., Pool]) -> None:
    pool = make(timeout=10.0)
    blocker = pool.block()
    order: list[str] = []
    pool.submit(1, Decided(Identity("c"), order, "1"))
    pool.clock.now += 10
    pool.submit(2, Decided(Identity("c"), order, "2"), "b")
    blocker.released.set()
    pool.wait_for(3)
    assert order == ["2"]
    assert (pool.reason(1), pool.reason(2)) == (SERVER_BUSY, 0)


def test_a_late_success_is_a_refusal(make: Callable[..., Pool]) -> None:
    pool = make(timeout=10.0)
    proof = pool.block()
    pool.clock.now += 10
    proof.released.set()
    pool.wait_for(1)
    assert pool.reason(-1) == SERVER_BUSY


def test_a_closed_connection_is_skipped_or_its_outcome_ignored(make: Callable[..., Pool]) -> None:
    pool = make()
    blocker = pool.block()
    order: list[str] = []
    for number, address in enumerate(("a", "a", "b"), 1):
        pool.submit(number, Decided(Identity("c"), order, str(number)), address)
    for key in (1, 3, -1, 77):
        pool.pool.cancel(key)
    assert pool.pool.waiting == 1
    blocker.released.set()
    pool.wait_for(1)
    assert [key for key, _ in pool.outcomes] == [2]
    assert order == ["2"]


def test_closing_ends_the_threads_and_reports_nothing(make: Callable[..., Pool]) -> None:
    pool = make(threads=2)
    blocker = pool.block()
    pool.submit(1, Decided(Identity("c")))
    pool.wait_for(1)
    blocker.then = pool.pool.close
    blocker.released.set()
    pool.pool.close()
    pool.submit(2, Decided(Identity("c")))
    assert [key for key, _ in pool.outcomes] == [1]


def test_closing_does_not_wait_long_for_a_proof(
    make: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.05)
    pool = make()
    blocker = pool.block()
    pool.pool.close()
    blocker.released.set()
    assert pool.outcomes == []


def test_outcomes_are_reported_on_the_event_loop() -> None:
    async def run() -> int:
        loop = asyncio.get_running_loop()
        pool = ProofPool(
            loop.call_soon_threadsafe,
            threads=1,
            maximum_pending=10,
            timeout=TIMEOUT,
            rate=FailureRate(0),
        )
        decided: asyncio.Future[int] = loop.create_future()
        here = threading.get_ident()
        pool.submit(
            1,
            Decided(Identity("c")),
            address="a",
            done=lambda outcome: decided.set_result(threading.get_ident() - here),
        )
        try:
            return await asyncio.wait_for(decided, TIMEOUT)
        finally:
            pool.close()

    assert asyncio.run(run()) == 0


def test_an_outcome_after_the_end_of_the_loop_is_dropped() -> None:
    loop = asyncio.new_event_loop()
    reported = threading.Event()

    def call(function: Callable[[], None]) -> None:
        try:
            loop.call_soon_threadsafe(function)
        finally:
            reported.set()

    pool = ProofPool(call, threads=1, maximum_pending=10, timeout=TIMEOUT, rate=FailureRate(0))
    loop.close()
    pool.submit(1, Decided(Identity("c")), address="a", done=lambda outcome: None)
    assert reported.wait(TIMEOUT)
    pool.close()
